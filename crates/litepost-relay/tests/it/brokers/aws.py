"""Prepares moto, or reads from it: aws.py URL (prepare|lock|bucket|object|queue|topic|alone|messages) ID SECRET NAME.

`prepare` makes a user with a key, which is printed; the user may do what NAME says (`s3:*,sqs:*`). `lock` lets in nobody else
from then on. `bucket` makes the bucket NAME, `object` reads NAME, an s3:// URL. `queue` makes the queue NAME, `topic` a topic
and a queue of this name that subscribes to it, `alone` the topic only, `messages` takes everything out of the queue.
"""

import base64
import json
import sys
from urllib.parse import urlsplit

import boto3
import requests

url, what, key_id, secret, name = sys.argv[1:]
REGION = "eu-west-1"


def client(service: str):
    return boto3.client(
        service, endpoint_url=url, region_name=REGION, aws_access_key_id=key_id, aws_secret_access_key=secret
    )


def show(identifier: str, body: bytes, headers=()) -> None:
    encoded = base64.b64encode(body).decode()
    print(json.dumps({"id": identifier, "key": None, "body": encoded, "headers": list(headers)}))


def prepare() -> None:
    iam = client("iam")
    iam.create_user(UserName="relay")
    allowed = {"Effect": "Allow", "Action": name.split(","), "Resource": "*"}
    policy = {"Version": "2012-10-17", "Statement": [allowed]}
    iam.put_user_policy(UserName="relay", PolicyName="all", PolicyDocument=json.dumps(policy))
    key = iam.create_access_key(UserName="relay")["AccessKey"]
    show(key["AccessKeyId"], key["SecretAccessKey"].encode())


def lock() -> None:
    requests.post(url + "/moto-api/reset-auth", data=b"0", timeout=20).raise_for_status()


def bucket() -> None:
    client("s3").create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION})


def read_object() -> None:
    at = urlsplit(name)
    found = client("s3").get_object(Bucket=at.netloc, Key=at.path.removeprefix("/"))
    show(name, found["Body"].read(), [("content-type", found["ContentType"])])


def queue() -> None:
    attributes = {"MaximumMessageSize": str(256 << 10)}
    if name.endswith(".fifo"):
        attributes["FifoQueue"] = "true"
    client("sqs").create_queue(QueueName=name, Attributes=attributes)


def alone() -> str:
    attributes = {"FifoTopic": "true"} if name.endswith(".fifo") else {}
    return client("sns").create_topic(Name=name, Attributes=attributes)["TopicArn"]


def topic() -> None:
    queue()
    sqs = client("sqs")
    at = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    queue_arn = sqs.get_queue_attributes(QueueUrl=at, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    raw = {"RawMessageDelivery": "true"}
    client("sns").subscribe(TopicArn=alone(), Protocol="sqs", Endpoint=queue_arn, Attributes=raw)


def messages() -> None:
    sqs = client("sqs")
    at = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    asked = {"QueueUrl": at, "MaxNumberOfMessages": 10, "MessageAttributeNames": ["All"], "AttributeNames": ["All"]}
    while found := sqs.receive_message(**asked).get("Messages"):
        for message in found:
            show_message(message)
        entries = [{"Id": str(n), "ReceiptHandle": m["ReceiptHandle"]} for n, m in enumerate(found)]
        sqs.delete_message_batch(QueueUrl=at, Entries=entries)


def show_message(message) -> None:
    attributes = message.get("MessageAttributes", {})
    assert len(attributes) <= 10, attributes
    headers = {key: value["StringValue"] for key, value in attributes.items()}
    further = headers.pop("litepost-headers", None)
    headers |= json.loads(further or "{}")
    encoding = headers.pop("litepost-encoding", None)
    text = message["Body"]
    body = {None: text.encode(), "empty": b"", "base64": base64.b64decode(text) if encoding == "base64" else b""}[encoding]
    key = headers.get("litepost-key")
    if name.endswith(".fifo"):
        system = message["Attributes"]
        assert system["MessageDeduplicationId"] == headers["litepost-id"], system
        if key and key.isascii() and key.isalnum() and len(key) < 100:
            assert system["MessageGroupId"] == key, system
    shown = {
        "id": headers["litepost-id"],
        "key": None if key is None else base64.b64encode(key.encode()).decode(),
        "body": base64.b64encode(body).decode(),
        "headers": list(headers.items()),
    }
    print(json.dumps(shown))


todo = {"prepare": prepare, "lock": lock, "bucket": bucket, "object": read_object}
todo |= {"queue": queue, "topic": topic, "alone": alone, "messages": messages}
todo[what]()
