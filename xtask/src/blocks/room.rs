//! Where a page's steps are taken: a folder of its own, its servers, its environment, and what it has started.
//!
//! Called by the runner next door. Invariant: nothing that a page has started outlives its room, and no step waits for
//! ever.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::quickstart::Folder;
use crate::shell::{command, root, target};

/// How often a step is asked whether it has ended, `POLL` apart: two minutes.
const POLLS_MAX: u32 = 6_000;
const POLL: Duration = Duration::from_millis(20);

/// The ports that pages name: the operator's listener, and a collector's two. A free one takes the place of each, so that
/// pages can be run beside programs that have them.
const PORTS: [&str; 3] = ["8765", "4317", "4318"];
/// What stands in outputs where the room's folder is.
const FOLDER: &str = "/srv/shop";

/// How a command ended.
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

/// The room of one page.
pub struct Room {
    /// Holds `page`, where the steps run, and what they need not see.
    folder: Folder,
    /// Those of [`PORTS`] that the page has named, and what stands for them.
    ports: BTreeMap<&'static str, String>,
    environment: BTreeMap<String, String>,
    servers: Vec<Child>,
    /// Process groups of all steps: a step may leave programs behind.
    groups: Vec<u32>,
    background: Vec<(String, Child)>,
    count: usize,
}

impl Room {
    /// An empty room in which `litepost` is the program to be found.
    pub fn new(litepost: &Path) -> Result<Self> {
        let folder = Folder::new()?;
        std::fs::create_dir(folder.path().join("page"))?;
        let environment = environment(litepost, folder.path())?;
        let (servers, groups, background) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { folder, ports: BTreeMap::new(), environment, servers, groups, background, count: 0 })
    }

    /// Starts servers and puts their addresses into the environment.
    pub fn start_servers(&mut self, names: &[String]) -> Result<()> {
        let mut servers = Command::new(target().join("debug/litepost-test-servers"));
        let mut child = servers.args(names).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().context("a pipe")?;
        self.servers.push(child);
        for line in BufReader::new(stdout).lines() {
            let line = line?;
            if line.is_empty() {
                return Ok(());
            }
            let (name, value) = line.split_once('=').with_context(|| format!("no variable: {line}"))?;
            self.environment.insert(name.to_owned(), value.to_owned());
        }
        bail!("{} did not start", names.join(", "))
    }

    /// Writes a file of the page.
    pub fn write(&mut self, name: &str, text: &str) -> Result<()> {
        let path = self.folder.path().join("page").join(name);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        Ok(std::fs::write(path, self.elsewhere(text)?)?)
    }

    /// Runs commands to their end, as `bash -euo pipefail` in the page's folder; what they export stays for the next.
    pub fn bash(&mut self, commands: &str) -> Result<Ended> {
        let mut child = self.spawn(commands)?;
        let number = self.count;
        let status = wait(&mut child)?;
        let text = |stream: &str| -> Result<String> {
            let bytes = std::fs::read(self.folder.path().join(format!("{number}.{stream}")))?;
            Ok(self.shown(&String::from_utf8_lossy(&bytes)))
        };
        let (stdout, stderr) = (text("stdout")?, text("stderr")?);
        match status {
            Some(status) => Ok(Ended { status, stdout, stderr }),
            None => bail!("it does not end\n{stdout}{stderr}"),
        }
    }

    /// Starts a command that stays, and waits until `ready` succeeds.
    pub fn stay(&mut self, commands: &str, ready: &str) -> Result<()> {
        // The program itself must get the signal at the end, not a shell around it.
        let (first, last) = commands.trim_end().rsplit_once('\n').unwrap_or(("", commands.trim_end()));
        let mut child = self.spawn(&format!("{first}\nexec {last}"))?;
        let number = self.count;
        for _ in 0..POLLS_MAX {
            if let Some(status) = child.try_wait()? {
                let errors = std::fs::read_to_string(self.folder.path().join(format!("{number}.stderr")))?;
                bail!("it was to stay and ended with {status}\n{}", self.shown(&errors));
            }
            if self.bash(ready)?.status.success() {
                self.background.push((last.to_owned(), child));
                return Ok(());
            }
            sleep(POLL);
        }
        bail!("it was never ready: {ready}")
    }

    /// Ends what stays, in good order, and says what did not end so.
    pub fn close(mut self) -> Vec<String> {
        let mut problems = Vec::new();
        for (line, mut child) in std::mem::take(&mut self.background) {
            let _ = command("kill", &["-TERM", &child.id().to_string()]).status();
            match wait(&mut child) {
                Ok(Some(status)) if status.success() || status.signal() == Some(15) => {}
                Ok(Some(status)) => problems.push(format!("`{line}` ended with {status} when it was told to stop")),
                Ok(None) | Err(_) => problems.push(format!("`{line}` did not end when it was told to stop")),
            }
        }
        problems
    }

    fn spawn(&mut self, commands: &str) -> Result<Child> {
        self.count += 1;
        let state = self.folder.path().join("environment");
        let state = state.display();
        let script = self.folder.path().join(format!("{}.sh", self.count));
        let text = format!("trap 'export -p >{state}' EXIT\nif [ -f {state} ]; then . {state}; fi\n{commands}\n");
        std::fs::write(&script, self.elsewhere(&text)?)?;
        let file = |stream: &str| File::create(self.folder.path().join(format!("{}.{stream}", self.count)));
        let mut bash = Command::new("bash");
        bash.args(["-euo", "pipefail"]).arg(&script).envs(&self.environment);
        bash.current_dir(self.folder.path().join("page")).process_group(0);
        let child = bash.stdin(Stdio::null()).stdout(file("stdout")?).stderr(file("stderr")?).spawn()?;
        self.groups.push(child.id());
        Ok(child)
    }

    /// Output as a page shows it.
    fn shown(&self, text: &str) -> String {
        let page = self.folder.path().join("page");
        let text = text.replace(&*page.to_string_lossy(), FOLDER);
        self.ports.iter().fold(text, |text, (named, port)| text.replace(port.as_str(), named))
    }

    /// The text with free ports in the place of those that it names.
    fn elsewhere(&mut self, text: &str) -> Result<String> {
        let mut text = text.to_owned();
        for named in PORTS {
            if !text.contains(named) {
                continue;
            }
            while !self.ports.contains_key(named) {
                let port = std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port().to_string();
                // One that looks like another of them would be replaced in its turn.
                if PORTS.iter().all(|other| !port.contains(other)) {
                    self.ports.insert(named, port);
                }
            }
            text = text.replace(named, &self.ports[named]);
        }
        Ok(text)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        for group in &self.groups {
            let _ = command("kill", &["-KILL", "--", &format!("-{group}")]).stderr(Stdio::null()).status();
        }
        for server in &mut self.servers {
            drop(server.stdin.take());
            let _ = server.wait();
        }
    }
}

/// Waits for a process to end; `None` when it did not, and was killed.
fn wait(child: &mut Child) -> Result<Option<ExitStatus>> {
    for _ in 0..POLLS_MAX {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        sleep(POLL);
    }
    let _ = command("kill", &["-KILL", "--", &format!("-{}", child.id())]).status();
    child.wait()?;
    Ok(None)
}

/// The variables that every step has: the program in the `PATH`, and the packages that `cargo xtask setup` installs.
fn environment(litepost: &Path, folder: &Path) -> Result<BTreeMap<String, String>> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let bin = litepost.parent().context("a program in no folder")?.to_owned();
    let folders = [bin, target().join("venv-consumers/bin"), target().join("venv-docs/bin")]
        .into_iter()
        .chain(std::env::split_paths(&path));
    let path = std::env::join_paths(folders)?;
    let python = [root().join("clients/python/src")].into_iter();
    let python = python.chain(site_packages(&target().join("venv-python-client")));
    let texts = [
        ("PATH", path.to_string_lossy().into_owned()),
        ("PYTHONPATH", std::env::join_paths(python)?.to_string_lossy().into_owned()),
        ("NODE_PATH", root().join("tests/contract/node/node_modules").display().to_string()),
        ("HOME", folder.display().to_string()),
        // Debian's Go packages, and the SQLite of the machine instead of one that takes a minute to compile.
        ("GOPATH", "/usr/share/gocode".into()),
        ("GO111MODULE", "off".into()),
        ("GOFLAGS", "-tags=libsqlite3".into()),
        ("GOCACHE", target().join("go-cache").display().to_string()),
        ("LC_ALL", "C.UTF-8".into()),
        ("TZ", "UTC".into()),
        ("NO_COLOR", "1".into()),
        ("LOG_LEVEL", "error".into()),
    ];
    Ok(texts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

/// Where an environment of Python has its packages.
fn site_packages(venv: &Path) -> Option<PathBuf> {
    let versions = std::fs::read_dir(venv.join("lib")).ok()?;
    versions.flatten().map(|version| version.path().join("site-packages")).find(|folder| folder.is_dir())
}
