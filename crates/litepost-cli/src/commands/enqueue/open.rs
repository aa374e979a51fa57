//! Opens an outbox for writing.

use std::path::Path;

use litepost::connection::{self, Access};
use rusqlite::Connection;

use crate::failure::Failure;

/// A connection that may enqueue. With `make`, a file of a `db_dir` that does not exist is made, as producers do.
pub(super) fn writer(path: &Path, make: bool) -> Result<Connection, Failure> {
    let open = || -> Result<Connection, Failure> {
        if make && !path.exists() {
            return new_file(path);
        }
        let connection = connection::open(path, Access::ReadWrite)?;
        litepost::schema::require_current(&connection)?;
        Ok(connection)
    };
    open().map_err(|failure| failure.about(path))
}

fn new_file(path: &Path) -> Result<Connection, Failure> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|error| {
            Failure::user(format!("the folder {} cannot be made: {error}", folder.display()), "check the permissions")
        })?;
    }
    let mut connection = connection::Options::new(Access::ReadWrite).create(true).open(path)?;
    connection::enable_wal(&connection)?;
    litepost::schema::migrate(&mut connection)?;
    Ok(connection)
}
