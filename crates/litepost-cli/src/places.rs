//! Which outbox files a command is about: one database, or everything a configuration names.
//!
//! Used by every command that takes `--database` or `--config`.

use std::path::{Path, PathBuf};

use litepost_relay::config::{Config, OutboxFile, Purpose};

use crate::args::Where;
use crate::failure::Failure;

/// What was named.
pub(crate) enum Place {
    /// One database.
    Database(PathBuf),
    /// A configuration.
    Config(Box<Config>),
}

impl Where {
    /// Loads what was named; without arguments the configuration in the working folder.
    pub(crate) fn load(&self, purpose: Purpose) -> Result<Place, Failure> {
        match &self.database {
            Some(database) => Ok(Place::Database(database.clone())),
            None => Ok(Place::Config(Box::new(config(self.config.as_deref(), purpose)?))),
        }
    }
}

/// Loads a configuration; without a name the one in the working folder.
pub(crate) fn config(named: Option<&Path>, purpose: Purpose) -> Result<Config, Failure> {
    let path = match named {
        Some(path) => path.to_path_buf(),
        // `./` would only lengthen every message.
        None => Config::find(Path::new("."))?.strip_prefix(".").map(Path::to_path_buf).unwrap_or_default(),
    };
    Ok(Config::load(&path, purpose)?)
}

impl Place {
    /// The outbox files.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        match self {
            Self::Database(path) => vec![path.clone()],
            Self::Config(config) => {
                let mut paths: Vec<PathBuf> = config.files().into_iter().map(|file| file.path).collect();
                paths.dedup();
                paths
            }
        }
    }

    /// The outbox files with their destinations; none are known for a bare database.
    pub(crate) fn outboxes(&self) -> Vec<OutboxFile> {
        match self {
            Self::Database(_) => Vec::new(),
            Self::Config(config) => config.files(),
        }
    }
}
