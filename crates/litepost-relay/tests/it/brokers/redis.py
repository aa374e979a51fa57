"""Prints every entry of a Redis stream: redis.py URL STREAM."""

import base64
import json
import sys

import redis


def main(url: str, stream: str) -> None:
    client = redis.Redis.from_url(url)
    for _, fields in client.xrange(stream):
        headers = {name.decode(): value for name, value in fields.items()}
        body = headers.pop("payload")
        key = headers.get("litepost-key")
        line = {
            "id": headers["litepost-id"].decode(),
            "key": None if key is None else base64.b64encode(key).decode(),
            "body": base64.b64encode(body).decode(),
            "headers": [(name, value.decode()) for name, value in headers.items()],
        }
        print(json.dumps(line))


main(*sys.argv[1:])
