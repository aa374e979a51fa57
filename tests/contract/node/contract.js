// The SQL contract from better-sqlite3: insert, defaults, guards, errors. Usage: contract.js FILE (migrated).
"use strict";
const assert = require("node:assert");
const Database = require("better-sqlite3");

const db = new Database(process.argv[2]);
const insert = db.prepare("INSERT INTO litepost_outbox (topic, key, type, payload) VALUES (?, ?, ?, ?)");
const refused = (message, sql, ...args) =>
  assert.throws(() => db.prepare(sql).run(...args), (error) => error.message === message, sql);

db.exec("CREATE TABLE shop_orders (id INTEGER PRIMARY KEY, total INTEGER)");
const order = db.transaction((id, fail) => {
  db.prepare("INSERT INTO shop_orders VALUES (?, 4999)").run(id);
  const written = insert.run("orders", String(id), "OrderCreated", JSON.stringify({ id }));
  if (fail) throw new Error("rolled back");
  return written;
});
assert.strictEqual(order(501, false).lastInsertRowid, 1);
assert.throws(() => order(502, true), /rolled back/);
assert.strictEqual(insert.run("orders", null, "bytes", Buffer.from([0, 255])).lastInsertRowid, 2);

const topic = "litepost: topic must be a text that is not empty and has no NUL character";
refused(topic, "INSERT OR IGNORE INTO litepost_outbox (topic, payload) VALUES (?, ?)", "", "{}");
refused(topic, "INSERT INTO litepost_outbox (topic, payload) VALUES (?, ?)", "a\0b", "{}");
refused(
  "litepost: payload must be TEXT or BLOB; serialise the value before the INSERT",
  "INSERT INTO litepost_outbox (topic, payload) VALUES ('orders', ?)",
  5,
);
refused(
  "litepost: seq is assigned by the log; leave it out of the INSERT",
  "INSERT OR REPLACE INTO litepost_outbox (seq, topic, payload) VALUES (1, 'a', 'b')",
);
refused("litepost: events are immutable; write a new event instead", "UPDATE litepost_outbox SET topic = 'x'");
refused("litepost: this event is not delivered yet and cannot be deleted", "DELETE FROM litepost_outbox");
assert.deepStrictEqual(db.prepare("SELECT seq, payload FROM litepost_outbox WHERE seq = 2").get(), {
  seq: 2,
  payload: Buffer.from([0, 255]),
});

const next = db.prepare(`INSERT INTO litepost_outbox (topic, key, payload, version) VALUES ($topic, $key, '{}',
  (SELECT coalesce(max(version), 0) + 1 FROM litepost_version WHERE topic = $topic AND key = $key)) RETURNING version`);
assert.deepStrictEqual([1, 2].map(() => next.get({ topic: "orders", key: "501" }).version), [1, 2]);
refused(
  "litepost: this key has this version already, or a later one; read the aggregate again and retry",
  "INSERT OR IGNORE INTO litepost_outbox (topic, key, payload, version) VALUES ('orders', '501', '{}', 2)",
);
console.log("the contract holds in Node, SQLite", db.prepare("SELECT sqlite_version()").pluck().get());
