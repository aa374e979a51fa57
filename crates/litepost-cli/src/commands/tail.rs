//! `litepost tail`: the events in the log, for people and for other programs.
//!
//! Invariant: changes nothing, and keeps no snapshot open between two looks.

use clap::Args;
use litepost::log::LogReader;
use litepost_core::{Event, Seq, TopicFilter};
use litepost_relay::config::Purpose;
use litepost_relay::relay::Commits;

use crate::args::Where;
use crate::events::{Shown, preview};
use crate::failure::Failure;
use crate::output::{self, Out};

const EXAMPLES: &str = "\
Examples:
  litepost tail --database shop.db                    the last 10 events
  litepost tail --database shop.db -n all --json      everything, one JSON object a line
  litepost tail --database shop.db --follow --topic 'orders*'
  litepost tail --database shop.db --from 1200 -n 5";

/// Show the events in the log.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Tail {
    #[command(flatten)]
    place: Where,
    /// Go on and show events as they are written
    #[arg(long, short)]
    follow: bool,
    /// How many events, or "all"
    #[arg(long, short = 'n', value_name = "N|all", default_value = "10", value_parser = count)]
    lines: Count,
    /// Begin at this position instead of at the end
    #[arg(long, value_name = "SEQ")]
    from: Option<i64>,
    /// Topics to show; "*" stands for any run of characters; may be given several times
    #[arg(long, value_name = "PATTERN")]
    topic: Vec<String>,
    /// Only events of this key
    #[arg(long)]
    key: Option<String>,
    /// Print JSON, one event a line
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug)]
struct Count(usize);

fn count(text: &str) -> Result<Count, String> {
    if text == "all" {
        return Ok(Count(usize::MAX));
    }
    text.parse().map(Count).map_err(|_| "expected a number, or \"all\"".into())
}

/// Events read in one go.
const CHUNK_EVENTS: usize = 2_000;
/// Bytes read in one go.
const CHUNK_BYTES: usize = 4 << 20;

/// Shows them.
pub(crate) fn run(command: &Tail) -> Result<(), Failure> {
    let place = command.place.load(Purpose::Look)?;
    let files = place.files();
    let filter = Filter::new(command)?;
    // Before the first look: what is written after it is heard of.
    let commits = command.follow.then(|| Commits::watch(&files));
    let mut logs = Vec::new();
    for path in &files {
        // Of the files of a db_dir some are only made by their first event.
        if files.len() > 1 && !path.exists() {
            continue;
        }
        let reader = LogReader::open(path).map_err(|error| Failure::from(error).about(path))?;
        logs.push(reader);
    }
    if logs.is_empty() {
        return Err(Failure::user(
            "there is no outbox file yet",
            "it is made by the first event, or by `litepost migrate`",
        ));
    }
    let mut out = Out::new();
    let mut after = Vec::new();
    for reader in &mut logs {
        after.push(first_look(reader, command, &filter, &mut out)?);
    }
    out.flush()?;
    match commits {
        Some(mut commits) => loop {
            commits.wait(|| news(&mut logs, &mut after, &filter, command.json, &mut out))?;
        },
        None => Ok(()),
    }
}

/// Shows what is there; returns the last position seen.
fn first_look(reader: &mut LogReader, command: &Tail, filter: &Filter, out: &mut Out) -> Result<Seq, Failure> {
    let head = reader.head()?;
    let most = command.lines.0;
    if let Some(from) = command.from {
        return show(reader, Seq(from.saturating_sub(1).max(0)), head, most, filter, command.json, out);
    }
    if most == usize::MAX {
        return show(reader, Seq::ZERO, head, most, filter, command.json, out);
    }
    let begin = begin_of_last(reader, head, most, filter)?;
    show(reader, begin, head, most, filter, command.json, out)?;
    Ok(head)
}

/// The position before the last `most` events that pass the filter.
fn begin_of_last(reader: &mut LogReader, head: Seq, most: usize, filter: &Filter) -> Result<Seq, Failure> {
    let tail = reader.tail()?.unwrap_or(Seq(1));
    let mut end = head;
    let mut found = 0;
    while found < most && end >= tail {
        let step = i64::try_from(CHUNK_EVENTS).unwrap_or(i64::MAX);
        let begin = Seq((end.0 - step).max(tail.0 - 1));
        let mut seqs = Vec::new();
        let mut after = begin;
        while after < end {
            let chunk = reader.read_after(after, CHUNK_EVENTS, CHUNK_BYTES)?;
            let Some(last) = chunk.events().last() else { break };
            after = last.seq;
            seqs.extend(chunk.events().iter().filter(|e| e.seq <= end && filter.passes(e)).map(|e| e.seq));
        }
        if found + seqs.len() >= most {
            let wanted = seqs.len() - (most - found);
            return Ok(seqs.get(wanted).map_or(end, |seq| seq.prev()));
        }
        found += seqs.len();
        end = begin;
    }
    Ok(end)
}

/// Shows the events behind `after` up to `until`, at most `most` of them; returns the last position seen.
fn show(
    reader: &mut LogReader,
    mut after: Seq,
    until: Seq,
    most: usize,
    filter: &Filter,
    json: bool,
    out: &mut Out,
) -> Result<Seq, Failure> {
    let mut left = most;
    while left > 0 && after < until {
        let chunk = reader.read_after(after, CHUNK_EVENTS, CHUNK_BYTES)?;
        let Some(last) = chunk.events().last() else { break };
        after = last.seq;
        for event in chunk.events().iter().filter(|event| filter.passes(event)).take(left) {
            line(event, json, out)?;
            left -= 1;
        }
    }
    Ok(after)
}

/// Shows what is new; whether there was anything.
fn news(
    logs: &mut [LogReader],
    after: &mut [Seq],
    filter: &Filter,
    json: bool,
    out: &mut Out,
) -> Result<bool, Failure> {
    let mut any = false;
    for (reader, after) in logs.iter_mut().zip(after.iter_mut()) {
        let head = reader.head()?;
        if head > *after {
            *after = show(reader, *after, head, usize::MAX, filter, json, out)?;
            any = true;
        }
    }
    out.flush()?;
    Ok(any)
}

fn line(event: &Event, json: bool, out: &mut Out) -> Result<(), Failure> {
    if json {
        let text = serde_json::to_string(&Shown::new(event))
            .map_err(|error| Failure::unexpected(format!("event {}: {error}", event.seq), "report it"))?;
        return out.line(text);
    }
    let time = jiff::Timestamp::from_millisecond(event.created_at.0)
        .map_or_else(|_| event.created_at.0.to_string(), |time| time.strftime("%F %T%.3fZ").to_string());
    let key = event.key.as_deref().map_or_else(String::new, |key| format!(" key={}", output::harmless(key)));
    out.line(format_args!(
        "{:>6}  {time}  {}{key}  {}  {}",
        event.seq,
        output::harmless(&event.topic),
        if event.kind.is_empty() { "-".into() } else { output::harmless(&event.kind) },
        preview(event, 100)
    ))
}

struct Filter {
    topics: TopicFilter,
    key: Option<String>,
}

impl Filter {
    fn new(command: &Tail) -> Result<Self, Failure> {
        let topics = if command.topic.is_empty() {
            TopicFilter::all()
        } else {
            TopicFilter::parse(&command.topic)
                .map_err(|error| Failure::user(format!("--topic: {error}"), "a pattern is a name, or has * in it"))?
        };
        Ok(Self { topics, key: command.key.clone() })
    }

    fn passes(&self, event: &Event) -> bool {
        self.topics.matches(&event.topic) && (self.key.is_none() || event.key.as_deref() == self.key.as_deref())
    }
}
