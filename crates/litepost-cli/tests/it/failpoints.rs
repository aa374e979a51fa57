//! Each failpoint: the real binary ends, fails or waits there, is started again, and nothing is lost, doubled, out of
//! order, or wrongly booked.
//!
//! Built with the feature `failpoints`. The list of points is the library's own: one without a run here fails.

use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use litepost::failpoint::Point;
use litepost::{NewEvent, enqueue_many};
use litepost_core::Value;
use litepost_testkit::servers::Postgres;
use rusqlite::Connection;

use crate::support::Place;
use crate::two_relays::{KEYS, check};
use crate::{sqloutbox, support};

const EVENTS: i64 = 120;
const SIGABRT: i32 = 6;

/// What has to run for a point to be reached.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scene {
    /// `litepost enqueue`.
    Producer,
    /// `litepost run --until-idle` into a file and a SQLite database.
    Drain,
    /// `litepost run`, which goes on.
    Daemon,
    /// `litepost run --until-idle` into PostgreSQL.
    Server,
    /// A queue that sqloutbox left.
    Bridge,
    /// A command of the operator.
    Operator,
}

fn scene(point: Point) -> Scene {
    match point {
        Point::EnqueueInserted | Point::EnqueueBeforeCommit | Point::EnqueueAfterCommit => Scene::Producer,
        Point::RegisterBeforeCommit
        | Point::RegisterAfterCommit
        | Point::AcquireBeforeCommit
        | Point::AcquireAfterCommit
        | Point::ReleaseBeforeCommit
        | Point::ReleaseAfterCommit
        | Point::SettleBeforeCommit
        | Point::SettleAfterCommit
        | Point::ReadBeforeSync
        | Point::ReadAfterSync
        | Point::DeliverBefore
        | Point::DeliverAfter
        | Point::FileBeforeWrite
        | Point::FileBeforeSync
        | Point::FileAfterSync
        | Point::LedgerBeforeCommit
        | Point::LedgerAfterCommit => Scene::Drain,
        Point::RenewBeforeCommit
        | Point::RenewAfterCommit
        | Point::PruneBeforeCommit
        | Point::PruneAfterCommit
        | Point::CheckpointBefore
        | Point::CheckpointAfter => Scene::Daemon,
        Point::RemoteBeforeApply | Point::RemoteAfterApply => Scene::Server,
        Point::BridgeBeforeCommit | Point::BridgeAfterCommit => Scene::Bridge,
        Point::OperateBeforeCommit | Point::OperateAfterCommit => Scene::Operator,
        other => panic!("{} has no run", other.name()),
    }
}

fn points(wanted: Scene) -> impl Iterator<Item = Point> {
    Point::ALL.iter().copied().filter(move |&point| scene(point) == wanted)
}

fn armed(mut command: Command, point: Point, deed: &str) -> Command {
    command.env("LITEPOST_FAILPOINT", format!("{}{deed}", point.name())).stdout(Stdio::null());
    command
}

#[track_caller]
fn must_abort(point: Point, status: ExitStatus) {
    assert_eq!(status.signal(), Some(SIGABRT), "{} was not reached: {status}", point.name());
}

/// Runs a process that ends by itself, or is killed after 20 seconds.
fn ends_by_itself(mut command: Command) -> ExitStatus {
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    for _ in 0..1_000 {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap()
}

struct Shop {
    place: Place,
    server: Option<Postgres>,
}

impl Shop {
    fn new(server: Option<Postgres>) -> Self {
        let place = Place::new();
        let table = "CREATE TABLE stock (at INTEGER PRIMARY KEY AUTOINCREMENT, n INTEGER)";
        let target = match &server {
            None => {
                Connection::open(place.path("copy.db")).unwrap().execute_batch(table).unwrap();
                "type = 'sqlite'\nconnection = { path = 'copy.db' }\n".to_owned()
            }
            Some(server) => {
                server.psql("DROP TABLE IF EXISTS stock; CREATE TABLE stock (at BIGSERIAL, n BIGINT)");
                format!("type = 'postgres'\nconnection = {{ url = '{}' }}\n", server.url())
            }
        };
        let config = format!(
            "[app.shop]\ndatabase = 'shop.db'\nlease = '1s'\nbatch_size = 10\nretry = {{ first = '1ms', cap = '20ms' }}\n\
             [app.shop.sink.audit]\ntype = 'file'\nconnection = {{ path = 'events.jsonl' }}\n\
             [app.shop.db.copy]\ntables = ['stock']\n{target}"
        );
        place.write("litepost.toml", config);
        place.good(&["migrate", "--database", "shop.db"]);
        let shop = Self { place, server };
        shop.enqueue();
        shop
    }

    fn enqueue(&self) {
        let mut outbox = Connection::open(self.place.path("shop.db")).unwrap();
        let tx = outbox.transaction().unwrap();
        let event = |n: i64| {
            NewEvent::statement("stock", "INSERT INTO stock (n) VALUES (?)", [Value::Integer(n)])
                .key((n % KEYS).to_string())
        };
        enqueue_many(&tx, &(1..=EVENTS).map(event).collect::<Vec<_>>()).unwrap();
        tx.commit().unwrap();
    }

    /// Delivers the rest; a lane that a dead process held, or that has just failed, is asked for again.
    fn drain(&self, point: Point) {
        for _ in 0..20 {
            let answer = self.place.litepost(&["run", "--until-idle"]);
            if answer.code == 0 {
                return;
            }
            assert_eq!(answer.code, 1, "{}: {answer:#?}", point.name());
            std::thread::sleep(Duration::from_millis(200));
        }
        panic!("{}: never drained", point.name());
    }

    #[allow(clippy::print_stdout, reason = "a failing run names the point that it was at")]
    fn must_be_whole(&self, point: Point, deed: &str) {
        println!("{}{deed}", point.name());
        let copied: Vec<i64> = match &self.server {
            Some(server) => {
                server.psql("SELECT n FROM stock ORDER BY at").lines().map(|n| n.parse().unwrap()).collect()
            }
            None => support::column(&self.place.path("copy.db"), "SELECT n FROM stock ORDER BY at"),
        };
        check(EVENTS, &copied);
        let text = std::fs::read_to_string(self.place.path("events.jsonl")).unwrap();
        let number = |line: &str| -> i64 {
            let event: serde_json::Value = serde_json::from_str(line).unwrap();
            event["payload"]["args"][0].as_i64().unwrap()
        };
        check(EVENTS, &text.lines().map(number).collect::<Vec<_>>());
        self.books();
    }

    fn books(&self) {
        let outbox = Connection::open(self.place.path("shop.db")).unwrap();
        let verified = litepost::verify(&outbox).unwrap();
        assert!(verified.problems.is_empty(), "{:?}", verified.problems);
        let dead: i64 = outbox.query_row("SELECT count(*) FROM litepost_dead", [], |row| row.get(0)).unwrap();
        assert_eq!(dead, 0);
    }
}

/// The application writes a thousand pages of its own, again and again, and leaves the WAL to the relay.
struct Application(Option<std::thread::JoinHandle<()>>, Arc<AtomicBool>);

impl Application {
    fn start(database: PathBuf) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let write = move || {
            let app = Connection::open(database).unwrap();
            app.pragma_update(None, "wal_autocheckpoint", 0).unwrap();
            app.execute_batch("CREATE TABLE pages (id INTEGER PRIMARY KEY, page BLOB)").unwrap();
            while !stopped.load(Ordering::Relaxed) {
                app.execute("INSERT OR REPLACE INTO pages VALUES (1, randomblob(4096000))", []).unwrap();
                std::thread::sleep(Duration::from_millis(50));
            }
        };
        Self(Some(std::thread::spawn(write)), stop)
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        self.1.store(true, Ordering::Relaxed);
        if let Some(thread) = self.0.take() {
            thread.join().unwrap();
        }
    }
}

/// Ends there, at the first and at a later time; and fails there once, and waits there.
fn break_everywhere(scene: Scene, shop: impl Fn() -> Shop) {
    let arguments: &[&str] = if scene == Scene::Daemon { &["run"] } else { &["run", "--until-idle"] };
    for point in points(scene) {
        // The rows of one shop are pruned at one go.
        let once = matches!(point, Point::PruneBeforeCommit | Point::PruneAfterCommit);
        for deed in if once { &["=abort"][..] } else { &["=abort", ":2=abort"] } {
            let shop = shop();
            // A short WAL is left as it is.
            let writes = matches!(point, Point::CheckpointBefore | Point::CheckpointAfter);
            let application = writes.then(|| Application::start(shop.place.path("shop.db")));
            must_abort(point, ends_by_itself(armed(shop.place.command(arguments), point, deed)));
            drop(application);
            shop.drain(point);
            shop.must_be_whole(point, deed);
        }
        for deed in ["=error", ":2=delay"] {
            let shop = shop();
            let drain = shop.place.command(&["run", "--until-idle"]);
            let status = armed(drain, point, deed).stderr(Stdio::null()).status().unwrap();
            assert!(status.code().is_some(), "{}{deed}: {status}", point.name());
            shop.drain(point);
            shop.must_be_whole(point, deed);
        }
    }
}

#[test]
fn each_point_of_a_relay_loses_and_doubles_nothing() {
    break_everywhere(Scene::Drain, || Shop::new(None));
}

#[test]
fn each_point_of_a_relay_that_goes_on_loses_and_doubles_nothing() {
    break_everywhere(Scene::Daemon, || Shop::new(None));
}

#[test]
fn each_point_of_a_commit_on_a_server_loses_and_doubles_nothing() {
    for point in points(Scene::Server) {
        for deed in ["=abort", ":2=abort", "=error"] {
            let shop = Shop::new(Some(Postgres::start()));
            let status = ends_by_itself(armed(shop.place.command(&["run", "--until-idle"]), point, deed));
            if deed.ends_with("abort") {
                must_abort(point, status);
            }
            shop.drain(point);
            shop.must_be_whole(point, deed);
        }
    }
}

#[test]
fn each_point_of_a_producer_leaves_the_event_whole_or_not_there() {
    for point in points(Scene::Producer) {
        let place = Place::new();
        place.good(&["migrate", "--database", "shop.db"]);
        let arguments =
            ["enqueue", "--database", "shop.db", "--topic", "t", "--payload", "x", "--key", "k", "--dedup-key", "once"];
        must_abort(point, armed(place.command(&arguments), point, "=abort").status().unwrap());
        let count = || support::column(&place.path("shop.db"), "SELECT count(*) FROM litepost_outbox")[0];
        let landed = i64::from(point == Point::EnqueueAfterCommit);
        assert_eq!(count(), landed, "{}", point.name());
        // A producer that does not know asks again under the same key: the event is there once.
        place.good(&arguments);
        assert_eq!(count(), 1, "{}", point.name());
        let told = armed(place.command(&[&arguments[..10], &["another"]].concat()), point, "=error").status().unwrap();
        assert_eq!(told.code(), Some(2), "{}: a producer is told", point.name());
        assert_eq!(count(), 1 + landed, "{}", point.name());
    }
}

#[test]
fn each_point_of_the_bridge_moves_each_row_once() {
    for point in points(Scene::Bridge) {
        for deed in ["=abort", ":2=abort", "=error"] {
            let place = Place::new();
            sqloutbox::written(&place, "0.6");
            let status = ends_by_itself(armed(place.command(&["run", "--until-idle"]), point, deed));
            if deed.ends_with("abort") {
                must_abort(point, status);
            }
            for _ in 0..20 {
                if place.litepost(&["run", "--until-idle"]).code == 0 {
                    break;
                }
                std::thread::sleep(Duration::from_millis(200));
            }
            sqloutbox::compare(&place, "0.6");
        }
    }
}

#[test]
fn each_point_of_an_operators_deed_does_all_of_it_or_nothing() {
    for point in points(Scene::Operator) {
        let shop = Shop::new(None);
        shop.place.good(&["run", "--until-idle"]);
        let pause = ["pause", "shop.copy", "--reason", "look"];
        must_abort(point, armed(shop.place.command(&pause), point, "=abort").status().unwrap());
        let path = shop.place.path("shop.db");
        let paused = support::column(&path, "SELECT count(*) FROM litepost_pause")[0];
        let audited = support::column(&path, "SELECT count(*) FROM litepost_audit")[0];
        assert_eq!(paused, i64::from(point == Point::OperateAfterCommit), "{}", point.name());
        assert_eq!(audited, paused, "{}: done and audited, or neither", point.name());
        shop.must_be_whole(point, "=abort");
    }
}
