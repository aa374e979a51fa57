"""litepost: the post office for SQLite, from Python.

An event is written in the same SQLite transaction as the business rows it tells about; a separate program, the relay
``litepost run``, delivers it. This package is pure Python on the standard library: it writes through the connection the
application has, so no second SQLite ever opens the file in the same process.
"""

from . import aio
from ._enqueue import enqueue, enqueue_many, enqueue_statement
from .errors import (
    ArgumentRefused,
    DuplicateVersion,
    EnqueueError,
    EventRefused,
    ForeignObject,
    LitepostError,
    NotMigrated,
    NoTransaction,
    OutboxFull,
    SchemaDamaged,
    SchemaError,
    SchemaNewer,
    SchemaOlder,
    WrongProcess,
)
from .event import Enqueued, Event, Key, Payload, Time, Version, statement_event
from .outbox import Outbox
from .schema import Migrated, ddl, migrate, require_current, set_max_pending
from .statement import Args, Json, Value, encode_statement

__version__ = "0.1.0"

__all__ = [
    "enqueue",
    "enqueue_many",
    "enqueue_statement",
    "aio",
    "Enqueued",
    "Event",
    "statement_event",
    "Key",
    "Payload",
    "Time",
    "Version",
    "Args",
    "Json",
    "Value",
    "encode_statement",
    "Outbox",
    "Migrated",
    "migrate",
    "ddl",
    "require_current",
    "set_max_pending",
    "LitepostError",
    "EnqueueError",
    "NoTransaction",
    "OutboxFull",
    "DuplicateVersion",
    "EventRefused",
    "ArgumentRefused",
    "SchemaError",
    "NotMigrated",
    "SchemaOlder",
    "SchemaNewer",
    "ForeignObject",
    "SchemaDamaged",
    "WrongProcess",
]
