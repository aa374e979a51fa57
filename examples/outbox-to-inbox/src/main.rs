//! Orders on their way from a SQLite outbox over NATS to a PostgreSQL inbox, with everything killed at random.
//!
//! Run by hand and by `tests/exactly_once.rs`. Invariant: it ends well only when every order has exactly one event and
//! exactly one shipment.

#![allow(clippy::print_stdout, reason = "a demonstration shows what it does")]

mod consumer;
mod producer;

use std::hash::{BuildHasher as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use async_nats::jetstream;
use litepost_inbox::{Dialect, Inbox};
use litepost_testkit::servers::{Nats, Postgres};
use tokio::time::sleep;
use tokio_postgres::{Client, NoTls};

/// Seconds after the last kill in which everything must have arrived.
const SETTLE_SECONDS: u64 = 90;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["producer", shop, last] => producer::run(Path::new(shop), last.parse()?),
        ["consumer", nats, postgres] => consumer::run(nats, postgres).await,
        [] => demonstrate(1_000, 20).await,
        ["--orders", orders, "--kills", kills] => demonstrate(orders.parse()?, kills.parse()?).await,
        _ => bail!("usage: outbox-to-inbox [--orders NUMBER --kills NUMBER]"),
    }
}

/// The three processes, and how each is started again.
struct Cast {
    relay: PathBuf,
    folder: PathBuf,
    orders: u64,
    nats: String,
    postgres: String,
    children: Vec<Child>,
}

const ROLES: [&str; 3] = ["producer", "relay", "consumer"];

impl Cast {
    fn start(&self, role: usize) -> anyhow::Result<Child> {
        let mut command = match ROLES[role] {
            "relay" => Command::new(&self.relay),
            _ => Command::new(std::env::current_exe()?),
        };
        match ROLES[role] {
            "producer" => command.arg("producer").arg(self.folder.join("shop.db")).arg(self.orders.to_string()),
            "relay" => command.args(["run", "--config"]).arg(self.folder.join("litepost.toml")),
            _ => command.args(["consumer", &self.nats, &self.postgres]),
        };
        let log = std::fs::File::options().create(true).append(true).open(self.folder.join("log"))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        command.spawn().with_context(|| format!("starting the {}", ROLES[role]))
    }

    fn kill(&mut self, role: usize) -> anyhow::Result<()> {
        self.children[role].kill()?;
        self.children[role].wait()?;
        self.children[role] = self.start(role)?;
        Ok(())
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }
}

impl Drop for Cast {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

async fn demonstrate(orders: u64, kills: u32) -> anyhow::Result<()> {
    let relay = litepost()?;
    let servers = tokio::task::spawn_blocking(|| (Nats::start_with(""), Postgres::start())).await?;
    let (nats, postgres) = (servers.0.url(), servers.1.url());
    let folder = tempfile::tempdir()?;
    let database = prepare(folder.path(), &nats, &postgres).await?;
    let mut cast = Cast { relay, folder: folder.path().to_owned(), orders, nats, postgres, children: Vec::new() };
    for role in 0..ROLES.len() {
        let child = cast.start(role)?;
        cast.children.push(child);
    }
    for kill in 1..=kills {
        sleep(Duration::from_millis(100 + random() % 700)).await;
        let role = usize::try_from(random() % 3)?;
        cast.kill(role)?;
        println!("kill {kill}: the {}; {} of {orders} orders shipped", ROLES[role], shipped(&database).await?);
    }
    let mut waited = 0;
    while shipped(&database).await? < i64::try_from(orders)? || left(&cast.nats).await? > 0 {
        waited += 1;
        ensure!(waited < SETTLE_SECONDS * 4, "it did not arrive:\n{}", cast.log());
        sleep(Duration::from_millis(250)).await;
    }
    count(&database, folder.path(), orders).await
}

/// The tables on both sides, the stream, the relay's configuration.
async fn prepare(folder: &Path, nats: &str, postgres: &str) -> anyhow::Result<Client> {
    let mut shop = rusqlite::Connection::open(folder.join("shop.db"))?;
    litepost::schema::migrate(&mut shop)?;
    shop.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER NOT NULL)")?;
    let (client, connection) = tokio_postgres::connect(postgres, NoTls).await?;
    tokio::spawn(connection);
    client.batch_execute(&Inbox::new("inbox")?.schema(Dialect::Postgres)).await?;
    let tables = "CREATE TABLE shipments (order_id bigint NOT NULL);
                  CREATE TABLE shipped (orders bigint NOT NULL); INSERT INTO shipped VALUES (0)";
    client.batch_execute(tables).await?;
    let stream = consumer::STREAM;
    let config = jetstream::stream::Config {
        name: stream.into(),
        subjects: vec![format!("{stream}.>")],
        // Too short to hide what is sent twice: recognising that is the inbox's work.
        duplicate_window: Duration::from_millis(100),
        ..jetstream::stream::Config::default()
    };
    jetstream::new(async_nats::connect(nats).await?).create_stream(config).await?;
    let config = format!(
        "[app.shop]\ndatabase = \"shop.db\"\n\n[app.shop.sink.{stream}]\ntype = \"nats\"\ntopics = [\"orders\"]\nlease = \"2s\"\n\n\
         [app.shop.sink.{stream}.connection]\nurl = {nats:?}\nstream = \"{stream}\"\nsubject = \"{stream}.{{key}}\"\n"
    );
    std::fs::write(folder.join("litepost.toml"), config)?;
    Ok(client)
}

async fn shipped(client: &Client) -> anyhow::Result<i64> {
    Ok(client.query_one("SELECT count(DISTINCT order_id) FROM shipments", &[]).await?.get(0))
}

/// Messages that are not acknowledged yet.
async fn left(nats: &str) -> anyhow::Result<u64> {
    let context = jetstream::new(async_nats::connect(nats).await?);
    let mut consumer: jetstream::consumer::PullConsumer =
        context.get_consumer_from_stream(consumer::DURABLE, consumer::STREAM).await?;
    let info = consumer.info().await?;
    Ok(info.num_pending + u64::try_from(info.num_ack_pending)?)
}

async fn count(client: &Client, folder: &Path, orders: u64) -> anyhow::Result<()> {
    let shop = rusqlite::Connection::open(folder.join("shop.db"))?;
    let number = |sql: &str| shop.query_row(sql, [], |row| row.get::<_, i64>(0));
    let taken = number("SELECT count(*) FROM orders")?;
    let row = client
        .query_one(
            "SELECT (SELECT count(*) FROM shipments), (SELECT count(DISTINCT order_id) FROM shipments),
                    (SELECT orders FROM shipped), (SELECT count(*) FROM inbox)",
            &[],
        )
        .await?;
    let (shipments, different, counter, claimed): (i64, i64, i64, i64) =
        (row.get(0), row.get(1), row.get(2), row.get(3));
    println!("{taken} orders taken; {shipments} shipments of {different} orders; the counter says {counter}");
    let expected = i64::try_from(orders)?;
    ensure!(
        [taken, shipments, different, counter, claimed].iter().all(|number| *number == expected),
        "not exactly once"
    );
    println!("each exactly once");
    Ok(())
}

/// The relay's program: `LITEPOST_BIN`, or the one beside this program, built when it is not there or older than its
/// sources.
fn litepost() -> anyhow::Result<PathBuf> {
    if let Some(named) = std::env::var_os("LITEPOST_BIN") {
        return Ok(named.into());
    }
    let own = std::env::current_exe()?;
    let beside = own.with_file_name(format!("litepost{}", std::env::consts::EXE_SUFFIX));
    if !is_current(&beside) {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut build = Command::new(cargo);
        build.args(["build", "--package", "litepost-cli"]);
        if own.parent().is_some_and(|folder| folder.ends_with("release")) {
            build.arg("--release");
        }
        ensure!(build.status()?.success() && beside.exists(), "litepost is not there: build it, or set LITEPOST_BIN");
    }
    Ok(beside)
}

/// Whether a program is there and as new as each source that cargo has written down for it.
fn is_current(program: &Path) -> bool {
    let changed = |path: &Path| path.metadata().and_then(|found| found.modified()).ok();
    let (Some(built), Ok(listed)) = (changed(program), std::fs::read_to_string(program.with_extension("d"))) else {
        return false;
    };
    let Some((_, sources)) = listed.trim_end().split_once(": ") else { return false };
    // A space inside a path is escaped.
    let sources = sources.replace("\\ ", "\0");
    sources
        .split(' ')
        .all(|source| changed(Path::new(&source.replace('\0', " "))).is_some_and(|source| source <= built))
}

fn random() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop there")]

    use super::*;
    use std::time::SystemTime;

    #[test]
    fn a_program_older_than_one_of_its_sources_is_not_current() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let dated = |name: &str, seconds: u64| {
            let file = std::fs::File::create(at(name)).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
        };
        assert!(!is_current(&at("litepost")), "it is not there");
        dated("litepost", 100);
        assert!(!is_current(&at("litepost")), "nothing is known about it");
        let escaped = at("a b.rs").display().to_string().replace(' ', "\\ ");
        let listed = format!("{}: {escaped} {}\n", at("litepost").display(), at("c.rs").display());
        std::fs::write(at("litepost.d"), listed).unwrap();
        assert!(!is_current(&at("litepost")), "a source is gone");
        dated("a b.rs", 100);
        dated("c.rs", 99);
        assert!(is_current(&at("litepost")));
        dated("a b.rs", 101);
        assert!(!is_current(&at("litepost")), "a source has changed");
    }
}
