"""Prints every message of a JetStream stream: nats.py URL STREAM."""

import asyncio
import base64
import json
import sys
from urllib.parse import unquote

import nats


async def main(url: str, stream: str) -> None:
    client = await nats.connect(url)
    jetstream = client.jetstream()
    info = await jetstream.stream_info(stream)
    subscription = await jetstream.subscribe(">", stream=stream, ordered_consumer=True)
    for _ in range(info.state.messages):
        message = await subscription.next_msg(timeout=30)
        headers = message.headers or {}
        token = message.subject.split(".", 1)[1]
        line = {
            "id": headers["Nats-Msg-Id"],
            "key": base64.b64encode(unquote(token).encode()).decode(),
            "body": base64.b64encode(message.data).decode(),
            "headers": list(headers.items()),
        }
        print(json.dumps(line))
    await client.close()


asyncio.run(main(*sys.argv[1:]))
