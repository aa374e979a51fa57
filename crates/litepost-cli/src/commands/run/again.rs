//! SIGHUP: the configuration is read again and carried out, or refused as a whole.
//!
//! Runs beside the relay. Invariant: what has become of it stands in the log and in the audit trail of every outbox
//! file concerned, whether it was carried out or not; a file with a mistake changes nothing.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use litepost::operate::{Operator, Who};
use litepost_relay::config::{Admin, Config, ConfigError, Purpose, Severity, one_line};
use litepost_relay::relay::{RelayConfig, Reloader};
use litepost_web::{Shown, Source};
use serde_json::{Value as Json, json};

use super::ready;
use crate::commands::run_admin;
use crate::failure::Failure;
use crate::filesystem;

/// How the deed is called in the audit trail.
pub(crate) const RELOAD: &str = "reload";

/// The outbox files that the relay works on, as the configuration now says.
#[derive(Clone, Default)]
pub(super) struct Files(Arc<Mutex<Vec<PathBuf>>>);

impl Files {
    pub(super) fn set(&self, config: &RelayConfig) {
        let paths = config.sources.iter().map(|source| source.path.clone()).collect();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = paths;
    }

    pub(super) fn get(&self) -> Vec<PathBuf> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What is read again, and what was read last.
pub(super) struct Asked {
    pub(super) path: PathBuf,
    pub(super) any_file_system: bool,
    pub(super) admin: Admin,
    /// What the listener shows, when there is one.
    pub(super) shown: Option<Shown>,
}

/// Reads the file again whenever the process gets a SIGHUP.
#[cfg(unix)]
pub(super) async fn reload_when_asked(mut asked_for: Asked, reloader: Reloader, files: Files) {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut asked) = signal(SignalKind::hangup()) else { return };
    while asked.recv().await.is_some() {
        let (path, any_file_system) = (asked_for.path.clone(), asked_for.any_file_system);
        let loading = path.clone();
        let loaded = tokio::task::spawn_blocking(move || load(&loading, any_file_system)).await;
        let loaded = loaded.unwrap_or_else(|error| Err(error.to_string()));
        let mut concerned = files.get();
        let mut detail = match loaded {
            Ok((config, admin, sources, text)) => {
                asked_for.listener_stays(admin);
                files.set(&config);
                concerned.extend(files.get());
                if let Some(shown) = &asked_for.shown {
                    shown.replace(sources, &text);
                }
                let Some(reloaded) = reloader.reload(config).await else { return };
                tracing::info!(
                    config = %path.display(), started = ?reloaded.started, stopped = ?reloaded.stopped,
                    restarted = ?reloaded.restarted, kept = reloaded.kept.len(), "the configuration was read again"
                );
                json!(reloaded)
            }
            Err(error) => {
                tracing::error!(config = %path.display(), %error, "the configuration has a mistake: nothing was changed");
                json!({ "error": error })
            }
        };
        detail["pid"] = json!(std::process::id());
        detail["config"] = json!(path.display().to_string());
        concerned.sort();
        concerned.dedup();
        let _ = tokio::task::spawn_blocking(move || concerned.iter().for_each(|file| record(file, &detail))).await;
    }
}

impl Asked {
    /// A listener that moved would cut off whoever looks at that moment: it keeps what it was started with, and says so.
    fn listener_stays(&mut self, admin: Admin) {
        if admin != self.admin {
            tracing::warn!("[admin] has changed: the listener stays as it is until the relay is started again");
        }
        self.admin = admin;
    }
}

/// The configuration, what is shown of it, and its text without secrets, or everything that is wrong with it.
fn load(path: &Path, any_file_system: bool) -> Result<(RelayConfig, Admin, Vec<Source>, String), String> {
    let config = Config::load(path, Purpose::Deliver).map_err(|error| match &error {
        ConfigError::Invalid { source_file, problems } => {
            let errors = problems.iter().filter(|problem| problem.severity == Severity::Error);
            errors.map(|problem| one_line(source_file, problem)).collect::<Vec<_>>().join("; ")
        }
        other => other.to_string(),
    })?;
    for warning in &config.warnings {
        tracing::warn!("{}", one_line(&config.source, warning));
    }
    let relay = config.relay();
    if relay.sources.is_empty() {
        return Err("it names no destination".to_owned());
    }
    for source in &relay.sources {
        let sound = if any_file_system { Ok(()) } else { filesystem::refuse_broken(&source.path) };
        sound.and_then(|()| ready(&source.path, source.may_be_missing)).map_err(|failure| match failure {
            Failure::User { message, .. } | Failure::Unexpected { message, .. } => message,
            _ => format!("{} cannot be used", source.path.display()),
        })?;
    }
    let (sources, text) = (run_admin::sources(&relay, &config), config.masked());
    Ok((relay, config.admin, sources, text))
}

fn record(file: &Path, detail: &Json) {
    if !file.exists() {
        return;
    }
    let who = Who { actor: "relay".into(), reason: None };
    let recorded = Operator::open(file, who).and_then(|mut operator| operator.record(RELOAD, detail));
    if let Err(error) = recorded {
        tracing::warn!(file = %file.display(), %error, "cannot be told of the reload");
    }
}
