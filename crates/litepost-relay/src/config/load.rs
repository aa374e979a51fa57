//! Finding, reading and checking a configuration file.
//!
//! Called by the command line and by programs. Invariant: one run reports everything that is wrong.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::admin::{self, Admin};
use super::interpolate::{Resolver, mask};
use super::problem::{ConfigError, FINDINGS_MAX, Problem, Severity, Source, folder_of};
use super::reader::{self, Node};
use super::resolve::{self, App, OutboxFile};
use super::spec;
use super::variables::Variables;

/// The names that are looked for, in this order.
pub const FILE_NAMES: [&str; 2] = ["litepost.toml", "outbox.toml"];
/// No configuration is larger; a path to a log or a database is a slip.
const BYTES_MAX: u64 = 1 << 20;

/// A configuration without errors.
#[derive(Clone, Debug)]
pub struct Config {
    /// The file and its text.
    pub source: Source,
    /// The folder that its relative paths start from.
    pub folder: PathBuf,
    /// Where operators look.
    pub admin: Admin,
    /// The applications.
    pub apps: Vec<App>,
    /// What is probably not meant.
    pub warnings: Vec<Problem>,
}

/// How much of a configuration is needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Purpose {
    /// To deliver: every variable must resolve, every destination must be possible.
    #[default]
    Deliver,
    /// To look at outbox files: `connection` tables are left alone, so no secret is needed.
    Look,
}

impl Config {
    /// The configuration file in `folder`: `litepost.toml`, otherwise `outbox.toml`.
    pub fn find(folder: &Path) -> Result<PathBuf, ConfigError> {
        FILE_NAMES
            .iter()
            .map(|name| folder.join(name))
            .find(|path| path.exists())
            .ok_or_else(|| ConfigError::NotFound { folder: folder.to_path_buf() })
    }

    /// Loads a file with the variables of this process, `.env` beside the file, and Doppler.
    ///
    /// ```
    /// use litepost_relay::config::{AppBuilder, AppOptions as _, Config, ConfigBuilder, Purpose, TargetBuilder};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("litepost.toml");
    /// std::fs::write(
    ///     &path,
    ///     "[app.shop]\n\
    ///      database = 'shop.db'\n\
    ///      [app.shop.sink.audit]\n\
    ///      type = 'file'\n\
    ///      connection = { path = 'events.jsonl' }\n",
    /// )?;
    /// let loaded = Config::load(&path, Purpose::Deliver)?;
    ///
    /// // The same in code: what is a table in the file is a builder, what is a key is a method of its name.
    /// let audit = TargetBuilder::new("audit", "file").connection("path", "events.jsonl");
    /// let app = AppBuilder::new("shop").database("shop.db").sink(audit);
    /// let built = ConfigBuilder::new().app(app).build(folder.path())?;
    ///
    /// assert_eq!(loaded.files()[0].path, built.files()[0].path);
    /// let relay = loaded.relay();
    /// assert_eq!(*relay.sources[0].destinations[0].name, *"shop.audit");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn load(path: &Path, purpose: Purpose) -> Result<Self, ConfigError> {
        Self::load_with(path, Variables::from_process(), purpose)
    }

    /// As [`Config::load`], with other variables.
    pub fn load_with(path: &Path, mut variables: Variables, purpose: Purpose) -> Result<Self, ConfigError> {
        let text = read_file(path)?;
        let folder = folder_of(path);
        variables.read_dotenv(&folder)?;
        if purpose == Purpose::Deliver {
            variables.read_doppler()?;
        }
        let source = Source { path: Some(path.to_path_buf()), text };
        let mut problems = Vec::new();
        let mut resolver = Resolver {
            variables: &mut variables,
            folder: &folder,
            skip_connections: purpose == Purpose::Look,
            masks: Vec::new(),
        };
        let root = reader::parse(&source.text, &mut resolver, &mut problems);
        let masks = resolver.masks;
        finish(source, folder, &root, &masks, purpose, problems)
    }

    /// A configuration built in code.
    pub(crate) fn from_table(table: toml::Table, folder: &Path) -> Result<Self, ConfigError> {
        let root = reader::from_toml(&toml::Value::Table(table));
        finish(Source::default(), folder.to_path_buf(), &root, &[], Purpose::Deliver, Vec::new())
    }

    /// Every outbox file, with what is delivered from it.
    #[must_use]
    pub fn files(&self) -> Vec<OutboxFile> {
        self.apps.iter().flat_map(App::files).collect()
    }
}

fn read_file(path: &Path) -> Result<String, ConfigError> {
    let fault = |error: std::io::Error| ConfigError::Read { path: path.to_path_buf(), error };
    let mut bytes = Vec::new();
    // A device has no size and no end.
    std::fs::File::open(path).and_then(|file| file.take(BYTES_MAX + 1).read_to_end(&mut bytes)).map_err(fault)?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(fault(std::io::Error::other("it is larger than 1 MiB; is it a configuration?")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let line = error.as_bytes()[..valid].split(|byte| *byte == b'\n').count();
        fault(std::io::Error::other(format!("line {line} is not UTF-8; is it a configuration?")))
    })
}

fn finish(
    source: Source,
    folder: PathBuf,
    root: &Node,
    masks: &[(String, String)],
    purpose: Purpose,
    mut problems: Vec<Problem>,
) -> Result<Config, ConfigError> {
    let syntax_errors = !problems.is_empty() && problems.iter().any(|problem| problem.key.is_empty());
    let specs = spec::read(root, &mut problems);
    let table = root.entries().unwrap_or_default().iter().find(|entry| entry.key == "admin");
    // Who only looks at outbox files serves nothing, and has no token resolved.
    let admin = table.filter(|_| purpose == Purpose::Deliver).map(|entry| admin::read(entry, &mut problems));
    if syntax_errors {
        // What the parser has made up in place of a broken value has no place in the file.
        problems.retain(|problem| problem.key.is_empty() || problem.span.as_ref().is_none_or(|span| !span.is_empty()));
        // Nor has a key that stands at the top because the header above it cannot be read.
        problems.retain(|problem| problem.key.is_empty() || problem.key.contains('.'));
    }
    // After a syntax error half of the file may be missing from the tree: what it says is told, what it lacks is not.
    let apps = if syntax_errors {
        Vec::new()
    } else {
        if specs.is_empty() && problems.is_empty() {
            problems.push(
                Problem::error("app", "there is no app")
                    .hint("add [app.NAME] with database = \"…\", and a [app.NAME.sink.S] below it"),
            );
        }
        resolve::resolve(specs, &folder, masks, purpose == Purpose::Look, &mut problems)
    };
    problems.sort_by_key(|problem| problem.span.as_ref().map_or(usize::MAX, |span| span.start));
    few(&mut problems);
    for problem in &mut problems {
        problem.message = mask(&problem.message, masks);
    }
    if problems.iter().any(|problem| problem.severity == Severity::Error) {
        return Err(ConfigError::Invalid { source_file: source, problems });
    }
    Ok(Config { source, folder, admin: admin.unwrap_or_default(), apps, warnings: problems })
}

/// Keeps the first findings, errors before warnings, and says how many there are beside them.
fn few(problems: &mut Vec<Problem>) {
    let more = problems.len().saturating_sub(FINDINGS_MAX);
    if more > 0 {
        problems.sort_by_key(|problem| problem.severity);
        problems.truncate(FINDINGS_MAX);
        // A warning when all of them are.
        let severity = problems.first().map_or(Severity::Warning, |first| first.severity);
        problems.push(Problem { severity, ..Problem::error("", format!("{more} more findings are left out")) });
    }
}
