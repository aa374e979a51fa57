//! Which outbox files a command is about: one database, or everything a configuration names.
//!
//! Used by every command that takes `--database` or `--config`.

use std::path::{Path, PathBuf};

use litepost::connection::{self, Access};
use litepost::schema::SchemaState;
use litepost_relay::config::{Config, OutboxFile, Purpose};

use crate::args::Where;
use crate::failure::Failure;
use crate::report;

/// What was named.
pub(crate) enum Place {
    /// One database.
    Database(PathBuf),
    /// The outbox files of a folder, and its databases that cannot be read.
    Folder(Vec<PathBuf>, Vec<PathBuf>),
    /// A configuration.
    Config(Box<Config>),
}

impl Where {
    /// As [`Where::load`], for the commands of sqloutbox that know `--db-dir`: beside a configuration a folder is not looked at,
    /// which is told. A file is refused: it is what somebody means.
    pub(crate) fn load_as_sqloutbox(&self, purpose: Purpose) -> Result<Place, Failure> {
        match (&self.config, self.db_dir.as_ref().or(self.database.as_ref())) {
            (Some(config), Some(folder)) if !folder.is_file() => {
                report::say(&format!("note: {} is not looked at, since --config is given", folder.display()));
                Self { config: Some(config.clone()), ..Self::default() }.load(purpose)
            }
            _ => self.load(purpose),
        }
    }

    /// Loads what was named; without arguments the configuration in the working folder.
    pub(crate) fn load(&self, purpose: Purpose) -> Result<Place, Failure> {
        if self.config.is_some() && (self.database.is_some() || self.db_dir.is_some()) {
            return Err(Failure::user(
                "--config cannot be used with --database or --db-dir: they name two places",
                "give one of them; with --config, each of its outbox files is meant",
            ));
        }
        if let Some(folder) = &self.db_dir {
            if !folder.is_dir() {
                return Err(Failure::user(
                    format!("{} is not a folder", folder.display()),
                    "give the db_dir of an app, or a file with --database",
                ));
            }
            return outboxes_in(folder);
        }
        match &self.database {
            Some(folder) if folder.is_dir() => outboxes_in(folder),
            Some(database) => Ok(Place::Database(database.clone())),
            None => Ok(Place::Config(Box::new(config(self.config.as_deref(), purpose)?))),
        }
    }
}

/// The databases of a folder that hold an outbox, litepost's or sqloutbox's, and those that cannot be read, which may hold one;
/// other files are nobody's business here. There is none before the first event.
fn outboxes_in(folder: &Path) -> Result<Place, Failure> {
    let listed = std::fs::read_dir(folder).map_err(|error| {
        Failure::user(format!("{} cannot be read: {error}", folder.display()), "check the path and the permissions")
    })?;
    let is_outbox = |path: &Path| -> Result<bool, litepost::StoreError> {
        let connection = connection::open(path, Access::ReadOnly)?;
        Ok(litepost::schema::version(&connection)? != SchemaState::Absent
            || litepost::sqloutbox::is_present(&connection)?)
    };
    let mut databases: Vec<PathBuf> = listed
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|end| end == "db") && path.is_file())
        .collect();
    databases.sort();
    let (mut files, mut unreadable) = (Vec::new(), Vec::new());
    for path in databases {
        match is_outbox(&path) {
            Ok(true) => files.push(path),
            Ok(false) => {}
            Err(_) => unreadable.push(path),
        }
    }
    Ok(Place::Folder(files, unreadable))
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
            Self::Folder(paths, _) => paths.clone(),
            Self::Config(config) => {
                let mut paths: Vec<PathBuf> = config.files().into_iter().map(|file| file.path).collect();
                paths.dedup();
                paths
            }
        }
    }

    /// The databases of a folder of which nobody can say whether they hold an outbox: for commands that check files.
    pub(crate) fn unreadable(&self) -> &[PathBuf] {
        match self {
            Self::Folder(_, unreadable) => unreadable,
            _ => &[],
        }
    }

    /// The outbox files with their destinations; none are known for a bare database.
    pub(crate) fn outboxes(&self) -> Vec<OutboxFile> {
        match self {
            Self::Database(_) | Self::Folder(..) => Vec::new(),
            Self::Config(config) => config.files(),
        }
    }
}
