// A shop of its own for one test run: outbox, targets, the relay with its admin listener.
import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";

const binary = resolve(process.env.LITEPOST_BIN ?? join(import.meta.dirname, "../../target/debug/litepost"));

const CONFIG = `
[app.shop]
database = "shop.db"
retain = "1h"
retry = { first = "10ms", cap = "10ms", max_attempts = 2 }

[app.shop.db.stock]
type = "sqlite"
tables = ["stock"]
connection = { path = "stock.db" }

[app.shop.sink.archive]
type = "file"
topics = ["*"]
connection = { path = "archive.jsonl" }

[app.shop.sink.webhook]
type = "http"
topics = ["orders"]
connection = { url = "http://127.0.0.1:9/hook", allow_private_addresses = true }
`;

/** Starts it; the answer has `base`, `litepost(args)`, `sql(file, text)` and `stop()`. */
export async function shop() {
  const folder = mkdtempSync(join(tmpdir(), "litepost-browser-"));
  const litepost = (...args) => execFileSync(binary, args, { cwd: folder, encoding: "utf8" });
  const sql = (file, text) => execFileSync("sqlite3", [join(folder, file), text], { encoding: "utf8" }).trim();
  writeFileSync(join(folder, "litepost.toml"), CONFIG);
  sql("stock.db", "CREATE TABLE stock (item TEXT PRIMARY KEY, n INTEGER CHECK (n >= 0))");
  litepost("migrate", "--database", "shop.db");
  const relay = spawn(binary, ["run", "--admin", "127.0.0.1:0"], {
    cwd: folder,
    env: { ...process.env, LOG_LEVEL: "info" },
    stdio: ["ignore", "ignore", "pipe"],
  });
  const base = await new Promise((found, failed) => {
    relay.once("exit", (code) => failed(new Error(`the relay ended with ${code}`)));
    createInterface({ input: relay.stderr }).on("line", (line) => {
      const { address } = JSON.parse(line);
      if (address) found(`http://${address}`);
    });
  });
  const enqueue = (topic, key, type, payload) =>
    litepost("enqueue", "--database", "shop.db", "--topic", topic, "--key", key, "--type", type, "--payload", JSON.stringify(payload));
  for (let n = 1; n <= 6; n += 1) enqueue("orders", `order-${500 + n}`, "OrderPlaced", { order: 500 + n, total: 1200 + n, note: "<b>gift</b>" });
  enqueue("stock", "tea", "sql", { sql: "INSERT INTO stock VALUES (?, ?)", args: ["tea", 20] });
  for (const item of ["cups", "spoons", "plates"]) enqueue("stock", item, "sql", { sql: "INSERT INTO stock VALUES (?, ?)", args: [item, -1] });
  await until("three dead letters", async () => (await (await fetch(`${base}/api/dead`)).json()).dead.length === 3);
  const stop = async () => {
    const ended = new Promise((done) => relay.once("exit", done));
    relay.kill("SIGKILL");
    await ended;
    rmSync(folder, { recursive: true, force: true });
  };
  return { base, litepost, sql, stop };
}

/** Waits until `holds`, at most 30 s. */
export async function until(what, holds) {
  for (let tries = 0; tries < 300; tries += 1) {
    if (await holds()) return;
    await new Promise((done) => setTimeout(done, 100));
  }
  throw new Error(`never happened: ${what}`);
}
