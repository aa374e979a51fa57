-- The outbox in the words of the status-column pattern, for its monitoring queries. One row per event.
--   pending     some destination has it neither confirmed nor given up; NextAttemptAt lies ahead while its key is blocked
--   failed      a dead letter of some destination that was not replayed
--   published   every destination is done with it
-- 'publishing' does not occur: what is in flight stands in the relay's memory, and the lease is the lane's.
CREATE VIEW OutboxEvents AS
WITH event AS (
  SELECT seq, id, topic, key, version, type, payload, created_at, deliver_after,
    (SELECT count(*) FROM litepost_cursor) = 0 OR EXISTS (
      SELECT 1 FROM litepost_cursor c WHERE c.acked < o.seq AND NOT EXISTS (
        SELECT 1 FROM json_each('["' || replace(c.acked_above, ',', '","') || '"]') r
        WHERE c.acked_above <> '' AND o.seq BETWEEN CAST(substr(r.value, 1, instr(r.value, '-') - 1) AS INTEGER)
          AND CAST(substr(r.value, instr(r.value, '-') + 1) AS INTEGER))) AS unread,
    (SELECT min(b.next_attempt) FROM (
      SELECT b.next_attempt FROM litepost_blocked b
      WHERE b.first_seq <= o.seq AND CASE b.line_kind
        WHEN 'event' THEN b.line = CAST(o.seq AS TEXT)
        WHEN 'key' THEN b.line = o.key AND o.deliver_after IS NULL
        ELSE b.line = o.topic AND o.deliver_after IS NULL END) b) AS blocked_until,
    (SELECT max(b.attempts) FROM litepost_blocked b WHERE b.first_seq = o.seq) AS attempts,
    (SELECT b.error FROM litepost_blocked b WHERE b.first_seq = o.seq LIMIT 1) AS error,
    (SELECT max(d.dead_id) FROM litepost_cursor c CROSS JOIN litepost_dead d
      ON d.destination = c.destination AND d.seq = o.seq AND d.id = o.id AND d.replayed_at IS NULL) AS dead_id,
    (SELECT max(r.last_at) FROM litepost_cursor c CROSS JOIN litepost_receipt r
      ON r.destination = c.destination AND r.lane = c.lane AND r.first_seq <= o.seq AND r.last_seq >= o.seq) AS settled_at
  FROM litepost_outbox o
)
SELECT id AS EventID, topic AS AggregateType, key AS AggregateID, version AS AggregateVersion, type AS EventType,
  payload AS Payload,
  CASE WHEN unread OR blocked_until IS NOT NULL THEN 'pending' WHEN dead_id IS NOT NULL THEN 'failed'
    ELSE 'published' END AS Status,
  created_at AS CreatedAt,
  coalesce(blocked_until, deliver_after, created_at) AS NextAttemptAt,
  coalesce(attempts, (SELECT d.attempts FROM litepost_dead d WHERE d.dead_id = event.dead_id), 0) AS AttemptCount,
  NULL AS MaxAttempts, NULL AS LeaseOwner, NULL AS LeaseToken, NULL AS LeaseExpiresAt,
  CASE WHEN NOT unread AND blocked_until IS NULL AND dead_id IS NULL THEN settled_at END AS PublishedAt,
  coalesce(error, (SELECT d.error FROM litepost_dead d WHERE d.dead_id = event.dead_id)) AS LastError
FROM event
UNION ALL
-- Dead letters outlive their place in the log.
SELECT d.id, d.topic, d.key, d.version, d.type, d.payload, 'failed', d.created_at, d.dead_at, d.attempts,
  NULL, NULL, NULL, NULL, NULL, d.error
FROM litepost_dead d
WHERE d.replayed_at IS NULL AND d.seq < (SELECT coalesce(min(seq), 9223372036854775807) FROM litepost_outbox)
  AND d.dead_id = (SELECT max(e.dead_id) FROM litepost_dead e
    WHERE e.destination = d.destination AND e.seq = d.seq AND e.replayed_at IS NULL);
