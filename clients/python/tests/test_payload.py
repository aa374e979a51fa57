"""Encrypted payloads: a token made by another program opens, and nothing that was changed does."""

import json
from base64 import b64encode, urlsafe_b64encode

import pytest

from litepost.payload import DecryptError, decrypt

aead = pytest.importorskip("cryptography.hazmat.primitives.ciphers.aead")

KEY = bytes(range(32))


def _token(payload: bytes, **changed: object) -> str:
    header = {"alg": "dir", "enc": "A256GCM", "kid": "k1", "cty": "text/plain", "id": "e1", "topic": "t", **changed}
    protected = _b64(json.dumps(header).encode())
    nonce = b"n" * 12
    sealed = aead.AESGCM(KEY).encrypt(nonce, payload, protected.encode())
    return ".".join([protected, "", _b64(nonce), _b64(sealed[:-16]), _b64(sealed[-16:])])


def _b64(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


@pytest.mark.parametrize("payload", [b"", b"text", bytes(range(256))])
def test_opens_with_the_key_that_is_named(payload: bytes) -> None:
    for key in (KEY, b64encode(KEY).decode()):
        opened = decrypt(_token(payload), {"k1": key, "old": b"x"}, event_id="e1")
        assert opened.payload == payload
        assert (opened.id, opened.topic, opened.content_type, opened.key_id) == ("e1", "t", "text/plain", "k1")


@pytest.mark.parametrize(
    ("token", "why"),
    [
        ("", "five parts"),
        ("a.b.c.d.e", "five parts"),
        ("!..a.b.c", "header"),
        (_token(b"x", alg="none"), "dir and A256GCM"),
        (_token(b"x", kid="k2"), "not given"),
        (_token(b"x", kid=7), "dir and A256GCM"),
        (_token(b"x", id="e2"), "belongs to the event 'e2'"),
        (_token(b"x")[:-4] + "AAAA", "does not open it"),
    ],
)
def test_refuses_everything_else(token: str, why: str) -> None:
    with pytest.raises(DecryptError, match=why):
        decrypt(token, {"k1": KEY}, event_id="e1")
