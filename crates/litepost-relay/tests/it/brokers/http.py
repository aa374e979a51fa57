"""Judges webhooks as receivers do, with the libraries they use. Arguments: what to check, a file with a JSON array of
requests (`headers` as pairs, `body` in base64), and secrets. Prints nothing when all is well."""

import base64
import json
import sys

what, path, *secrets = sys.argv[1:]
requests = [
    (dict(request["headers"]), base64.b64decode(request["body"]))
    for request in json.load(open(path, encoding="utf-8"))
]
assert requests

if what == "signatures":
    from standardwebhooks.webhooks import Webhook, WebhookVerificationError

    for headers, body in requests:
        for secret in secrets:
            Webhook(secret).verify(body, headers)
        for wrong_headers, wrong_body in [
            (headers, body + b" "),
            ({**headers, "webhook-id": "other"}, body),
            ({**headers, "webhook-timestamp": str(int(headers["webhook-timestamp"]) - 1)}, body),
        ]:
            try:
                Webhook(secrets[0]).verify(wrong_body, wrong_headers)
            except WebhookVerificationError:
                continue
            raise SystemExit("a changed request was accepted")
elif what == "cloudevents":
    from cloudevents.core.bindings.http import HTTPMessage, from_http_event
    from cloudevents.core.formats.json import JSONFormat

    (binary_headers, binary), (structured_headers, structured), (batch_headers, batch) = requests
    assert batch_headers["content-type"] == "application/cloudevents-batch+json", batch_headers
    events = [from_http_event(HTTPMessage(headers, body)) for headers, body in requests[:2]]
    events += [JSONFormat().read(None, json.dumps(event).encode()) for event in json.loads(batch)]
    assert len(events) == 4, len(events)
    for event in events[:3]:
        attributes = event.get_attributes()
        assert attributes["specversion"] == "1.0"
        assert attributes["type"] == "Créé", attributes
        assert attributes["subject"] == "k 1", attributes
        assert attributes["topic"] == "orders", attributes
        assert attributes["traceparent"] == "00-ab", attributes
        assert attributes["source"].startswith("urn:litepost:"), attributes
        data = event.get_data()
        assert data == {"total": 4999}, data
    for headers, _ in (requests[0], requests[1]):
        assert headers["traceparent"] == "00-ab", headers
    assert events[3].get_data() == b"\x00\xff", events[3].get_data()
    assert [event.get_id() for event in events] == ["a", "a", "a", "b"]
else:
    raise SystemExit(f"what is {what}?")
