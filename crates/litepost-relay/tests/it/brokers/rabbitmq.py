"""Declares an exchange with a queue, or prints every message of one: rabbitmq.py URL (make|consume|take) NAME."""

import base64
import json
import sys

import pika


def make(channel, name: str) -> None:
    channel.exchange_declare(name, "topic", durable=True)
    channel.queue_declare(name, durable=True)
    channel.queue_bind(name, name, "#")


def text(value) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def consume(channel, name: str, take: bool = False) -> None:
    while True:
        method, properties, body = channel.basic_get(name, auto_ack=take)
        if method is None:
            return
        headers = properties.headers or {}
        key = headers.get("litepost-key")
        assert properties.delivery_mode == 2, "persistent"
        line = {
            "id": properties.message_id,
            "key": None if key is None else base64.b64encode(key.encode()).decode(),
            "body": base64.b64encode(body).decode(),
            "headers": [(name, text(value)) for name, value in headers.items()],
        }
        if properties.content_encoding:
            line["headers"].append(("content-encoding", properties.content_encoding))
        print(json.dumps(line))


def take(channel, name: str) -> None:
    consume(channel, name, True)


connection = pika.BlockingConnection(pika.URLParameters(sys.argv[1]))
{"make": make, "consume": consume, "take": take}[sys.argv[2]](connection.channel(), sys.argv[3])
connection.close()
