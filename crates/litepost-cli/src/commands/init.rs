//! `litepost init`: a commented configuration that passes `check`, and what runs it as a service.
//!
//! Asks on a terminal for what no flag says. Invariant: an existing file is never overwritten without `--force`.

use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use litepost_relay::config::{Config, Purpose};

use crate::failure::Failure;
use crate::output::Out;

const EXAMPLES: &str = "\
Examples:
  litepost init                                          asks, and writes litepost.toml here
  litepost init --database shop.db --sink file --to events.jsonl
  litepost init /etc/litepost --database /srv/shop/shop.db --sink http --to https://example.com/hook --systemd";

/// Write a configuration to start from.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, infer_long_args = true, args_override_self = true)]
pub(crate) struct Init {
    /// The folder to write to
    #[arg(default_value = ".")]
    folder: PathBuf,
    /// The app's name
    #[arg(long, value_name = "NAME")]
    app: Option<String>,
    /// The application's database, relative to the folder
    #[arg(long, value_name = "FILE", conflicts_with = "db_dir")]
    database: Option<String>,
    /// A folder with one outbox file per table instead, relative to the folder
    #[arg(long, value_name = "FOLDER")]
    db_dir: Option<String>,
    /// Where the events go
    #[arg(long, value_enum)]
    sink: Option<SinkKind>,
    /// The file's path or the URL
    #[arg(long, value_name = "PATH|URL")]
    to: Option<String>,
    /// Topics to deliver; may be given several times; all unless given
    #[arg(long, value_name = "PATTERN")]
    topic: Vec<String>,
    /// Write a hardened systemd unit too
    #[arg(long)]
    systemd: bool,
    /// Write a compose file too
    #[arg(long)]
    compose: bool,
    /// Overwrite files that exist
    #[arg(long)]
    force: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SinkKind {
    /// JSON lines in a file
    File,
    /// POST requests
    Http,
    /// JSON lines on stdout
    Stdout,
}

struct Answers {
    app: String,
    outbox: (&'static str, String),
    sink: SinkKind,
    to: String,
    topics: Vec<String>,
}

/// Writes the files and checks them.
pub(crate) fn run(command: &Init) -> Result<(), Failure> {
    let answers = answers(command)?;
    std::fs::create_dir_all(&command.folder).map_err(|error| cannot_write(&command.folder, &error))?;
    let mut files = vec![("litepost.toml", configuration(&answers))];
    if command.systemd {
        files.push(("litepost.service", unit(&command.folder)?));
    }
    if command.compose {
        files.push(("compose.yaml", compose(&answers)));
    }
    if !command.force
        && let Some((name, _)) = files.iter().find(|(name, _)| command.folder.join(name).exists())
    {
        return Err(Failure::user(
            format!("{} exists already", command.folder.join(name).display()),
            "nothing was written; --force overwrites it",
        ));
    }
    let mut out = Out::new();
    for (name, text) in &files {
        let path = command.folder.join(name);
        std::fs::write(&path, text).map_err(|error| cannot_write(&path, &error))?;
        out.line(format_args!("wrote {}", path.display()))?;
    }
    // What is written must pass, whatever was answered.
    Config::load(&command.folder.join("litepost.toml"), Purpose::Deliver)?;
    out.line("\nNext:")?;
    let place = |name: &str| command.folder.join(name).display().to_string();
    out.line(format_args!("  litepost migrate --config {}", place("litepost.toml")))?;
    out.line(format_args!("  litepost run --config {}", place("litepost.toml")))?;
    out.flush()
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::user(format!("{} cannot be written: {error}", path.display()), "check the path and the permissions")
}

fn answers(command: &Init) -> Result<Answers, Failure> {
    let ask = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    let outbox = match (&command.database, &command.db_dir) {
        (_, Some(folder)) => ("db_dir", folder.clone()),
        (Some(database), None) => ("database", database.clone()),
        (None, None) => ("database", question(ask, "The application's database", "app.db")?),
    };
    let default_app = Path::new(&outbox.1).file_stem().and_then(|stem| stem.to_str()).unwrap_or("app");
    let default_app: String = default_app.chars().filter(|c| c.is_alphanumeric() || "_-".contains(*c)).collect();
    let default_app = if default_app.is_empty() { "app".to_owned() } else { default_app };
    let app = match &command.app {
        Some(app) => app.clone(),
        None => question(ask, "The app's name", &default_app)?,
    };
    let sink = match command.sink {
        Some(sink) => sink,
        None => match question(ask, "Where the events go (file, http, stdout)", "file")?.as_str() {
            "file" => SinkKind::File,
            "http" => SinkKind::Http,
            "stdout" => SinkKind::Stdout,
            other => {
                return Err(Failure::user(format!("{other:?} is none of file, http, stdout"), "see `litepost sinks`"));
            }
        },
    };
    let to = match (&command.to, sink) {
        (Some(to), _) => to.clone(),
        (None, SinkKind::File) => question(ask, "The file", "events.jsonl")?,
        (None, SinkKind::Http) => question(ask, "The URL", "http://127.0.0.1:8080/events")?,
        (None, SinkKind::Stdout) => String::new(),
    };
    let topics = if command.topic.is_empty() { vec!["*".to_owned()] } else { command.topic.clone() };
    Ok(Answers { app, outbox, sink, to, topics })
}

/// Asks on a terminal; elsewhere the default holds.
fn question(ask: bool, text: &str, default: &str) -> Result<String, Failure> {
    if !ask {
        return Ok(default.to_owned());
    }
    let fault =
        |error: std::io::Error| Failure::unexpected(format!("the terminal cannot be used: {error}"), "give flags");
    let mut stderr = std::io::stderr();
    write!(stderr, "{text} [{default}]: ").and_then(|()| stderr.flush()).map_err(fault)?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).map_err(fault)?;
    let answer = answer.trim();
    Ok(if answer.is_empty() { default.to_owned() } else { answer.to_owned() })
}

/// Text as TOML writes it.
fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// A name between the dots of a TOML table: bare where TOML allows it, else quoted.
fn table_name(name: &str) -> String {
    let bare = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    if bare { name.to_owned() } else { quoted(name) }
}

fn configuration(answers: &Answers) -> String {
    let Answers { app, outbox: (key, place), sink, to, topics } = answers;
    let app = table_name(app);
    let topics: Vec<String> = topics.iter().map(|topic| quoted(topic)).collect();
    let (name, kind, connection) = match sink {
        SinkKind::File => ("audit", "file", format!("path = {}", quoted(to))),
        SinkKind::Http => ("webhook", "http", format!("url = {}", quoted(to))),
        SinkKind::Stdout => ("console", "stdout", String::new()),
    };
    let about = if *key == "database" {
        "# The application's own database: it writes its events in the same transaction as its rows."
    } else {
        "# One outbox file per table, in this folder."
    };
    let connection = if connection.is_empty() {
        String::new()
    } else {
        format!("\n[app.{app}.sink.{name}.connection]\n{connection}\n")
    };
    format!(
        "# litepost: where the events are, and where they go. `litepost check` tells what is wrong with this file.\n\
         # Every key is in docs/configuration.md. ${{NAME}} in a text stands for an environment variable.\n\
         \n\
         # [admin]                        # dashboard, API, /metrics, /live and /ready\n\
         # listen = \"127.0.0.1:8765\"      # another address needs token = \"${{LITEPOST_ADMIN_TOKEN}}\"\n\
         \n\
         [app.{app}]\n\
         {about}\n\
         {key} = {place}                  # relative to this file\n\
         \n\
         # batch_size = 500               # most events in one delivery\n\
         # max_attempts = 10              # then an event that is refused becomes a dead letter\n\
         # retain = \"1d\"                  # how long delivered events stay in the log\n\
         \n\
         [app.{app}.sink.{name}]\n\
         type = \"{kind}\"\n\
         topics = [{topics}]              # names, or patterns with *\n\
         # ordering = \"key\"               # or \"strict\" (one line per topic), or \"none\"\n\
         {connection}",
        place = quoted(place),
        topics = topics.join(", "),
    )
}

fn unit(folder: &Path) -> Result<String, Failure> {
    let folder = std::path::absolute(folder).map_err(|error| cannot_write(folder, &error))?;
    let folder = folder.display();
    Ok(format!(
        "[Unit]\n\
         Description=litepost delivers the events of an outbox\n\
         Documentation=man:litepost(1)\n\
         After=network-online.target\n\
         Wants=network-online.target\n\
         \n\
         [Service]\n\
         # READY when delivery is under way, and a sign of life as long as no lane is stuck.\n\
         Type=notify\n\
         WatchdogSec=120\n\
         ExecStartPre=/usr/bin/env litepost check --config {folder}/litepost.toml\n\
         ExecStart=/usr/bin/env litepost run --config {folder}/litepost.toml\n\
         ExecReload=/usr/bin/env litepost reload --config {folder}/litepost.toml --pid $MAINPID\n\
         WorkingDirectory={folder}\n\
         # The account that owns the database: SQLite's -wal and -shm files must stay writable for the application.\n\
         User=litepost\n\
         Restart=on-failure\n\
         RestartSec=5\n\
         # SIGTERM settles what is in flight.\n\
         TimeoutStopSec=45\n\
         \n\
         NoNewPrivileges=yes\n\
         CapabilityBoundingSet=\n\
         ProtectSystem=strict\n\
         # The folder of the database, and of every file that events are written to.\n\
         ReadWritePaths={folder}\n\
         ProtectHome=read-only\n\
         PrivateTmp=yes\n\
         PrivateDevices=yes\n\
         ProtectKernelTunables=yes\n\
         ProtectKernelModules=yes\n\
         ProtectKernelLogs=yes\n\
         ProtectControlGroups=yes\n\
         ProtectClock=yes\n\
         ProtectHostname=yes\n\
         RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX\n\
         RestrictNamespaces=yes\n\
         RestrictRealtime=yes\n\
         RestrictSUIDSGID=yes\n\
         LockPersonality=yes\n\
         MemoryDenyWriteExecute=yes\n\
         SystemCallArchitectures=native\n\
         SystemCallFilter=@system-service\n\
         UMask=0077\n\
         \n\
         [Install]\n\
         WantedBy=multi-user.target\n"
    ))
}

fn compose(answers: &Answers) -> String {
    format!(
        "# The relay beside the application {app}. Both must see the same files through the same kernel: a volume on this\n\
         # host, never a network file system.\n\
         services:\n\
         \x20 litepost:\n\
         \x20   image: litepost:{version}\n\
         \x20   command: [\"run\", \"--config\", \"/data/litepost.toml\"]\n\
         \x20   working_dir: /data\n\
         \x20   volumes:\n\
         \x20     - .:/data\n\
         \x20   restart: on-failure\n\
         \x20   stop_grace_period: 45s\n\
         \x20   read_only: true\n\
         \x20   cap_drop: [ALL]\n\
         \x20   security_opt: [\"no-new-privileges:true\"]\n",
        app = answers.app,
        version = env!("CARGO_PKG_VERSION"),
    )
}
