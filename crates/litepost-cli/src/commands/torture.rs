//! `litepost torture`: breaks an installation of its own on purpose and proves that nothing is lost.
//!
//! Everything happens in a folder of its own (and in the PostgreSQL database that is named). What is broken and when
//! follows from the seed; a plan that failed is printed, shortened as far as could be done, to be run again.

use std::path::PathBuf;

use clap::Args;
use litepost_torture::{
    Pace, Plan, Postgres, Sample, Setup, Soaked, TortureError, Troubles, Verdict, shortest, soak, torture,
};
use serde::Serialize;

use crate::failure::Failure;
use crate::output::{self, Out};
use crate::report;

const EXAMPLES: &str = "\
Examples:
  litepost torture                                 a minute, with a seed drawn at random
  litepost torture --minutes 10 --seed 42          the same kills at the same times again
  litepost torture --plan plan.json                what an earlier run has printed
  litepost torture --own-postgres                  a PostgreSQL as well, which is killed and frozen
  litepost torture --postgres postgres://localhost/scratch --json
  litepost torture --soak --minutes 30             half of what this machine can do, and nothing may grow

Destinations are a file, a SQLite database, a receiver of webhooks in this process, and a PostgreSQL when one is asked for. A plan
repeats a run that has the same destinations; what it asks for and is not there, the history says.

The folder given with --folder keeps every file. In the PostgreSQL database the table litepost_torture is made anew; of a server
that is not torture's own only the network is broken.";

/// Break an installation on purpose and prove that nothing is lost.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Torture {
    /// How long, minutes
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = minutes)]
    minutes: f64,
    /// What the faults follow from
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Run this plan instead (JSON, as printed)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seed", "minutes"])]
    plan: Option<PathBuf>,
    /// Processes that write events
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=64))]
    producers: u16,
    /// Measure what this machine can do, then ask for half of it: memory, descriptors and files must not grow
    #[arg(long, conflicts_with_all = ["plan", "relays"])]
    soak: bool,
    /// Relays
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=16))]
    relays: u16,
    /// Deliver to this PostgreSQL database as well
    #[arg(long, value_name = "URL", env = "LITEPOST_TORTURE_POSTGRES", hide_env_values = true)]
    postgres: Option<String>,
    /// Start a PostgreSQL for this run (initdb and postgres must be installed), deliver to it, and kill and freeze it too
    #[arg(long, conflicts_with = "soak")]
    own_postgres: bool,
    /// How many runs a failing plan may be shortened with
    #[arg(long, value_name = "N", default_value_t = 12)]
    shrink: usize,
    /// Where to work, kept afterwards; a temporary folder that is removed unless given, or unless it fails
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The producer's process.
#[derive(Debug, Args)]
pub(crate) struct TortureProducer {
    /// The outbox
    database: PathBuf,
    /// What it tells the check
    journal: PathBuf,
    /// Its number
    producer: u64,
    /// The run's seed
    seed: u64,
    /// How fast it writes (JSON)
    #[arg(value_parser = pace)]
    pace: Pace,
}

/// The name of that command.
const PRODUCER: &str = "torture-producer";

#[derive(Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    verdict: &'a Verdict,
    plan: &'a Plan,
    shortest: Option<&'a Plan>,
}

/// Runs it.
pub(crate) fn run(command: &Torture) -> Result<(), Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::unexpected(format!("this program cannot find itself: {error}"), "report it"))?;
    let folder = command
        .folder
        .clone()
        .unwrap_or_else(|| std::env::temp_dir().join(format!("litepost-torture-{}", std::process::id())));
    let postgres = match &command.postgres {
        _ if command.own_postgres => Postgres::Own,
        Some(url) => Postgres::Theirs(url.clone()),
        None => Postgres::None,
    };
    let setup = Setup { program, producer_command: PRODUCER, folder, postgres };
    let ok = if command.soak { soaked(command, &setup)? } else { tortured(command, &setup)? };
    if ok && command.folder.is_none() {
        // A temporary folder that cannot be removed is the system's to remove.
        let _ = std::fs::remove_dir_all(&setup.folder);
    }
    if ok { Ok(()) } else { Err(Failure::Finding) }
}

/// Whether nothing was wrong.
fn tortured(command: &Torture, setup: &Setup) -> Result<bool, Failure> {
    let plan = plan(command, setup)?;
    report::say(&format!(
        "seed {}: {} producers, {} relays, {} faults in {} seconds",
        plan.seed,
        plan.producers,
        plan.relays,
        plan.faults.len(),
        plan.ms / 1_000
    ));
    let verdict = torture(setup, &plan)?;
    let shorter = if verdict.ok { None } else { Some(shorten(command, setup, &plan)?) };
    tell(command, &Answer { verdict: &verdict, plan: &plan, shortest: shorter.as_ref() })?;
    Ok(verdict.ok)
}

/// The same for a soak.
fn soaked(command: &Torture, setup: &Setup) -> Result<bool, Failure> {
    let (seed, ms) = (seed(command), ms(command));
    report::say(&format!("seed {seed}: {} producers, {} seconds", command.producers, ms / 1_000));
    let json = command.json;
    let found = soak(setup, seed, command.producers.into(), ms, |sample| {
        if !json {
            report::say(&line(sample));
        }
    })?;
    if json {
        output::json(&found)?;
        return Ok(found.verdict.ok);
    }
    let Soaked { most_per_second, per_second, left, dead, verdict, .. } = &found;
    let mut out = Out::new();
    out.line(format_args!("{most_per_second} events/s can be done, {per_second} were asked for"))?;
    out.line(format_args!("left when everything was delivered and pruned: {left} bytes, {dead} dead letters"))?;
    summary(&mut out, verdict)?;
    if !verdict.ok {
        for violation in &verdict.violations {
            out.line(format_args!("{violation:?}"))?;
        }
        out.line(format_args!("files: {}", verdict.folder.display()))?;
    }
    out.flush()?;
    Ok(verdict.ok)
}

fn line(sample: &Sample) -> String {
    let mib = |bytes: u64| bytes >> 20;
    format!(
        "{:>6} s  memory {:>4} MiB  descriptors {:>3}  wal {:>3} MiB  database {:>4} MiB  behind {}",
        sample.at_ms / 1_000,
        mib(sample.memory),
        sample.descriptors,
        mib(sample.wal),
        mib(sample.database),
        sample.behind
    )
}

/// What was done, and that nothing is wrong if so.
fn summary(out: &mut Out, verdict: &Verdict) -> Result<(), Failure> {
    out.line(format_args!(
        "{} committed, {} rolled back, {} open when their producer was killed; {} faults, {} restarts",
        verdict.committed, verdict.rolled_back, verdict.open, verdict.faults, verdict.restarts
    ))?;
    for (destination, count) in &verdict.delivered {
        out.line(format_args!("{destination}: {count} events"))?;
    }
    let network = &verdict.network;
    if network != &Troubles::default() {
        out.line(format_args!(
            "webhooks: {} answers lost, {} late, {} requests doubled, {} refused; {} came again, each with a reason",
            network.lost, network.late, network.doubled, network.refused, verdict.repeated
        ))?;
        out.line(format_args!(
            "postgres: {} answers to a COMMIT lost, killed {} times",
            network.commits_lost, network.server_kills
        ))?;
    }
    if verdict.ok {
        out.line("nothing lost, nothing doubled, every key in order, the books balance")?;
    }
    Ok(())
}

/// Writes events until it is killed.
pub(crate) fn produce(command: &TortureProducer) -> Result<(), Failure> {
    Ok(litepost_torture::produce(&command.database, &command.journal, command.producer, command.seed, command.pace)?)
}

fn plan(command: &Torture, setup: &Setup) -> Result<Plan, Failure> {
    let Some(path) = &command.plan else {
        let (producers, relays) = (command.producers.into(), command.relays.into());
        return Ok(Plan::new(seed(command), producers, relays, ms(command), setup.postgres.reach()));
    };
    let wrong =
        |why: String| Failure::user(format!("the plan {}: {why}", path.display()), "give what a run has printed");
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))
}

fn seed(command: &Torture) -> u64 {
    command.seed.unwrap_or_else(|| crate::clock::wall_ms().unsigned_abs() & 0xffff_ffff)
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and a month")]
fn ms(command: &Torture) -> u64 {
    (command.minutes * 60_000.0) as u64
}

fn shorten(command: &Torture, setup: &Setup, plan: &Plan) -> Result<Plan, Failure> {
    report::say("it failed; looking for a shorter plan that fails too");
    Ok(shortest(plan, command.shrink, |plan| torture(setup, plan).map(|verdict| !verdict.ok))?)
}

fn tell(command: &Torture, answer: &Answer<'_>) -> Result<(), Failure> {
    if command.json {
        return output::json(answer);
    }
    let verdict = answer.verdict;
    let mut out = Out::new();
    summary(&mut out, verdict)?;
    if verdict.ok {
        return out.flush();
    }
    for line in &verdict.history {
        out.line(line)?;
    }
    for violation in &verdict.violations {
        out.line(format_args!("{violation:?}"))?;
    }
    let json = |plan: &Plan| serde_json::to_string(plan).unwrap_or_default();
    out.line(format_args!("files: {}", verdict.folder.display()))?;
    out.line(format_args!("plan: {}", json(answer.plan)))?;
    if let Some(shortest) = answer.shortest {
        out.line(format_args!("shortest plan that failed: {}", json(shortest)))?;
    }
    out.flush()
}

fn pace(text: &str) -> Result<Pace, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

fn minutes(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(minutes) if (0.01..=40_000.0).contains(&minutes) => Ok(minutes),
        _ => Err("give a number of minutes between 0.01 and 40000".to_owned()),
    }
}

impl From<TortureError> for Failure {
    fn from(error: TortureError) -> Self {
        let (message, hint) = (error.to_string(), error.hint());
        match error {
            TortureError::Postgres(_) | TortureError::NoPostgres => Self::user(message, hint),
            _ => Self::unexpected(message, hint),
        }
    }
}
