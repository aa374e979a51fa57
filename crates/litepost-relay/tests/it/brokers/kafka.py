"""Makes a topic with three partitions, or prints every record of one: kafka.py BROKERS (make|consume) TOPIC [CERTIFICATE [USER PASSWORD]].

With a certificate that is not empty, over TLS, and nobody else is trusted; with a user, by SCRAM-SHA-256.
"""

import base64
import json
import sys
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

brokers, what, topic, *secure = sys.argv[1:]
reach = {"bootstrap.servers": brokers}
user = {}
if len(secure) == 3:
    user = {"sasl.username": secure[1], "sasl.password": secure[2], "sasl.mechanism": "SCRAM-SHA-256"}
if secure and secure[0]:
    reach |= {"security.protocol": "sasl_ssl" if user else "ssl", "ssl.ca.location": secure[0]} | user
elif user:
    reach |= {"security.protocol": "sasl_plaintext"} | user


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
