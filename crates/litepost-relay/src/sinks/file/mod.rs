//! `file`: one JSON object a line, appended to a file, each event once.
//!
//! After a kill -9 or a power cut the file holds no torn line (one is cut off when the file is opened again) and no
//! event is lost (a batch is confirmed only after `fdatasync`). What is sent again after a crash is recognised by its
//! id among the file's last lines, so as long as one relay writes it, and nobody else does, no event is there twice.
//! An exclusive `flock` keeps a second relay out. To rotate, rename the file: the next batch starts a new one.

mod writer;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use futures_util::future::BoxFuture;
use litepost_core::{EventRef, Outcome, Unavailable, UnavailableKind};
use serde::Deserialize;

use self::writer::EventFile;
use super::encode::{self, Format};
use super::settings;
use crate::inspect::Finding;
use crate::sink::{Batch, Sink, SinkConfigError, SinkContext, SinkFactory, SinkSettings, SinkType};

pub(super) const TYPE: SinkType = SinkType {
    name: "file",
    summary: "JSON lines appended to a file",
    acknowledged: "the lines are in the file and synced to disk (`sync = false`: handed to the operating system)",
    duplicates: "none while one relay writes the file: what a crash sends again is recognised by `id`",
    statements: false,
    connection_schema: || schemars::schema_for!(Connection),
    build,
};

/// `[app.N.sink.S.connection]` of a file destination.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Connection {
    /// The file, relative to the configuration. Created with mode 0600: events are nobody else's business.
    path: PathBuf,
    /// `json` (the columns of the log) or `cloudevents` (CloudEvents 1.0 JSON).
    #[serde(default)]
    format: Format,
    /// Whether a batch is synced to disk before it is confirmed.
    #[serde(default = "yes")]
    sync: bool,
}

fn yes() -> bool {
    true
}

/// One open file for all lanes and slots of the destination: a second one would shut itself out by its own lock.
struct Factory {
    path: PathBuf,
    format: Format,
    sync: bool,
    /// The file while a sink has it: a destination that has stopped keeps neither the file nor its lock, whoever still
    /// holds its factory.
    open: Mutex<Weak<Mutex<Option<EventFile>>>>,
}

fn build(settings: &SinkSettings) -> Result<Arc<dyn SinkFactory>, SinkConfigError> {
    let Connection { path, format, sync } = settings::connection(settings)?;
    Ok(Arc::new(Factory {
        path: settings::path(settings, &path, "connection.path")?,
        format,
        sync,
        open: Mutex::default(),
    }))
}

impl Factory {
    /// The file that all sinks of this destination share.
    fn shared(&self) -> Arc<Mutex<Option<EventFile>>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.upgrade().unwrap_or_else(|| {
            let shared = Arc::default();
            *open = Arc::downgrade(&shared);
            shared
        })
    }
}

impl SinkFactory for Factory {
    fn connect<'a>(&'a self, context: &'a SinkContext) -> BoxFuture<'a, Result<Box<dyn Sink>, Unavailable>> {
        Box::pin(async move {
            let sink = FileSink {
                path: self.path.clone(),
                format: self.format,
                sync: self.sync,
                origin: Arc::clone(&context.origin),
                open: self.shared(),
            };
            sink.blocking(|open, path, sync| EventFile::current(open, path, sync).map(|_| ())).await?;
            Ok(Box::new(sink) as Box<dyn Sink>)
        })
    }

    /// Looks at the file and its folder; taking the file would cut a torn line off.
    fn inspect<'a>(&'a self, _: &'a SinkContext) -> BoxFuture<'a, Result<Vec<Finding>, Unavailable>> {
        Box::pin(std::future::ready(Ok(look(&self.path, self.sync))))
    }

    /// A file has one end: batches side by side would only wait for one another.
    fn needs_watermark(&self) -> bool {
        true
    }
}

fn look(path: &std::path::Path, sync: bool) -> Vec<Finding> {
    let shown = path.display();
    let mut found = Vec::new();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if !path.exists() {
        found.push(match folder {
            Some(folder) if !folder.is_dir() => {
                Finding::broken(format!("{shown}: there is no folder {}", folder.display()), "create the folder")
            }
            _ => Finding::creates(format!("the file {shown}")),
        });
    } else if let Err(error) = std::fs::OpenOptions::new().append(true).open(path) {
        found.push(Finding::broken(format!("{shown} cannot be written: {error}"), "check its permissions"));
    }
    if !sync {
        let message = "sync = false: a power cut may undo what was confirmed";
        found.push(Finding::weaker(message, "leave sync out"));
    }
    found
}

struct FileSink {
    path: PathBuf,
    format: Format,
    sync: bool,
    origin: Arc<str>,
    open: Arc<Mutex<Option<EventFile>>>,
}

impl FileSink {
    /// Runs `work` on a thread that may block. When the caller is dropped half-way, the work still ends, under the
    /// lock: what it wrote is known to the next attempt, which does not write it again.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Option<EventFile>, &std::path::Path, bool) -> Result<T, Unavailable> + Send + 'static,
    ) -> Result<T, Unavailable> {
        let (open, path, sync) = (Arc::clone(&self.open), self.path.clone(), self.sync);
        let task = tokio::task::spawn_blocking(move || {
            let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
            work(&mut open, &path, sync)
        });
        let broken = |e| Unavailable::new(UnavailableKind::Server, format!("writing the file failed: {e}"));
        task.await.unwrap_or_else(|e| Err(broken(e)))
    }
}

impl Sink for FileSink {
    fn deliver<'a>(&'a mut self, batch: &'a Batch) -> BoxFuture<'a, Vec<Outcome>> {
        Box::pin(async move {
            let (events, format, origin) = (batch.events.clone(), self.format, Arc::clone(&self.origin));
            let written =
                self.blocking(move |open, path, sync| append(open, path, sync, &events, format, &origin)).await;
            let outcome = match written {
                Ok(()) => Outcome::Delivered,
                Err(unavailable) => Outcome::Unavailable(unavailable),
            };
            vec![outcome; batch.events.len()]
        })
    }
}

fn append(
    open: &mut Option<EventFile>,
    path: &std::path::Path,
    sync: bool,
    events: &[EventRef],
    format: Format,
    origin: &str,
) -> Result<(), Unavailable> {
    let file = EventFile::current(open, path, sync)?;
    let mut lines = Vec::with_capacity(events.len() * 256);
    let mut fresh = Vec::with_capacity(events.len());
    for event in events {
        if let Some(id) = file.unseen(&event.id) {
            encode::push_event(&mut lines, event, format, origin);
            lines.push(b'\n');
            fresh.push(id);
        }
    }
    let written = file.append(&lines, &fresh);
    if written.is_err() {
        // Whatever is wrong with the file, the next attempt looks at it afresh.
        *open = None;
    }
    written
}
