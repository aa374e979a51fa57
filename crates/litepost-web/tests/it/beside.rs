//! An outbox with a history, the listener beside it, and what no request may do to them.
//!
//! Called by the tests of this folder, and by fuzzers.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use litepost::{NewEvent, Outbox};
use litepost_web::{Admin, Listener, Recorder, Shown, Source, Token};

/// One recorder per process.
pub(crate) fn recorder() -> Recorder {
    static ONE: OnceLock<Recorder> = OnceLock::new();
    ONE.get_or_init(|| {
        let _ = rustls::crypto::ring::default_provider().install_default();
        Recorder::install(None).unwrap()
    })
    .clone()
}

/// An outbox with two events that wait and one dead letter.
pub(crate) fn outbox(folder: &Path) -> PathBuf {
    let path = folder.join("shop.db");
    litepost::schema::migrate(&mut rusqlite::Connection::open(&path).unwrap()).unwrap();
    let mut outbox = Outbox::open(&path).unwrap();
    for number in 1..=2 {
        let payload = format!(r#"{{"number":{number},"note":"<script>alert(1)</script>"}}"#);
        outbox.enqueue(&NewEvent::new("orders", payload).key(format!("k{number}")).kind("OrderCreated")).unwrap();
    }
    let mut store = litepost::lanes::LaneStore::open(&path).unwrap();
    store.register("shop.hook", 1, litepost::lanes::Start::Earliest).unwrap();
    let raw = rusqlite::Connection::open(&path).unwrap();
    raw.execute(
        "INSERT INTO litepost_dead (destination, lane, reason, attempts, error, dead_at, seq, id, topic, type, payload, created_at)
         VALUES ('shop.hook', 0, 'max_attempts', 8, 'said no', 1, 1, 'dead-1', 'orders', '', '{}', 1)",
        [],
    )
    .unwrap();
    path
}

pub(crate) fn admin(path: PathBuf, token: Option<Token>, freshness_ms: i64) -> Admin {
    Admin {
        shown: Shown::new(
            vec![Source {
                path,
                destinations: vec!["shop.hook".into()],
                routing: Arc::new([]),
                freshness_ms: Arc::new([]),
            }],
            "type = \"http\"",
        ),
        token,
        freshness_ms,
        version: "1.2.3".to_owned(),
        recorder: recorder(),
    }
}

struct Served {
    address: String,
    path: PathBuf,
}

/// One listener for all cases; it lives as long as the process.
static SERVED: LazyLock<Served> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap().keep();
    let path = outbox(&folder);
    let (send, address) = std::sync::mpsc::channel();
    let admin = admin(path.clone(), None, 60_000);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), admin).await.unwrap();
            send.send(listener.address().to_string()).unwrap();
            listener.serve(std::future::pending()).await.unwrap();
        });
    });
    Served { address: address.recv().unwrap(), path }
});

/// Sends it; the status of the answer, none when the connection was closed without one.
fn ask(request: &[u8]) -> Option<u16> {
    let mut socket = TcpStream::connect(&SERVED.address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // It may answer, and close, before it has read everything.
    let _ = socket.write_all(request);
    let mut head = [0; 12];
    socket.read_exact(&mut head).ok()?;
    std::str::from_utf8(&head).ok()?.strip_prefix("HTTP/1.1 ")?.parse().ok()
}

/// One request: it is answered, with anything but "internal error"; the listener lives on, and so does the log.
pub(crate) fn feed(method: &str, target: &str, kind: &str, extra: Option<&str>, body: &[u8]) {
    let Served { address, path } = &*SERVED;
    let mut request = format!("{method} {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    let extra = extra.map_or_else(String::new, |extra| format!("{extra}\r\n"));
    let rest = format!("Content-Type: {kind}\r\nContent-Length: {}\r\n{extra}\r\n", body.len());
    request.push_str(&rest);
    let mut request = request.into_bytes();
    request.extend_from_slice(body);
    let status = ask(&request);
    assert!(status.is_some_and(|status| status != 500), "{status:?} to {}", String::from_utf8_lossy(&request));
    let live = ask(format!("GET /live HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes());
    assert_eq!(live, Some(200));
    let outbox = rusqlite::Connection::open(path).unwrap();
    let log: i64 = outbox.query_row("SELECT max(seq) FROM litepost_outbox", [], |row| row.get(0)).unwrap();
    assert!(log >= 2, "the log is gone");
}
