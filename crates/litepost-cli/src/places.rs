//! Which outbox files a command is about: one database, or everything a configuration names.
//!
//! Used by every command that takes `--database` or `--config`.

use std::path::{Path, PathBuf};

use litepost::connection::{self, Access};
use litepost::schema::SchemaState;
use litepost_relay::config::{Config, OutboxFile, Purpose};

use crate::args::Where;
use crate::failure::Failure;

/// What was named.
pub(crate) enum Place {
    /// One database.
    Database(PathBuf),
    /// The outbox files of a folder.
    Folder(Vec<PathBuf>),
    /// A configuration.
    Config(Box<Config>),
}

impl Where {
    /// Loads what was named; without arguments the configuration in the working folder.
    pub(crate) fn load(&self, purpose: Purpose) -> Result<Place, Failure> {
        if let Some(folder) = &self.db_dir {
            if !folder.is_dir() {
                return Err(Failure::user(
                    format!("{} is not a folder", folder.display()),
                    "give the db_dir of an app, or a file with --database",
                ));
            }
            return Ok(Place::Folder(outboxes_in(folder)?));
        }
        match &self.database {
            Some(folder) if folder.is_dir() => Ok(Place::Folder(outboxes_in(folder)?)),
            Some(database) => Ok(Place::Database(database.clone())),
            None => Ok(Place::Config(Box::new(config(self.config.as_deref(), purpose)?))),
        }
    }
}

/// The databases of a folder that hold an outbox, litepost's or sqloutbox's; other files are nobody's business here. There
/// is none before the first event.
fn outboxes_in(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let listed = std::fs::read_dir(folder).map_err(|error| {
        Failure::user(format!("{} cannot be read: {error}", folder.display()), "check the path and the permissions")
    })?;
    let is_outbox = |path: &Path| {
        let Ok(connection) = connection::open(path, Access::ReadOnly) else { return false };
        !matches!(litepost::schema::version(&connection), Ok(SchemaState::Absent))
            || litepost::sqloutbox::is_present(&connection).unwrap_or(false)
    };
    let mut files: Vec<PathBuf> = listed
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|end| end == "db") && is_outbox(path))
        .collect();
    files.sort();
    Ok(files)
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
            Self::Folder(paths) => paths.clone(),
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
            Self::Database(_) | Self::Folder(_) => Vec::new(),
            Self::Config(config) => config.files(),
        }
    }
}
