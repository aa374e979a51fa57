"""Reads an ``outbox.toml`` as sqloutbox did: ``config, writers = load_config_toml(path)``.

Called by producers that take their folders from the relay's configuration. Invariants: an unknown key, a missing
variable or a failed fetch of secrets is an error; no message shows a secret. (The relay reads the file by itself.)
"""

from __future__ import annotations

import importlib
import json
import os
import re
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode

from .config import OutboxConfig, TargetConfig
from .exceptions import ConfigError

__all__ = ["load_config_toml"]

_TUNING = (
    "batch_size",
    "flush_interval",
    "table_flush_threshold",
    "table_max_wait",
    "auto_schema",
    "cleanup_every",
    "retain_log_days",
    "max_attempts",
    "max_pending",
    "max_batch_bytes",
    "backoff_cap_minutes",
)
_APP = frozenset({"db_dir", "db", "drop_on_error", *_TUNING})
_DB = frozenset(
    {"writer_class", "tables", "inject_outbox_seq", "retain_log_days", "connection", "max_attempts", "max_pending",
     "max_batch_bytes", "batch_size"}
)  # fmt: skip
_TABLE = frozenset({"name", "inject_outbox_seq", "retain_log_days"})
_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_DOPPLER = "https://api.doppler.com"
_DOPPLER_TIMEOUT_S = 15


def load_config_toml(config_path: Path) -> tuple[OutboxConfig, dict[str, Any]]:
    """Parses the file. Returns the configuration, and a writer object for each target.

    ``${VAR}`` comes from the environment, then from ``.env`` beside the file, then from Doppler when DOPPLER_TOKEN is
    set; the environment itself is left as it is. Raises ConfigError (and OSError for a variable that is not set).
    """
    path = Path(config_path)
    document = _parse(path)
    apps = _table(document.get("app"), "app")
    if not apps:
        raise ConfigError("app", None, "at least one [app.NAME] section is needed")
    reader = _Reader(path.parent, _variables(path.parent))
    targets: list[TargetConfig] = []
    writers: dict[str, Any] = {}
    configs = [reader.app(name, _table(app, f"app.{name}"), targets, writers) for name, app in apps.items()]
    first = configs[0]
    return OutboxConfig(targets=tuple(targets), **first), writers


def _parse(path: Path) -> dict[str, Any]:
    try:
        toml: Any = importlib.import_module("tomllib")  # Python 3.11 and later
    except ModuleNotFoundError:
        try:
            toml = importlib.import_module("tomli")
        except ModuleNotFoundError:
            raise ConfigError(
                "config", str(path), "Python 3.10 cannot read TOML by itself: pip install tomli, or use Python 3.11"
            ) from None
    try:
        return toml.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError("config", str(path), f"no valid TOML: {error}") from error


def _table(value: Any, where: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(where, value, "must be a table")
    return cast("dict[str, Any]", value)


def _known(table: Mapping[str, Any], known: frozenset[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise ConfigError(f"{where}.{key}", "...", f"unknown; known are {', '.join(sorted(known))}")


class _Reader:
    """Turns one document into objects."""

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self.folder = folder
        self.variables = variables

    def app(
        self, name: str, app: dict[str, Any], targets: list[TargetConfig], writers: dict[str, Any]
    ) -> dict[str, Any]:
        """Reads an app's databases into ``targets`` and ``writers``. Returns the settings of an OutboxConfig."""
        where = f"app.{name}"
        _known(app, _APP, where)
        if "db_dir" not in app:
            raise ConfigError(f"{where}.db_dir", None, "is required")
        settings = {key: app[key] for key in (*_TUNING, "drop_on_error") if key in app}
        settings["db_dir"] = self.folder / str(self.fill(app["db_dir"]))
        for db_name, db in _table(app.get("db"), f"{where}.db").items():
            target = self.target(name, db_name, _table(db, f"{where}.db.{db_name}"), settings)
            targets.append(target)
            writers[target.name] = self.writer(_table(db, where), f"{where}.db.{db_name}")
        return settings

    def target(self, app: str, name: str, db: dict[str, Any], settings: dict[str, Any]) -> TargetConfig:
        """One ``[app.A.db.D]``."""
        where = f"app.{app}.db.{name}"
        _known(db, _DB, where)
        default = db.get("inject_outbox_seq", True)
        tables: dict[str, bool] = {}
        retain: list[tuple[str, int]] = []
        for entry in cast("list[Any]", db.get("tables") or []):
            table: dict[str, Any] = {"name": entry} if isinstance(entry, str) else _table(entry, f"{where}.tables")
            _known(table, _TABLE, f"{where}.tables")
            if not isinstance(table.get("name"), str):
                raise ConfigError(f"{where}.tables", entry, "each needs a name")
            tables[table["name"]] = bool(table.get("inject_outbox_seq", default))
            if "retain_log_days" in table:
                retain.append((table["name"], table["retain_log_days"]))
        injected = frozenset(table for table, inject in tables.items() if inject)
        inject: bool | frozenset[str] = bool(injected) if len(injected) in (0, len(tables)) else injected
        own = ("batch_size", "retain_log_days", "max_attempts", "max_pending", "max_batch_bytes")
        merged: dict[str, Any] = {key: db.get(key, settings.get(key)) for key in own if key in db or key in settings}
        return TargetConfig(
            name=f"{app}.{name}",
            tables=tuple(tables),
            inject_outbox_seq=inject,
            db_dir=settings["db_dir"],
            table_retain_overrides=tuple(retain),
            **merged,
        )

    def writer(self, db: dict[str, Any], where: str) -> Any:
        """The writer class of a database, imported and made with its connection settings."""
        reference = db.get("writer_class")
        if not isinstance(reference, str) or reference.count(":") != 1:
            raise ConfigError(f"{where}.writer_class", reference, "must be 'package.module:Class'")
        module, _, attribute = reference.partition(":")
        try:
            made = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise ImportError(f"{where}.writer_class: cannot import {reference!r}: {error}") from error
        return made(**cast("dict[str, Any]", self.fill(_table(db.get("connection"), f"{where}.connection"))))

    def fill(self, value: Any) -> Any:
        """``value`` with every ``${VAR}`` in its strings replaced."""
        if isinstance(value, str):
            return _VARIABLE.sub(self._variable, value)
        if isinstance(value, dict):
            return {key: self.fill(item) for key, item in cast("dict[str, Any]", value).items()}
        if isinstance(value, list):
            return [self.fill(item) for item in cast("list[Any]", value)]
        return value

    def _variable(self, match: re.Match[str]) -> str:
        name = match[1]
        if name not in self.variables:
            raise OSError(f"the environment variable ${{{name}}} is not set, and the configuration names it")
        return self.variables[name]


def _variables(folder: Path) -> dict[str, str]:
    variables = dict(os.environ)
    for name, value in _dotenv(folder / ".env").items():
        variables.setdefault(name, value)
    token = variables.get("DOPPLER_TOKEN")
    if token:
        for name, value in _doppler(token, variables).items():
            variables.setdefault(name, value)
    return variables


def _dotenv(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    found: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if not equals or name.startswith("#"):
            continue
        value = value.strip()
        if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        else:
            value = re.split(r"\s#", value, maxsplit=1)[0].rstrip()
        found[name.strip()] = value
    return found


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect could carry the token elsewhere."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follows none."""


def _doppler(token: str, variables: Mapping[str, str]) -> dict[str, str]:
    host = variables.get("DOPPLER_API_HOST", _DOPPLER).rstrip("/")
    if not host.startswith(("https://", "http://")):
        raise ConfigError("DOPPLER_API_HOST", host, "is no URL")
    query = {"format": "json"}
    for key in ("project", "config"):
        if value := variables.get(f"DOPPLER_{key.upper()}"):
            query[key] = value
    url = f"{host}/v3/configs/config/secrets/download?{urlencode(query)}"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})  # noqa: S310 - http(s) only
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=_DOPPLER_TIMEOUT_S) as response:
            document = json.load(response)
        if not isinstance(document, dict):
            raise ValueError("the answer is no JSON object")
        return {str(name): str(value) for name, value in cast("dict[str, Any]", document).items()}
    except (OSError, ValueError) as error:
        masked = token[:6] + "..." if len(token) > 12 else "..."
        raise ConfigError(
            "DOPPLER_TOKEN", masked, f"the secrets cannot be fetched from {host}: {str(error).replace(token, masked)}"
        ) from None
