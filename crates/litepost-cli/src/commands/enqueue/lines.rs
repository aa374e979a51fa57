//! Events from JSON lines: batches, progress, bad lines.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal as _, Read};
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use litepost::{EnqueueError, Enqueued, NewEvent};
use rusqlite::{Connection, TransactionBehavior};

use super::{Enqueue, open};
use crate::events;
use crate::failure::Failure;
use crate::output;
use crate::places::Place;
use crate::report;

/// A longer line is a file of another kind: it could not be stored in any case.
const LINE_BYTES_MAX: u64 = 1_100_000_000;
/// Bad lines that are reported one by one; beyond, only counted.
const REPORTS_MAX: u64 = 100;

/// Events with the numbers of their lines.
type Numbered = Vec<(u64, NewEvent)>;

#[derive(Default, serde::Serialize)]
struct Totals {
    lines: u64,
    written: u64,
    duplicates: u64,
    bad: u64,
}

/// Writes every line of `file`.
pub(super) fn run(command: &Enqueue, place: &Place, file: &Path) -> Result<(), Failure> {
    let (input, size) = input(file)?;
    let bar = progress(size);
    let mut writer =
        Writer { command, place, connections: BTreeMap::new(), totals: Totals::default(), batch: Vec::new() };
    let outcome = if command.atomic { writer.atomic(input, &bar) } else { writer.batches(input, &bar) };
    bar.finish_and_clear();
    outcome?;
    let totals = &writer.totals;
    if command.json {
        output::json(totals)?;
    } else {
        let mut text = format!("{} events written", totals.written);
        if totals.duplicates > 0 {
            // Writing into a String cannot fail.
            let _ = write!(text, ", {} were there already", totals.duplicates);
        }
        if totals.bad > 0 {
            let _ = write!(text, ", {} bad lines left out", totals.bad);
        }
        super::say(format_args!("{text}"))?;
    }
    if totals.bad > 0 { Err(Failure::Finding) } else { Ok(()) }
}

fn input(file: &Path) -> Result<(Box<dyn BufRead>, Option<u64>), Failure> {
    const BUFFER: usize = 1 << 18;
    if file == Path::new("-") {
        return Ok((Box::new(BufReader::with_capacity(BUFFER, std::io::stdin())), None));
    }
    let fault = |error: std::io::Error| {
        Failure::user(format!("{} cannot be read: {error}", file.display()), "check the path; \"-\" reads stdin")
    };
    let opened = File::open(file).map_err(fault)?;
    let size = opened.metadata().map_err(fault)?;
    if size.is_dir() {
        return Err(Failure::user(format!("{} is a folder", file.display()), "name a file with one event a line"));
    }
    Ok((Box::new(BufReader::with_capacity(BUFFER, opened)), Some(size.len())))
}

fn progress(size: Option<u64>) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match size {
        Some(size) => (ProgressBar::new(size), "{wide_bar:.cyan/blue} {binary_bytes}/{binary_total_bytes} {msg} {eta}"),
        None => (ProgressBar::no_length(), "{spinner} {binary_bytes} {msg}"),
    };
    bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(8));
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

struct Writer<'a> {
    command: &'a Enqueue,
    place: &'a Place,
    connections: BTreeMap<PathBuf, Connection>,
    totals: Totals,
    /// Events of the open batch with their line numbers.
    batch: Numbered,
}

/// What is wrong with one line.
struct BadLine {
    number: u64,
    why: String,
    hint: String,
    exit: fn(String, String) -> Failure,
}

impl BadLine {
    /// Whether the line is at fault, and not the disk or a lock.
    fn is_users(&self) -> bool {
        matches!((self.exit)(String::new(), String::new()), Failure::User { .. })
    }
}

impl Writer<'_> {
    /// Batch by batch; a bad line ends it unless it was told to go on.
    fn batches(&mut self, mut input: Box<dyn BufRead>, bar: &ProgressBar) -> Result<(), Failure> {
        let mut line = Vec::new();
        let most = usize::try_from(self.command.batch).unwrap_or(usize::MAX);
        loop {
            let more = self.next(&mut input, &mut line, bar);
            match more {
                Ok(true) => {}
                Ok(false) => break,
                Err(bad) => {
                    self.flush()?;
                    self.bad(bad)?;
                }
            }
            if self.batch.len() >= most {
                self.flush()?;
                bar.set_message(format!("{} events", self.totals.written));
            }
        }
        self.flush()
    }

    /// Everything in one transaction.
    fn atomic(&mut self, mut input: Box<dyn BufRead>, bar: &ProgressBar) -> Result<(), Failure> {
        let nothing = |bad: &BadLine| {
            (bad.exit)(format!("line {}: {}; nothing was written", bad.number, bad.why), bad.hint.clone())
        };
        let Place::Database(path) = self.place else {
            return Err(Failure::user(
                "--atomic needs one database",
                "name it with --database FILE; a transaction does not reach over files",
            ));
        };
        let mut connection = open::writer(path, false)?;
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut line = Vec::new();
        while self.next(&mut input, &mut line, bar).map_err(|bad| nothing(&bad))? {
            for (number, event) in self.batch.drain(..) {
                match litepost::enqueue(&tx, &event) {
                    Ok(Enqueued::Written { .. }) => self.totals.written += 1,
                    Ok(Enqueued::Duplicate) => self.totals.duplicates += 1,
                    Err(error) => return Err(nothing(&refused(number, &error))),
                }
            }
        }
        Ok(super::commit(tx)?)
    }

    /// Reads one line into the batch; false at the end of the input.
    fn next(&mut self, input: &mut dyn BufRead, line: &mut Vec<u8>, bar: &ProgressBar) -> Result<bool, BadLine> {
        line.clear();
        let number = self.totals.lines + 1;
        let bad =
            |why: String, hint: &str| BadLine { number, why, hint: hint.to_owned(), exit: |m, h| Failure::user(m, h) };
        let read = input.take(LINE_BYTES_MAX).read_until(b'\n', line).map_err(|error| BadLine {
            exit: |m, h| Failure::unexpected(m, h),
            ..bad(format!("the input cannot be read: {error}"), "check the file and the disk")
        })?;
        if read == 0 {
            return Ok(false);
        }
        self.totals.lines = number;
        bar.inc(u64::try_from(read).unwrap_or(u64::MAX));
        if u64::try_from(read).unwrap_or(u64::MAX) >= LINE_BYTES_MAX {
            return Err(bad("longer than any event can be".into(), "the input must have one JSON object a line"));
        }
        let text = line.trim_ascii();
        if text.is_empty() {
            return Ok(true);
        }
        let event = events::parse(text, self.command.topic.as_deref())
            .map_err(|why| bad(why, "a line is a JSON object; see `litepost enqueue --help`"))?;
        self.batch.push((number, event));
        Ok(true)
    }

    /// Commits the batch, one transaction per outbox file. What a guard refuses is reported by its line.
    fn flush(&mut self) -> Result<(), Failure> {
        for (path, events) in self.by_file()? {
            if !self.connections.contains_key(&path) {
                let connection = open::writer(&path, self.place.makes_files())?;
                self.connections.insert(path.clone(), connection);
            }
            let Some(connection) = self.connections.get_mut(&path) else { continue };
            for bad in write(connection, &events, self.command.continue_on_error, &mut self.totals) {
                self.bad(bad)?;
            }
        }
        Ok(())
    }

    /// The batch by outbox file. Where a bad line ends the command, the lines before it must be the ones written, so
    /// files are then written in the order of the lines.
    fn by_file(&mut self) -> Result<Vec<(PathBuf, Numbered)>, Failure> {
        let mut files: Vec<(PathBuf, Numbered)> = Vec::new();
        for (number, event) in std::mem::take(&mut self.batch) {
            let path = match self.place.outbox_for(self.command.app.as_deref(), event.topic()) {
                Ok(path) => path,
                Err(Failure::User { message, hint }) if self.command.continue_on_error => {
                    self.bad(BadLine { number, why: message, hint, exit: |m, h| Failure::user(m, h) })?;
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            let at = if self.command.continue_on_error {
                files.iter().position(|(other, _)| *other == path)
            } else {
                files.len().checked_sub(1).filter(|last| files[*last].0 == path)
            };
            match at {
                Some(at) => files[at].1.push((number, event)),
                None => files.push((path, vec![(number, event)])),
            }
        }
        Ok(files)
    }

    /// Reports a bad line, or ends the command with it.
    fn bad(&mut self, bad: BadLine) -> Result<(), Failure> {
        let users = bad.is_users();
        let BadLine { number, why, hint, exit } = bad;
        if self.command.continue_on_error && users {
            self.totals.bad += 1;
            match self.totals.bad {
                ..=REPORTS_MAX => report::error(&format!("line {number}: {why}"), &hint),
                count if count == REPORTS_MAX + 1 => {
                    report::error("more bad lines follow", "they are counted at the end");
                }
                _ => {}
            }
            return Ok(());
        }
        let before = match number {
            1 => "nothing was written".to_owned(),
            2 => "the line before it is written; after the repair go on with: tail -n +2".to_owned(),
            _ => format!(
                "the {} lines before it are written; after the repair go on with: tail -n +{number}",
                number - 1
            ),
        };
        Err(exit(format!("line {number}: {why}"), format!("{hint}\n  hint: {before}")))
    }
}

/// One transaction. Stops at the first event that a guard refuses unless told to go on; what came before it is
/// committed. Any other fault (a full disk, a lock) is no event's: the whole transaction is undone.
fn write(connection: &mut Connection, events: &[(u64, NewEvent)], go_on: bool, totals: &mut Totals) -> Vec<BadLine> {
    let first = events.first().map_or(0, |(number, _)| *number);
    let undone = |error: &EnqueueError| refused(first, error);
    let (mut written, mut duplicates, mut bad) = (0, 0, Vec::new());
    let tx = match connection.transaction_with_behavior(TransactionBehavior::Immediate) {
        Ok(tx) => tx,
        Err(error) => return vec![undone(&error.into())],
    };
    for (number, event) in events {
        match litepost::enqueue(&tx, event) {
            Ok(Enqueued::Written { .. }) => written += 1,
            Ok(Enqueued::Duplicate) => duplicates += 1,
            Err(error) => {
                let line = refused(*number, &error);
                if !line.is_users() {
                    return vec![undone(&error)];
                }
                bad.push(line);
                if !go_on {
                    break;
                }
            }
        }
    }
    if let Err(error) = super::commit(tx) {
        return vec![undone(&error)];
    }
    totals.written += written;
    totals.duplicates += duplicates;
    bad
}

fn refused(number: u64, error: &EnqueueError) -> BadLine {
    let exit: fn(String, String) -> Failure = match Failure::from(error.clone()) {
        Failure::User { .. } => |m, h| Failure::user(m, h),
        _ => |m, h| Failure::unexpected(m, h),
    };
    BadLine { number, why: error.to_string(), hint: error.hint().to_owned(), exit }
}
