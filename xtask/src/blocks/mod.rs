//! `cargo xtask blocks`: every code block of every page, run as a reader would.
//!
//! Called by people and by `test`. Invariant: a block that is not run says why, in a comment above it; a block of a
//! language that is not known here is a failure. What the comments can say, above a block or alone:
//!
//! - `<!-- not run: REASON -->`, `<!-- run by PATH::TEST -->` (a test that reads the page), `<!-- include PATH -->`;
//! - `<!-- run: COMMANDS -->`: done, but of no interest to a reader; `<!-- servers: nats redis -->`;
//! - `<!-- stands below: TOML -->`: what a fragment needs above it to be a whole configuration;
//! - `<!-- runs until stopped; ready: COMMAND -->`: goes on in the background; at the page's end it is told to stop.
//!
//! The second word behind the fence is the file that the block is written to; a program that is written must be named
//! by a later step. `console` blocks are compared with what comes out (JSON as JSON), and `--update` writes that into the
//! page; a command that ends otherwise than with 0 states it: `$ litepost doctor  # exit code 1`.

mod compare;
mod page;
mod room;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail};

use crate::Finding;
use crate::shell::{cargo, root, run as sh};
use crate::tidy::Source;
use compare::{exchanges, same};
use page::{Block, Kind, Mark, Step};
use room::Room;

/// Options of `cargo xtask blocks`.
#[derive(clap::Args)]
pub struct Args {
    /// Only pages whose name contains one of these
    pages: Vec<String>,
    /// Write what `console` blocks really print into the pages
    #[arg(long)]
    update: bool,
}

/// What became of the blocks of all pages.
#[derive(Default)]
struct Report {
    /// Blocks that were run or compared, by what was done with them.
    run: BTreeMap<String, usize>,
    /// Where a block stands that was not run, and why.
    left_out: Vec<(String, String)>,
    failures: Vec<String>,
}

/// Runs the blocks of the pages that are named, or of all.
pub fn run(args: &Args) -> Result<()> {
    let report = all(&args.pages, args.update)?;
    println!("{}", report.closing());
    if report.failures.is_empty() { Ok(()) } else { Err(Finding("a block of a page is wrong".into()).into()) }
}

/// As a step of `cargo xtask test`; says what it did in the words of a test runner.
pub fn test() -> Result<(bool, String)> {
    let report = all(&[], false)?;
    let closing = report.closing();
    println!("{closing}");
    Ok((report.failures.is_empty(), closing))
}

impl Report {
    fn add(&mut self, other: Self) {
        for (what, count) in other.run {
            *self.run.entry(what).or_default() += count;
        }
        self.left_out.extend(other.left_out);
        self.failures.extend(other.failures);
    }

    fn count(&mut self, what: &str) {
        *self.run.entry(what.to_owned()).or_default() += 1;
    }

    fn closing(&self) -> String {
        let mut text = String::new();
        for (place, reason) in &self.left_out {
            let _ = writeln!(text, "not run: {place}: {reason}");
        }
        let kinds: Vec<String> = self.run.iter().map(|(what, count)| format!("{count} {what}")).collect();
        let _ = writeln!(text, "blocks: {}", kinds.join(", "));
        for failure in &self.failures {
            let _ = writeln!(text, "FAILED {failure}");
        }
        let passed: usize = self.run.values().sum();
        let (failed, skipped) = (self.failures.len(), self.left_out.len());
        let _ = write!(text, "test result: {passed} passed; {failed} failed; {skipped} ignored");
        text
    }
}

/// How many pages are walked at once: they wait for their servers more than they work.
const AT_ONCE: usize = 4;

fn all(wanted: &[String], update: bool) -> Result<Report> {
    let litepost = litepost()?;
    let mut report = Report::default();
    let mut pages = Vec::new();
    for source in crate::tidy::sources()?.into_iter().filter(|source| source.is("md")) {
        if !wanted.is_empty() && !wanted.iter().any(|part| source.name.contains(part.as_str())) {
            continue;
        }
        match page::steps(&source.text) {
            Ok(steps) if steps.is_empty() => {}
            Ok(steps) => pages.push((source, steps)),
            Err(error) => report.failures.push(format!("{}: {error:#}", source.name)),
        }
    }
    if pages.iter().flat_map(|(_, steps)| steps).any(|step| matches!(step.kind, Kind::Servers(_))) {
        sh(&mut cargo(&["build", "--quiet", "--package", "litepost-testkit", "--bin", "litepost-test-servers"]))?;
    }
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some((source, steps)) = pages.get(at) else { return done };
            done.push((at, one(source, steps, &litepost, update)));
        }
    };
    let mut done = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap_or_default()).collect::<Vec<_>>()
    });
    done.sort_by_key(|(at, _)| *at);
    let walked = done.len();
    for (_, one) in done {
        report.add(one);
    }
    if walked != pages.len() {
        bail!("a page was not walked to its end");
    }
    Ok(report)
}

/// Walks one page.
fn one(source: &Source, steps: &[Step], litepost: &Path, update: bool) -> Report {
    let mut report = Report::default();
    let watch = crate::clock::Watch::start();
    let room = match Room::new(litepost) {
        Ok(room) => room,
        Err(error) => {
            report.failures.push(format!("{}: {error:#}", source.name));
            return report;
        }
    };
    let mut walk = Walk::new(&source.name, room, update, &mut report);
    walk.all(steps);
    let changes = std::mem::take(&mut walk.changes);
    walk.end();
    if !changes.is_empty()
        && let Err(error) = std::fs::write(root().join(&source.name), with(&source.text, &changes))
    {
        report.failures.push(format!("{}: {error}", source.name));
    }
    println!("{} ... {:.1} s", source.name, watch.seconds());
    report
}

/// The program: `LITEPOST_BIN`, or built now.
pub fn litepost() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os("LITEPOST_BIN") {
        return Ok(named.into());
    }
    crate::quickstart::litepost()
}

/// The text with other pieces at some places.
fn with(text: &str, changes: &[(Range<usize>, String)]) -> String {
    let mut fresh = text.to_owned();
    for (place, piece) in changes.iter().rev() {
        fresh.replace_range(place.clone(), piece);
    }
    fresh
}

/// The way through one page.
struct Walk<'a> {
    page: &'a str,
    room: Room,
    update: bool,
    report: &'a mut Report,
    /// Files that were written and not used yet, with their lines.
    unused: BTreeMap<String, usize>,
    /// What the steps so far said: a configuration may name a program that is written below it.
    said: String,
    /// What `--update` writes.
    changes: Vec<(Range<usize>, String)>,
}

impl<'a> Walk<'a> {
    fn new(page: &'a str, room: Room, update: bool, report: &'a mut Report) -> Self {
        Self { page, room, update, report, unused: BTreeMap::new(), said: String::new(), changes: Vec::new() }
    }

    /// Takes the steps in order. The first failure ends it: what follows rests on what failed.
    fn all(&mut self, steps: &[Step]) {
        for step in steps {
            let done = match &step.kind {
                Kind::Servers(names) => self.room.start_servers(names),
                Kind::Hidden(commands) => self.commands(commands),
                Kind::Block(block) => self.block(step.line, block).map(|what| {
                    if let Some(what) = what {
                        self.report.count(&what);
                    }
                }),
            };
            if let Err(error) = done {
                self.report.failures.push(format!("{}:{}: {error:#}", self.page, step.line));
                return;
            }
        }
        for (file, line) in &self.unused {
            self.report.failures.push(format!("{}:{line}: {file} is written and never used", self.page));
        }
    }

    fn end(self) {
        let Self { page, room, report, .. } = self;
        report.failures.extend(room.close().into_iter().map(|problem| format!("{page}: {problem}")));
    }

    /// Does what the block is for. Returns what to count it as; nothing when it is left out with a reason.
    fn block(&mut self, line: usize, block: &Block) -> Result<Option<String>> {
        self.says(&block.text);
        let mut below = None;
        let mut stays = None;
        for mark in &block.marks {
            match mark {
                Mark::NotRun(reason) => {
                    self.report.left_out.push((format!("{}:{line}", self.page), reason.clone()));
                    return Ok(None);
                }
                Mark::RunBy(test) => return run_by(test).map(Some),
                // A configuration is written as well: later blocks use it.
                Mark::Include(_) if block.language == "toml" => {}
                Mark::Include(path) => return included(path).map(Some),
                Mark::Below(above) => below = Some(above.clone()),
                Mark::Stays(ready) => stays = Some(ready),
            }
        }
        match block.language.as_str() {
            "sh" => match stays {
                Some(ready) => self.room.stay(&block.text, ready)?,
                None => self.commands(&block.text)?,
            },
            "console" => self.console(block)?,
            "toml" => self.toml(line, block, below)?,
            "json" => json(&block.text)?,
            // A drawing. Code has a language.
            "text" => {}
            language => self.program(line, language, block)?,
        }
        Ok(Some(block.language.clone()))
    }

    /// Notes which files a step names.
    fn says(&mut self, text: &str) {
        self.unused.retain(|file, _| !text.contains(file.as_str()));
        self.said.push_str(text);
    }

    /// Runs commands that must succeed.
    fn commands(&mut self, commands: &str) -> Result<()> {
        self.says(commands);
        let ended = self.room.bash(commands)?;
        if !ended.status.success() {
            bail!("{}\n{commands}\n{}{}", ended.status, ended.stdout, ended.stderr);
        }
        Ok(())
    }

    /// Runs the commands of a `console` block and compares what they print, on both streams, and their exit codes: 0
    /// unless the page states another one.
    fn console(&mut self, block: &Block) -> Result<()> {
        let all = exchanges(&block.text).context("a console block begins with `$ ` and a command")?;
        let mut fresh = String::new();
        let mut wrong = None;
        for exchange in all {
            let ended = self.room.bash(&format!("exec 2>&1\n{}", exchange.command))?;
            let (code, mut came) = (ended.status.code().unwrap_or(-1), ended.stdout);
            if code != exchange.code() {
                bail!("`{}` ends with exit code {code}, not {}:\n{came}", exchange.command, exchange.code());
            }
            if !came.is_empty() && !came.ends_with('\n') {
                came.push('\n');
            }
            let fits = same(&exchange.output, &came);
            let shown = if fits { &exchange.output } else { &came };
            let _ = write!(fresh, "$ {}\n{shown}", exchange.command);
            if !fits {
                let told = format!("`{}` prints\n{came}instead of\n{}", exchange.command, exchange.output);
                wrong.get_or_insert(told);
            }
        }
        match wrong {
            Some(_) if self.update => self.changes.push((block.place.clone(), fresh)),
            Some(told) => bail!(told),
            None => {}
        }
        Ok(())
    }

    /// Writes a configuration and has the program check it.
    fn toml(&mut self, line: usize, block: &Block, below: Option<String>) -> Result<()> {
        let name = block.file.clone().unwrap_or_else(|| format!("line-{line}.toml"));
        let whole = ["database", "db_dir"].iter().any(|key| {
            let begins =
                |line: &str| line.trim_start().strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with('='));
            block.text.lines().any(begins)
        });
        let above = below.unwrap_or_else(|| {
            let fragment = block.file.is_none() && !whole;
            if fragment { "[app.shop]\ndatabase = \"shop.db\"\n".into() } else { String::new() }
        });
        self.room.write(&name, &format!("{above}\n{}", block.text))?;
        self.commands(&format!("litepost check --config {name}"))
    }

    /// Runs a program, or writes it where a later step runs it.
    fn program(&mut self, line: usize, language: &str, block: &Block) -> Result<()> {
        let (extension, interpreter) = match language {
            "sql" => {
                let database = block.file.as_deref().unwrap_or("shop.db");
                let name = format!("line-{line}.sql");
                self.room.write(&name, &block.text)?;
                return self.commands(&format!("sqlite3 -bail {database} '.read {name}'"));
            }
            "python" => ("py", "python3"),
            "javascript" => ("js", "node"),
            "ruby" => ("rb", "ruby"),
            "php" => ("php", "php"),
            "go" => ("go", "go run"),
            "" => bail!("a code block without a language: say `text` if it is a drawing"),
            other => bail!("{other} is no language that is run here: run it, or say above why not"),
        };
        if let Some(file) = &block.file {
            self.room.write(file, &block.text)?;
            if !self.said.contains(file.as_str()) {
                self.unused.insert(file.clone(), line);
            }
            return Ok(());
        }
        let name = format!("line-{line}.{extension}");
        self.room.write(&name, &block.text)?;
        self.commands(&format!("{interpreter} {name}"))
    }
}

/// Every value of the block is JSON.
fn json(text: &str) -> Result<()> {
    for value in serde_json::Deserializer::from_str(text).into_iter::<serde_json::Value>() {
        value.context("this is no JSON")?;
    }
    Ok(())
}

/// The test exists that runs the block from the page.
fn run_by(test: &str) -> Result<String> {
    let (path, name) = test.split_once("::").with_context(|| format!("{test} names no test"))?;
    let text = std::fs::read_to_string(root().join(path)).with_context(|| format!("{path} does not exist"))?;
    let there = ["fn ", "def "].iter().any(|word| text.contains(&format!("{word}{name}(")));
    if !there {
        bail!("{path} has no test named {name}");
    }
    Ok("run by tests of their own".into())
}

/// The quick starts run what is included from their folder; nothing else may be.
fn included(path: &str) -> Result<String> {
    if !path.starts_with("examples/quickstart/") {
        bail!("{path} is included, and nothing runs it");
    }
    Ok("run by the quick starts".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Walks a page beside no real program: only blocks that need none.
    fn walked(text: &str) -> Report {
        let mut report = Report::default();
        let room = Room::new(Path::new("/nowhere/litepost")).unwrap();
        let mut walk = Walk::new("page.md", room, false, &mut report);
        walk.all(&page::steps(text).unwrap());
        walk.end();
        report
    }

    #[test]
    fn what_is_right_passes_and_is_counted() {
        let page = "```sh\nexport A=1\n```\n```console\n$ echo $A 12 ms\n1 7 ms\n```\n```json\n{}\n[1]\n```\n\
                    ```python a.py\nprint(1)\n```\n```console\n$ python3 a.py\n1\n```\n";
        let report = walked(page);
        assert!(report.failures.is_empty(), "{:?}", report.failures);
        assert!(report.closing().ends_with("test result: 5 passed; 0 failed; 0 ignored"));
    }

    #[test]
    fn every_kind_of_wrong_block_fails() {
        for (page, why) in [
            ("```sh\nfalse\n```\n", "exit status: 1"),
            ("```sh\ncat missing | sort\n```\n", "missing"),
            ("```console\n$ echo 1\n2\n```\n", "instead of"),
            ("```console\n$ exit 3\n```\n", "ends with exit code 3, not 0"),
            ("```console\n$ true  # exit code 1\n```\n", "ends with exit code 0, not 1"),
            ("```json\n{\n```\n", "no JSON"),
            ("```python\nraise SystemExit(3)\n```\n", "exit status: 3"),
            ("```python a.py\nprint(1)\n```\n", "written and never used"),
            ("```cobol\nx\n```\n", "no language"),
            ("```\nx\n```\n", "without a language"),
            ("    x\n", "without a language"),
            ("```toml\n[app\n```\n", "litepost"),
            ("<!-- include src/x.rs -->\n```rust\n```\n", "nothing runs it"),
            ("<!-- run by xtask/src/main.rs::nobody -->\n```rust\nx\n```\n", "no test named"),
            ("<!-- runs until stopped; ready: false -->\n```sh\nfalse\n```\n", "was to stay"),
        ] {
            let failures = walked(page).failures;
            assert!(failures.len() == 1 && failures[0].contains(why), "{page} {failures:?}");
        }
    }

    #[test]
    fn what_is_left_out_says_why_and_is_listed() {
        let closing = walked("<!-- not run: no account -->\n```sh\nfalse\n```\n").closing();
        assert!(closing.starts_with("not run: page.md:2: no account\n"));
        assert!(closing.ends_with("0 passed; 0 failed; 1 ignored"));
    }
}
