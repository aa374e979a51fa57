"""Reads messages as CloudEvents with the CloudEvents SDK: cloudevents.py TRANSPORT (structured|binary) URL.

The SDK has bindings to Kafka and RabbitMQ. NATS's is HTTP's; Redis has none and takes RabbitMQ's. For MQTT the SDK
has none: the attributes have no prefix in 5, and there are none outside of the body in 3.1.1. Nor has it one for SQS and SNS:
their messages are text, and what does not fit into ten attributes stands in one of them.
"""

import asyncio
import base64
import json
import sys
import time
from urllib.parse import urlsplit

from cloudevents.core.bindings import http, kafka, rabbitmq
from cloudevents.core.formats.json import JSONFormat

transport, mode, url = sys.argv[1:]
FORMAT = JSONFormat()


def from_nats():
    import nats

    async def read():
        client = await nats.connect(url)
        jetstream = client.jetstream()
        count = (await jetstream.stream_info("READY")).state.messages
        subscription = await jetstream.subscribe(">", stream="READY", ordered_consumer=True)
        messages = [await subscription.next_msg(timeout=30) for _ in range(count)]
        await client.close()
        return messages

    for message in asyncio.run(read()):
        headers = message.headers
        assert ("ce-id" in headers) == (mode == "binary"), headers
        yield http.from_http(http.HTTPMessage(headers, message.data), FORMAT)


def from_redis():
    import redis

    for _, fields in redis.Redis.from_url(url).xrange("ready"):
        body = fields.pop(b"payload")
        headers = {name.decode(): value.decode() for name, value in fields.items()}
        yield like_rabbitmq(headers, headers.pop("content-type"), body)


def from_kafka():
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    client = Consumer({"bootstrap.servers": url, "group.id": "judge", "enable.partition.eof": True})
    partitions = list(client.list_topics("ready", timeout=20).topics["ready"].partitions)
    client.assign([TopicPartition("ready", number, OFFSET_BEGINNING) for number in partitions])
    left, give_up = len(partitions), time.monotonic() + 60
    while left:
        assert time.monotonic() < give_up, "no end of the partitions"
        message = client.poll(1)
        if message is None:
            continue
        if message.error():
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            left -= 1
            continue
        headers = dict(message.headers())
        assert ("ce_id" in headers) == (mode == "binary"), headers
        event = kafka.from_kafka(kafka.KafkaMessage(headers, message.key(), message.value()), FORMAT)
        assert event.get_extension("partitionkey") == event.get_subject()
        yield event
    client.close()


def from_rabbitmq():
    import pika

    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    while True:
        method, properties, body = channel.basic_get("ready", auto_ack=True)
        if method is None:
            break
        yield like_rabbitmq(properties.headers, properties.content_type, body)
    connection.close()


def like_rabbitmq(headers, content_type, body):
    assert content_type.startswith("application/cloudevents") == (mode == "structured"), content_type
    return rabbitmq.from_rabbitmq(rabbitmq.RabbitMQMessage(headers, content_type, body), FORMAT)


def from_mqtt():
    import paho.mqtt.client as mqtt

    at, messages = urlsplit(url), []
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
    client.username_pw_set(at.username, at.password)
    client.on_connect = lambda client, *_: client.subscribe("ready/#", qos=1)
    client.on_message = lambda _client, _userdata, message: messages.append(message)
    client.connect(at.hostname, at.port)
    client.loop_start()
    give_up = time.monotonic() + 30
    while len(messages) < 3:
        assert time.monotonic() < give_up, messages
        time.sleep(0.05)
    client.loop_stop()
    for message in messages:
        if not hasattr(message.properties, "ContentType"):
            assert mode == "structured"
            yield FORMAT.read(None, message.payload)
            continue
        # Attributes have letters and digits only; other properties (litepost-id) are none.
        named = {f"ce-{name}": value for name, value in message.properties.UserProperty if name.isalnum()}
        yield like_rabbitmq(named, message.properties.ContentType, message.payload)


def from_sqs():
    import boto3

    key, secret, queue = url.split(" ")
    at = urlsplit(queue)
    endpoint = f"{at.scheme}://{at.netloc}"
    access = {"aws_access_key_id": key, "aws_secret_access_key": secret}
    client = boto3.client("sqs", endpoint_url=endpoint, region_name="eu-west-1", **access)
    found = client.receive_message(QueueUrl=at.geturl(), MaxNumberOfMessages=10, MessageAttributeNames=["All"])
    for message in found["Messages"]:
        headers = {name: value["StringValue"] for name, value in message["MessageAttributes"].items()}
        content_type = headers.pop("content-type")
        if mode == "binary":
            # Without a look into the attribute that holds what does not fit.
            assert {"ce-specversion", "ce-id", "ce-source", "ce-type"} <= headers.keys(), headers
        headers |= json.loads(headers.pop("litepost-headers", "{}"))
        text, encoding = message["Body"], headers.pop("litepost-encoding", None)
        body = base64.b64decode(text) if encoding == "base64" else text.encode()
        named = {name: value for name, value in headers.items() if name.startswith("ce-")}
        yield like_rabbitmq(named, content_type, body)


def data(event) -> bytes:
    found = event.get_data()
    if isinstance(found, bytes):
        return found
    return (found if isinstance(found, str) else json.dumps(found, separators=(",", ":"))).encode()


messages = {
    "nats": from_nats,
    "redis": from_redis,
    "kafka": from_kafka,
    "rabbitmq": from_rabbitmq,
    "mqtt": from_mqtt,
    "sqs": from_sqs,
    "sns": from_sqs,
}
for event in messages[transport]():
    line = {
        "id": event.get_id(),
        "key": base64.b64encode(event.get_subject().encode()).decode(),
        "body": base64.b64encode(data(event)).decode(),
        "headers": sorted((name, str(value)) for name, value in event.get_attributes().items()),
    }
    print(json.dumps(line))
