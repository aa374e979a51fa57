//! `exec` and `python`: a program of the user's is the destination, spoken to over its stdin and stdout.
//!
//! `exec` starts any command and hands it events; `python` starts litepost's Python host, which hands statements to a
//! class of the user's (sqloutbox's `writer_class`). Both speak the protocol of docs/exec-protocol.md. Invariant: a
//! program that says anything but one outcome per event, or nothing in time, has delivered nothing as far as the relay is
//! concerned: the destination is unavailable, the reason is exact, and the program is started anew.

mod process;
mod wire;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use litepost_core::{Outcome, Unavailable, UnavailableKind};
use secrecy::SecretString;
use serde::Deserialize;

use super::hidden::Hidden;
use super::settings;
use crate::sink::{Batch, Sink, SinkConfigError, SinkContext, SinkFactory, SinkSettings, SinkType};
use process::Program;
#[cfg(any(test, fuzzing))]
pub use wire::feed;

pub(super) const EXEC: SinkType = SinkType {
    name: "exec",
    summary: "a program of yours, over JSON lines on its stdin and stdout",
    acknowledged: "the program has answered `ok` for the event",
    duplicates: "a crash of the relay or of the program sends the last batch again; the program recognises events by `id`",
    statements: false,
    connection_schema: || schemars::schema_for!(Connection),
    build: build_exec,
};

pub(super) const PYTHON: SinkType = SinkType {
    name: "python",
    summary: "a Python class with write_batch (sqloutbox's writer_class)",
    acknowledged: "write_batch has returned ok for the statement",
    duplicates: "a crash of the relay or of the writer sends the last batch again; the writer's statements should bear it",
    statements: true,
    connection_schema: || schemars::json_schema!({ "type": "object", "description": "The arguments of the class." }),
    build: build_python,
};

/// `[app.N.sink.S.connection]` of an exec destination.
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Connection {
    /// The program and its arguments; no shell. A program without a path is looked for in PATH, a relative path starts
    /// at the folder of the configuration.
    command: Vec<String>,
    /// Variables that the program gets beside the relay's own.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, String>")]
    env: BTreeMap<String, SecretString>,
    /// The folder it runs in; that of the configuration unless given.
    #[serde(default)]
    cwd: Option<PathBuf>,
    /// Handed to the program in its first line. The place for secrets: a command line can be read by others.
    #[serde(default)]
    options: BTreeMap<String, serde_json::Value>,
}

/// What to start, and what to tell it first.
struct Launch {
    program: PathBuf,
    arguments: Vec<String>,
    env: BTreeMap<String, SecretString>,
    folder: PathBuf,
    options: Hidden<serde_json::Value>,
    statements: bool,
}

struct Factory {
    launch: Arc<Launch>,
}

fn build_exec(settings: &SinkSettings) -> Result<Arc<dyn SinkFactory>, SinkConfigError> {
    let Connection { command, env, cwd, options } = settings::connection(settings)?;
    let mut words = command.into_iter();
    let Some(program) = words.next().filter(|program| !program.is_empty()) else {
        return Err(SinkConfigError::new("connection.command", "must name a program, such as [\"./deliver.sh\"]"));
    };
    let program = if program.contains('/') { settings.base_dir.join(program) } else { PathBuf::from(program) };
    let options = serde_json::to_value(options);
    let options = options.map_err(|error| SinkConfigError::new("connection.options", error.to_string()))?;
    let folder = cwd.map_or_else(|| settings.base_dir.clone(), |cwd| settings.base_dir.join(cwd));
    let launch =
        Launch { program, arguments: words.collect(), env, folder, options: Hidden::new(options), statements: false };
    Ok(Arc::new(Factory { launch: Arc::new(launch) }))
}

/// What a `python` destination has beside its connection.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PythonOptions {
    writer_class: Option<String>,
    // A writer's tables are its own business, and it has no ledger: what these two ask for is told where the
    // configuration is read.
    #[serde(default, rename = "dedupe")]
    _dedupe: Option<String>,
    #[serde(default, rename = "auto_schema")]
    _auto_schema: Option<bool>,
}

fn build_python(settings: &SinkSettings) -> Result<Arc<dyn SinkFactory>, SinkConfigError> {
    let PythonOptions { writer_class, .. } = settings::options(settings)?;
    let Some(class) = writer_class else {
        return Err(SinkConfigError::new("writer_class", "is missing: \"package.module:Class\""));
    };
    let plain = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '.');
    if !class.split_once(':').is_some_and(|(module, name)| plain(module) && plain(name)) {
        return Err(SinkConfigError::new("writer_class", format!("must be \"package.module:Class\", not {class:?}")));
    }
    let options = serde_json::to_value(&settings.connection);
    let options = options.map_err(|error| SinkConfigError::new("connection", error.to_string()))?;
    let launch = Launch {
        program: python(),
        arguments: vec!["-m".into(), "litepost.host".into(), class],
        env: BTreeMap::new(),
        // As under sqloutbox: modules beside where the daemon was started are found.
        folder: std::env::current_dir().unwrap_or_else(|_| settings.base_dir.clone()),
        options: Hidden::new(serde_json::json!({ "connection": options, "folder": settings.base_dir })),
        statements: true,
    };
    Ok(Arc::new(Factory { launch: Arc::new(launch) }))
}

/// The interpreter: the one named by `LITEPOST_PYTHON`, the one beside this very program (a virtual environment that
/// litepost was installed into), or the one in PATH.
fn python() -> PathBuf {
    if let Some(named) = std::env::var_os("LITEPOST_PYTHON").filter(|name| !name.is_empty()) {
        return named.into();
    }
    let beside = std::env::current_exe().ok().and_then(|here| Some(here.parent()?.join("python3")));
    beside.filter(|python| python.exists()).unwrap_or_else(|| Path::new("python3").to_owned())
}

impl SinkFactory for Factory {
    fn connect<'a>(&'a self, context: &'a SinkContext) -> BoxFuture<'a, Result<Box<dyn Sink>, Unavailable>> {
        Box::pin(async move {
            let mut program = Program::start(&self.launch, &context.destination)?;
            program.hello(&wire::hello(&self.launch, context)).await?;
            let sink = Exec { program, origin: Arc::clone(&context.origin), batch: 0 };
            Ok(Box::new(sink) as Box<dyn Sink>)
        })
    }
}

struct Exec {
    program: Program,
    origin: Arc<str>,
    batch: u64,
}

impl Sink for Exec {
    fn deliver<'a>(&'a mut self, batch: &'a Batch) -> BoxFuture<'a, Vec<Outcome>> {
        Box::pin(async move {
            self.batch += 1;
            let count = batch.events.len();
            let line = wire::batch(self.batch, &batch.events, &self.origin);
            let answer = self.program.ask(&line).await;
            let outcomes = answer.and_then(|answer| {
                wire::outcomes(&answer, self.batch, count)
                    .map_err(|why| Unavailable::new(UnavailableKind::Server, self.program.blame(&why)))
            });
            outcomes.unwrap_or_else(|trouble| vec![Outcome::Unavailable(trouble); count])
        })
    }

    fn close(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(self.program.close())
    }
}
