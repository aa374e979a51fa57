#!/bin/sh
# The SQL contract from the sqlite3 shell: insert, defaults, guards, errors. Usage: contract.sh FILE (migrated).
set -eu
file=$1

refused() {
  message=$1
  if told=$(sqlite3 -bail "$file" "$2" 2>&1); then
    echo "accepted: $2" >&2
    exit 1
  fi
  case $told in
    *"$message"*) ;;
    *) echo "$2: $told" >&2; exit 1 ;;
  esac
}

sqlite3 -bail "$file" "
  CREATE TABLE shop_orders (id INTEGER PRIMARY KEY, total INTEGER);
  BEGIN IMMEDIATE;
  INSERT INTO shop_orders VALUES (501, 4999);
  INSERT INTO litepost_outbox (topic, key, type, payload)
    VALUES ('orders', '501', 'OrderCreated', json_object('total', 4999));
  COMMIT;
  BEGIN IMMEDIATE;
  INSERT INTO litepost_outbox (topic, payload) VALUES ('orders', 'rolled back');
  ROLLBACK;
  INSERT INTO litepost_outbox (topic, payload) VALUES ('orders', x'00ff');"
refused "litepost: topic must be a text that is not empty and has no NUL character" \
  "INSERT OR IGNORE INTO litepost_outbox (topic, payload) VALUES ('', '{}')"
refused "litepost: payload must be TEXT or BLOB; serialise the value before the INSERT" \
  "INSERT INTO litepost_outbox (topic, payload) VALUES ('orders', 5)"
refused "litepost: seq is assigned by the log; leave it out of the INSERT" \
  "INSERT OR REPLACE INTO litepost_outbox (seq, topic, payload) VALUES (1, 'a', 'b')"
refused "litepost: events are immutable; write a new event instead" \
  "UPDATE litepost_outbox SET topic = 'x' WHERE seq = 1"
refused "litepost: this event is not delivered yet and cannot be deleted" \
  "DELETE FROM litepost_outbox WHERE seq = 1"
next="INSERT INTO litepost_outbox (topic, key, payload, version) VALUES ('orders', '501', 'paid',
  (SELECT coalesce(max(version), 0) + 1 FROM litepost_version WHERE topic = 'orders' AND key = '501'))"
sqlite3 -bail "$file" "BEGIN; $next; ROLLBACK; $next; $next"
refused "litepost: this key has this version already, or a later one; read the aggregate again and retry" \
  "INSERT OR REPLACE INTO litepost_outbox (topic, key, payload, version) VALUES ('orders', '501', 'paid', 2)"
test "$(sqlite3 "$file" "SELECT group_concat(version) FROM litepost_outbox")" = "1,2"
test "$(sqlite3 "$file" "SELECT group_concat(seq || ' ' || typeof(payload)) FROM litepost_outbox")" = "1 text,2 blob,3 text,4 text"
echo "the contract holds in the shell, SQLite $(sqlite3 --version)"
