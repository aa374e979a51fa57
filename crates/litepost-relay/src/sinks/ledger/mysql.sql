CREATE TABLE IF NOT EXISTS litepost_ledger (
  origin varchar(64) NOT NULL, epoch bigint NOT NULL, destination varchar(255) NOT NULL, generation bigint NOT NULL,
  lane bigint NOT NULL, lanes bigint NOT NULL, seq bigint NOT NULL, token bigint NOT NULL, last_hash varchar(64) NOT NULL, updated_at bigint NOT NULL,
  PRIMARY KEY (origin, epoch, destination, generation, lane)
) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
CREATE TABLE IF NOT EXISTS litepost_ledger_event (
  origin varchar(64) NOT NULL, epoch bigint NOT NULL, destination varchar(255) NOT NULL, generation bigint NOT NULL,
  lane bigint NOT NULL, seq bigint NOT NULL, hash varchar(64) NOT NULL, applied_at bigint NOT NULL,
  PRIMARY KEY (origin, epoch, destination, generation, lane, seq)
) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
