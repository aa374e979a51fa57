//! A RabbitMQ of the test's own, from the machine's package.
//!
//! Called by tests that need a real RabbitMQ. Invariant: it listens on loopback only, has a node name, a distribution
//! port and a port mapper (epmd) of its own, so that it neither sees nor disturbs another node of the machine, and it
//! keeps its data in its folder, so that a restart finds it again.

use std::path::{Path, PathBuf};

use super::{Supervised, free_port, listens, new_folder, on_free_port, wait_until};

/// Debian's wrapper in `/usr/sbin` changes user and folder; this is the program behind it.
const PROGRAM: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";

/// A running RabbitMQ; it stops when this is dropped or the process ends.
#[derive(Debug)]
pub struct RabbitMq {
    port: u16,
    server: Supervised,
    // Dropped after the node that is registered with it.
    _mapper: Supervised,
}

controls!(RabbitMq, "TERM");

impl RabbitMq {
    /// Starts a new, empty server with the user `guest` (password `guest`).
    ///
    /// # Panics
    /// When RabbitMQ is not installed or does not start: a test must not pass without its server.
    pub fn start() -> Self {
        Self::start_with("")
    }

    /// The same with lines of one's own in `rabbitmq.conf`.
    ///
    /// # Panics
    /// As [`RabbitMq::start`].
    pub fn start_with(configuration: &str) -> Self {
        assert!(Path::new(&program()).is_file(), "RabbitMQ is not installed: apt install rabbitmq-server");
        on_free_port(|port| Self::try_start(port, configuration))
    }

    /// A URL of the server, user and password included.
    pub fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.port)
    }

    fn try_start(port: u16, configuration: &str) -> Option<Self> {
        let (mapper_port, mapper) = on_free_port(start_mapper);
        let folder = new_folder("litepost-rabbitmq-");
        let text = format!(
            "listeners.tcp.1 = 127.0.0.1:{port}\nlog.file = false\nlog.console = true\nlog.console.level = warning\n\
             {configuration}\n"
        );
        std::fs::write(folder.join("rabbitmq.conf"), text).expect("a writable folder");
        std::fs::write(folder.join("enabled_plugins"), "[].\n").expect("a writable folder");
        let at = |name: &str| folder.join(name).display().to_string();
        let distribution = free_port();
        let command = [
            "env".to_owned(),
            format!("HOME={}", folder.display()),
            format!("ERL_EPMD_PORT={mapper_port}"),
            format!("RABBITMQ_NODENAME=litepost-{port}@localhost"),
            format!("RABBITMQ_DIST_PORT={distribution}"),
            format!("RABBITMQ_CONFIG_FILE={}", at("rabbitmq.conf")),
            format!("RABBITMQ_CONF_ENV_FILE={}", at("no-environment-file")),
            format!("RABBITMQ_ENABLED_PLUGINS_FILE={}", at("enabled_plugins")),
            format!("RABBITMQ_MNESIA_BASE={}", at("mnesia")),
            format!("RABBITMQ_LOG_BASE={}", at("log")),
            format!("RABBITMQ_PID_FILE={}", at("rabbitmq.pid")),
            // Lets the script become the node itself instead of standing in front of it.
            "RUNNING_UNDER_SYSTEMD=true".to_owned(),
            program(),
        ];
        // The node forgets nothing that it has confirmed, so a test's end need not be in good order.
        let server = Supervised::start("KILL", &folder, &command);
        let started = Self { port, server, _mapper: mapper };
        started.is_up().then_some(started)
    }

    fn is_up(&self) -> bool {
        // It listens before it serves; a greeting comes from a server that is up.
        wait_until(&self.server, || listens(self.port) && super::answers(self.port, b"AMQP\x00\x00\x09\x01"))
    }
}

/// Erlang's port mapper, on a port of its own.
fn start_mapper(port: u16) -> Option<(u16, Supervised)> {
    let folder: PathBuf = new_folder("litepost-epmd-");
    let command = ["epmd", "-port", &port.to_string(), "-address", "127.0.0.1"].map(String::from);
    let mapper = Supervised::start("TERM", &folder, &command);
    wait_until(&mapper, || listens(port)).then_some((port, mapper))
}

/// The server's program: `LITEPOST_TEST_RABBITMQ_SERVER`, or the package's.
fn program() -> String {
    std::env::var("LITEPOST_TEST_RABBITMQ_SERVER").unwrap_or_else(|_| PROGRAM.into())
}
