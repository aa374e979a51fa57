//! Mixed statements through the real binary, which is killed at random while servers restart: the remote must equal
//! the model, row by row.
//!
//! `LITEPOST_CRASH=100000,50,5` sets how many statements, kills and restarts (`cargo xtask crash` does); a failing run
//! has printed the seed that repeats its statements: `LITEPOST_CRASH_SEED`.

#![allow(clippy::print_stdout, reason = "a run prints its seed and its figures")]

mod model;
mod target;

use std::fs::File;
use std::process::Stdio;
use std::time::{Duration, Instant};

use litepost::{NewEvent, enqueue_many};
use rusqlite::Connection;

use self::model::{Chance, Model};
use self::target::Target;
use crate::support::Place;

struct Size {
    statements: u64,
    kills: u64,
    restarts: u64,
}

impl Size {
    fn wanted() -> Self {
        let text = std::env::var("LITEPOST_CRASH").unwrap_or_else(|_| "5000,5,1".into());
        let numbers: Vec<u64> = text.split(',').map(|n| n.trim().parse().unwrap()).collect();
        let &[statements, kills, restarts] = &numbers[..] else { panic!("LITEPOST_CRASH=statements,kills,restarts") };
        Self { statements, kills, restarts }
    }
}

struct Run {
    place: Place,
    target: Target,
    model: Model,
    outbox: Connection,
    chance: Chance,
}

impl Run {
    fn new(place: Place, target: Target) -> Self {
        let config = format!(
            "[app.shop]\ndatabase = 'shop.db'\n[app.shop.db.copy]\ntables = ['stock']\n\
             retry = {{ first = '1ms', cap = '20ms', max_attempts = 1 }}\n{}",
            target.config()
        );
        place.write("litepost.toml", config);
        place.good(&["migrate", "--database", "shop.db"]);
        let outbox = Connection::open(place.path("shop.db")).unwrap();
        outbox.busy_timeout(Duration::from_secs(30)).unwrap();
        let seed = std::env::var("LITEPOST_CRASH_SEED").map_or_else(
            |_| {
                outbox
                    .query_row("SELECT random() & 0xffffffff", [], |row| row.get::<_, i64>(0))
                    .unwrap()
                    .cast_unsigned()
            },
            |text| text.parse().unwrap(),
        );
        println!("LITEPOST_CRASH_SEED={seed}");
        let model = Model::new(seed, target.upsert());
        Self { place, target, model, outbox, chance: Chance(seed ^ 1) }
    }

    fn enqueue(&mut self, statements: u64) {
        let tx = self.outbox.transaction().unwrap();
        let model = &mut self.model;
        let events: Vec<NewEvent> = std::iter::repeat_with(|| model.step())
            .take(usize::try_from(statements).unwrap())
            .map(|step| NewEvent::statement("stock", step.sql, step.values).key(step.key))
            .collect();
        enqueue_many(&tx, &events).unwrap();
        tx.commit().unwrap();
    }

    /// How many events the cursor has not passed.
    fn behind(&self) -> i64 {
        let sql = "SELECT max(seq) - coalesce((SELECT min(acked) FROM litepost_cursor), 0) FROM litepost_outbox";
        self.outbox.query_row(sql, [], |row| row.get(0)).unwrap()
    }

    /// Starts the relay and kills it at some moment; whether there was work left.
    fn round(&mut self, restart: Option<bool>) -> bool {
        let log = File::options().create(true).append(true).open(self.place.path("relay.log")).unwrap();
        let mut relay = self.place.command(&["run", "--config", "litepost.toml"]);
        let mut relay = relay.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        // Once the cursor has passed a place drawn from what is there, or after a while: most kills meet work.
        let goal = i64::try_from(self.chance.below(self.behind().max(1).unsigned_abs())).unwrap();
        for _ in 0..30 + self.chance.below(300) {
            if self.behind() <= goal {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        if let Some(crash) = restart {
            self.target.restart(crash);
            std::thread::sleep(Duration::from_millis(self.chance.below(200)));
        }
        relay.kill().unwrap();
        relay.wait().unwrap();
        self.behind() > 0
    }

    /// Delivers what is left; a destination that has just been restarted may need a second look.
    fn drain(&self) {
        for _ in 0..10 {
            let answer = self.place.litepost(&["run", "--config", "litepost.toml", "--until-idle"]);
            if answer.code == 0 {
                return;
            }
            assert_eq!(answer.code, 1, "{answer:?}");
        }
        panic!("never drained; {}", std::fs::read_to_string(self.place.path("relay.log")).unwrap_or_default());
    }

    fn compare(&self) {
        let dead: i64 = self.outbox.query_row("SELECT count(*) FROM litepost_dead", [], |row| row.get(0)).unwrap();
        assert_eq!(dead, self.model.dead, "dead letters");
        same("stock", &self.target.stock(), &self.model.stock());
        same("journal", &self.target.journal(), &self.model.journal());
        let found = litepost::verify(&self.outbox).unwrap();
        assert!(found.problems.is_empty(), "{:?}", found.problems);
    }
}

#[track_caller]
fn same(table: &str, found: &[String], wanted: &[String]) {
    let differ = found.iter().zip(wanted).position(|(f, w)| f != w).unwrap_or(found.len().min(wanted.len()));
    assert!(
        found == wanted,
        "{table}: {} rows, wanted {}; the first difference is row {differ}: {:?}, wanted {:?}",
        found.len(),
        wanted.len(),
        found.get(differ),
        wanted.get(differ)
    );
}

fn crash_run(name: &str, place: Place, target: Target) {
    let size = Size::wanted();
    let mut run = Run::new(place, target);
    #[allow(clippy::disallowed_methods, reason = "how long the run took is what it tells")]
    let started = Instant::now();
    // Half is there at once, so that the first kills meet a backlog; the rest comes while relays live and die.
    let mut enqueued = size.statements / 2;
    run.enqueue(enqueued);
    let mut in_the_middle = 0;
    for round in 0..size.kills {
        let until = size.statements / 2 + (size.statements - size.statements / 2) * (round + 1) / size.kills;
        run.enqueue(until - enqueued);
        enqueued = until;
        // Restarts stand evenly among the kills; every other one is a crash.
        let restarts = |rounds: u64| size.restarts * rounds / size.kills;
        let restart = (restarts(round + 1) > restarts(round)).then_some(restarts(round) % 2 == 0);
        in_the_middle += u64::from(run.round(restart));
    }
    run.drain();
    run.compare();
    println!(
        "{name}: {} statements, {} kills ({in_the_middle} with work left), {} restarts, {} rows equal, {} dead letters, {} ms; {:?}",
        size.statements,
        size.kills,
        size.restarts,
        run.model.stock().len() + run.model.journal().len(),
        run.model.dead,
        started.elapsed().as_millis(),
        run.model.kinds
    );
    assert!(in_the_middle > 0, "no kill fell while there was work");
}

#[test]
fn sqlite_equals_the_model_whatever_is_killed() {
    let place = Place::new();
    let target = Target::sqlite(place.folder());
    crash_run("sqlite", place, target);
}

#[test]
fn postgres_equals_the_model_whatever_is_killed() {
    crash_run("postgres", Place::new(), Target::postgres());
}

#[test]
fn mariadb_equals_the_model_whatever_is_killed() {
    crash_run("mariadb", Place::new(), Target::mariadb());
}

#[test]
fn libsql_equals_the_model_whatever_is_killed() {
    let place = Place::new();
    let target = Target::libsql(place.folder());
    crash_run("libsql", place, target);
}
