//! A receiver of webhooks, as the user's own program would be: it keeps what it got, and then answers, late, or not at all.
//!
//! Called by the run. Invariant: a request is kept before anything is answered; that an answer has arrived is believed only
//! when the same connection asks for something else after it.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value as Json;

use crate::TortureError;
use crate::check::{Name, Receipt};
use crate::producer::is_poison;
use crate::stage::name_in;

/// No request of a run is longer.
const BODY_MAX: usize = 1 << 20;

/// The receiver, on a port of 127.0.0.1. It takes nothing any more when this is dropped.
#[derive(Debug)]
pub(crate) struct Receiver {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    began: Instant,
    receipts: Mutex<Vec<Receipt>>,
    open: Mutex<BTreeMap<u64, TcpStream>>,
    /// Numbers connections, and the requests whose answers may be lost.
    turn: AtomicU64,
    closed: AtomicBool,
    away: AtomicBool,
    refuse: AtomicBool,
    lose: AtomicBool,
    double: AtomicBool,
    late_ms: AtomicU64,
    counts: Mutex<Counts>,
}

/// What was done to requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Kept, and never answered.
    pub(crate) lost: u64,
    /// Answered late.
    pub(crate) late: u64,
    /// Kept twice, as from a network that has passed it on twice.
    pub(crate) doubled: u64,
    /// Answered with 503 and not kept.
    pub(crate) refused: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Receiver {
    /// Listens; times are counted from `began`.
    pub(crate) fn start(began: Instant) -> Result<Self, TortureError> {
        let failed = |error| TortureError::io("a port for the receiver of webhooks")(error);
        let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let shared = Arc::new(Shared {
            began,
            receipts: Mutex::default(),
            open: Mutex::default(),
            turn: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            away: AtomicBool::new(false),
            refuse: AtomicBool::new(false),
            lose: AtomicBool::new(false),
            double: AtomicBool::new(false),
            late_ms: AtomicU64::new(0),
            counts: Mutex::default(),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if accepting.closed.load(Ordering::SeqCst) {
                    return;
                }
                let serving = Arc::clone(&accepting);
                std::thread::spawn(move || serving.serve(&stream));
            }
        });
        Ok(Self { port, shared })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Everything that was kept so far, in its order.
    pub(crate) fn receipts(&self) -> Vec<Receipt> {
        lock(&self.shared.receipts).clone()
    }

    pub(crate) fn counts(&self) -> Counts {
        *lock(&self.shared.counts)
    }

    /// While true, nobody is there; connections are cut as it begins.
    pub(crate) fn away(&self, yes: bool) {
        self.shared.away.store(yes, Ordering::SeqCst);
        if yes {
            for stream in lock(&self.shared.open).values() {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }

    /// While true, every other request is kept and the connection closed instead of an answer.
    pub(crate) fn lose(&self, yes: bool) {
        self.shared.lose.store(yes, Ordering::SeqCst);
    }

    /// While true, each request arrives twice.
    pub(crate) fn double(&self, yes: bool) {
        self.shared.double.store(yes, Ordering::SeqCst);
    }

    /// While true, requests are answered with 503 and not kept.
    pub(crate) fn refuse(&self, yes: bool) {
        self.shared.refuse.store(yes, Ordering::SeqCst);
    }

    /// Answers so much later; 0: at once.
    pub(crate) fn late(&self, ms: u64) {
        self.shared.late_ms.store(ms, Ordering::SeqCst);
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        self.away(true);
    }
}

impl Shared {
    /// One connection to its end.
    fn serve(&self, mut stream: &TcpStream) {
        let _ = stream.set_nodelay(true);
        let (Ok(reading), Ok(kept)) = (stream.try_clone(), stream.try_clone()) else { return };
        let number = self.turn.fetch_add(1, Ordering::SeqCst);
        lock(&self.open).insert(number, kept);
        let mut reading = BufReader::new(reading);
        let mut answered: Vec<usize> = Vec::new();
        while let Some((id, body)) = request(&mut reading) {
            // The client has taken what was answered before: it would not use the connection again otherwise.
            let mut receipts = lock(&self.receipts);
            for at in answered.drain(..) {
                if let Some(receipt) = receipts.get_mut(at) {
                    receipt.sure = true;
                }
            }
            drop(receipts);
            if self.away.load(Ordering::SeqCst) {
                break;
            }
            let Some(status) = self.take(&id, &body, &mut answered) else { break };
            if write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").is_err() {
                break;
            }
        }
        let _ = stream.shutdown(Shutdown::Both);
        lock(&self.open).remove(&number);
    }

    /// Keeps a request, if it is to be kept; what is answered, or nothing.
    fn take(&self, id: &str, body: &[u8], kept: &mut Vec<usize>) -> Option<&'static str> {
        if self.refuse.load(Ordering::SeqCst) {
            lock(&self.counts).refused += 1;
            return Some("503 Service Unavailable");
        }
        let Some((named, event)) = event(body) else { return Some("400 Bad Request") };
        if is_poison(event.1) {
            return Some("422 Unprocessable Content");
        }
        let id = if id == named { named } else { format!("{id} in the header, {named} in the body") };
        let at_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        kept.push(self.keep(Receipt { at_ms, event, id: id.clone(), sure: false, network: false }));
        if self.double.load(Ordering::SeqCst) {
            self.keep(Receipt { at_ms, event, id, sure: false, network: true });
            lock(&self.counts).doubled += 1;
        }
        if self.lose.load(Ordering::SeqCst) {
            // Every other one gets through, so that what is lost lies between what is not.
            if self.turn.fetch_add(1, Ordering::SeqCst).is_multiple_of(2) {
                lock(&self.counts).lost += 1;
                return None;
            }
        }
        let late = self.late_ms.load(Ordering::SeqCst);
        if late > 0 {
            lock(&self.counts).late += 1;
            std::thread::sleep(Duration::from_millis(late));
        }
        Some("204 No Content")
    }

    fn keep(&self, receipt: Receipt) -> usize {
        let mut receipts = lock(&self.receipts);
        receipts.push(receipt);
        receipts.len() - 1
    }
}

/// The event of a body: its id and its name.
fn event(body: &[u8]) -> Option<(String, Name)> {
    let event: Json = serde_json::from_slice(body).ok()?;
    Some((event.get("id")?.as_str()?.to_owned(), name_in(event.get("payload")?)?))
}

/// The next request's `webhook-id` and body; nothing when the client is through, or sends what is no request.
fn request(reading: &mut BufReader<TcpStream>) -> Option<(String, Vec<u8>)> {
    let (mut id, mut length) = (String::new(), 0);
    let mut line = String::new();
    loop {
        line.clear();
        if reading.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let text = line.trim_end();
        if text.is_empty() {
            break;
        }
        let Some((name, value)) = text.split_once(':') else { continue };
        match name.to_ascii_lowercase().as_str() {
            "webhook-id" => value.trim().clone_into(&mut id),
            "content-length" => length = value.trim().parse().ok().filter(|&length| length <= BODY_MAX)?,
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reading.read_exact(&mut body).ok()?;
    Some((id, body))
}
