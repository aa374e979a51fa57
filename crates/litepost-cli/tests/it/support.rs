//! A folder with the binary in it, and what it answered.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder of its own for one test.
pub(crate) struct Place {
    folder: tempfile::TempDir,
}

/// What a run answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    /// The command, in this folder, with an environment that nothing leaks into.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_litepost"));
        command.args(arguments).current_dir(self.folder()).env_clear().env("PATH", "/usr/bin:/bin");
        command
    }

    /// Runs the command to its end.
    pub(crate) fn litepost(&self, arguments: &[&str]) -> Answer {
        Answer::of(self.command(arguments).output().unwrap())
    }

    /// Runs the command, which must end well, and returns its stdout.
    #[track_caller]
    pub(crate) fn good(&self, arguments: &[&str]) -> String {
        let answer = self.litepost(arguments);
        assert_eq!(answer.code, 0, "{arguments:?}: {answer:#?}");
        answer.stdout
    }

    /// Runs the command, which must end with `code`, and returns its stderr.
    #[track_caller]
    pub(crate) fn bad(&self, code: i32, arguments: &[&str]) -> String {
        let answer = self.litepost(arguments);
        assert_eq!(answer.code, code, "{arguments:?}: {answer:#?}");
        answer.stderr
    }
}

impl Answer {
    pub(crate) fn of(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// The numbers that a query answers.
#[allow(dead_code, reason = "only some builds ask")]
pub(crate) fn column(database: &Path, sql: &str) -> Vec<i64> {
    let connection = rusqlite::Connection::open(database).unwrap();
    let mut statement = connection.prepare(sql).unwrap();
    statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}
