//! A TCP proxy that does to a connection what networks do: cuts it, delays it, swallows what the server says.
//!
//! Called by the conformance suite, between a sink and its server. Invariant: while nothing is asked of it, every
//! byte passes, in order, both ways.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{sleep, spawn};
use std::time::Duration;

/// Most bytes moved at a time: small, so that a cut can fall within a message.
const PIECE_BYTES: usize = 4_096;
/// No cut is ordered.
const NEVER: i64 = i64::MAX;

/// A proxy in front of a port of 127.0.0.1. It stops accepting when this is dropped.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    target: u16,
    open: Mutex<Vec<TcpStream>>,
    closed: AtomicBool,
    away: AtomicBool,
    swallow: AtomicBool,
    delay_ms: AtomicU64,
    /// Bytes that clients may still send before everything is cut.
    left: AtomicI64,
    sent: AtomicU64,
    cuts: AtomicU64,
}

impl Proxy {
    /// A proxy in front of `target`.
    ///
    /// # Panics
    /// When there is no free port.
    pub fn start(target: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a loopback port");
        let port = listener.local_addr().expect("a local address").port();
        let state = Arc::new(State {
            target,
            open: Mutex::default(),
            closed: AtomicBool::new(false),
            away: AtomicBool::new(false),
            swallow: AtomicBool::new(false),
            delay_ms: AtomicU64::new(0),
            left: AtomicI64::new(NEVER),
            sent: AtomicU64::new(0),
            cuts: AtomicU64::new(0),
        });
        let accepting = Arc::clone(&state);
        spawn(move || {
            for client in listener.incoming() {
                if accepting.closed.load(Ordering::Relaxed) {
                    return;
                }
                if let Ok(client) = client {
                    accepting.connect(client);
                }
            }
        });
        Self { port, state }
    }

    /// Where clients connect, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Cuts every connection now. New ones are accepted.
    pub fn cut(&self) {
        self.state.cut();
    }

    /// While true, nobody is there: every connection is cut, and new ones are closed at once.
    pub fn away(&self, yes: bool) {
        self.state.away.store(yes, Ordering::SeqCst);
        if yes {
            self.state.cut();
        }
    }

    /// Cuts every connection once clients have sent this many more bytes; the last message arrives in part.
    pub fn cut_after(&self, bytes: u32) {
        self.state.left.store(i64::from(bytes), Ordering::SeqCst);
    }

    /// How often connections were cut.
    pub fn cuts(&self) -> u64 {
        self.state.cuts.load(Ordering::SeqCst)
    }

    /// While true, what the server says reaches no client.
    pub fn swallow_replies(&self, yes: bool) {
        self.state.swallow.store(yes, Ordering::SeqCst);
    }

    /// Holds each piece of what the server says back for this long.
    pub fn delay_replies(&self, ms: u64) {
        self.state.delay_ms.store(ms, Ordering::SeqCst);
    }

    /// Bytes that clients have sent so far.
    pub fn sent(&self) -> u64 {
        self.state.sent.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.closed.store(true, Ordering::Relaxed);
        // Wakes the accepting thread.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        self.state.cut();
    }
}

impl State {
    fn connect(self: &Arc<Self>, client: TcpStream) {
        if self.away.load(Ordering::SeqCst) {
            return;
        }
        let Ok(server) = TcpStream::connect(("127.0.0.1", self.target)) else {
            // As the server itself would: nobody listens.
            return;
        };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let copies = (client.try_clone(), server.try_clone(), client.try_clone(), server.try_clone());
        let (Ok(c1), Ok(s1), Ok(c2), Ok(s2)) = copies else { return };
        {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            open.extend([c1, s1]);
        }
        let (up, down) = (Arc::clone(self), Arc::clone(self));
        spawn(move || up.upwards(client, server));
        spawn(move || down.downwards(s2, c2));
    }

    fn cut(&self) {
        self.left.store(NEVER, Ordering::SeqCst);
        self.cuts.fetch_add(1, Ordering::SeqCst);
        for stream in self.open.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// What the client says, until it ends or the order to cut falls due.
    fn upwards(&self, mut client: TcpStream, mut server: TcpStream) {
        let mut piece = [0; PIECE_BYTES];
        while let Ok(count @ 1..) = client.read(&mut piece) {
            let counted = i64::try_from(count).unwrap_or(0);
            let before = self.left.load(Ordering::SeqCst);
            let allowed = if before == NEVER { counted } else { counted.min(before.max(0)) };
            if server.write_all(&piece[..usize::try_from(allowed).unwrap_or(0)]).is_err() {
                break;
            }
            self.sent.fetch_add(count as u64, Ordering::SeqCst);
            if before != NEVER && self.left.fetch_sub(counted, Ordering::SeqCst) <= counted {
                self.cut();
                break;
            }
        }
        let _ = server.shutdown(Shutdown::Write);
    }

    /// What the server says.
    fn downwards(&self, mut server: TcpStream, mut client: TcpStream) {
        let mut piece = [0; PIECE_BYTES];
        while let Ok(count @ 1..) = server.read(&mut piece) {
            if self.swallow.load(Ordering::SeqCst) {
                continue;
            }
            match self.delay_ms.load(Ordering::SeqCst) {
                0 => {}
                ms => sleep(Duration::from_millis(ms)),
            }
            if client.write_all(&piece[..count]).is_err() {
                break;
            }
        }
        let _ = client.shutdown(Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that answers every byte with itself.
    fn echo() -> u16 {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                spawn(move || {
                    let mut back = stream.try_clone().unwrap();
                    let _ = std::io::copy(&mut stream, &mut back);
                });
            }
        });
        port
    }

    #[test]
    fn passes_cuts_and_swallows() {
        let proxy = Proxy::start(echo());
        let connect = || {
            let stream = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
            stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
            stream
        };
        let mut first = connect();
        let mut answer = [0; 5];
        first.write_all(b"hello").unwrap();
        first.read_exact(&mut answer).unwrap();
        assert_eq!((&answer, proxy.sent()), (b"hello", 5));
        proxy.swallow_replies(true);
        first.write_all(b"hello").unwrap();
        assert!(first.read_exact(&mut answer).is_err(), "no answer arrives");
        proxy.swallow_replies(false);
        proxy.cut_after(3);
        let mut second = connect();
        second.write_all(b"hello").unwrap();
        let mut rest = Vec::new();
        let _ = second.read_to_end(&mut rest);
        assert!(rest.len() <= 3, "{rest:?}");
        assert_eq!(proxy.cuts(), 1);
        let mut third = connect();
        third.write_all(b"again").unwrap();
        third.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"again");
        proxy.away(true);
        assert_eq!(connect().read(&mut answer).unwrap_or(0), 0, "nobody is there");
        proxy.away(false);
        let mut fourth = connect();
        fourth.write_all(b"there").unwrap();
        fourth.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"there");
    }
}
