//! sd_notify on a real socket: READY when delivery is under way, WATCHDOG while the lanes turn, STOPPING at the end.

use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::daemon::until;
use crate::support::{Place, column};

struct Service {
    child: Child,
    socket: UnixDatagram,
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Service {
    fn start(place: &Place) -> Self {
        let path = place.path("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        // As systemd does it: the watchdog is for one process.
        let mut run = Command::new("sh");
        run.args(["-c", "WATCHDOG_PID=$$ exec \"$LITEPOST\" run"]).current_dir(place.folder()).env_clear();
        run.env("PATH", "/usr/bin:/bin").env("LITEPOST", env!("CARGO_BIN_EXE_litepost"));
        run.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "400000").stdout(Stdio::null()).stderr(Stdio::null());
        Self { child: run.spawn().unwrap(), socket }
    }

    /// What comes next.
    fn told(&self) -> String {
        let mut buffer = [0; 1_024];
        let length = self.socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    /// What comes next beside signs of life, and how many of those came before it.
    fn told_after_signs(&self) -> (usize, String) {
        let mut signs = 0;
        loop {
            let told = self.told();
            if told.trim() != "WATCHDOG=1" {
                return (signs, told);
            }
            signs += 1;
        }
    }
}

fn shop(sink: &str) -> Place {
    let place = Place::new();
    place.write("litepost.toml", format!("[app.shop]\ndatabase = 'shop.db'\n[app.shop.sink.s]\n{sink}\n"));
    place.good(&["migrate", "--database", "shop.db"]);
    place
}

#[test]
fn ready_signs_of_life_and_the_end_are_told() {
    // A destination that is down is no reason to start the relay anew.
    let place = shop("type = 'http'\nconnection = { url = 'http://127.0.0.1:1', allow_private_addresses = true }");
    place.good(&["enqueue", "--database", "shop.db", "--topic", "t", "--payload", "x"]);
    let service = Service::start(&place);
    let (_, ready) = service.told_after_signs();
    assert!(ready.starts_with("READY=1\nSTATUS=delivering"), "{ready}");
    let lanes = column(&place.path("shop.db"), "SELECT count(*) FROM litepost_cursor");
    assert_eq!(lanes, [1], "ready before the destination was registered");
    for _ in 0..5 {
        assert_eq!(service.told().trim(), "WATCHDOG=1");
    }
    rustix::process::kill_process(pid(&service), rustix::process::Signal::TERM).unwrap();
    let (_, stopping) = service.told_after_signs();
    assert!(stopping.starts_with("STOPPING=1\n"), "{stopping}");
}

#[test]
fn a_process_that_stands_still_gives_no_sign() {
    let place = shop("type = 'blackhole'");
    let service = Service::start(&place);
    assert!(service.told_after_signs().1.starts_with("READY=1"));
    assert_eq!(service.told().trim(), "WATCHDOG=1");
    rustix::process::kill_process(pid(&service), rustix::process::Signal::STOP).unwrap();
    service.socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let mut buffer = [0; 1_024];
    // What was sent before it stood still may be read yet.
    until("silence", || service.socket.recv(&mut buffer).is_err());
    rustix::process::kill_process(pid(&service), rustix::process::Signal::CONT).unwrap();
    service.socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert_eq!(service.told().trim(), "WATCHDOG=1");
}

fn pid(service: &Service) -> rustix::process::Pid {
    rustix::process::Pid::from_raw(i32::try_from(service.child.id()).unwrap()).unwrap()
}

#[test]
fn without_a_service_manager_nothing_is_told() {
    let place = shop("type = 'blackhole'");
    place.good(&["run", "--until-idle"]);
}
