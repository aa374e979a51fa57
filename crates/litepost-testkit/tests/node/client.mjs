// The test kit's Hrana server, seen from libSQL's own client. Arguments: the server's URL, its token.
import assert from "node:assert/strict";
import { createClient } from "@libsql/client";

const [url, authToken] = process.argv.slice(2);
const client = createClient({ url, authToken, intMode: "bigint" });

// Values of every kind, by position and by name.
await client.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v)");
const blob = new Uint8Array([0, 255, 7]);
const values = [null, 9223372036854775807n, -1.5, "it's \u20ac", blob];
for (const [at, v] of values.entries()) {
  const done = await client.execute({ sql: "INSERT INTO t VALUES (?, ?)", args: [at, v] });
  assert.equal(done.rowsAffected, 1);
}
const found = await client.execute("SELECT v FROM t ORDER BY id");
assert.deepEqual(found.columns, ["v"]);
const read = found.rows.map((row) => row.v);
assert.deepEqual(read.slice(0, 4), values.slice(0, 4));
assert.deepEqual(new Uint8Array(read[4]), blob);
const named = await client.execute({ sql: "SELECT $a AS a, :b AS b", args: { a: 1, b: "x" } });
assert.deepEqual([named.rows[0].a, named.rows[0].b], [1, "x"]);

// A batch is a transaction: its failure undoes it and names SQLite's code.
const insert = (id) => ({ sql: "INSERT INTO t VALUES (?, 'b')", args: [id] });
await client.batch([insert(10), insert(11)], "write");
await assert.rejects(client.batch([insert(12), insert(10), insert(13)], "write"), (e) => e.code === "SQLITE_CONSTRAINT");
const count = async (sql) => Number((await client.execute(sql)).rows[0][0]);
assert.equal(await count("SELECT count(*) FROM t WHERE id >= 10"), 2);

// An interactive transaction lives on a stream, from baton to baton.
const tx = await client.transaction("write");
await tx.execute(insert(20));
assert.equal(Number((await tx.execute("SELECT count(*) FROM t WHERE id = 20")).rows[0][0]), 1);
await tx.rollback();
assert.equal(await count("SELECT count(*) FROM t WHERE id = 20"), 0);
const kept = await client.transaction("write");
await kept.batch([insert(21), insert(22)]);
await kept.commit();
assert.equal(await count("SELECT count(*) FROM t WHERE id > 20"), 2);

// A transaction that waits for longer than a stream lives is rolled back.
const slow = await client.transaction("write");
await slow.execute(insert(30));
await new Promise((resolve) => setTimeout(resolve, 900));
await assert.rejects(slow.commit());
assert.equal(await count("SELECT count(*) FROM t WHERE id = 30"), 0);

// Several statements, and what is none.
await client.executeMultiple("CREATE TABLE u (a); INSERT INTO u VALUES (1); INSERT INTO u VALUES (2);");
assert.equal(await count("SELECT count(*) FROM u"), 2);
await assert.rejects(client.execute("SELECT 1; SELECT 2"), (e) => e.code === "SQL_MANY_STATEMENTS");
await assert.rejects(client.execute("INSRT"), (e) => e.code === "SQL_INPUT_ERROR");
client.close();

// What the client does not use: version 3, describe, stored texts, the wrong token.
const post = async (version, requests, token = authToken) => {
  const headers = { "content-type": "application/json", authorization: `Bearer ${token}` };
  return fetch(`${url}/${version}/pipeline`, { method: "POST", headers, body: JSON.stringify({ requests }) });
};
assert.equal((await fetch(`${url}/v3`)).status, 200);
const three = await (
  await post("v3", [
    { type: "store_sql", sql_id: 1, sql: "SELECT ?1, :n" },
    { type: "describe", sql_id: 1 },
    { type: "execute", stmt: { sql: "BEGIN" } },
    { type: "get_autocommit" },
    { type: "close" },
  ])
).json();
assert.equal(three.baton, null);
assert.deepEqual(three.results[1].response.result.params, [{ name: "?1" }, { name: ":n" }]);
assert.equal(three.results[3].response.is_autocommit, false);
assert.equal((await post("v2", [{ type: "get_autocommit" }])).status, 400);
assert.equal((await post("v2", [], "wrong")).status, 401);
