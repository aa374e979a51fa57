-- The article's outbox as written: a status column, and the indexes its claim and cleaning queries want.
CREATE TABLE OutboxEvents (
  EventID TEXT PRIMARY KEY,
  AggregateType TEXT NOT NULL,
  AggregateID TEXT NOT NULL,
  EventType TEXT NOT NULL,
  Payload TEXT NOT NULL CHECK (json_valid(Payload)),
  Status TEXT NOT NULL DEFAULT 'pending' CHECK (Status IN ('pending', 'publishing', 'published', 'failed')),
  CreatedAt INTEGER NOT NULL,
  NextAttemptAt INTEGER NOT NULL,
  AttemptCount INTEGER NOT NULL DEFAULT 0,
  MaxAttempts INTEGER NOT NULL DEFAULT 10,
  LeaseOwner TEXT,
  LeaseToken TEXT,
  LeaseExpiresAt INTEGER,
  PublishedAt INTEGER,
  LastError TEXT
);
CREATE INDEX idx_outbox_pending ON OutboxEvents (NextAttemptAt, CreatedAt, EventID) WHERE Status = 'pending';
CREATE INDEX idx_outbox_expired_leases ON OutboxEvents (LeaseExpiresAt) WHERE Status = 'publishing';
CREATE INDEX idx_outbox_published ON OutboxEvents (PublishedAt) WHERE Status = 'published';
