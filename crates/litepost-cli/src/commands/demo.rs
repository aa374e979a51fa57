//! `litepost demo`: the whole journey on this machine, and the proof that nothing was lost.
//!
//! An application process writes orders and their events, some rolled back; a relay process delivers them to a file
//! and to a second database, killed by SIGKILL on the way when asked. Then every committed order must have its event
//! delivered once, in order, and no rolled-back order may have one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use clap::Args;
use litepost::connection::{self, Access};
use serde::{Deserialize, Serialize};

use super::demo_app::ROLLED_BACK_EVERY;
use crate::failure::Failure;
use crate::output::{self, Out};
use crate::{clock, report};

const EXAMPLES: &str = "\
Examples:
  litepost demo                         2,000 orders
  litepost demo --kills 10              the same with the relay killed by SIGKILL ten times
  litepost demo --orders 50000 --folder shop-demo   keep everything to look at";

/// Run the whole journey on this machine and prove it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Demo {
    /// How many orders the application attempts
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    orders: u32,
    /// How many times the relay is killed by SIGKILL on the way
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    kills: u32,
    /// Where to work, kept afterwards; a temporary folder that is removed unless given
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The configuration the relay runs with.
const CONFIG: &str = r#"# Written by `litepost demo`.
[app.shop]
database = "shop.db"

[app.shop.sink.audit]                   # every event, as a line of JSON
type = "file"
topics = ["orders"]
[app.shop.sink.audit.connection]
path = "events.jsonl"

[app.shop.db.warehouse]                 # the orders again, as rows of another database
type = "sqlite"
tables = ["order_copies"]
[app.shop.db.warehouse.connection]
path = "warehouse.db"
"#;

#[derive(Debug, Serialize)]
struct Verdict {
    ok: bool,
    orders_attempted: u32,
    orders_committed: usize,
    orders_rolled_back: usize,
    events_delivered: usize,
    rows_delivered: usize,
    kills: u32,
    milliseconds: u128,
    violations: Vec<String>,
    folder: Option<String>,
}

/// Runs it.
pub(crate) fn run(command: &Demo) -> Result<(), Failure> {
    let stage = Stage::set(command.folder.as_deref())?;
    let started = clock::start();
    say(command, format_args!("working in {}", stage.folder.display()));
    let outcome = perform(command, &stage);
    let kills = match outcome {
        Ok(kills) => kills,
        Err(failure) => {
            stage.clear();
            return Err(failure);
        }
    };
    let mut verdict = check(&stage.folder, command.orders)?;
    verdict.kills = kills;
    verdict.milliseconds = started.elapsed().as_millis();
    verdict.folder = stage.keep.then(|| stage.folder.display().to_string());
    if verdict.ok {
        stage.clear();
    }
    tell(command, &verdict, &stage)?;
    if verdict.ok { Ok(()) } else { Err(Failure::Finding) }
}

/// Runs the application and the relay beside each other; returns how often the relay was killed.
fn perform(command: &Demo, stage: &Stage) -> Result<u32, Failure> {
    // With kills the application takes its time, so that they fall into the middle of its work.
    let rate = if command.kills == 0 { 0 } else { (command.orders / (command.kills + 1)).max(1) * 2 };
    let mut app = Guard::start(
        &["demo-app", "shop.db", &command.orders.to_string(), &rate.to_string()],
        &stage.folder,
        "the application",
    )?;
    say(command, format_args!("the application writes {} orders (process {})", command.orders, app.id()));
    let run = ["run", "--config", "litepost.toml"];
    let mut relay = Guard::start(&run, &stage.folder, "the relay")?;
    say(command, format_args!("the relay delivers (process {})", relay.id()));
    let mut kills = 0;
    while kills < command.kills {
        std::thread::sleep(Duration::from_millis(150 + u64::from(kills % 7) * 60));
        relay.must_live()?;
        relay.kill();
        kills += 1;
        relay = Guard::start(&run, &stage.folder, "the relay")?;
        say(command, format_args!("killed the relay by SIGKILL ({kills} of {}), and started it again", command.kills));
    }
    app.finish()?;
    say(command, format_args!("the application has ended; the relay is stopped by SIGTERM, and the rest drained"));
    relay.must_live()?;
    relay.stop()?;
    let mut drain = Guard::start(&["run", "--config", "litepost.toml", "--until-idle"], &stage.folder, "the relay")?;
    drain.finish()?;
    Ok(kills)
}

fn say(command: &Demo, text: std::fmt::Arguments<'_>) {
    if !command.json {
        use std::io::Write as _;
        // Progress is for people; when stderr is gone there are none.
        let _ = writeln!(std::io::stderr(), "{text}");
    }
}

/// The folder with its databases.
struct Stage {
    folder: PathBuf,
    keep: bool,
}

impl Stage {
    fn set(folder: Option<&Path>) -> Result<Self, Failure> {
        let keep = folder.is_some();
        let folder = match folder {
            Some(folder) => folder.to_path_buf(),
            None => std::env::temp_dir().join(format!("litepost-demo-{}", std::process::id())),
        };
        let fault = |error: std::io::Error| {
            Failure::user(format!("{} cannot be used: {error}", folder.display()), "name another with --folder")
        };
        std::fs::create_dir_all(&folder).map_err(fault)?;
        let folder = folder.canonicalize().map_err(fault)?;
        for name in ["shop.db", "warehouse.db", "events.jsonl", "litepost.toml"] {
            if folder.join(name).exists() {
                return Err(Failure::user(
                    format!("{} exists already", folder.join(name).display()),
                    "the demo starts in an empty folder; name another with --folder",
                ));
            }
        }
        std::fs::write(folder.join("litepost.toml"), CONFIG).map_err(fault)?;
        let mut shop = connection::Options::new(Access::ReadWrite).create(true).open(folder.join("shop.db"))?;
        connection::enable_wal(&shop)?;
        litepost::schema::migrate(&mut shop)?;
        let warehouse = connection::Options::new(Access::ReadWrite).create(true).open(folder.join("warehouse.db"))?;
        connection::enable_wal(&warehouse)?;
        warehouse.execute_batch(
            "CREATE TABLE order_copies (id INTEGER PRIMARY KEY, customer TEXT NOT NULL, total INTEGER NOT NULL) STRICT",
        )?;
        Ok(Self { folder, keep })
    }

    /// Removes what a passing run has left behind.
    fn clear(&self) {
        if !self.keep {
            // A temporary folder that cannot be removed is the system's to remove.
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

/// A process that does not outlive the demo.
struct Guard {
    child: Child,
    what: &'static str,
}

impl Guard {
    fn start(arguments: &[&str], folder: &Path, what: &'static str) -> Result<Self, Failure> {
        let fault = |error: std::io::Error| {
            Failure::unexpected(format!("{what} cannot be started: {error}"), "check the limits of this account")
        };
        let child = Command::new(std::env::current_exe().map_err(fault)?)
            .args(arguments)
            .current_dir(folder)
            .env("LOG_LEVEL", "error")
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(fault)?;
        Ok(Self { child, what })
    }

    fn id(&self) -> u32 {
        self.child.id()
    }

    /// Fails when it has ended by itself.
    fn must_live(&mut self) -> Result<(), Failure> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(self.ended(status)),
            Err(error) => Err(Failure::unexpected(format!("{}: {error}", self.what), "report it")),
        }
    }

    /// Waits for a good end.
    fn finish(&mut self) -> Result<(), Failure> {
        match self.child.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(self.ended(status)),
            Err(error) => Err(Failure::unexpected(format!("{}: {error}", self.what), "report it")),
        }
    }

    fn ended(&self, status: std::process::ExitStatus) -> Failure {
        Failure::unexpected(format!("{} ended with {status}", self.what), "its own message stands above")
    }

    /// SIGKILL.
    fn kill(&mut self) {
        // It may have ended in this moment, which is what was wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SIGTERM, and a good end.
    fn stop(&mut self) -> Result<(), Failure> {
        #[cfg(unix)]
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw) {
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).map_err(|error| {
                Failure::unexpected(format!("{} cannot be stopped: {error}", self.what), "report it")
            })?;
            return self.finish();
        }
        self.kill();
        Ok(())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.kill();
        }
    }
}

/// A line of the audit file.
#[derive(Deserialize)]
struct Line {
    id: String,
    seq: i64,
    key: String,
    payload: Order,
}

#[derive(Deserialize)]
struct Order {
    order: u32,
}

/// Compares what was delivered with what was committed.
fn check(folder: &Path, attempted: u32) -> Result<Verdict, Failure> {
    let shop = connection::open(folder.join("shop.db"), Access::ReadOnly)?;
    let committed = rows(&shop, "SELECT id, customer, total FROM orders ORDER BY id")?;
    let warehouse = connection::open(folder.join("warehouse.db"), Access::ReadOnly)?;
    let copied = rows(&warehouse, "SELECT id, customer, total FROM order_copies ORDER BY id")?;
    let mut violations = Vec::new();

    let truth: BTreeSet<&(u32, String, i64)> = committed.iter().collect();
    let copies: BTreeSet<&(u32, String, i64)> = copied.iter().collect();
    violate(&mut violations, "orders are missing in the second database", truth.difference(&copies).count());
    violate(&mut violations, "rows of the second database are no committed order", copies.difference(&truth).count());
    let wrong = committed.iter().filter(|(id, ..)| id % ROLLED_BACK_EVERY == 0).count();
    let expected = u64::from(attempted) - u64::from(attempted / ROLLED_BACK_EVERY);
    let missing = expected.saturating_sub(u64::try_from(committed.len()).unwrap_or(u64::MAX));
    violate(&mut violations, "orders were never committed", usize::try_from(missing).unwrap_or(usize::MAX));
    violate(&mut violations, "orders that were rolled back are there all the same", wrong);

    let text = std::fs::read_to_string(folder.join("events.jsonl")).map_err(|error| {
        Failure::unexpected(format!("events.jsonl cannot be read: {error}"), "was anything delivered?")
    })?;
    let delivered = text.lines().count();
    events(&text, &committed, &mut violations);
    Ok(Verdict {
        ok: violations.is_empty(),
        orders_attempted: attempted,
        orders_committed: committed.len(),
        orders_rolled_back: usize::try_from(attempted).unwrap_or(usize::MAX).saturating_sub(committed.len()),
        events_delivered: delivered,
        rows_delivered: copied.len(),
        kills: 0,
        milliseconds: 0,
        violations,
        folder: None,
    })
}

fn events(text: &str, committed: &[(u32, String, i64)], violations: &mut Vec<String>) {
    let mut torn = 0;
    let mut ids = BTreeSet::new();
    let mut twice = 0;
    let mut out_of_order = 0;
    let mut last: BTreeMap<String, i64> = BTreeMap::new();
    let mut orders = BTreeSet::new();
    for line in text.lines() {
        let Ok(line) = serde_json::from_str::<Line>(line) else {
            torn += 1;
            continue;
        };
        if !ids.insert(line.id) {
            twice += 1;
            continue;
        }
        let before = last.insert(line.key, line.seq).unwrap_or(0);
        out_of_order += usize::from(before >= line.seq);
        orders.insert(line.payload.order);
    }
    let truth: BTreeSet<u32> = committed.iter().map(|(id, ..)| *id).collect();
    violate(violations, "lines of the file are torn", torn);
    violate(violations, "events are in the file twice", twice);
    violate(violations, "events are out of their customer's order", out_of_order);
    violate(violations, "committed orders have no event", truth.difference(&orders).count());
    violate(violations, "events belong to no committed order", orders.difference(&truth).count());
}

fn violate(violations: &mut Vec<String>, what: &str, count: usize) {
    if count > 0 {
        violations.push(format!("{count} {what}"));
    }
}

fn rows(connection: &rusqlite::Connection, sql: &str) -> Result<Vec<(u32, String, i64)>, Failure> {
    let mut statement = connection.prepare(sql)?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn tell(command: &Demo, verdict: &Verdict, stage: &Stage) -> Result<(), Failure> {
    if command.json {
        return output::json(verdict);
    }
    let mut out = Out::new();
    out.line(format_args!("orders attempted    {:>9}", verdict.orders_attempted))?;
    out.line(format_args!("orders committed    {:>9}", verdict.orders_committed))?;
    out.line(format_args!("orders rolled back  {:>9}", verdict.orders_rolled_back))?;
    out.line(format_args!("events in the file  {:>9}", verdict.events_delivered))?;
    out.line(format_args!("rows in the copy    {:>9}", verdict.rows_delivered))?;
    out.line(format_args!("relay killed        {:>9}", verdict.kills))?;
    out.line(format_args!("milliseconds        {:>9}", verdict.milliseconds))?;
    out.flush()?;
    if verdict.ok {
        out.line("every committed order has its event, once and in order; no rolled-back order has one")?;
        return out.flush();
    }
    for violation in &verdict.violations {
        report::error(violation, &format!("everything is kept in {}", stage.folder.display()));
    }
    Ok(())
}
