//! A Hrana server of the test's own: HTTP, versions 2 and 3, over a SQLite file.
//!
//! Called by tests of the libSQL destination; there is no small server of the whole protocol to install, and none that
//! loses an answer on demand. It is held against the official client (`tests/it/hrana.rs`). Invariants: a stream is one
//! SQLite connection, and its transaction is rolled back when the stream ends, however it ends; a baton is good once.

mod engine;
mod http;
mod wire;

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::clock;

/// How a server behaves.
#[derive(Clone, Debug)]
pub struct HranaOptions {
    /// Whether version 3 is there.
    pub v3: bool,
    /// The token that every request must bring.
    pub token: Option<String>,
    /// How long a stream lives without a request.
    pub expiry: Duration,
    /// Whether the rest of a stream must go to another port, which `base_url` names.
    pub moves_streams: bool,
    /// Largest body, bytes.
    pub body_max: usize,
    /// Whether conditions of batch steps are looked at. Only a broken server ignores them.
    pub conditions: bool,
}

impl Default for HranaOptions {
    fn default() -> Self {
        Self {
            v3: true,
            token: None,
            expiry: Duration::from_secs(10),
            moves_streams: false,
            body_max: 16 << 20,
            conditions: true,
        }
    }
}

/// What goes wrong with one pipeline.
#[derive(Clone, Debug)]
pub enum HranaFault {
    /// It is executed, and the connection breaks before the answer.
    LoseReply,
    /// It is not executed; this status is answered, with `Retry-After` in seconds.
    Status(u16, Option<u64>),
    /// It is executed after this time.
    Slow(Duration),
    /// It is not executed; a redirect with this status to this place is answered.
    Redirect(u16, String),
}

/// A running server; it stops when this is dropped.
#[derive(Debug)]
pub struct HranaServer {
    shared: Arc<Shared>,
    ports: (u16, u16),
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

/// What all requests share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) path: PathBuf,
    pub(crate) options: HranaOptions,
    streams: Mutex<HashMap<String, Stream>>,
    faults: Mutex<VecDeque<(String, HranaFault)>>,
    batons: AtomicU64,
    requests: AtomicUsize,
    pipelines: AtomicUsize,
    resumed: AtomicUsize,
    moved_to: Mutex<Option<String>>,
}

/// A stream between two requests.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) db: Connection,
    pub(crate) stored: HashMap<i32, String>,
    pub(crate) seen: Instant,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HranaServer {
    /// Serves the SQLite file at `path` on a free port.
    ///
    /// # Panics
    /// When it cannot start.
    pub fn start(path: &Path, options: HranaOptions) -> Self {
        let shared = Arc::new(Shared {
            path: path.to_owned(),
            options,
            streams: Mutex::default(),
            faults: Mutex::default(),
            batons: AtomicU64::new(1),
            requests: AtomicUsize::new(0),
            pipelines: AtomicUsize::new(0),
            resumed: AtomicUsize::new(0),
            moved_to: Mutex::new(None),
        });
        let mut server = Self { shared, ports: (0, 0), running: None };
        server.start_again();
        server
    }

    /// `http://127.0.0.1:…`
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.0)
    }

    /// The next pipeline whose body contains `text` meets `fault`; the first fault that fits is used up.
    pub fn inject(&self, text: &str, fault: HranaFault) {
        lock(&self.shared.faults).push_back((text.to_owned(), fault));
    }

    /// Faults that nothing has met yet.
    pub fn faults_left(&self) -> usize {
        lock(&self.shared.faults).len()
    }

    /// From here on nothing goes wrong.
    pub fn heal(&self) {
        lock(&self.shared.faults).clear();
    }

    /// HTTP requests so far.
    pub fn requests(&self) -> usize {
        self.shared.requests.load(Ordering::SeqCst)
    }

    /// Pipelines that were executed so far.
    pub fn pipelines(&self) -> usize {
        self.shared.pipelines.load(Ordering::SeqCst)
    }

    /// Pipelines that went on with a stream.
    pub fn resumed(&self) -> usize {
        self.shared.resumed.load(Ordering::SeqCst)
    }

    /// Streams that are open.
    pub fn streams(&self) -> usize {
        lock(&self.shared.streams).len()
    }

    /// Ends every stream, as a server does that is moved or runs out of memory.
    pub fn drop_streams(&self) {
        lock(&self.shared.streams).clear();
    }

    /// Breaks every connection and forgets every stream, as a crash would.
    pub fn kill(&mut self) {
        if let Some(running) = self.running.take() {
            // The thread may have ended already.
            let _ = running.stop.send(());
            let _ = running.thread.join();
        }
        self.drop_streams();
    }

    /// Serves again on the same port.
    ///
    /// # Panics
    /// When the port was taken meanwhile.
    pub fn start_again(&mut self) {
        let (stop, stopped) = oneshot::channel();
        let (ready, started) = std::sync::mpsc::channel();
        let (shared, ports) = (Arc::clone(&self.shared), self.ports);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .expect("a runtime for the Hrana server");
            runtime.block_on(http::serve(shared, ports, ready, stopped));
            runtime.shutdown_timeout(Duration::from_millis(200));
        });
        self.ports = started.recv().expect("the Hrana server did not start");
        self.running = Some(Running { stop, thread });
        *lock(&self.shared.moved_to) = Some(format!("http://127.0.0.1:{}", self.ports.1));
    }
}

impl Drop for HranaServer {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Shared {
    /// The fault that this body meets.
    pub(crate) fn fault(&self, body: &str) -> Option<HranaFault> {
        let mut faults = lock(&self.faults);
        let at = faults.iter().position(|(text, _)| body.contains(text.as_str()))?;
        faults.remove(at).map(|(_, fault)| fault)
    }

    pub(crate) fn count_request(&self) {
        self.requests.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn count_pipeline(&self, resumed: bool) {
        self.pipelines.fetch_add(1, Ordering::SeqCst);
        self.resumed.fetch_add(usize::from(resumed), Ordering::SeqCst);
    }

    /// A new stream.
    pub(crate) fn open(&self) -> rusqlite::Result<Stream> {
        let db = Connection::open(&self.path)?;
        db.busy_timeout(Duration::from_secs(2))?;
        Ok(Stream { db, stored: HashMap::new(), seen: clock::now() })
    }

    /// Takes the stream of a baton out; `None` when there is none, or it has expired.
    pub(crate) fn take(&self, baton: &str) -> Option<Stream> {
        lock(&self.streams).remove(baton).filter(|stream| stream.seen.elapsed() < self.options.expiry)
    }

    /// Puts a stream back under a new baton.
    pub(crate) fn put(&self, mut stream: Stream) -> String {
        let baton = format!("baton-{}-{}", std::process::id(), self.batons.fetch_add(1, Ordering::SeqCst));
        stream.seen = clock::now();
        lock(&self.streams).insert(baton.clone(), stream);
        baton
    }

    /// Where the rest of a stream goes.
    pub(crate) fn moved_to(&self) -> Option<String> {
        lock(&self.moved_to).clone().filter(|_| self.options.moves_streams)
    }

    /// Ends what has expired.
    pub(crate) fn reap(&self) {
        lock(&self.streams).retain(|_, stream| stream.seen.elapsed() < self.options.expiry);
    }
}
