//! Rows per second into SQLite, PostgreSQL and MariaDB, beside a loop written by hand with the same driver and batch
//! size, and beside sqloutbox 0.6 with an equally batched writer, in one run: `cargo xtask bench sql_targets`.
//!
//! Workloads: plain INSERTs, and INSERT and UPDATE in turn (which no multi-row form can help). The loop by hand reads
//! the same outbox, prepares each text once, commits a batch with its cursor in one transaction, pipelines where the
//! driver can. `--batch N` takes other batches than 500. sqloutbox runs when `LITEPOST_BENCH_PYTHON` names a Python that has it.
//!
//! At the end, the loop by hand with a savepoint around each statement: what it would cost every batch to find a bad
//! statement that way. The relay sends a batch without, and what preceded a bad statement once more.

#![allow(clippy::print_stdout, reason = "a benchmark's result is what it prints")]
#![allow(clippy::disallowed_methods, reason = "measuring time is this program's purpose")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on should stop there")]

use std::collections::HashMap;
use std::fmt::Write as _;
use std::future;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use litepost::connection::{Access, Options};
use litepost::{NewEvent, enqueue_many, schema};
use litepost_core::Value;
use litepost_core::statement::{Args, Statement};
use litepost_relay::config::{Config, Purpose};
use litepost_relay::relay::Relay;
use litepost_testkit::measure::argument;
use litepost_testkit::servers::{MariaDb, Postgres};
use mysql_async::prelude::Queryable as _;
use rusqlite::Connection;
use tempfile::TempDir;

/// Statements in a transaction, unless `--batch N` says otherwise.
const BATCH: i64 = 500;
const ROUNDS: usize = 3;
/// What sqloutbox is measured with: it is slow, and slower with more.
const PEER_EVENTS: usize = 50_000;
const INSERT: &str = "INSERT INTO stock (id, k, n, note) VALUES (?, ?, ?, ?)";
const UPDATE: &str = "UPDATE stock SET n = n + ? WHERE id = ?";
const TABLE: &str =
    "CREATE TABLE stock (id BIGINT PRIMARY KEY, k BIGINT NOT NULL, n BIGINT NOT NULL, note VARCHAR(200) NOT NULL)";
const MARK: &str = "CREATE TABLE mark (seq BIGINT NOT NULL); INSERT INTO mark VALUES (0)";

enum Server {
    Sqlite,
    Postgres(Postgres),
    MariaDb(MariaDb),
}

impl Server {
    fn name(&self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres(_) => "postgres",
            Self::MariaDb(_) => "mysql",
        }
    }

    fn url(&self, folder: &Path) -> String {
        match self {
            Self::Sqlite => folder.join("target.db").display().to_string(),
            Self::Postgres(server) => server.url(),
            Self::MariaDb(server) => server.url(),
        }
    }

    /// Empty tables.
    fn prepare(&self, folder: &Path) {
        let drop = "DROP TABLE IF EXISTS stock; DROP TABLE IF EXISTS mark; DROP TABLE IF EXISTS litepost_ledger";
        let sql = format!("{drop}; {TABLE}; {MARK}");
        match self {
            Self::Sqlite => {
                let db = Connection::open(folder.join("target.db")).unwrap();
                db.execute_batch(&format!("PRAGMA journal_mode = WAL; {sql}")).unwrap();
            }
            Self::Postgres(server) => drop_output(server.psql(&sql)),
            Self::MariaDb(server) => drop_output(server.sql(&sql)),
        }
    }

    /// How many rows arrived, and the sum of their numbers.
    fn sum(&self, folder: &Path) -> String {
        self.ask(folder, "SELECT concat(count(*), ' ', sum(n)) FROM stock")
    }

    /// When litepost's last batch was committed, by its ledger: milliseconds by the wall clock.
    fn last_commit_ms(&self, folder: &Path) -> u128 {
        self.ask(folder, "SELECT concat(max(updated_at), '') FROM litepost_ledger").trim().parse().unwrap()
    }

    fn ask(&self, folder: &Path, sql: &str) -> String {
        match self {
            Self::Sqlite => {
                Connection::open(folder.join("target.db")).unwrap().query_row(sql, [], |row| row.get(0)).unwrap()
            }
            Self::Postgres(server) => server.psql(sql),
            Self::MariaDb(server) => server.sql(sql),
        }
    }
}

fn drop_output(_: String) {}

fn batch_size() -> i64 {
    argument("batch").unwrap_or(BATCH)
}

fn main() {
    let quick = std::env::args().any(|arg| arg == "--quick") || std::env::var_os("LITEPOST_BENCH_QUICK").is_some();
    // A relay runs for long: what it costs to start and to stop must not be what is measured. SQLite is fast.
    let events = |name: &str| match (quick, name) {
        (true, _) => 5_000,
        (false, "sqlite") => 1_000_000,
        (false, _) => PEER_EVENTS,
    };
    let wanted = |name: &str| {
        let names: Vec<String> = std::env::args().skip(1).filter(|arg| arg.starts_with(char::is_alphabetic)).collect();
        names.is_empty() || names.iter().any(|n| n == name)
    };
    println!(
        "{:<10} {:<16} {:>14} {:>14} {:>14} {:>8} {:>8}",
        "target", "statements", "litepost/s", "by hand/s", "sqloutbox/s", "x hand", "x sqlo."
    );
    for name in ["sqlite", "postgres", "mysql"].into_iter().filter(|name| wanted(name)) {
        let server = match name {
            "postgres" => Server::Postgres(Postgres::start()),
            "mysql" => Server::MariaDb(MariaDb::start()),
            _ => Server::Sqlite,
        };
        for mixed in [false, true] {
            compare(&server, mixed, events(name), if quick { 1 } else { ROUNDS });
        }
        savepoints(&server, events(name), if quick { 1 } else { ROUNDS });
    }
}

/// The loop by hand with and without a savepoint around each statement.
fn savepoints(server: &Server, events: usize, rounds: usize) {
    let mut rates: [Vec<f64>; 2] = Default::default();
    for _ in 0..rounds {
        rates[0].push(measure(server, true, events, by_hand));
        rates[1].push(measure(server, true, events, by_hand_with_savepoints));
    }
    let [plain, guarded] = rates.map(|mut rates| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    });
    println!(
        "{:<10} a savepoint around each statement: {guarded:.0}/s instead of {plain:.0}/s, x {:.2}",
        server.name(),
        guarded / plain
    );
    println!(
        "{}",
        serde_json::json!({ "name": format!("{} savepoints", server.name()), "with": guarded, "without": plain })
    );
}

/// Rounds in turn, so that all meet the same moods of the machine; the median of each.
fn compare(server: &Server, mixed: bool, events: usize, rounds: usize) {
    let mut rates: [Vec<f64>; 3] = Default::default();
    for _ in 0..rounds {
        rates[0].push(measure(server, mixed, events, litepost));
        rates[1].push(measure(server, mixed, events, by_hand));
        rates[2].extend(sqloutbox(server, mixed, events.min(PEER_EVENTS)));
    }
    let [ours, hand, peer] = rates.map(|mut rates| {
        rates.sort_by(f64::total_cmp);
        rates.get(rates.len() / 2).copied()
    });
    let (ours, hand) = (ours.unwrap(), hand.unwrap());
    let shown = |n: Option<f64>, digits: usize| n.map_or_else(|| "-".into(), |n| format!("{n:.digits$}"));
    let name = if mixed { "INSERT, UPDATE" } else { "INSERT" };
    println!(
        "{:<10} {name:<16} {ours:>14.0} {hand:>14.0} {:>14} {:>8.2} {:>8}",
        server.name(),
        shown(peer, 0),
        ours / hand,
        shown(peer.map(|p| ours / p), 1)
    );
    println!(
        "{}",
        serde_json::json!({ "name": format!("{} {name}", server.name()), "litepost": ours, "by_hand": hand, "sqloutbox": peer })
    );
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
fn rate(events: usize, took: Duration) -> f64 {
    events as f64 / took.as_secs_f64()
}

fn measure(server: &Server, mixed: bool, events: usize, run: fn(&Server, &Path) -> Duration) -> f64 {
    let folder = fill(events, mixed);
    server.prepare(folder.path());
    let took = run(server, folder.path());
    assert_eq!(server.sum(folder.path()), expected(events, mixed));
    rate(events, took)
}

fn expected(events: usize, mixed: bool) -> String {
    let rows = if mixed { events / 2 } else { events };
    format!("{rows} {}", if mixed { rows * 8 } else { rows * 7 })
}

fn step(at: usize, mixed: bool) -> (&'static str, Vec<Value>) {
    let id = i64::try_from(if mixed { at / 2 } else { at }).unwrap();
    if mixed && at % 2 == 1 {
        return (UPDATE, vec![Value::Integer(1), Value::Integer(id)]);
    }
    let note = format!("a note of a common length, with the number {id}");
    (INSERT, vec![Value::Integer(id), Value::Integer(id % 1_000), Value::Integer(7), Value::Text(note)])
}

fn fill(events: usize, mixed: bool) -> TempDir {
    let folder = tempfile::tempdir_in(".").unwrap();
    let mut db = Options::new(Access::ReadWrite).create(true).open(folder.path().join("shop.db")).unwrap();
    db.query_row("PRAGMA journal_mode = wal", [], |_| Ok(())).unwrap();
    schema::migrate(&mut db).unwrap();
    let tx = db.transaction().unwrap();
    let events: Vec<NewEvent> = (0..events)
        .map(|at| {
            let (sql, values) = step(at, mixed);
            NewEvent::statement("stock", sql, values).key((at % 1_000).to_string())
        })
        .collect();
    enqueue_many(&tx, &events).unwrap();
    tx.commit().unwrap();
    db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    folder
}

fn litepost(server: &Server, folder: &Path) -> Duration {
    let place = match server {
        Server::Sqlite => "path = \"target.db\"".to_owned(),
        _ => format!("url = \"{}\"", server.url(folder)),
    };
    let config = format!(
        "[app.shop]\ndatabase = \"shop.db\"\nretain = \"never\"\n[app.shop.db.copy]\ntype = \"{}\"\ntables = [\"stock\"]\n\
         batch_size = {}\nconnection = {{ {place} }}\n",
        server.name(),
        batch_size()
    );
    std::fs::write(folder.join("litepost.toml"), config).unwrap();
    let config = Config::load(&folder.join("litepost.toml"), Purpose::Deliver).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let start = wall_ms();
    let report = runtime.block_on(Relay::new(config.relay()).run_until_idle(future::pending()));
    assert!(report.drained_everything(), "{report:?}");
    // Until the last row is there, as the loop by hand. What a relay tidies in the outbox when it stops, for 0.3 s at
    // most, is no part of it.
    Duration::from_millis(u64::try_from(server.last_commit_ms(folder) - start).unwrap())
}

fn wall_ms() -> u128 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis()
}

/// What a careful person would write: read a batch, one transaction with its cursor, on to the next.
fn by_hand(server: &Server, folder: &Path) -> Duration {
    hand(server, folder, false)
}

fn by_hand_with_savepoints(server: &Server, folder: &Path) -> Duration {
    hand(server, folder, true)
}

fn hand(server: &Server, folder: &Path, savepoints: bool) -> Duration {
    let outbox = Connection::open(folder.join("shop.db")).unwrap();
    let start = Instant::now();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    match server {
        Server::Sqlite => sqlite_by_hand(&outbox, folder, savepoints),
        Server::Postgres(server) => runtime.block_on(postgres_by_hand(&outbox, &server.url(), savepoints)),
        Server::MariaDb(server) => runtime.block_on(mysql_by_hand(&outbox, &server.url(), savepoints)),
    }
    start.elapsed()
}

/// The next batch, and where it ends.
fn batch(outbox: &Connection, after: i64) -> (i64, Vec<(String, Vec<Value>)>) {
    let mut last = after;
    let mut read =
        outbox.prepare_cached("SELECT seq, payload FROM litepost_outbox WHERE seq > ?1 ORDER BY seq LIMIT ?2").unwrap();
    let steps = read
        .query_map(rusqlite::params![after, batch_size()], |row| Ok((row.get(0)?, row.get::<_, String>(1)?)))
        .unwrap()
        .map(|row| {
            let (seq, payload) = row.unwrap();
            last = seq;
            let Statement { sql, args: Args::Positional(values) } = Statement::parse(&payload).unwrap() else {
                panic!()
            };
            (sql, values)
        })
        .collect();
    (last, steps)
}

fn sqlite_by_hand(outbox: &Connection, folder: &Path, savepoints: bool) {
    let mut target = Connection::open(folder.join("target.db")).unwrap();
    target.pragma_update(None, "synchronous", "FULL").unwrap();
    let mut at = 0;
    loop {
        let (last, steps) = batch(outbox, at);
        if steps.is_empty() {
            return;
        }
        let tx = target.transaction().unwrap();
        for (sql, values) in &steps {
            let values = values.iter().map(|value| match value {
                Value::Integer(i) => rusqlite::types::Value::Integer(*i),
                Value::Text(t) => rusqlite::types::Value::Text(t.clone()),
                other => panic!("{other:?}"),
            });
            if savepoints {
                tx.prepare_cached("SAVEPOINT one").unwrap().execute([]).unwrap();
            }
            tx.prepare_cached(sql).unwrap().execute(rusqlite::params_from_iter(values)).unwrap();
            if savepoints {
                tx.prepare_cached("RELEASE one").unwrap().execute([]).unwrap();
            }
        }
        tx.prepare_cached("UPDATE mark SET seq = ?1").unwrap().execute([last]).unwrap();
        tx.commit().unwrap();
        at = last;
    }
}

async fn postgres_by_hand(outbox: &Connection, url: &str, savepoints: bool) {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let mark = client.prepare("UPDATE mark SET seq = $1").await.unwrap();
    let mut prepared: HashMap<String, tokio_postgres::Statement> = HashMap::new();
    let mut at = 0;
    loop {
        let (last, steps) = batch(outbox, at);
        if steps.is_empty() {
            return;
        }
        for (sql, _) in &steps {
            if !prepared.contains_key(sql) {
                let native = sql.split('?').enumerate().fold(String::new(), |mut out, (n, part)| {
                    if n > 0 {
                        let _ = write!(out, "${n}");
                    }
                    out + part
                });
                prepared.insert(sql.clone(), client.prepare(&native).await.unwrap());
            }
        }
        client.batch_execute("BEGIN").await.unwrap();
        // Pipelined: all are sent before the first answer is awaited.
        let sends = steps.iter().map(|(sql, values)| {
            let values: Vec<Box<dyn tokio_postgres::types::ToSql + Sync>> = values
                .iter()
                .map(|value| match value {
                    Value::Integer(i) => Box::new(*i) as Box<dyn tokio_postgres::types::ToSql + Sync>,
                    Value::Text(t) => Box::new(t.clone()),
                    other => panic!("{other:?}"),
                })
                .collect();
            let client = &client;
            let guard = move |sql: &'static str| async move {
                if savepoints { client.batch_execute(sql).await } else { Ok(()) }
            };
            let (save, run, release) =
                (guard("SAVEPOINT one"), client.execute_raw(&prepared[sql], values), guard("RELEASE one"));
            async move { futures_util::future::try_join3(save, run, release).await }
        });
        futures_util::future::try_join_all(sends).await.unwrap();
        client.execute(&mark, &[&last]).await.unwrap();
        client.batch_execute("COMMIT").await.unwrap();
        at = last;
    }
}

async fn mysql_by_hand(outbox: &Connection, url: &str, savepoints: bool) {
    let mut conn = mysql_async::Conn::from_url(url).await.unwrap();
    let mut at = 0;
    loop {
        let (last, steps) = batch(outbox, at);
        if steps.is_empty() {
            conn.disconnect().await.unwrap();
            return;
        }
        conn.query_drop("START TRANSACTION").await.unwrap();
        for (sql, values) in steps {
            let values = values.into_iter().map(|value| match value {
                Value::Integer(i) => mysql_async::Value::Int(i),
                Value::Text(t) => mysql_async::Value::Bytes(t.into_bytes()),
                other => panic!("{other:?}"),
            });
            if savepoints {
                conn.query_drop("SAVEPOINT one").await.unwrap();
            }
            conn.exec_drop(sql, values.collect::<Vec<_>>()).await.unwrap();
            if savepoints {
                conn.query_drop("RELEASE SAVEPOINT one").await.unwrap();
            }
        }
        conn.exec_drop("UPDATE mark SET seq = ?", (last,)).await.unwrap();
        conn.query_drop("COMMIT").await.unwrap();
        at = last;
    }
}

/// sqloutbox's own service over its own outbox, with the writer of `sqloutbox_writer.py`.
fn sqloutbox(server: &Server, mixed: bool, events: usize) -> Option<f64> {
    let python = std::env::var_os("LITEPOST_BENCH_PYTHON")?;
    let folder = tempfile::tempdir_in(".").unwrap();
    server.prepare(folder.path());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/sqloutbox_writer.py");
    let output = Command::new(python)
        .arg(script)
        .args([server.name(), &server.url(folder.path()), &events.to_string(), &batch_size().to_string()])
        .args([if mixed { "mixed" } else { "inserts" }, &folder.path().display().to_string()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(server.sum(folder.path()), expected(events, mixed));
    let seconds: f64 = String::from_utf8_lossy(&output.stdout).trim().parse().unwrap();
    Some(rate(events, Duration::from_secs_f64(seconds)))
}
