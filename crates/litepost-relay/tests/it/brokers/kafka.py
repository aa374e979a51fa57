"""Makes a topic with three partitions, or prints every record of one: kafka.py BROKERS (make|consume) TOPIC [CERTIFICATE].

With a certificate, over TLS, and nobody else is trusted.
"""

import base64
import json
import sys
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

brokers, what, topic, *trusted = sys.argv[1:]
reach = {"bootstrap.servers": brokers}
if trusted:
    reach |= {"security.protocol": "ssl", "ssl.ca.location": trusted[0]}


def make() -> None:
    client = AdminClient(reach)
    for made in client.create_topics([NewTopic(topic, 3, 1)], operation_timeout=20).values():
        made.result(30)


def consume() -> None:
    client = Consumer(
        reach
        | {
            "group.id": "judge",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_uncommitted",
        }
    )
    partitions = list(client.list_topics(topic, timeout=20).topics[topic].partitions)
    client.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
    ends = set()
    give_up = time.monotonic() + 60
    while len(ends) < len(partitions):
        assert time.monotonic() < give_up, "no end of the partitions"
        message = client.poll(1)
        if message is None:
            continue
        if message.error():
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            ends.add(message.partition())
            continue
        headers = [(name, value.decode()) for name, value in message.headers() or []]
        key = message.key()
        line = {
            "id": dict(headers)["litepost-id"],
            "key": None if key is None else base64.b64encode(key).decode(),
            "body": base64.b64encode(message.value() or b"").decode(),
            "headers": headers,
        }
        print(json.dumps(line))
    client.close()


{"make": make, "consume": consume}[what]()
