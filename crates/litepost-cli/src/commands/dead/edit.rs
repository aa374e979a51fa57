//! `litepost dead edit`: replays one letter with another body.
//!
//! Invariant: the letter keeps the body it died with; what changed is shown before anything is written.

use std::path::PathBuf;
use std::process::Command;

use clap::Args;
use litepost::dead::{self, DeadEvent};
use litepost::operate::NewBody;
use rusqlite::types::Value;

use super::open;
use crate::args::Where;
use crate::failure::Failure;
use crate::hands::{self, Hands};
use crate::output::{self, Out, harmless};

/// Replay one dead letter with another body.
#[derive(Debug, Args)]
pub(super) struct Edit {
    /// Its number, from `litepost dead list`
    dead_id: i64,
    #[command(flatten)]
    place: Where,
    /// The new payload; without this and --headers, $VISUAL or $EDITOR opens with the old one
    #[arg(long, value_name = "TEXT")]
    payload: Option<String>,
    /// The new headers, a JSON object; "none" removes them
    #[arg(long, value_name = "JSON")]
    headers: Option<String>,
    #[command(flatten)]
    hands: Hands,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn edit(command: &Edit) -> Result<(), Failure> {
    let (path, letter) = find(command)?;
    let (old_payload, bytes) = match &letter.payload {
        Value::Text(text) => (text.clone(), false),
        Value::Blob(_) => ("(bytes)".to_owned(), true),
        _ => (String::new(), false),
    };
    let payload = match (&command.payload, &command.headers) {
        (Some(payload), _) => Some(payload.clone()),
        (None, Some(_)) => None,
        (None, None) if bytes => {
            return Err(Failure::user("the payload is binary and cannot be edited as text", "give --payload TEXT"));
        }
        (None, None) => Some(in_editor(&old_payload)?),
    };
    let headers = match command.headers.as_deref() {
        None => None,
        Some("none") => Some(None),
        Some(text) => match serde_json::from_str(text) {
            Ok(serde_json::Value::Object(_)) => Some(Some(text.to_owned())),
            _ => {
                return Err(Failure::user(
                    "--headers must be a JSON object",
                    "for example --headers '{\"tenant\": \"7\"}'",
                ));
            }
        },
    };
    let payload = payload.filter(|new| bytes || *new != old_payload);
    if payload.is_none() && headers.as_ref().is_none_or(|new| *new == letter.headers) {
        return Err(Failure::user("nothing was changed", "`litepost dead replay` sends it as it is"));
    }
    let mut diff = Vec::new();
    if let Some(new) = &payload {
        difference(&mut diff, "payload", &old_payload, new);
    }
    if let Some(new) = &headers {
        let none = String::new();
        difference(&mut diff, "headers", letter.headers.as_ref().unwrap_or(&none), new.as_ref().unwrap_or(&none));
    }
    let body = NewBody { payload: payload.map(Value::Text), headers };
    let mut operator = command.hands.open(&path)?;
    let replayed = operator.replay_edited(command.dead_id, &body).map_err(|error| Failure::from(error).about(&path))?;
    if command.json {
        return output::json(&serde_json::json!({
            "dry_run": command.hands.dry_run, "replayed": replayed, "diff": diff
        }));
    }
    let mut out = Out::new();
    for line in diff {
        out.line(line)?;
    }
    out.line(format_args!(
        "{} dead letter {} to {} as event {}",
        command.hands.would("replayed", "would replay"),
        replayed.dead_id,
        harmless(&replayed.destination),
        replayed.replayed_as
    ))?;
    out.flush()
}

fn find(command: &Edit) -> Result<(PathBuf, DeadEvent), Failure> {
    let mut found = Vec::new();
    for path in hands::files(&command.place)? {
        let letter = dead::show(&open(&path)?, command.dead_id).map_err(|error| Failure::from(error).about(&path))?;
        found.extend(letter.map(|letter| (path, letter)));
    }
    match found.len() {
        1 => Ok(found.remove(0)),
        0 => Err(Failure::user(
            format!("there is no dead letter {}", command.dead_id),
            "`litepost dead list` shows what there is",
        )),
        _ => Err(Failure::user(
            format!("several outbox files have a dead letter {}", command.dead_id),
            "name the file with --database FILE",
        )),
    }
}

/// The operator's editor on a file of its own, which is removed afterwards.
fn in_editor(text: &str) -> Result<String, Failure> {
    let of = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
    let Some(editor) = of("VISUAL").or_else(|| of("EDITOR")) else {
        return Err(Failure::user("no editor is named", "set EDITOR, or give --payload TEXT or --headers JSON"));
    };
    let trouble = |what: &str, error: std::io::Error| {
        Failure::user(format!("{what}: {error}"), "check EDITOR and the folder for temporary files")
    };
    // Only the operator may read it: a payload can hold anything.
    let folder = tempfile::Builder::new()
        .prefix("litepost-")
        .tempdir()
        .map_err(|error| trouble("no folder for the payload", error))?;
    let file = folder.path().join("payload");
    std::fs::write(&file, text).map_err(|error| trouble("the payload cannot be written", error))?;
    let mut words = editor.split_whitespace();
    let program = words.next().unwrap_or_default();
    let status = Command::new(program)
        .args(words)
        .arg(&file)
        .status()
        .map_err(|error| trouble(&format!("{program} cannot be started"), error))?;
    if !status.success() {
        return Err(Failure::user(format!("{program} ended with {status}"), "nothing was replayed; try again"));
    }
    let edited = std::fs::read_to_string(&file).map_err(|error| trouble("the payload cannot be read", error))?;
    // Editors end a file with a newline that the payload did not have.
    Ok(if text.ends_with('\n') { edited } else { edited.strip_suffix('\n').unwrap_or(&edited).to_owned() })
}

fn difference(diff: &mut Vec<String>, what: &str, old: &str, new: &str) {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let same = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let tail = old[same..].iter().rev().zip(new[same..].iter().rev()).take_while(|(a, b)| a == b).count();
    diff.extend(old[same..old.len() - tail].iter().map(|line| format!("- {what}: {}", harmless(line))));
    diff.extend(new[same..new.len() - tail].iter().map(|line| format!("+ {what}: {}", harmless(line))));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_lines_that_differ_are_shown() {
        let mut diff = Vec::new();
        difference(&mut diff, "payload", "{\n a\n}", "{\n b\n c\n}");
        assert_eq!(diff, ["- payload:  a", "+ payload:  b", "+ payload:  c"]);
    }
}
