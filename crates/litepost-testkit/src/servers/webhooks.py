"""A receiver of webhooks on Flask: webhooks.py PORT FOLDER USER PASSWORD BODY_MAX.

Keeps what it takes in FOLDER/taken.jsonl, a line per request, before it answers. It takes what is sent to /ready, and to any
path whose name is a file in FOLDER.
"""

import base64
import json
import logging
import os
import sys
import threading

from flask import Flask, request
from werkzeug.serving import WSGIRequestHandler, make_server

port, folder, user, password, body_max = sys.argv[1:]
app = Flask("webhooks")
writing = threading.Lock()
taken = open(os.path.join(folder, "taken.jsonl"), "a", encoding="ascii")


@app.post("/<path:name>")
def take(name: str):
    body = request.get_data()
    known = request.authorization
    if known is None or (known.username, known.password) != (user, password):
        return "", 401
    if name != "ready" and not os.path.exists(os.path.join(folder, name)):
        return "", 404
    if len(body) > int(body_max):
        return "", 413
    # HTTP's bytes are Latin-1 to WSGI, and its names have no case.
    headers = [(key.lower(), value.encode("latin-1").decode()) for key, value in request.headers]
    named = dict(headers)
    key = named.get("litepost-key")
    line = {
        "path": name,
        "id": named["webhook-id"],
        "key": None if key is None else base64.b64encode(key.encode()).decode(),
        "body": base64.b64encode(body).decode(),
        "headers": headers,
    }
    with writing:
        taken.write(json.dumps(line) + "\n")
        taken.flush()
    return "", 204


@app.get("/")
def up():
    return "up"


logging.getLogger("werkzeug").setLevel(logging.ERROR)
WSGIRequestHandler.protocol_version = "HTTP/1.1"
make_server("127.0.0.1", int(port), app, threaded=True).serve_forever()
