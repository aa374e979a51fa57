"""A writer as sqloutbox's README asks for: an async class that executes a batch, here in a SQLite file."""

import sqlite3


class SqliteWriter:
    def __init__(self, path):
        self._db = sqlite3.connect(path, timeout=30, isolation_level=None)

    async def write_batch(self, stmts):
        self._db.execute("BEGIN IMMEDIATE")
        results = []
        for sql, args in stmts:
            try:
                results.append({"ok": True, "rows_affected": self._db.execute(sql, args).rowcount})
            except sqlite3.Error as error:
                results.append({"ok": False, "error": str(error)})
        self._db.execute("COMMIT")
        return results
