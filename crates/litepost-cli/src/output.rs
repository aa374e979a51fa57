//! stdout: lines, JSON and tables.
//!
//! Used by every command that answers. Invariant: a reader that goes away ends the command quietly, and any other
//! failure to write is told.

use std::io::{self, BufWriter, IsTerminal as _, Write};

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

use crate::failure::Failure;

/// Buffered stdout.
pub(crate) struct Out {
    inner: BufWriter<io::StdoutLock<'static>>,
}

impl Out {
    /// Takes stdout.
    pub(crate) fn new() -> Self {
        Self { inner: BufWriter::with_capacity(1 << 16, io::stdout().lock()) }
    }

    /// One line.
    pub(crate) fn line(&mut self, text: impl std::fmt::Display) -> Result<(), Failure> {
        writeln!(self.inner, "{text}").map_err(|error| fault(&error))
    }

    /// Bytes as they are.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.inner.write_all(bytes).map_err(|error| fault(&error))
    }

    /// A document, indented on a terminal and on one line elsewhere.
    pub(crate) fn json(&mut self, document: &impl Serialize) -> Result<(), Failure> {
        let text = if io::stdout().is_terminal() {
            serde_json::to_string_pretty(document)
        } else {
            serde_json::to_string(document)
        };
        let text = text.map_err(|error| Failure::unexpected(format!("the answer is no JSON: {error}"), "report it"))?;
        self.line(text)
    }

    /// What was written so far goes out now.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        self.inner.flush().map_err(|error| fault(&error))
    }
}

/// Prints one document and nothing else.
pub(crate) fn json(document: &impl Serialize) -> Result<(), Failure> {
    let mut out = Out::new();
    out.json(document)?;
    out.flush()
}

fn fault(error: &io::Error) -> Failure {
    if error.kind() == io::ErrorKind::BrokenPipe {
        Failure::BrokenPipe
    } else {
        Failure::unexpected(
            format!("stdout cannot be written: {error}"),
            "check where the output goes (is the disk full?)",
        )
    }
}

/// A table without borders that fits the terminal, or 80 columns elsewhere.
pub(crate) fn table<const N: usize>(head: [&str; N]) -> Table {
    const WIDTH_ELSEWHERE: u16 = 80;
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic).set_header(head);
    if !io::stdout().is_terminal() {
        table.set_width(WIDTH_ELSEWHERE);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}

/// A table's text without spaces at line ends.
pub(crate) fn trimmed(table: &Table) -> String {
    table.to_string().lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

/// Text from an event or a file as a terminal may show it: control characters escaped, so that no payload can move
/// the cursor or change the colours.
pub(crate) fn harmless(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
        out
    })
}

/// An age for people: `350 ms`, `12 s`, `3 min`, `5 h`, `2 d`.
pub(crate) fn age(ms: i64) -> String {
    match ms {
        ..1_000 => format!("{} ms", ms.max(0)),
        1_000..120_000 => format!("{} s", ms / 1_000),
        120_000..7_200_000 => format!("{} min", ms / 60_000),
        7_200_000..172_800_000 => format!("{} h", ms / 3_600_000),
        _ => format!("{} d", ms / 86_400_000),
    }
}

/// A number of bytes for people: `512 B`, `12 KiB`, `3 MiB`, `2 GiB`.
pub(crate) fn size(bytes: i64) -> String {
    match bytes {
        ..10_240 => format!("{} B", bytes.max(0)),
        10_240..10_485_760 => format!("{} KiB", bytes >> 10),
        10_485_760..10_737_418_240 => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_one_unit() {
        let shown = [-5, 0, 999, 1_000, 119_999, 120_000, 7_200_000, 172_800_000].map(age);
        assert_eq!(shown, ["0 ms", "0 ms", "999 ms", "1 s", "119 s", "2 min", "2 h", "2 d"]);
    }

    #[test]
    fn sizes_have_one_unit() {
        assert_eq!(
            [-1, 4_096, 10_240, 10_485_760, 1 << 40].map(size),
            ["0 B", "4096 B", "10 KiB", "10 MiB", "1024 GiB"]
        );
    }

    #[test]
    fn no_payload_moves_the_cursor() {
        assert_eq!(harmless("a\u{1b}[31mb\n"), "a\\u{1b}[31mb\\n");
        assert_eq!(harmless("grün"), "grün");
    }
}
