CREATE TABLE IF NOT EXISTS litepost_ledger (
  origin TEXT NOT NULL, epoch INTEGER NOT NULL, destination TEXT NOT NULL, generation INTEGER NOT NULL,
  lane INTEGER NOT NULL, lanes INTEGER NOT NULL, seq INTEGER NOT NULL, token INTEGER NOT NULL, last_hash TEXT NOT NULL, updated_at INTEGER NOT NULL,
  PRIMARY KEY (origin, epoch, destination, generation, lane)
);
CREATE TABLE IF NOT EXISTS litepost_ledger_event (
  origin TEXT NOT NULL, epoch INTEGER NOT NULL, destination TEXT NOT NULL, generation INTEGER NOT NULL,
  lane INTEGER NOT NULL, seq INTEGER NOT NULL, hash TEXT NOT NULL, applied_at INTEGER NOT NULL,
  PRIMARY KEY (origin, epoch, destination, generation, lane, seq)
);
