//! The program of an exec destination while it runs: its pipes, its end, its words.
//!
//! Used by the sink next door. Invariant: the program ends with its [`Program`] (killed if it must be), its stderr goes
//! to the log line by line, and a line of any length takes a bounded amount of memory.

use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use litepost_core::{Unavailable, UnavailableKind};
use secrecy::ExposeSecret as _;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

use super::{Launch, wire};

/// A longer answer is no answer.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// A longer line of stderr is cut.
const LOG_BYTES_MAX: u64 = 4 << 10;
/// How long a program may take to end after its stdin was closed.
const END_WITHIN: Duration = Duration::from_secs(5);
/// How long its last words may take after its stdout was closed.
const LAST_WORDS_WITHIN: Duration = Duration::from_millis(300);

/// A running program.
pub(super) struct Program {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    last_words: Arc<Mutex<String>>,
}

impl Program {
    /// Starts it.
    pub(super) fn start(launch: &Launch, destination: &Arc<str>) -> Result<Self, Unavailable> {
        let name = launch.program.display().to_string();
        let cannot =
            |why: String| Unavailable::new(UnavailableKind::Connect, format!("{name} cannot be started: {why}"));
        let mut command = Command::new(&launch.program);
        command
            .args(&launch.arguments)
            .envs(launch.env.iter().map(|(name, value)| (name, value.expose_secret())))
            .kill_on_drop(true);
        // The folder of `--config litepost.toml` has no name, and is this one.
        if !launch.folder.as_os_str().is_empty() {
            command.current_dir(&launch.folder);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A Ctrl+C in the terminal is the relay's: it finishes with the program before it ends it.
        #[cfg(unix)]
        command.process_group(0);
        let mut child = command.spawn().map_err(|error| cannot(error.to_string()))?;
        let (Some(stdin), Some(stdout), Some(stderr)) = (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(cannot("it has no pipes".into()));
        };
        let last_words = Arc::new(Mutex::new(String::new()));
        tokio::spawn(log(stderr, Arc::clone(destination), Arc::clone(&last_words)));
        Ok(Self { name, child, stdin: Some(stdin), stdout: BufReader::new(stdout), last_words })
    }

    /// Says hello and waits for the program to be ready.
    pub(super) async fn hello(&mut self, line: &[u8]) -> Result<(), Unavailable> {
        let answer = self.ask(line).await?;
        wire::ready(&answer).map_err(|why| Unavailable::new(UnavailableKind::Connect, self.blame(&why)))
    }

    /// Writes a line and reads one. Both at once: a program may answer before it has read everything.
    pub(super) async fn ask(&mut self, line: &[u8]) -> Result<Vec<u8>, Unavailable> {
        let Some(stdin) = &mut self.stdin else {
            return Err(Unavailable::new(UnavailableKind::Connect, format!("{}: its stdin is closed", self.name)));
        };
        let mut answer = Vec::new();
        let write = async {
            stdin.write_all(line).await?;
            stdin.flush().await
        };
        let mut limited = (&mut self.stdout).take(ANSWER_BYTES_MAX);
        let (written, read) = tokio::join!(write, limited.read_until(b'\n', &mut answer));
        let what = match (written, read) {
            (_, Ok(_)) if answer.last() == Some(&b'\n') => return Ok(answer),
            (_, Ok(read)) if read as u64 >= ANSWER_BYTES_MAX => "answered with a line of more than 64 MiB".to_owned(),
            (_, Err(error)) => format!("its answer cannot be read: {error}"),
            (_, Ok(_)) => self.end().await,
        };
        Err(Unavailable::new(UnavailableKind::Connect, self.blame(&what)))
    }

    /// What has become of a program that closed its stdout.
    async fn end(&mut self) -> String {
        match tokio::time::timeout(END_WITHIN, self.child.wait()).await {
            Ok(Ok(status)) => {
                // What it said at the end is on its way through the other pipe.
                tokio::time::sleep(LAST_WORDS_WITHIN).await;
                ended(status)
            }
            Ok(Err(error)) => format!("closed its stdout, and its end cannot be told: {error}"),
            Err(_) => "closed its stdout without an answer".into(),
        }
    }

    /// `why`, with the program's name and the last line it wrote to stderr.
    pub(super) fn blame(&self, why: &str) -> String {
        let words = self.last_words.lock().unwrap_or_else(PoisonError::into_inner);
        if words.is_empty() {
            format!("{} {why}", self.name)
        } else {
            format!("{} {why}; its last words: {words}", self.name)
        }
    }

    /// Closes its stdin and waits for it to end by itself; after a while it is killed.
    pub(super) async fn close(&mut self) {
        self.stdin = None;
        if tokio::time::timeout(END_WITHIN, self.child.wait()).await.is_err() {
            let _ = self.child.kill().await;
        }
    }
}

fn ended(status: ExitStatus) -> String {
    match status.code() {
        Some(code) => format!("ended with exit code {code} and without an answer"),
        // `signal: 9 (SIGKILL)` and the like.
        None => format!("was ended ({status}) and gave no answer"),
    }
}

/// Its stderr, line by line, into the log.
async fn log(stderr: ChildStderr, destination: Arc<str>, last_words: Arc<Mutex<String>>) {
    let mut stderr = BufReader::new(stderr);
    loop {
        let mut line = Vec::new();
        match (&mut stderr).take(LOG_BYTES_MAX).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        if text.is_empty() {
            continue;
        }
        tracing::info!(%destination, "{text}");
        *last_words.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }
}
