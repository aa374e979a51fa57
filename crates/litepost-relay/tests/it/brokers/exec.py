"""An exec destination with a transport of its own: adds to a Redis stream with redis-py.

Spoken to as docs/exec-protocol.md says. Options: `port`, `password`, `stream`, and `create`, whether a stream that is not
there is made.
"""

import base64
import json
import sys

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

BODY_MAX = 2 << 20
decoder = json.JSONDecoder()


def say(answer) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def members(text: str, at: int):
    """The members of the object at this place, each with the text of its value, and where the object ends."""
    found = {}
    at += 1
    while text[at] != "}":
        name, at = decoder.raw_decode(text, at)
        at += 1
        _, end = decoder.raw_decode(text, at)
        found[name] = text[at:end]
        at = end + (text[end] == ",")
    return found, at + 1


def events(line: str):
    at = line.index('"events":[') + len('"events":[')
    while line[at] != "]":
        event, at = members(line, at)
        at += line[at] == ","
        yield event


def body(event) -> bytes:
    if "payload_base64" in event:
        return base64.b64decode(json.loads(event["payload_base64"]))
    # Text that is no JSON is a JSON string; JSON is the payload itself, digit for digit.
    text = event["payload"]
    return (json.loads(text) if text.startswith('"') else text).encode()


def deliver(client, options, line: str):
    if not options["create"] and not client.exists(options["stream"]):
        return {"unavailable": f"there is no stream {options['stream']}"}
    outcomes, failed = [], set()
    pipeline = client.pipeline(transaction=False)
    for event in events(line):
        line_of = event.get("key") or event["topic"]
        payload = body(event)
        if line_of in failed:
            outcomes.append({"deferred": True})
        elif len(payload) > BODY_MAX:
            failed.add(line_of)
            outcomes.append({"rejected": f"{len(payload)} bytes are too many", "code": "too_large", "permanent": True})
        else:
            fields = {"litepost-id": json.loads(event["id"]), "payload": payload}
            if "key" in event:
                fields["litepost-key"] = json.loads(event["key"])
            pipeline.xadd(options["stream"], fields)
            outcomes.append({"ok": True})
    pipeline.execute()
    return {"outcomes": outcomes}


def main() -> None:
    options = json.loads(sys.stdin.readline())["hello"]["options"]
    client = redis.Redis(
        port=options["port"], password=options["password"], socket_timeout=1.5, retry=Retry(NoBackoff(), 0)
    )
    try:
        # What is answered with ok must outlive the server, which this program has for itself.
        client.config_set("appendfsync", "always")
    except redis.RedisError as error:
        return say({"error": f"Redis: {error}"})
    say({"ready": {"protocol": 1}})
    for line in sys.stdin:
        number = json.loads(line)["batch"]
        try:
            say({"batch": number} | deliver(client, options, line))
        except redis.RedisError as error:
            say({"batch": number, "unavailable": f"Redis: {error}"})


main()
