//! Every key of the configuration, once: its name, kind, default and meaning.
//!
//! From these tables follow the reader, the builders, the JSON Schema and docs/configuration.md. Invariant: a key that
//! is not here is refused; a key that is here has an effect or is refused by name.

use litepost_core::Ordering;
use litepost_core::pipeline::OnDead;

use super::admin::{Address, Token};
use super::problem::{Problem, Span};
use super::reader::{Entry, join};
use super::values::{Bytes, Count, Factor, Headers, InjectOutboxSeq, Kind, Limit, Time, TimeOrNever, Topics};
use super::words::{Dedupe, Start};

/// A value with the place it was given at.
#[derive(Clone, Debug, PartialEq)]
pub struct Given<T> {
    /// The value.
    pub value: T,
    /// The key it was given under, from the top.
    pub key: String,
    /// Where in the file.
    pub span: Option<Span>,
}

/// What a key belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The table it stands in.
    Own,
    /// Delivery to one destination.
    Delivery,
    /// The outbox file.
    File,
    /// Statements for SQL databases.
    Statements,
}

/// A key, as the reference and the JSON Schema describe it.
pub struct KeySpec {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub doc: &'static str,
    /// What holds without it.
    pub default: &'static str,
    /// What it belongs to.
    pub scope: Scope,
    /// What values it takes, in words.
    pub values: fn() -> String,
    /// What values it takes, as JSON Schema.
    pub schema: fn() -> serde_json::Value,
}

/// What every builder can do.
pub trait SetKey: Sized {
    /// Sets a key by its name, as in TOML.
    #[must_use]
    fn set_key(self, key: &str, value: impl Into<toml::Value>) -> Self;
}

macro_rules! keys {
    (
        $(#[doc = $about:literal])+
        pub struct $name:ident / $builder:ident {
            $(
                $(#[doc = $doc:literal])+
                #[default = $default:literal]
                #[scope = $scope:ident]
                $key:ident: $kind:ty,
            )+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct $name {
            $(
                $(#[doc = $doc])+
                pub $key: Option<Given<$kind>>,
            )+
        }

        impl $name {
            /// What the keys mean.
            pub const KEYS: &[KeySpec] = &[$(KeySpec {
                name: stringify!($key),
                doc: concat!($($doc, "\n"),+),
                default: $default,
                scope: Scope::$scope,
                values: <$kind as Kind>::describe,
                schema: <$kind as Kind>::schema,
            }),+];

            /// Takes `entry` when its key is one of these.
            pub(crate) fn take(&mut self, entry: &Entry, path: &str, problems: &mut Vec<Problem>) -> bool {
                match entry.key.as_str() {
                    $(stringify!($key) => {
                        if let Some(value) = read_key::<$kind>(entry, path, problems) {
                            self.$key = Some(value);
                        }
                    })+
                    _ => return false,
                }
                true
            }

            #[allow(dead_code, reason = "not every table of keys is inherited")]
            /// These keys, and from `outer` what they leave open: the nearest wins.
            #[must_use]
            pub(crate) fn or(self, outer: &Self) -> Self {
                Self {
                    $($key: self.$key.or_else(|| outer.$key.clone()),)+
                }
            }

            #[allow(dead_code, reason = "not every table of keys is walked")]
            /// Every key that is given, with its scope.
            pub(crate) fn given(&self) -> Vec<(&'static str, Scope, &str, Option<Span>)> {
                let mut list = Vec::new();
                $(if let Some(given) = &self.$key {
                    list.push((stringify!($key), Scope::$scope, given.key.as_str(), given.span.clone()));
                })+
                list
            }
        }

        /// The keys by name, for configurations built in code.
        pub trait $builder: SetKey {
            $(
                $(#[doc = $doc])+
                #[must_use]
                fn $key(self, value: impl Into<toml::Value>) -> Self {
                    self.set_key(stringify!($key), value)
                }
            )+
        }
    };
}

fn read_key<T: Kind>(entry: &Entry, path: &str, problems: &mut Vec<Problem>) -> Option<Given<T>> {
    let key = join(path, &entry.key);
    let node = entry.node.as_ref()?;
    match T::read(node) {
        Ok(value) => Some(Given { value, key, span: node.span.clone() }),
        Err(why) => {
            problems.push(Problem::error(&key, format!("{key}: {why}")).at(node.span.clone()).label("this value"));
            None
        }
    }
}

keys! {
    /// The keys of `[admin]`.
    pub struct AdminKeys / AdminOptions {
        /// Where `litepost run` serves the dashboard, the API, `/metrics`, `/live` and `/ready`. An address that other
        /// machines can reach needs `token` beside it. `--admin` goes before it.
        #[default = "none: nothing is served"]
        #[scope = Own]
        listen: Address,
        /// What every request must carry: 16 characters or more. Also as `"file:PATH"`, `"cmd:COMMAND"` or
        /// `"credential:NAME"`. `--admin-token-file` and `LITEPOST_ADMIN_TOKEN` go before it.
        #[default = "none: whoever may use this machine"]
        #[scope = Own]
        token: Token,
        /// How long an event may wait before `/ready` says no, where its destination has no `freshness` of its own. `--freshness`
        /// goes before it.
        #[default = "\"5m\""]
        #[scope = Own]
        freshness: Time<1>,
    }
}

keys! {
    /// The keys of `[app.NAME]` itself.
    pub struct AppKeys / AppOptions {
        /// The SQLite database of the application, which holds the outbox beside the business tables. Relative paths
        /// start at the folder of the configuration file. Give either this or `db_dir`.
        #[default = "none"]
        #[scope = Own]
        database: String,
        /// A folder with one outbox file per table, `{db_dir}/{table}.db`, as sqloutbox keeps them. Give either this
        /// or `database`.
        #[default = "none"]
        #[scope = Own]
        db_dir: String,
    }
}

keys! {
    /// The keys of `[app.NAME.sink.S]` that are not shared with other levels.
    pub struct SinkKeys / SinkOptions {
        /// Which topics the sink takes: exact names, or patterns in which `*` stands for any run of characters.
        #[default = "[\"*\"]"]
        #[scope = Own]
        topics: Topics,
        /// Which headers an event must have to be taken: `headers = { tenant = "a*" }`. Each name must be there and its
        /// value match the pattern, in which `*` stands for any run of characters; a value that is no text is compared as
        /// JSON writes it.
        #[default = "none: whatever the headers"]
        #[scope = Own]
        headers: Headers,
    }
}

keys! {
    /// The keys that may stand at table, target and app level; the nearest wins.
    pub struct Delivery / DeliveryOptions {
        /// What order is kept: `key` (events of one key leave in order, a failed one holds only its key; events
        /// without a key form one line per topic), `strict` (one line per topic, as sqloutbox), `none`.
        #[default = "\"key\""]
        #[scope = Delivery]
        ordering: Ordering,
        /// Into how many lanes the keys are split. A lane is what a relay process leases: more lanes let several
        /// relays share one outbox, and are the parallelism of SQL targets.
        #[default = "1"]
        #[scope = Delivery]
        lanes: Count<1, 256>,
        /// Topics whose events have a lane of their own, beside `lanes`, so that they wait for nothing but each other: exact
        /// names, or patterns in which `*` stands for any run of characters. Order is then kept among the events of a key
        /// that have priority, and among those that have not, but not between the two. It can be changed at any time;
        /// while events wait behind a failed or paused one, the change is refused.
        #[default = "none"]
        #[scope = Delivery]
        priority: Topics,
        /// How many deliveries of a lane may be under way at once. A key is never split over them.
        #[default = "1"]
        #[scope = Delivery]
        concurrency: Count<1, 1_024>,
        /// Most events in one delivery.
        #[default = "500"]
        #[scope = Delivery]
        batch_size: Count<1, 100_000>,
        /// Most bytes in one delivery; a larger event travels alone.
        #[default = "\"4MiB\""]
        #[scope = Delivery]
        max_batch_bytes: Bytes,
        /// Most bytes that are read from the log and not settled yet, per lane.
        #[default = "\"16MiB\""]
        #[scope = Delivery]
        max_in_flight_bytes: Bytes,
        /// Most events per second that one relay hands to the destination, all its lanes together. Up to a second's worth
        /// leaves at once after a pause.
        #[default = "none: as fast as the destination confirms"]
        #[scope = Delivery]
        rate_limit: Count<1, 1_000_000>,
        /// How many times a rejected event is tried before it becomes a dead letter; the same as
        /// `retry.max_attempts`.
        #[default = "10"]
        #[scope = Delivery]
        max_attempts: Limit,
        /// sqloutbox's retry clock: the wait grows 2, 4, 8 … minutes up to this many. The same as
        /// `retry = { first = "2m", factor = 2, cap = "…m" }`. Apps with `db_dir` have 64 unless they say otherwise.
        #[default = "64 with `db_dir`, otherwise the `retry` table's"]
        #[scope = Delivery]
        backoff_cap_minutes: Count<1, 525_600>,
        /// What becomes of a key when one of its events is a dead letter: `continue` lets its successors flow, `hold`
        /// keeps them until an operator decides.
        #[default = "\"continue\""]
        #[scope = Delivery]
        on_dead: OnDead,
        /// How many dead letters of an outbox file are too many: `litepost status` and `litepost check` raise an alarm
        /// beyond it. Nothing is ever deleted for it, and delivery goes on.
        #[default = "\"never\""]
        #[scope = Delivery]
        max_dead: Limit,
        /// Where a destination begins that has not been seen before: `earliest`, `now`, or a time.
        #[default = "\"earliest\""]
        #[scope = Delivery]
        start: Start,
        /// How long a relay that has died keeps its lanes before another takes them over.
        #[default = "\"15s\""]
        #[scope = Delivery]
        lease: Time<1_000>,
        /// How long one delivery may take before the destination counts as unavailable.
        #[default = "\"30s\""]
        #[scope = Delivery]
        timeout: Time<1>,
        /// How long an event may wait for the destination before `/ready` says no.
        #[default = "`admin.freshness`, or `--freshness`: \"5m\""]
        #[scope = Delivery]
        freshness: Time<1>,
        /// sqloutbox's pace: seconds between two looks at the outbox. Without it a commit is delivered at once.
        #[default = "none: deliver at once"]
        #[scope = Delivery]
        flush_interval: Time<0>,
        /// Events of a topic that end the wait of `table_max_wait` early.
        #[default = "none: deliver at once; 15 when `table_max_wait` is given"]
        #[scope = Delivery]
        table_flush_threshold: Count<1, 1_000_000_000>,
        /// The longest an event waits for others to share its delivery.
        #[default = "none: deliver at once; 6 s when `table_flush_threshold` is given"]
        #[scope = Delivery]
        table_max_wait: Time<0>,
        /// Most undelivered events in an outbox file. Beyond it an INSERT fails in the producer's own transaction
        /// with an error that says so.
        #[default = "\"never\""]
        #[scope = File]
        max_pending: Limit,
        /// Whether what was read is made durable before it is delivered, so that nothing is ever published that a
        /// power cut could undo.
        #[default = "true"]
        #[scope = File]
        durable_reads: bool,
        /// How long delivered events stay in the log.
        #[default = "\"0s\""]
        #[scope = File]
        retain: TimeOrNever,
        /// How many delivered events stay in the log, whatever their age.
        #[default = "0"]
        #[scope = File]
        retain_rows: Count<0, { i64::MAX }>,
        /// How many days receipts of deliveries are kept: which range of events, how many, when, and a digest that
        /// `litepost verify` compares with the log. 0: none are written.
        #[default = "30"]
        #[scope = File]
        retain_log_days: Count<0, 36_500>,
        /// sqloutbox's word for how many cycles lie between two prunings; here delivered events are pruned, in small
        /// batches, when this many have been settled since the last time, every two seconds while events are settled,
        /// and every ten seconds otherwise.
        #[default = "500"]
        #[scope = File]
        cleanup_every: Count<1, 1_000_000_000>,
        /// How a SQL target recognises what it has applied: `ledger` (a row in the same remote transaction; any
        /// SQL, exactly once), `outbox_seq` (the ledger, and each inserted row carries its event's number: sqloutbox's
        /// column, see outbox-seq.md), `none` (sent as it is, at least once).
        #[default = "\"ledger\""]
        #[scope = Statements]
        dedupe: Dedupe,
        /// Whether the relay may create what a SQL target needs (the ledger table, the `outbox_seq` column). It
        /// never drops anything.
        #[default = "true"]
        #[scope = Statements]
        auto_schema: bool,
        /// sqloutbox's way to say `dedupe`: true is `outbox_seq`, false sends the SQL as it is (with the ledger beside
        /// it), a list names the tables that carry the column. MySQL has no `outbox_seq`: there a ledger is kept instead,
        /// and a warning says so.
        #[default = "not given: `dedupe` decides"]
        #[scope = Statements]
        inject_outbox_seq: InjectOutboxSeq,
    }
}

keys! {
    /// The keys of a `retry` table; each is inherited on its own, the nearest wins.
    pub struct RetryKeys / RetryOptions {
        /// The longest wait before the second attempt. Waits are drawn evenly between zero and the cap.
        #[default = "\"5s\""]
        #[scope = Delivery]
        first: Time<1>,
        /// What the wait grows by from attempt to attempt.
        #[default = "2"]
        #[scope = Delivery]
        factor: Factor,
        /// What the wait never grows beyond.
        #[default = "\"10m\""]
        #[scope = Delivery]
        cap: Time<1>,
        /// Attempts before a rejected event becomes a dead letter.
        #[default = "10"]
        #[scope = Delivery]
        max_attempts: Limit,
        /// Time since its first rejection after which an event becomes a dead letter, whatever its attempts.
        #[default = "\"never\""]
        #[scope = Delivery]
        max_age: TimeOrNever,
    }
}
