"""Statement events: every value exact, or an error at the call."""

from __future__ import annotations

import base64
import enum
import json
import math
import struct
import uuid
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal

import pytest

import litepost
from conftest import log
from litepost import Json, encode_statement


def decode(payload: str) -> tuple[str, list | dict]:
    """A small reference decoder, written from the contract and not from the encoder."""

    def value(raw):
        if not isinstance(raw, dict):
            assert raw is None or isinstance(raw, (bool, int, float, str))
            if isinstance(raw, int) and not isinstance(raw, bool):
                struct.pack("<q", raw)
            return raw
        ((tag, body),) = raw.items()
        return {
            "$blob": lambda: base64.b64decode(body, validate=True),
            "$float": lambda: {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[body],
            "$decimal": lambda: Decimal(body),
            "$timestamp": lambda: datetime.fromisoformat(body.removesuffix("Z") + "+00:00"),
            "$uuid": lambda: uuid.UUID(body),
            "$json": lambda: ("json", body),
        }[tag]()

    def no_constant(name):
        raise AssertionError(f"{name} is not JSON")

    document = json.loads(payload, parse_constant=no_constant)
    assert list(document) == ["sql", "args"]
    args = document["args"]
    if isinstance(args, dict):
        return document["sql"], {name: value(raw) for name, raw in args.items()}
    return document["sql"], [value(raw) for raw in args]


def test_the_form():
    assert encode_statement("INSERT INTO t VALUES (?, ?)", [42, 99.99]) == (
        '{"sql":"INSERT INTO t VALUES (?, ?)","args":[42,99.99]}'
    )
    at = datetime(2026, 11, 30, 6, 5, 6, 789_000, tzinfo=timezone(timedelta(hours=2)))
    args = {
        "a": None, "b": True, "c": 2**63 - 1, "d": -(2**63), "e": 1e300, "f": "Zo\u00eb \"q\"\n", "g": b"\x00\xff",
        "h": Decimal("12.30"), "i": at, "j": uuid.UUID(int=5), "k": Json({"x": [1, 2]}), "l": math.nan, "m": -math.inf,
        "n": Decimal("1E+3"),
    }  # fmt: skip
    assert encode_statement("X :a", args) == (
        '{"sql":"X :a","args":{"a":null,"b":true,"c":9223372036854775807,"d":-9223372036854775808,"e":1e+300,'
        '"f":"Zo\u00eb \\"q\\"\\n","g":{"$blob":"AP8="},"h":{"$decimal":"12.30"},'
        '"i":{"$timestamp":"2026-11-30T04:05:06.789000Z"},"j":{"$uuid":"00000000-0000-0000-0000-000000000005"},'
        '"k":{"$json":{"x":[1,2]}},"l":{"$float":"nan"},"m":{"$float":"-inf"},"n":{"$decimal":"1000"}}}'
    )
    assert encode_statement("X") == '{"sql":"X","args":[]}'
    assert encode_statement("X", ()) == '{"sql":"X","args":[]}'


class Colour(str, enum.Enum):
    RED = "red"


class Number(enum.IntEnum):
    ONE = 1


def test_subclasses_are_their_base():
    _, args = decode(encode_statement("X", [Colour.RED, Number.ONE, type("F", (float,), {})(1.5)]))
    assert args == ["red", 1, 1.5]


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        ([1, 2**63], OverflowError, "argument 2: the integer has 64 bits and does not fit 64; pass it as a Decimal"),
        ([-(2**63) - 1], OverflowError, "argument 1: the integer"),
        ([10**6000], OverflowError, "argument 1: the integer has 19932 bits"),
        (["ok", "a\ud800"], ValueError, r"argument 2: the text has a lone surrogate \(U\+D800"),
        ({"n": "\udcff"}, ValueError, r"argument 'n': the text has a lone surrogate \(U\+DCFF"),
        ([datetime(2026, 1, 1)], TypeError, "argument 1: a datetime without a time zone"),
        ([date(2026, 1, 1)], TypeError, r"argument 1: a date is no bind value; pass value\.isoformat"),
        ([time(1)], TypeError, "a time is no bind value"),
        ([timedelta(1)], TypeError, "a timedelta is no bind value; known are None"),
        ([[1]], TypeError, r"argument 1: a list is no bind value; wrap a document in litepost\.Json"),
        ([{"a": 1}], TypeError, "a dict is no bind value"),
        ([{1}], TypeError, "a set is no bind value"),
        ([1j], TypeError, "a complex is no bind value"),
        ([object()], TypeError, "a object is no bind value"),
        ([Decimal("nan")], ValueError, "argument 1: a Decimal of NaN has no digits"),
        ([Decimal("-inf")], ValueError, "a Decimal of -Infinity has no digits"),
        ([Decimal("1e999999")], OverflowError, "argument 1: a Decimal with more than"),
        ("ab", TypeError, "args must be a sequence or a mapping of bind values, not str"),
        (b"ab", TypeError, "not bytes"),
        (5, TypeError, "not int"),
        ({1, 2}, TypeError, "not set"),
        ({1: 2}, TypeError, "the names of arguments must be str, not int"),
    ],
)
def test_what_cannot_be_exact_is_refused_at_the_call(path, tx, args, error, message):
    with pytest.raises(error, match=message) as refused:
        litepost.enqueue_statement(tx, "t", "X ?", args)
    # Whatever else it is: who catches TypeError catches all of them.
    assert isinstance(refused.value, TypeError)
    tx.commit()
    assert log(path) == []


def test_the_sql_is_a_text():
    for sql, error in (
        ("", ValueError),
        ("  ", ValueError),
        ("\ud800", ValueError),
        (b"X", TypeError),
        (None, TypeError),
    ):
        with pytest.raises(error, match="the SQL"):
            encode_statement(sql, [])


def test_json_is_strict():
    for document, error in (({"a": math.nan}, ValueError), ({"a": b""}, TypeError)):
        with pytest.raises(error):
            Json(document)
    with pytest.raises(ValueError, match="lone surrogate"):
        encode_statement("X", [Json("\ud800")])


def test_it_is_an_event_of_the_table(path, tx):
    litepost.enqueue_statement(tx, "orders", "X ?", [1], key="7", source="s")
    litepost.enqueue_many(tx, [litepost.statement_event("orders", "Y ?", [b"z"])])
    tx.commit()
    assert log(path, "topic, type, key, source, payload") == [
        ("orders", "sql", "7", "s", '{"sql":"X ?","args":[1]}'),
        ("orders", "sql", None, None, '{"sql":"Y ?","args":[{"$blob":"eg=="}]}'),
    ]


def test_round_trip():
    hypothesis = pytest.importorskip("hypothesis")
    st = hypothesis.strategies
    text = st.text(st.characters(exclude_categories=("Cs",)))
    aware = st.datetimes(
        min_value=datetime(2, 1, 1), max_value=datetime(9998, 1, 1),
        timezones=st.integers(-1439, 1439).map(lambda m: timezone(timedelta(minutes=m))),
    )  # fmt: skip
    values = st.one_of(
        st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), text, st.binary(), aware, st.uuids(),
        st.decimals(allow_nan=False, allow_infinity=False),
    )  # fmt: skip
    args = st.one_of(st.lists(values), st.dictionaries(text, values))

    def same(a, b):
        if type(a) is not type(b):
            return False
        if isinstance(a, float):
            return struct.pack("<d", a) == struct.pack("<d", b) or (math.isnan(a) and math.isnan(b))
        return a == b

    @hypothesis.settings(max_examples=400, deadline=None)
    @hypothesis.given(text.filter(lambda s: s.strip()), args)
    def check(sql, args):
        payload = encode_statement(sql, args)
        got_sql, got = decode(payload)
        assert got_sql == sql
        if isinstance(args, dict):
            assert list(args) == list(got)
            args, got = list(args.values()), list(got.values())
        assert len(args) == len(got)
        assert all(same(a, b) for a, b in zip(args, got, strict=True)), (args, got)

    check()


def test_what_is_stored_is_what_was_encoded(path, tx):
    payload = encode_statement("X ?", ["\0\u2028\U0001f40d", b"\0"])
    litepost.enqueue_statement(tx, "t", "X ?", ["\0\u2028\U0001f40d", b"\0"])
    tx.commit()
    assert log(path) == [(1, "t", payload)]
