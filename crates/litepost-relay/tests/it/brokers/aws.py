"""Prepares moto, or reads from it: aws.py URL (prepare|bucket|object) ID SECRET NAME.

`prepare` makes a user with a key, which is printed, and from then on lets in nobody else. `bucket` makes the bucket NAME,
`object` reads NAME, an s3:// URL.
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
    policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
    iam.put_user_policy(UserName="relay", PolicyName="all", PolicyDocument=json.dumps(policy))
    key = iam.create_access_key(UserName="relay")["AccessKey"]
    requests.post(url + "/moto-api/reset-auth", data=b"0", timeout=20).raise_for_status()
    show(key["AccessKeyId"], key["SecretAccessKey"].encode())


def bucket() -> None:
    client("s3").create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION})


def read_object() -> None:
    at = urlsplit(name)
    found = client("s3").get_object(Bucket=at.netloc, Key=at.path.removeprefix("/"))
    show(name, found["Body"].read(), [("content-type", found["ContentType"])])


{"prepare": prepare, "bucket": bucket, "object": read_object}[what]()
