"""Payloads that a relay has encrypted (``encryption`` of a destination): compact JWE, ``dir`` and ``A256GCM``.

Called by consumers. It needs the package ``cryptography``; any JOSE library opens the same payloads. Invariant: what
was changed, or moved from another event, is never returned.
"""

from __future__ import annotations

import json
from base64 import b64decode, urlsafe_b64decode
from binascii import Error as Base64Error
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

__all__ = ["Decrypted", "DecryptError", "decrypt"]

_KEY_BYTES = 32
_NONCE_BYTES = 12
_TAG_BYTES = 16


class DecryptError(ValueError):
    """It is no encrypted payload, the key is not among those given, or something was changed."""


@dataclass(frozen=True)
class Decrypted:
    """A payload, and what its authenticated header says."""

    payload: bytes
    """The payload, byte for byte."""
    id: str
    """The event's id."""
    topic: str
    """The event's topic."""
    content_type: str
    """Media type of the payload."""
    key_id: str
    """Id of the key that encrypted it."""


def decrypt(token: str | bytes, keys: Mapping[str, str | bytes], *, event_id: str | None = None) -> Decrypted:
    """Decrypt a payload.

    ``keys`` are 32 bytes, or those in base64 as the configuration has them, by their ids: old ones too, for as long as
    events encrypted with them may arrive. With ``event_id``, a payload that belongs to another event is refused.

    Raises :class:`DecryptError`.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    text = token if isinstance(token, str) else token.decode("ascii", "replace")
    parts = text.strip().split(".")
    if len(parts) != 5 or parts[1]:
        raise DecryptError("this is no encrypted payload: it has not the five parts of a JWE with a direct key")
    header = _header(parts[0])
    key_id = header["kid"]
    if key_id not in keys:
        raise DecryptError(f"it was encrypted with the key {key_id!r}, which was not given")
    nonce, ciphertext, tag = (_decode(part) for part in parts[2:])
    if len(nonce) != _NONCE_BYTES or len(tag) != _TAG_BYTES:
        raise DecryptError("this is no encrypted payload: its nonce or tag has the wrong size")
    try:
        payload = AESGCM(_key(keys[key_id])).decrypt(nonce, ciphertext + tag, parts[0].encode())
    except InvalidTag:
        raise DecryptError(
            f"the key {key_id!r} does not open it: another key has that name, or it was changed on its way"
        ) from None
    if event_id is not None and header["id"] != event_id:
        raise DecryptError(f"the payload belongs to the event {header['id']!r}, not to {event_id!r}")
    return Decrypted(payload, header["id"], header["topic"], header["cty"], key_id)


def _header(part: str) -> dict[str, str]:
    try:
        parsed: Any = json.loads(_decode(part))
    except ValueError:
        raise DecryptError("this is no encrypted payload: its header is no JSON") from None
    if not isinstance(parsed, dict):
        raise DecryptError("this is no encrypted payload: its header is no object")
    given = cast("dict[str, Any]", parsed)
    if (given.get("alg"), given.get("enc")) != ("dir", "A256GCM") or not isinstance(given.get("kid"), str):
        raise DecryptError("this is no encrypted payload: it is not encrypted with dir and A256GCM")
    return {name: str(given.get(name, "")) for name in ("kid", "id", "topic", "cty")}


def _decode(part: str) -> bytes:
    try:
        return urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except (Base64Error, ValueError):
        raise DecryptError("this is no encrypted payload: a part is no base64url") from None


def _key(key: str | bytes) -> bytes:
    raw = b64decode(key) if isinstance(key, str) else key
    if len(raw) != _KEY_BYTES:
        raise DecryptError("a key must have 32 bytes")
    return raw
