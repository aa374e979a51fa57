//! The loader of configurations against files that nobody would write: seeded mutations of all the files we know.
//!
//! Runs with every other test for a moment, and for long with `cargo xtask fuzz config --minutes 10`. Promises: no panic,
//! no hang, every finding has a place that can be shown, and no value of a variable stands in a message. What broke one of
//! them once is kept in `seeds/` and tried first.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::disallowed_methods, reason = "the clock says when to stop, and what takes too long")]

mod promises;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use promises::{load, reaches_out};

/// Values and pieces that sit badly.
const PIECES: &[&str] = &[
    "\"",
    "'",
    "'''",
    "\"\"\"",
    "=",
    "[",
    "]",
    "[[",
    "{",
    "}",
    ",",
    ".",
    "\n",
    "\0",
    "\u{1}",
    "\r",
    "\u{feff}",
    "\u{202e}",
    "é",
    "\u{1f600}",
    "${",
    "}",
    "${PASS}",
    "${PASS:-",
    "${PASS:-x}",
    "$",
    "${}",
    "${PASS",
    "-1",
    "0",
    "9223372036854775807",
    "9223372036854775808",
    "1e400",
    "nan",
    "-inf",
    "0x7fffffffffffffff",
    "1979-05-27T07:32:00Z",
    "true",
    "[]",
    "{}",
    "[[]]",
    "\"${PASS}\"",
    "\"0s\"",
    "\"999999999999d\"",
    "\"5\"",
    "\"1ms\"",
    "\"99999999999GiB\"",
    "\"-1s\"",
    "\"never\"",
    "\"*\"",
    "\"../..\"",
    "\"a/b\"",
    "\"postgres://u:${PASS}@h:99999/x?y=%zz\"",
    "\"redis://${PASS}\"",
    "\"http://[::1\"",
    "[app]",
    "[app.x]",
    "[app.x.db.y]",
    "[app.x.sink.y.connection]",
    "app.x.database = 'x'\n",
    "database = 'x.db'\n",
    "tables = [{ name = 'a' }, 'a', 1]\n",
    "retry = { first = '1s', cap = '0s' }\n",
    "inject_outbox_seq = ['a']\n",
    "type = 'postgres'\n",
    "type = 'exec'\n",
    "[admin]\nlisten = '0.0.0.0:1'\ntoken = '${PASS}${PASS}'\n",
    "listen = '[::1]:1'\n",
    "password = 'x://u:p@h?q'\n",
    "# token = é\n",
];

/// SplitMix64 (Steele, Lea, Flood, 2014).
struct Chance(u64);

impl Chance {
    fn below(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((z ^ (z >> 31)) % (below.max(1) as u64)).unwrap()
    }

    fn pick<'a, T: ?Sized>(&mut self, choices: &[&'a T]) -> &'a T {
        choices[self.below(choices.len())]
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Every configuration of the project.
fn corpus() -> Vec<String> {
    let mut folders = vec![root().join("examples"), root().join("crates/litepost-cli/tests/it/broken"), seeds()];
    let mut texts = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "toml")
                && let Ok(text) = std::fs::read_to_string(&path)
            {
                texts.push(text);
            }
        }
    }
    texts.sort();
    assert!(texts.len() > 40, "only {} configurations", texts.len());
    texts
}

fn seeds() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/seeds")
}

/// One to eight changes.
fn mutate(chance: &mut Chance, corpus: &[String]) -> Vec<u8> {
    let all: Vec<&str> = corpus.iter().map(String::as_str).collect();
    let mut text = chance.pick(&all).as_bytes().to_vec();
    for _ in 0..=chance.below(8) {
        let at = chance.below(text.len() + 1);
        let end = (at + chance.below(40)).min(text.len());
        match chance.below(8) {
            0 => drop(text.drain(at..end)),
            1 => drop(text.splice(at..at, chance.pick(PIECES).bytes())),
            2 => drop(text.splice(at..end, chance.pick(PIECES).bytes())),
            3 => {
                let piece = text[at..end].to_vec();
                let to = chance.below(text.len() + 1);
                drop(text.splice(to..to, piece));
            }
            4 => {
                if let Some(byte) = text.get_mut(at) {
                    *byte = u8::try_from(chance.below(256)).unwrap();
                }
            }
            5 => {
                let lines: Vec<&str> = chance.pick(&all).lines().collect();
                let line = if lines.is_empty() { "" } else { chance.pick(&lines) };
                drop(text.splice(at..at, format!("\n{line}\n").into_bytes()));
            }
            6 => {
                // The value of a key: everything behind an equals sign.
                let places: Vec<usize> = (0..text.len()).filter(|&i| text[i] == b'=').collect();
                if let Some(&from) = places.get(chance.below(places.len())) {
                    let to = text[from..].iter().position(|&b| b == b'\n').map_or(text.len(), |n| from + n);
                    drop(text.splice(from + 1..to, chance.pick(PIECES).bytes()));
                }
            }
            _ => {
                let deep = ["[", "{a=", "a.", "\"${", "[app."][chance.below(5)].repeat(chance.below(600));
                drop(text.splice(at..at, deep.into_bytes()));
            }
        }
    }
    text
}

#[test]
fn no_file_makes_the_loader_panic_hang_or_tell_a_secret() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = corpus();
    for text in &corpus {
        if !reaches_out(text.as_bytes()) {
            load(folder.path(), text.as_bytes());
        }
    }
    let number = |name: &str, default: u64| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (seconds, mut seed) = (number("FUZZ_SECONDS", 3), number("FUZZ_SEED", 1));
    let (began, mut tried) = (Instant::now(), 0_u64);
    while began.elapsed() < Duration::from_secs(seconds) {
        let text = mutate(&mut Chance(seed), &corpus);
        if !reaches_out(&text) {
            let outcome = std::panic::catch_unwind(|| load(folder.path(), &text));
            if let Err(panic) = outcome {
                let kept = std::env::temp_dir().join(format!("litepost-fuzz-{seed}.toml"));
                std::fs::write(&kept, &text).unwrap();
                println!("FUZZ_SEED={seed} breaks a promise; the file is {}", kept.display());
                std::panic::resume_unwind(panic);
            }
            tried += 1;
        }
        seed += 1;
    }
    println!("{tried} files in {seconds} s, from seed {} on", number("FUZZ_SEED", 1));
    assert!(tried > 100, "only {tried} files");
}
