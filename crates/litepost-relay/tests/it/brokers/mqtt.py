"""A subscriber with a session that the broker keeps: mqtt.py PORT USER PASSWORD (subscribe|consume) FILTER."""

import base64
import json
import sys
import threading
from urllib.parse import unquote

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

port, user, password, what, topics = sys.argv[1:]
# What the broker has for a session it sends in the order in which it came: behind a message of our own there is nothing left.
END = "end/of/it"
done = threading.Event()


def on_connect(client, _userdata, _flags, reason, _properties):
    assert not reason.is_failure, reason
    client.subscribe(topics if what == "subscribe" else END, qos=1)


def on_subscribe(client, *_):
    if what == "subscribe":
        done.set()
    else:
        client.publish(END, qos=1)


def on_message(_client, _userdata, message):
    if message.topic == END:
        done.set()
        return
    headers = getattr(message.properties, "UserProperty", [])
    named = dict(headers)
    levels = [unquote(level) for level in message.topic.split("/")]
    # Without properties (3.1.1) the topic says it: PREFIX/ID/KEY.
    key = named.get("litepost-key", None if headers else levels[-1])
    line = {
        "id": named["litepost-id"] if headers else levels[1],
        "key": None if key is None else base64.b64encode(key.encode()).decode(),
        "body": base64.b64encode(message.payload).decode(),
        "headers": headers,
    }
    print(json.dumps(line))


client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id="consumer-" + topics, protocol=mqtt.MQTTv5)
client.username_pw_set(user, password)
client.on_connect = on_connect
client.on_message = on_message
client.on_subscribe = on_subscribe
session = Properties(PacketTypes.CONNECT)
session.SessionExpiryInterval = 0xFFFFFFFF
client.connect("127.0.0.1", int(port), clean_start=False, properties=session)
client.loop_start()
assert done.wait(100), "no answer from the broker"
client.disconnect()
client.loop_stop()
