//! What stands between the relays and PostgreSQL: cuts connections, holds answers back, loses the answer to a COMMIT.
//!
//! Called by the run. Invariant: an answer to a COMMIT is lost only after the server has given it, so that its effect is
//! there; while nothing is asked of the proxy, every byte passes.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::TortureError;

/// How PostgreSQL says that a transaction is committed, in whatever way it was asked.
const COMMITTED: &[u8] = b"COMMIT\0";
const PIECE_BYTES: usize = 4_096;

/// A proxy on a port of 127.0.0.1. It accepts nothing any more when this is dropped.
#[derive(Debug)]
pub(crate) struct Proxy {
    port: u16,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    target: (String, u16),
    open: Mutex<BTreeMap<u64, [TcpStream; 2]>>,
    next: AtomicU64,
    closed: AtomicBool,
    away: AtomicBool,
    lose: AtomicBool,
    late_ms: AtomicU64,
    lost: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Proxy {
    /// Stands in front of `target`, a host and a port.
    pub(crate) fn start(target: (String, u16)) -> Result<Self, TortureError> {
        let failed = |error| TortureError::io("a port for the proxy")(error);
        let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let state = Arc::new(State {
            target,
            open: Mutex::default(),
            next: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            away: AtomicBool::new(false),
            lose: AtomicBool::new(false),
            late_ms: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        });
        let accepting = Arc::clone(&state);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if accepting.closed.load(Ordering::SeqCst) {
                    return;
                }
                let serving = Arc::clone(&accepting);
                // Connecting may take as long as the server is frozen.
                std::thread::spawn(move || serving.serve(client));
            }
        });
        Ok(Self { port, state })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// While true, nobody is there; connections are cut as it begins.
    pub(crate) fn away(&self, yes: bool) {
        self.state.away.store(yes, Ordering::SeqCst);
        if yes {
            for stream in lock(&self.state.open).values().flatten() {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }

    /// While true, a connection is cut as the answer to a COMMIT comes.
    pub(crate) fn lose(&self, yes: bool) {
        self.state.lose.store(yes, Ordering::SeqCst);
    }

    /// Holds each piece of what the server says back for so long; 0: passes it at once.
    pub(crate) fn late(&self, ms: u64) {
        self.state.late_ms.store(ms, Ordering::SeqCst);
    }

    /// How many answers to a COMMIT were lost.
    pub(crate) fn lost(&self) -> u64 {
        self.state.lost.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.closed.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        self.away(true);
    }
}

impl State {
    /// One connection to its end.
    fn serve(self: &Arc<Self>, client: TcpStream) {
        if self.away.load(Ordering::SeqCst) {
            return;
        }
        let Ok(server) = TcpStream::connect((self.target.0.as_str(), self.target.1)) else { return };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let copies = (client.try_clone(), server.try_clone(), client.try_clone(), server.try_clone());
        let (Ok(c1), Ok(s1), Ok(c2), Ok(s2)) = copies else { return };
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        lock(&self.open).insert(number, [c1, s1]);
        let down = Arc::clone(self);
        let downwards = std::thread::spawn(move || down.downwards(s2, c2));
        upwards(client, server);
        let _ = downwards.join();
        lock(&self.open).remove(&number);
    }

    /// What the server says.
    fn downwards(&self, mut server: TcpStream, mut client: TcpStream) {
        let mut piece = [0; PIECE_BYTES];
        // The end of the last piece: an answer may be torn.
        let mut seen: Vec<u8> = Vec::new();
        while let Ok(count @ 1..) = server.read(&mut piece) {
            let piece = piece.get(..count).unwrap_or_default();
            seen.extend_from_slice(piece);
            if self.lose.load(Ordering::SeqCst) && seen.windows(COMMITTED.len()).any(|part| part == COMMITTED) {
                self.lost.fetch_add(1, Ordering::SeqCst);
                break;
            }
            seen.drain(..seen.len().saturating_sub(COMMITTED.len() - 1));
            let late = self.late_ms.load(Ordering::SeqCst);
            if late > 0 {
                std::thread::sleep(Duration::from_millis(late));
            }
            if client.write_all(piece).is_err() {
                break;
            }
        }
        let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
    }
}

/// What the client says.
fn upwards(mut client: TcpStream, mut server: TcpStream) {
    let mut piece = [0; PIECE_BYTES];
    while let Ok(count @ 1..) = client.read(&mut piece) {
        if server.write_all(piece.get(..count).unwrap_or_default()).is_err() {
            break;
        }
    }
    let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
}

/// The URL that leads through a proxy on `port`, and where the proxy leads; nothing when the URL is written in a way that
/// leads past it: a socket, several hosts, a certificate that has to be checked, libpq's `key=value`.
pub(crate) fn through(url: &str, port: u16) -> Option<(String, (String, u16))> {
    let (scheme, rest) = url.split_once("://")?;
    let at = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at_checked(at)?;
    let (user, place) = authority.rsplit_once('@').map_or((None, authority), |(user, place)| (Some(user), place));
    let (host, number) = match place.rsplit_once(':') {
        Some((host, number)) if !number.contains(']') => (host, number.parse().ok()?),
        _ => (place, 5432),
    };
    let checks = |query: &str| query.contains("sslmode=") && !query.contains("sslmode=disable");
    if host.is_empty() || host.contains(['%', ',']) || checks(rest) || rest.contains("host=") {
        return None;
    }
    let user = user.map(|user| format!("{user}@")).unwrap_or_default();
    let host = host.trim_matches(['[', ']']).to_owned();
    Some((format!("{scheme}://{user}127.0.0.1:{port}{rest}"), (host, number)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_leads_through_the_proxy_or_is_left_alone() {
        let led = |url: &str| through(url, 9);
        let there = |url: &str, host: &str, port| Some((url.to_owned(), (host.to_owned(), port)));
        assert_eq!(led("postgres://u:p@db.local/x?a=b"), there("postgres://u:p@127.0.0.1:9/x?a=b", "db.local", 5432));
        assert_eq!(led("postgresql://[::1]:5433/x"), there("postgresql://127.0.0.1:9/x", "::1", 5433));
        assert_eq!(led("postgres://h"), there("postgres://127.0.0.1:9", "h", 5432));
        assert_eq!(
            led("postgres://u@h/x?sslmode=disable"),
            there("postgres://u@127.0.0.1:9/x?sslmode=disable", "h", 5432)
        );
        let past = [
            "host=/tmp user=u",
            "postgres:///x",
            "postgres://a,b/x",
            "postgres://%2Ftmp/x",
            "postgres://h/?sslmode=require",
        ];
        assert!(past.iter().all(|url| led(url).is_none()));
    }

    /// Says to each line what it is, and `COMMIT` torn in two to the line `commit`.
    fn server() -> (u16, Arc<AtomicU64>) {
        let (listener, commits) = (TcpListener::bind(("127.0.0.1", 0)).unwrap(), Arc::new(AtomicU64::new(0)));
        let (port, done) = (listener.local_addr().unwrap().port(), Arc::clone(&commits));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, done) = (stream.unwrap(), Arc::clone(&done));
                std::thread::spawn(move || {
                    let mut byte = [0; 1];
                    while let Ok(1) = stream.read(&mut byte) {
                        if byte == *b"c" {
                            done.fetch_add(1, Ordering::SeqCst);
                            stream.write_all(b"COMM").unwrap();
                            std::thread::sleep(Duration::from_millis(20));
                            stream.write_all(b"IT\0").unwrap();
                        } else {
                            stream.write_all(&byte).unwrap();
                        }
                    }
                });
            }
        });
        (port, commits)
    }

    #[test]
    fn an_answer_to_a_commit_is_lost_after_the_commit_and_nothing_else_is() {
        let (port, commits) = server();
        let proxy = Proxy::start(("127.0.0.1".to_owned(), port)).unwrap();
        let ask = |what: &[u8]| {
            let mut stream = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
            stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
            let mut answer = Vec::new();
            if stream.write_all(what).is_ok() {
                let _ = stream.read_to_end(&mut answer);
            }
            answer
        };
        assert_eq!(ask(b"xc"), b"xCOMMIT\0");
        proxy.lose(true);
        assert!(!ask(b"xc").ends_with(b"\0"), "the answer was let through");
        assert_eq!((proxy.lost(), commits.load(Ordering::SeqCst)), (1, 2));
        assert_eq!(ask(b"x"), b"x", "what is no answer to a commit passes");
        proxy.lose(false);
        proxy.away(true);
        assert_eq!(ask(b"x"), b"");
        proxy.away(false);
        assert_eq!(ask(b"x"), b"x");
    }
}
