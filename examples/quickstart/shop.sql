-- A producer in plain SQL. Run `litepost migrate --database shop.db` first.

CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, total INTEGER NOT NULL);

BEGIN IMMEDIATE;
INSERT INTO orders (id, total) VALUES (501, 4999);
INSERT INTO litepost_outbox (topic, key, type, payload)
VALUES ('orders', '501', 'OrderCreated', json_object('id', 501, 'total', 4999));
COMMIT;
