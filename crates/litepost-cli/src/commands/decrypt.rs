//! `litepost decrypt`: opens a payload that a destination's `encryption` has closed.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::PathBuf;

use clap::Args;
use litepost_relay::seal::{self, Key};

use crate::failure::Failure;
use crate::output::{self, Out};

const EXAMPLES: &str = "\
Examples:
  litepost decrypt --key 2026-11=payload.key < payload.jwe            the payload, byte for byte
  litepost decrypt --key old=a.key --key new=b.key < payload.jwe      with the key that it names
  litepost decrypt --header --key 2026-11=payload.key < payload.jwe   whose it is: event, topic, media type";

/// Open a payload that was encrypted for a destination.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Decrypt {
    /// A key's id and the file that holds it: 32 bytes in base64. Several for rotation
    #[arg(long = "key", value_name = "ID=FILE", required = true, value_parser = key_file)]
    keys: Vec<(String, PathBuf)>,
    /// Refuse a payload that belongs to another event than this
    #[arg(long, value_name = "ID")]
    event_id: Option<String>,
    /// Print what the authenticated header says, as JSON, instead of the payload
    #[arg(long)]
    header: bool,
}

fn key_file(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((id, file)) if !id.is_empty() && !file.is_empty() => Ok((id.into(), file.into())),
        _ => Err("write ID=FILE".into()),
    }
}

/// Reads stdin, writes stdout.
pub(crate) fn run(command: &Decrypt) -> Result<(), Failure> {
    let mut keys = BTreeMap::new();
    for (id, file) in &command.keys {
        let text = std::fs::read_to_string(file).map_err(|error| {
            Failure::user(format!("{} cannot be read: {error}", file.display()), "check the path after the =")
        })?;
        let key = Key::parse(&text.into())
            .map_err(|error| Failure::user(format!("{}: {error}", file.display()), "check what is in the file"))?;
        keys.insert(id.clone(), key);
    }
    let mut token = String::new();
    std::io::stdin()
        .lock()
        .read_to_string(&mut token)
        .map_err(|error| Failure::user(format!("stdin is no text: {error}"), "give it the payload as it arrived"))?;
    let (header, payload) = seal::open(&keys, &token)
        .map_err(|error| Failure::user(error.to_string(), "give it the payload as it arrived, and the key it names"))?;
    if let Some(id) = command.event_id.as_ref().filter(|id| **id != header.id) {
        let message = format!("the payload belongs to the event {:?}, not to {id:?}", header.id);
        return Err(Failure::user(message, "somebody has moved it: do not trust the message"));
    }
    if command.header {
        return output::json(&header);
    }
    let mut out = Out::new();
    out.bytes(&payload)?;
    out.flush()
}
