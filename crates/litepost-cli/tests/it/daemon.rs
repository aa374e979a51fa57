//! A relay with its admin listener, as a process of its own; its whole log is kept in `relay.log` of its place.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::support::Place;

/// A relay that is stopped when the test ends.
pub(crate) struct Daemon {
    pub(crate) child: Child,
    pub(crate) address: String,
    token: Option<String>,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Daemon {
    /// Starts `litepost run` and waits until it listens.
    pub(crate) fn start(place: &Place, arguments: &[&str], variables: &[(&str, &str)], token: Option<&str>) -> Self {
        let log = std::fs::File::create(place.path("relay.log")).unwrap();
        let mut command = place.command(&[&["run"][..], arguments].concat());
        command.envs(variables.iter().copied()).stdout(Stdio::null()).stderr(log);
        let mut daemon =
            Self { child: command.spawn().unwrap(), address: String::new(), token: token.map(str::to_owned) };
        until("the relay listens", || {
            assert!(daemon.child.try_wait().unwrap().is_none(), "it ended: {}", log_of(place));
            // The last line may be half written.
            let log = log_of(place);
            let lines: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
            let address = lines.iter().find_map(|line| line["address"].as_str());
            address.unwrap_or_default().clone_into(&mut daemon.address);
            !daemon.address.is_empty()
        });
        daemon
    }

    /// The whole answer, headers included; a stream is read for a moment.
    pub(crate) fn get(&self, path: &str) -> String {
        let mut socket = TcpStream::connect(&self.address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
        let token = self.token.as_ref().map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"));
        let address = &self.address;
        write!(socket, "GET {path} HTTP/1.1\r\nHost: {address}\r\n{token}Connection: close\r\n\r\n").unwrap();
        let (mut answer, mut buffer) = (String::new(), [0; 8_192]);
        // A stream goes on until its reader has had enough: a few events of it.
        while let Ok(length @ 1..) = socket.read(&mut buffer) {
            answer.push_str(&String::from_utf8_lossy(&buffer[..length]));
            if answer.contains("text/event-stream") && answer.matches("\ndata:").count() >= 2 {
                break;
            }
        }
        answer
    }
}

/// What a relay has logged so far.
pub(crate) fn log_of(place: &Place) -> String {
    String::from_utf8_lossy(&std::fs::read(place.path("relay.log")).unwrap_or_default()).into_owned()
}

/// Waits for it, for a minute.
#[track_caller]
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..3_000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("never happened: {what}");
}
