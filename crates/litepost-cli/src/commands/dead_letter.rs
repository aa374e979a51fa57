//! `litepost dead-letter`: sqloutbox's command, with its flags, its lines and its exit codes, on litepost's dead letters.
//!
//! Its letters are named by a table and sqloutbox's own number (or the log's, for events that never were sqloutbox's).
//! Invariant: those that the relay has not taken over yet are shown with the others; replayed, they go to the end of
//! sqloutbox's own queue.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use litepost::connection::{self, Access};
use litepost::dead::{self, DeadEvent, DeadFilter};
use litepost::sqloutbox::{self, OldDead};
use litepost_relay::config::Purpose;
use rusqlite::types::Value;

use crate::args::Where;
use crate::failure::Failure;
use crate::hands::Hands;
use crate::output::{Out, harmless};

const EXAMPLES: &str = "\
Examples:
  litepost dead-letter list --config outbox.toml
  litepost dead-letter show --config outbox.toml --namespace orders --seq 17
  litepost dead-letter replay --config outbox.toml -n orders -s 17

The numbers are those of sqloutbox, or the log's for events that a litepost producer wrote. `litepost dead` does more: it
filters, edits, discards, exports, and names letters by numbers of their own.";

/// sqloutbox's dead-letter command.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, infer_long_args = true, args_override_self = true)]
pub(crate) struct DeadLetter {
    /// What to do
    action: Action,
    #[command(flatten)]
    place: Where,
    /// The table; required by show and replay
    #[arg(long, short = 'n', value_name = "TABLE")]
    namespace: Option<String>,
    /// The event's number; required by show and replay
    #[arg(long, short = 's', value_name = "SEQ", allow_negative_numbers = true, value_parser = crate::args::number)]
    seq: Option<i64>,
    #[command(flatten)]
    hands: Hands,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Action {
    /// List them all
    List,
    /// Show one
    Show,
    /// Deliver one again
    Replay,
}

/// A dead letter, as sqloutbox tells it.
struct Letter {
    path: PathBuf,
    /// litepost's number and destination; none for one that has not been taken over.
    taken: Option<(i64, String)>,
    /// Whether its number is sqloutbox's own, and not the log's.
    numbered: bool,
    told: OldDead,
}

/// Looks or replays.
pub(crate) fn run(command: &DeadLetter) -> Result<(), Failure> {
    let mut out = Out::new();
    let files = files(&command.place)?;
    if files.is_empty() {
        out.line("no .db files found - nothing to inspect")?;
        return out.flush();
    }
    let named = match command.action {
        Action::List => {
            list(&mut out, &letters(&files, command.namespace.as_deref())?)?;
            return out.flush();
        }
        Action::Show | Action::Replay => command.namespace.as_ref().zip(command.seq),
    };
    let (namespace, seq) = named.ok_or_else(|| {
        Failure::user(
            "--namespace and --seq are required for show and replay",
            "`litepost dead-letter list` shows both",
        )
    })?;
    let mut found = letters(&files, Some(namespace))?;
    found.retain(|letter| letter.told.seq == seq);
    // The log has numbers of its own; sqloutbox's come first.
    let numbered = found.iter().any(|letter| letter.numbered);
    found.retain(|letter| letter.numbered == numbered);
    if found.is_empty() {
        return Err(Failure::user(
            format!("no dead letter {seq} of {namespace:?}"),
            "`litepost dead-letter list` shows what there is",
        ));
    }
    match command.action {
        Action::Replay => replay(command, &mut out, &found)?,
        _ => found.iter().try_for_each(|letter| show(&mut out, letter))?,
    }
    out.flush()
}

/// The outbox files that are there: one of a db_dir is made by its first event.
fn files(place: &Where) -> Result<Vec<PathBuf>, Failure> {
    let mut files = place.load(Purpose::Look)?.files();
    files.retain(|path| path.exists());
    Ok(files)
}

/// The letters that wait for somebody, by table and number.
fn letters(files: &[PathBuf], namespace: Option<&str>) -> Result<Vec<Letter>, Failure> {
    let mut found = Vec::new();
    for path in files {
        of_file(path, namespace, &mut found).map_err(|error| Failure::from(error).about(path))?;
    }
    found.sort_by(|a, b| (&a.told.namespace, a.told.seq).cmp(&(&b.told.namespace, b.told.seq)));
    Ok(found)
}

fn of_file(path: &Path, namespace: Option<&str>, found: &mut Vec<Letter>) -> Result<(), litepost::StoreError> {
    let connection = connection::open(path, Access::ReadOnly)?;
    let old = sqloutbox::dead_log(&connection, namespace)?;
    found.extend(old.into_iter().map(|told| Letter { path: path.to_path_buf(), taken: None, numbered: true, told }));
    if litepost::schema::version(&connection)? == litepost::schema::SchemaState::Absent {
        return Ok(());
    }
    litepost::schema::require_current(&connection)?;
    let filter = DeadFilter { topic: namespace.map(str::to_owned), done: Some(false), ..DeadFilter::default() };
    for summary in dead::list(&connection, &filter)? {
        if let Some(letter) = dead::show(&connection, summary.dead_id)? {
            let taken = Some((summary.dead_id, summary.destination));
            let (numbered, told) = as_sqloutbox_tells(letter);
            found.push(Letter { path: path.to_path_buf(), taken, numbered, told });
        }
    }
    Ok(())
}

/// And whether its number is sqloutbox's.
fn as_sqloutbox_tells(letter: DeadEvent) -> (bool, OldDead) {
    let headers: serde_json::Value =
        letter.headers.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let body = match letter.payload {
        Value::Text(text) => text,
        Value::Blob(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        _ => String::new(),
    };
    // Of a statement, its SQL and its values apart; anything else is its type and its payload.
    let statement = (letter.summary.kind == litepost_core::statement::STATEMENT_KIND)
        .then(|| serde_json::from_str::<Statement>(&body).ok())
        .flatten();
    let (tag, payload) = match statement {
        Some(statement) => (statement.sql, statement.args.get().to_owned()),
        None => (letter.summary.kind, body),
    };
    let reason = headers[sqloutbox::REASON_HEADER].as_str().map_or_else(
        || match letter.summary.reason.as_str() {
            "skipped" => "manual_skip".to_owned(),
            "malformed" => "undecodable".to_owned(),
            reason => reason.to_owned(),
        },
        str::to_owned,
    );
    let number = headers[sqloutbox::SEQ_HEADER].as_i64();
    let told = OldDead {
        namespace: letter.summary.topic,
        seq: number.unwrap_or(letter.summary.seq.0),
        reason,
        attempts: letter.summary.attempts,
        error_class: letter.summary.error_code,
        error: letter.summary.error,
        dead_at: jiff::Timestamp::from_millisecond(letter.summary.dead_at.0)
            .map_or_else(|_| letter.summary.dead_at.0.to_string(), |at| at.strftime("%FT%T%.f+00:00").to_string()),
        source: letter.source.unwrap_or_default(),
        tag,
        payload,
    };
    (number.is_some(), told)
}

#[derive(serde::Deserialize)]
struct Statement {
    sql: String,
    args: Box<serde_json::value::RawValue>,
}

fn list(out: &mut Out, letters: &[Letter]) -> Result<(), Failure> {
    if letters.is_empty() {
        return out.line("  (none)");
    }
    for Letter { taken, told, .. } in letters {
        let taken = taken.as_ref().map(|(id, destination)| format!("  dead letter {id} of {}", harmless(destination)));
        out.line(format_args!(
            "  {:<20}  seq={:<8}  reason={:<14}  attempts={}  class={}{}",
            harmless(&told.namespace),
            told.seq,
            harmless(&told.reason),
            told.attempts,
            told.error_class.as_deref().map_or_else(|| "-".into(), harmless),
            taken.unwrap_or_default()
        ))?;
    }
    Ok(())
}

fn show(out: &mut Out, Letter { taken, told, .. }: &Letter) -> Result<(), Failure> {
    let text = |text: &Option<String>| text.as_deref().map_or_else(|| "None".into(), harmless);
    let place = match taken {
        Some((id, destination)) => format!("dead letter {id} of {}", harmless(destination)),
        None => "in sqloutbox's table; the relay takes it over when it starts".into(),
    };
    for (name, value) in [
        ("namespace", harmless(&told.namespace)),
        ("seq", told.seq.to_string()),
        ("reason", harmless(&told.reason)),
        ("attempts", told.attempts.to_string()),
        ("last_error_class", text(&told.error_class)),
        ("last_error", text(&told.error)),
        ("dead_lettered_at", harmless(&told.dead_at)),
        ("source", harmless(&told.source)),
        ("sql", harmless(&told.tag)),
        ("args", harmless(&told.payload)),
        ("litepost", place),
    ] {
        out.line(format_args!("  {name:<16} {value}"))?;
    }
    out.line("")
}

fn replay(command: &DeadLetter, out: &mut Out, letters: &[Letter]) -> Result<(), Failure> {
    for Letter { path, taken, told, .. } in letters {
        let Some((id, destination)) = taken else {
            let about = |error: litepost::StoreError| Failure::from(error).about(path);
            let mut connection = connection::open(path, Access::ReadWrite).map_err(about)?;
            let deed = command.hands.deed();
            let new = sqloutbox::replay_dead(&mut connection, &told.namespace, told.seq, &deed).map_err(about)?;
            // The relay may have taken it over this very moment.
            let new = new.ok_or_else(|| {
                Failure::user(
                    format!("no dead letter {} of {:?}", told.seq, told.namespace),
                    "`litepost dead-letter list` shows what there is",
                )
            })?;
            out.line(format_args!(
                "{} namespace='{}' seq={} → new seq={new}",
                command.hands.would("replayed", "would replay"),
                harmless(&told.namespace),
                told.seq
            ))?;
            continue;
        };
        let mut operator = command.hands.open(path)?;
        let filter = DeadFilter { ids: vec![*id], ..DeadFilter::default() };
        for done in operator.replay(&filter).map_err(|error| Failure::from(error).about(path))? {
            out.line(format_args!(
                "{} namespace='{}' seq={} → new seq={} to {}",
                command.hands.would("replayed", "would replay"),
                harmless(&told.namespace),
                told.seq,
                done.replayed_as,
                harmless(destination)
            ))?;
        }
    }
    Ok(())
}
