//! Counting tests and steps, and saying at the end what became of them.
//!
//! Called by `test` and `ci`. Invariant: a step that failed, or a test step that ran no test, makes the whole
//! run fail, whatever else went well.

use anyhow::Result;

use crate::Finding;
use crate::clock::Watch;

/// How many tests a runner reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub passed: u64,
    pub failed: u64,
    pub skipped: u64,
}

impl Tally {
    /// Adds up the closing lines of nextest, `cargo test`, pytest and node's runner in `output`.
    pub fn of(output: &str) -> Self {
        let mut sum = Self::default();
        // nextest shows what a failed test has printed, the closing line of the runner inside included.
        let by_nextest = output.lines().any(|line| without_colours(line).trim_start().starts_with("Summary ["));
        for line in output.lines() {
            let line = without_colours(line);
            let line = line.trim();
            let closing = line.starts_with("Summary [")
                || (line.starts_with("test result: ") && !by_nextest)
                || (line.starts_with('=') && line.ends_with('=') && line.contains(" in "))
                // pytest -q draws no rulers, and puts "(0:01:14)" behind more than a minute.
                || (line.starts_with(|c: char| c.is_ascii_digit()) && line.ends_with(['s', ')']) && line.contains(" in "));
            if closing {
                sum.add_line(line);
            }
            // Node's runner closes with "# pass 12" and "# fail 0".
            if let Some((word, count)) = line.strip_prefix("# ").and_then(|rest| rest.split_once(' '))
                && let Ok(count) = count.parse::<u64>()
            {
                match word {
                    "pass" => sum.passed += count,
                    "fail" | "cancelled" => sum.failed += count,
                    "skipped" | "todo" => sum.skipped += count,
                    _ => {}
                }
            }
        }
        sum
    }

    fn add_line(&mut self, line: &str) {
        let words: Vec<&str> =
            line.split(|c: char| !c.is_alphanumeric() && c != '.').filter(|word| !word.is_empty()).collect();
        for pair in words.windows(2) {
            let Ok(count) = pair[0].parse::<u64>() else { continue };
            match pair[1] {
                "passed" => self.passed += count,
                // "timed out" and "exec failed" are nextest's, "errors" pytest's.
                "failed" | "timed" | "exec" | "error" | "errors" => self.failed += count,
                "skipped" | "ignored" | "xfailed" | "deselected" => self.skipped += count,
                _ => {}
            }
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            skipped: self.skipped + other.skipped,
        }
    }
}

/// Takes terminal colours (`ESC [ … m`) out of a line.
fn without_colours(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            chars.by_ref().find(char::is_ascii_alphabetic);
        } else {
            plain.push(c);
        }
    }
    plain
}

/// One line of the summary.
struct Step {
    name: String,
    seconds: f64,
    /// What went wrong, if anything did.
    error: Option<String>,
    /// For steps that run tests.
    tally: Option<Tally>,
}

/// The steps done so far.
#[derive(Default)]
pub struct Summary {
    steps: Vec<Step>,
}

impl Summary {
    /// Runs a step and remembers how it ended; the next step runs in any case.
    pub fn step(&mut self, name: &str, work: impl FnOnce() -> Result<()>) {
        self.record(name, || work().map(|()| None));
    }

    /// Runs a step that runs tests. Running none is a failure.
    pub fn tests(&mut self, name: &str, work: impl FnOnce() -> Result<(bool, String)>) {
        self.record(name, || {
            let (fine, output) = work()?;
            Ok(Some((fine, Tally::of(&output))))
        });
    }

    fn record(&mut self, name: &str, work: impl FnOnce() -> Result<Option<(bool, Tally)>>) {
        println!("\n== {name}");
        let watch = Watch::start();
        let (error, tally) = match work() {
            Err(error) => (Some(format!("{error:#}")), None),
            Ok(None) => (None, None),
            Ok(Some((fine, tally))) => (verdict(fine, tally), Some(tally)),
        };
        if let Some(error) = &error {
            println!("FAILED: {error}");
        }
        self.steps.push(Step { name: name.to_owned(), seconds: watch.seconds(), error, tally });
    }

    /// Prints the table; an error when any step failed.
    pub fn close(self) -> Result<()> {
        println!("\n{:<36}{:>8}{:>8}{:>9}{:>9}", "", "passed", "failed", "skipped", "seconds");
        for step in &self.steps {
            let counts = step.tally.map_or_else(
                || format!("{:>25}", if step.error.is_none() { "fine" } else { "FAILED" }),
                |t| format!("{:>8}{:>8}{:>9}", t.passed, t.failed, t.skipped),
            );
            println!("{:<36}{counts}{:>9.1}", step.name, step.seconds);
        }
        let failed: Vec<&Step> = self.steps.iter().filter(|step| step.error.is_some()).collect();
        for step in &failed {
            println!("{}: {}", step.name, step.error.as_deref().unwrap_or_default());
        }
        if let Some(sum) = self.steps.iter().filter_map(|step| step.tally).reduce(Tally::plus) {
            println!("\ntests: {} passed, {} failed, {} skipped", sum.passed, sum.failed, sum.skipped);
        }
        if failed.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = failed.iter().map(|step| step.name.as_str()).collect();
        Err(Finding(format!("failed: {}", names.join(", "))).into())
    }
}

/// What is wrong with a test step, if anything is.
fn verdict(fine: bool, tally: Tally) -> Option<String> {
    if tally.failed > 0 {
        return Some(format!("{} tests failed", tally.failed));
    }
    if !fine {
        return Some("the runner failed, see its output above".to_owned());
    }
    (tally.passed == 0).then(|| "no test was run".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_of_the_runners_are_understood() {
        let tally = |passed, failed, skipped| Tally { passed, failed, skipped };
        assert_eq!(
            Tally::of("# tests 8\n# pass 6\n# fail 1\n# cancelled 0\n# skipped 1\n# duration_ms 1234.5"),
            tally(6, 1, 1)
        );
        assert_eq!(
            Tally::of("     Summary [   0.6s] 45 tests run: 44 passed (1 slow), 1 failed, 2 skipped"),
            tally(44, 1, 2)
        );
        assert_eq!(
            Tally::of("     Summary [   6s] 3 tests run: 1 passed, 1 timed out, 1 exec failed, 0 skipped"),
            tally(1, 2, 0)
        );
        assert_eq!(
            Tally::of(
                "test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\ntest result: FAILED. 1 passed; 2 failed; 0 ignored"
            ),
            tally(6, 2, 1)
        );
        assert_eq!(Tally::of("==== 3 failed, 12 passed, 1 skipped, 2 errors in 0.31s ===="), tally(12, 5, 1));
        assert_eq!(
            Tally::of(
                "\u{1b}[32;1m     Summary\u{1b}[0m [   0.004s] \u{1b}[1m2\u{1b}[0m tests run: \u{1b}[1m2\u{1b}[0m \u{1b}[32;1mpassed\u{1b}[0m, 0 skipped"
            ),
            tally(2, 0, 0)
        );
        assert_eq!(Tally::of("218 passed, 20 warnings in 77.37s (0:01:17)"), tally(218, 0, 0));
        assert_eq!(
            Tally::of(
                "test result: FAILED. 0 passed; 1 failed; 0 ignored\n Summary [ 1s] 9 tests run: 8 passed, 1 failed"
            ),
            tally(8, 1, 0)
        );
        assert_eq!(Tally::of("12 passed the gate, said the log"), Tally::default());
    }

    #[test]
    fn a_run_without_tests_or_with_a_failure_is_a_failure() {
        let ran = |fine, output: &'static str| {
            let mut summary = Summary::default();
            summary.tests("x", || Ok((fine, output.to_owned())));
            summary.close()
        };
        assert!(ran(true, "test result: ok. 1 passed; 0 failed").is_ok());
        assert!(ran(true, "nothing").is_err());
        assert!(ran(false, "test result: ok. 1 passed; 0 failed").is_err());
        assert!(ran(true, "test result: FAILED. 1 passed; 1 failed").is_err());
    }
}
