CREATE TABLE IF NOT EXISTS litepost_ledger (
  origin text NOT NULL, epoch bigint NOT NULL, destination text NOT NULL, generation bigint NOT NULL,
  lane bigint NOT NULL, lanes bigint NOT NULL, seq bigint NOT NULL, token bigint NOT NULL, last_hash text NOT NULL, updated_at bigint NOT NULL,
  PRIMARY KEY (origin, epoch, destination, generation, lane)
);
CREATE TABLE IF NOT EXISTS litepost_ledger_event (
  origin text NOT NULL, epoch bigint NOT NULL, destination text NOT NULL, generation bigint NOT NULL,
  lane bigint NOT NULL, seq bigint NOT NULL, hash text NOT NULL, applied_at bigint NOT NULL,
  PRIMARY KEY (origin, epoch, destination, generation, lane, seq)
);
