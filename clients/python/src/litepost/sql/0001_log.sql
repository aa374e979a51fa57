-- Migration 1: the log, its guards, and the state of delivery.
--
-- The log is an API: any program that can INSERT into SQLite 3.37 or later is a producer. So every rule that
-- protects it lives here, in the database, and holds whatever program writes to it.

CREATE TABLE litepost_outbox (
  -- Position: max + 1 at insert. No AUTOINCREMENT: it costs a page per event and leaves gaps. Gapless and never
  -- reused as long as the newest row stays, which the delete guard sees to.
  -- What no producer may give is refused by the guards below; -1 looks to them like none at all, so it is refused
  -- here. By an error of a function and not by a plain CHECK, which INSERT OR IGNORE steps over in silence; and not by
  -- an AFTER trigger, which costs every INSERT a tenth of its time.
  seq           INTEGER PRIMARY KEY CHECK (seq > 0 OR json_extract('{}',
                  printf('litepost: seq is assigned by the log; leave it out of the INSERT (%d)', seq))),
  -- UUID version 7 (RFC 9562) in its text form, made here unless the producer brings its own id. julianday() and
  -- not unixepoch('subsec'), which needs 3.42.
  id            TEXT NOT NULL DEFAULT (printf('%08x-%04x-7%03x-%04x-%012x',
                  (CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER) >> 16) & 0xffffffff,
                  CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER) & 0xffff,
                  random() & 0xfff,
                  0x8000 | (random() & 0x3fff),
                  random() & 0xffffffffffff)),
  topic         TEXT NOT NULL,
  key           TEXT,
  type          TEXT NOT NULL DEFAULT '',
  payload       ANY NOT NULL,
  headers       TEXT,
  version       INTEGER,
  dedup_key     TEXT,
  source        TEXT,
  -- Milliseconds since the Unix epoch, UTC, like every time in these tables.
  created_at    INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER)),
  deliver_after INTEGER,
  expires_at    INTEGER,
  -- A replayed dead letter is for the one destination that did not get it: app.name. All others pass it by.
  only_for      TEXT
) STRICT;

-- Only rows that use the column pay for it. Deliberately not UNIQUE: INSERT OR REPLACE would delete the older row
-- without firing the delete guard. The guard below enforces it.
CREATE INDEX litepost_outbox_dedup ON litepost_outbox (topic, dedup_key, created_at) WHERE dedup_key IS NOT NULL;

-- How far the versions of each key are: what a version is checked against, and what the next one is counted from. A table
-- and no index of the log, since it outlives the events: a version is taken once, whether its event is pruned or not.
-- Written by the guard of INSERT, in the producer's transaction; keys without versions have no row and pay nothing.
CREATE TABLE litepost_version (
  topic   TEXT NOT NULL,
  key     TEXT NOT NULL,
  version INTEGER NOT NULL,
  PRIMARY KEY (topic, key)
) STRICT, WITHOUT ROWID;

-- Settings of this file; one row per setting.
CREATE TABLE litepost_meta (
  name  TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Who this file is. `origin` is made once; `epoch` grows when a restored or copied file is adopted; `incarnation` is
-- made anew then. The first relay adds `file_mark`: which file on the disk this is, so that a copy is recognised.
INSERT INTO litepost_meta (name, value) VALUES
  ('origin', lower(hex(randomblob(16)))),
  ('epoch', '1'),
  ('incarnation', lower(hex(randomblob(8)))),
  ('dedup_window_ms', '86400000');

-- One row per destination and lane: how far delivery is, and who may move it.
CREATE TABLE litepost_cursor (
  destination TEXT NOT NULL,                   -- app.name
  lane        INTEGER NOT NULL,
  lanes       INTEGER NOT NULL,                -- how many lanes the destination has
  start_after INTEGER NOT NULL,                -- delivery began behind this position
  acked       INTEGER NOT NULL,                -- everything up to here is settled, or stands in a blocked line
  acked_above TEXT NOT NULL DEFAULT '',        -- settled ranges above `acked`: '12-15,17-17'
  delivered   INTEGER NOT NULL DEFAULT 0,
  dead        INTEGER NOT NULL DEFAULT 0,
  expired     INTEGER NOT NULL DEFAULT 0,
  skipped     INTEGER NOT NULL DEFAULT 0,
  unrouted    INTEGER NOT NULL DEFAULT 0,      -- other topics, other lanes, holes that an operator accepted
  -- What the books are balanced by: (acked - start_after) + ranges above + adjusted = counters + waiting, and
  -- dead + expired + skipped = dead letters that are there + purged. Moved by rewinding and changing lanes; by purging
  -- dead letters and putting them back into their line.
  adjusted    INTEGER NOT NULL DEFAULT 0,
  purged      INTEGER NOT NULL DEFAULT 0,
  updated_at  INTEGER NOT NULL,
  -- The lease. `token` grows by one at each takeover; every write names the token it was granted. `beat` grows
  -- with each renewal: a lease is dead when an observer has seen no beat for `lease_ms` of its own clock.
  owner       TEXT,                            -- random identity of the relay process
  holder      TEXT,                            -- where it runs: JSON with host, pid, boot
  token       INTEGER NOT NULL DEFAULT 0,
  beat        INTEGER NOT NULL DEFAULT 0,
  lease_ms    INTEGER NOT NULL DEFAULT 0,
  renewed_at  INTEGER,                         -- for people; never compared with a clock
  -- Whether the destination keeps a ledger of its own; by which order its events were assigned to lanes (strict, key,
  -- none), and which topics have the last lane for themselves ('' or a JSON array of patterns); and which split into
  -- lanes this is: the ledger's rows are by generation and lane.
  ledger      INTEGER NOT NULL DEFAULT 0,
  ordering    TEXT NOT NULL DEFAULT 'key',
  priority    TEXT NOT NULL DEFAULT '',
  generation  INTEGER NOT NULL DEFAULT 0,
  -- The highest position that a destination which keeps positions itself has confirmed in order: one that remembers
  -- less has lost data.
  reached     INTEGER NOT NULL DEFAULT 0,
  -- What the destination looks like from the relay: closed, open, half_open, stalled; and why.
  state       TEXT NOT NULL DEFAULT 'closed',
  state_error TEXT,
  state_since INTEGER,
  PRIMARY KEY (destination, lane)
) STRICT, WITHOUT ROWID;

-- One row per line that waits behind a failed event. Every routed event of the line from `first_seq` on that is
-- not above the cursor is unsettled; every other event up to the cursor is settled.
CREATE TABLE litepost_blocked (
  destination  TEXT NOT NULL,
  lane         INTEGER NOT NULL,
  line_kind    TEXT NOT NULL,                  -- key, topic, event
  line         TEXT NOT NULL,
  first_seq    INTEGER NOT NULL,
  waiting      INTEGER NOT NULL,               -- events in the line, the first included
  state        TEXT NOT NULL,                  -- backoff, releasing, scheduled, held
  attempts     INTEGER NOT NULL,
  error_code   TEXT,
  error        TEXT,
  blocked_at   INTEGER NOT NULL,
  next_attempt INTEGER NOT NULL,
  PRIMARY KEY (destination, lane, line_kind, line)
) STRICT, WITHOUT ROWID;
-- The delete guard asks for the lowest position that is blocked, once per row deleted.
CREATE INDEX litepost_blocked_by_first ON litepost_blocked (first_seq);

-- Events that could not be delivered, whole, for as long as an operator wants them.
CREATE TABLE litepost_dead (
  dead_id       INTEGER PRIMARY KEY,
  destination   TEXT NOT NULL,
  lane          INTEGER NOT NULL,
  reason        TEXT NOT NULL,                 -- max_attempts, max_age, permanent, expired, malformed, skipped
  attempts      INTEGER NOT NULL,
  error_code    TEXT,
  error         TEXT,
  dead_at       INTEGER NOT NULL,
  replayed_at   INTEGER,
  replayed_as   INTEGER,                       -- seq of the replay; the same seq when put back into its line
  discarded_at  INTEGER,
  seq           INTEGER NOT NULL,
  id            TEXT NOT NULL,
  topic         TEXT NOT NULL,
  key           TEXT,
  type          TEXT NOT NULL,
  payload       ANY NOT NULL,
  headers       TEXT,
  version       INTEGER,
  dedup_key     TEXT,
  source        TEXT,
  created_at    INTEGER NOT NULL,
  deliver_after INTEGER,
  expires_at    INTEGER
) STRICT;
CREATE INDEX litepost_dead_by_destination ON litepost_dead (destination, seq);

-- Receipts: what was delivered when, in ranges of positions, and what the log held there. A range grows in place until
-- it is full, so a receipt costs the same whatever its size.
CREATE TABLE litepost_receipt (
  destination     TEXT NOT NULL,
  lane            INTEGER NOT NULL,
  first_seq       INTEGER NOT NULL,
  last_seq        INTEGER NOT NULL,
  events          INTEGER NOT NULL,            -- rows of the log in the range
  delivered       INTEGER NOT NULL,            -- confirmed while the range grew
  delivered_total INTEGER NOT NULL,            -- confirmed since the beginning
  digest          TEXT NOT NULL,               -- sum of the rows' hashes, 128 bits in hex
  first_at        INTEGER NOT NULL,
  last_at         INTEGER NOT NULL,            -- everything in the range was settled or blocked by then
  PRIMARY KEY (destination, lane, first_seq)
) STRICT, WITHOUT ROWID;

-- Receipts that sqloutbox had written in its sync log, when a file of its is taken over: what was delivered when, in ranges of
-- its own numbers, which are given once in a file. Without a digest, since the events were gone when the receipts came; and
-- without a lane. A range has no holes: every number in it was delivered.
CREATE TABLE litepost_receipt_imported (
  first_seq   INTEGER PRIMARY KEY,
  last_seq    INTEGER NOT NULL,
  namespace   TEXT NOT NULL,
  destination TEXT NOT NULL,                   -- that takes the namespace now; empty when that is not exactly one
  events      INTEGER NOT NULL,
  first_at    INTEGER NOT NULL,
  last_at     INTEGER NOT NULL
) STRICT;

-- The same books by topic: what was delivered and what became a dead letter of each (dead, expired and skipped
-- together), what of that is purged, and how much of the log was looked at again after a rewind. The empty topic stands for
-- what an operator has taken for delivered as a whole.
CREATE TABLE litepost_tally (
  destination TEXT NOT NULL,
  topic       TEXT NOT NULL,
  delivered   INTEGER NOT NULL DEFAULT 0,
  buried      INTEGER NOT NULL DEFAULT 0,
  purged      INTEGER NOT NULL DEFAULT 0,
  again       INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (destination, topic)
) STRICT, WITHOUT ROWID;

-- How many events of each topic have left the log by pruning.
CREATE TABLE litepost_pruned (
  topic  TEXT PRIMARY KEY,
  events INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Who did what to delivery, and why.
CREATE TABLE litepost_audit (
  audit_id    INTEGER PRIMARY KEY,
  at          INTEGER NOT NULL,
  actor       TEXT NOT NULL,
  action      TEXT NOT NULL,
  destination TEXT,
  reason      TEXT,
  detail      TEXT NOT NULL                    -- JSON
) STRICT;

-- Lanes an operator asks for, or a relay that has fewer than another (then `nonce` is its owner): a relay that sees its lane here settles what is in flight and gives the lane back, and
-- takes it up again when the row is gone. A row is dead when an observer has seen it for `patience_ms` of its own clock.
CREATE TABLE litepost_wanted (
  destination TEXT NOT NULL,
  lane        INTEGER NOT NULL,
  nonce       TEXT NOT NULL,
  holder      TEXT NOT NULL,                   -- where the operator's process runs: JSON with host, pid, boot
  patience_ms INTEGER NOT NULL,
  PRIMARY KEY (destination, lane)
) STRICT, WITHOUT ROWID;

-- How a destination with a ledger was split into lanes before: what it has applied under those, and this file does not
-- know as settled, only its ledger can tell. After a rewind it does not count any more, and is to be applied again.
CREATE TABLE litepost_split (
  destination TEXT NOT NULL,
  generation  INTEGER NOT NULL,
  lanes       INTEGER NOT NULL,
  ordering    TEXT NOT NULL,
  priority    TEXT NOT NULL DEFAULT '',
  counts      INTEGER NOT NULL,                -- 1, or 0 after a rewind
  ended_at    INTEGER NOT NULL,
  newest      INTEGER NOT NULL,                -- where the log ended then
  PRIMARY KEY (destination, generation)
) STRICT, WITHOUT ROWID;

-- Events an operator takes out of their line: settled as skipped, with a copy among the dead letters, when they are
-- next. The row goes then.
CREATE TABLE litepost_skip (
  destination TEXT NOT NULL,
  seq         INTEGER NOT NULL,
  PRIMARY KEY (destination, seq)
) STRICT, WITHOUT ROWID;

-- What waits until an operator resumes it.
CREATE TABLE litepost_pause (
  destination TEXT NOT NULL,
  kind        TEXT NOT NULL,                   -- destination, topic, key
  name        TEXT NOT NULL,                   -- empty for a destination
  paused_at   INTEGER NOT NULL,
  actor       TEXT NOT NULL,
  reason      TEXT,
  PRIMARY KEY (destination, kind, name)
) STRICT, WITHOUT ROWID;

-- Losses an operator has accepted: positions that are missing from the log, and that delivery goes on behind.
CREATE TABLE litepost_hole (
  first_seq   INTEGER PRIMARY KEY,
  last_seq    INTEGER NOT NULL,
  accepted_at INTEGER NOT NULL,
  actor       TEXT NOT NULL,
  reason      TEXT
) STRICT;

-- The guard of INSERT. Written as a trigger and not as CHECK and NOT NULL, since INSERT OR IGNORE steps over those
-- in silence, and an event must never be dropped in silence. (-1 is what SQLite puts into NEW.seq when the producer
-- gives none.) A trigger and not UNIQUE for the reason given at the indexes. WHEN is what every INSERT pays, so it is
-- written in the fewest steps: NULL and numbers sort before every text, so `>= ''` holds for TEXT and BLOB alone.
CREATE TRIGGER litepost_outbox_insert BEFORE INSERT ON litepost_outbox
WHEN NEW.seq <> -1
  OR (NEW.topic > '') IS NOT TRUE OR instr(NEW.topic, char(0)) > 0
  OR (NEW.payload >= '') IS NOT TRUE OR (NEW.id > '') IS NOT TRUE OR NEW.type IS NULL OR NEW.created_at IS NULL
  OR NEW.headers IS NOT NULL OR NEW.version IS NOT NULL OR NEW.dedup_key IS NOT NULL
BEGIN
  SELECT CASE
    WHEN NEW.seq <> -1
      THEN RAISE(ABORT, 'litepost: seq is assigned by the log; leave it out of the INSERT')
    WHEN NEW.topic IS NULL OR NEW.topic = '' OR instr(NEW.topic, char(0)) > 0
      THEN RAISE(ABORT, 'litepost: topic must be a text that is not empty and has no NUL character')
    WHEN NEW.payload IS NULL OR typeof(NEW.payload) NOT IN ('text', 'blob')
      THEN RAISE(ABORT, 'litepost: payload must be TEXT or BLOB; serialise the value before the INSERT')
    WHEN NEW.id IS NULL OR NEW.id = ''
      THEN RAISE(ABORT, 'litepost: id must not be NULL or empty; leave it out to have one made')
    WHEN NEW.type IS NULL
      THEN RAISE(ABORT, 'litepost: type must not be NULL; leave it out for the empty type')
    WHEN NEW.created_at IS NULL
      THEN RAISE(ABORT, 'litepost: created_at must not be NULL; leave it out for the current time')
    WHEN NEW.headers IS NOT NULL AND CASE WHEN json_valid(NEW.headers) THEN json_type(NEW.headers) <> 'object' ELSE 1 END
      THEN RAISE(ABORT, 'litepost: headers must be a JSON object')
    -- One below the largest integer, so that the next one is refused here and not by its type.
    WHEN NEW.version IS NOT NULL AND (NEW.key IS NULL OR NEW.version NOT BETWEEN 1 AND 9223372036854775806)
      THEN RAISE(ABORT, 'litepost: a version needs a key, starts at 1 and ends at 9223372036854775806')
    -- A duplicate adds nothing, raises nothing, leaves no gap. Before the version, which a duplicate may have as well.
    WHEN NEW.dedup_key IS NOT NULL AND EXISTS (SELECT 1 FROM litepost_outbox
           WHERE topic = NEW.topic AND dedup_key = NEW.dedup_key AND dedup_key IS NOT NULL
             AND created_at > NEW.created_at - (SELECT CAST(value AS INTEGER) FROM litepost_meta WHERE name = 'dedup_window_ms'))
      THEN RAISE(IGNORE)
    -- A replay is the same version of the same event again.
    WHEN NEW.version IS NOT NULL AND NEW.only_for IS NULL AND EXISTS (SELECT 1 FROM litepost_version
           WHERE topic = NEW.topic AND key = NEW.key AND version >= NEW.version)
      THEN RAISE(ABORT, 'litepost: this key has this version already, or a later one; read the aggregate again and retry')
  END;
  INSERT INTO litepost_version (topic, key, version)
    SELECT NEW.topic, NEW.key, NEW.version WHERE NEW.version IS NOT NULL
    ON CONFLICT (topic, key) DO UPDATE SET version = max(version, excluded.version);
END;

CREATE TRIGGER litepost_outbox_update BEFORE UPDATE ON litepost_outbox
BEGIN
  SELECT RAISE(ABORT, 'litepost: events are immutable; write a new event instead');
END;

-- Only from the oldest end, only what every destination has settled, never the newest row.
CREATE TRIGGER litepost_outbox_delete BEFORE DELETE ON litepost_outbox
BEGIN
  SELECT CASE
    WHEN OLD.seq > coalesce((SELECT min(acked) FROM litepost_cursor), 0)
      THEN RAISE(ABORT, 'litepost: this event is not delivered yet and cannot be deleted')
    WHEN EXISTS (SELECT 1 FROM litepost_blocked WHERE first_seq <= OLD.seq)
      THEN RAISE(ABORT, 'litepost: this event may wait behind a blocked one and cannot be deleted')
    WHEN OLD.seq = (SELECT max(seq) FROM litepost_outbox)
      THEN RAISE(ABORT, 'litepost: the newest event is kept so that its seq is never used again')
    WHEN OLD.seq <> (SELECT min(seq) FROM litepost_outbox)
      THEN RAISE(ABORT, 'litepost: events are deleted from the oldest on, so that the log has no holes')
  END;
END;
