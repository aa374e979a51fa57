//! The destinations that are reached over a network, and what is done to them.
//!
//! Made for each run. Invariant: what was broken is whole again before the run is judged; what is not there cannot be broken,
//! and the history says so.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::TortureError;
use crate::check::Receipt;
use crate::plan::{Deed, Link};
use crate::proxy::{self, Proxy};
use crate::receiver::{Counts, Receiver};
use crate::run::Postgres;
use crate::server::Server;
use crate::stage::with_postgres;

/// How long a server may take to recover from its last crash.
const RECOVERS: Duration = Duration::from_secs(60);

/// What is at the other end, and what stands between.
#[derive(Debug)]
pub(crate) struct Network {
    receiver: Receiver,
    proxy: Option<Proxy>,
    server: Option<Server>,
    kills: u64,
    /// The database as the check reaches it.
    database: Option<String>,
    /// The database as the relays reach it.
    relays: Option<String>,
}

/// What the network did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Troubles {
    /// Webhooks that were kept and never answered.
    pub lost: u64,
    /// Webhooks that were answered late.
    pub late: u64,
    /// Webhooks that arrived twice by the network's doing.
    pub doubled: u64,
    /// Webhooks that were answered with 503.
    pub refused: u64,
    /// Answers to a COMMIT that PostgreSQL gave and no relay got.
    pub commits_lost: u64,
    /// How often PostgreSQL was killed.
    pub server_kills: u64,
}

/// A deed of the network that is undone later.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Broken {
    Cut(Link),
    Lost(Link),
    Late(Link),
    Doubled,
    Refused,
    Killed,
    Frozen,
}

impl Network {
    pub(crate) fn start(postgres: &Postgres, began: Instant) -> Result<Self, TortureError> {
        let server = match postgres {
            Postgres::Own => Some(Server::start()?),
            Postgres::None | Postgres::Theirs(_) => None,
        };
        let database = match postgres {
            Postgres::None => None,
            Postgres::Theirs(url) => Some(url.clone()),
            Postgres::Own => server.as_ref().map(Server::url),
        };
        let mut proxy = None;
        let mut relays = database.clone();
        if let Some((_, target)) = database.as_deref().and_then(|url| proxy::through(url, 0)) {
            let standing = Proxy::start(target)?;
            relays = database.as_deref().and_then(|url| proxy::through(url, standing.port())).map(|(url, _)| url);
            proxy = Some(standing);
        }
        let network = Self { receiver: Receiver::start(began)?, proxy, server, kills: 0, database, relays };
        if network.server.is_some() {
            network.wait()?;
        }
        Ok(network)
    }

    /// The database, as the check reaches it.
    pub(crate) fn database(&self) -> Option<&str> {
        self.database.as_deref()
    }

    /// The database, as the relays reach it.
    pub(crate) fn for_relays(&self) -> Option<&str> {
        self.relays.as_deref()
    }

    /// The port of the receiver of webhooks.
    pub(crate) fn webhook(&self) -> u16 {
        self.receiver.port()
    }

    pub(crate) fn receipts(&self) -> Vec<Receipt> {
        self.receiver.receipts()
    }

    /// What was done so far.
    pub(crate) fn troubles(&self) -> Troubles {
        let Counts { lost, late, doubled, refused } = self.receiver.counts();
        let commits_lost = self.proxy.as_ref().map_or(0, Proxy::lost);
        Troubles { lost, late, doubled, refused, commits_lost, server_kills: self.kills }
    }

    /// Does it, when it is a deed of the network's: how it is undone, or that there is nothing to do it to.
    pub(crate) fn break_it(&mut self, deed: &Deed) -> Result<(u64, Broken), &'static str> {
        let broken = match *deed {
            Deed::CutLink { link, ms } => (ms, Broken::Cut(link)),
            Deed::LoseReplies { link, ms } => (ms, Broken::Lost(link)),
            Deed::DelayReplies { link, ms, .. } => (ms, Broken::Late(link)),
            Deed::DoubleRequests { ms } => (ms, Broken::Doubled),
            Deed::RefuseRequests { ms } => (ms, Broken::Refused),
            Deed::KillServer { ms } => (ms, Broken::Killed),
            Deed::FreezeServer { ms } => (ms, Broken::Frozen),
            _ => return Err("this is none of the network's"),
        };
        let by_ms = if let Deed::DelayReplies { by_ms, .. } = deed { *by_ms } else { 0 };
        self.set(broken.1, true, by_ms)?;
        Ok(broken)
    }

    pub(crate) fn mend(&mut self, broken: Broken) {
        // What could be broken can be mended.
        let _ = self.set(broken, false, 0);
    }

    fn set(&mut self, what: Broken, yes: bool, by_ms: u64) -> Result<(), &'static str> {
        const NO_SERVER: &str = "there is no PostgreSQL of the run's own";
        let proxy = || self.proxy.as_ref().ok_or("there is no proxy in front of PostgreSQL");
        match what {
            Broken::Cut(Link::Webhook) => self.receiver.away(yes),
            Broken::Cut(Link::Postgres) => proxy()?.away(yes),
            Broken::Lost(Link::Webhook) => self.receiver.lose(yes),
            Broken::Lost(Link::Postgres) => proxy()?.lose(yes),
            Broken::Late(Link::Webhook) => self.receiver.late(by_ms),
            Broken::Late(Link::Postgres) => proxy()?.late(by_ms),
            Broken::Doubled => self.receiver.double(yes),
            Broken::Refused => self.receiver.refuse(yes),
            Broken::Killed if yes => {
                self.server.as_mut().ok_or(NO_SERVER)?.kill();
                self.kills += 1;
            }
            Broken::Killed => self.server.as_mut().ok_or(NO_SERVER)?.start_again(),
            Broken::Frozen if yes => self.server.as_ref().ok_or(NO_SERVER)?.freeze(),
            Broken::Frozen => self.server.as_ref().ok_or(NO_SERVER)?.thaw(),
        }
        Ok(())
    }

    /// Until the database answers.
    pub(crate) fn wait(&self) -> Result<(), TortureError> {
        let Some(url) = &self.database else { return Ok(()) };
        let began = crate::clock::start();
        loop {
            match with_postgres(url, async |client| client.batch_execute("SELECT 1").await) {
                Err(_) if began.elapsed() < RECOVERS => std::thread::sleep(Duration::from_millis(50)),
                answered => return answered,
            }
        }
    }
}
