# A producer in Python, with nothing but the standard library. Run `litepost migrate --database shop.db` first.

import json, sqlite3

shop = sqlite3.connect("shop.db")
shop.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, total INTEGER NOT NULL)")

with shop:  # one transaction: the order and its event, or neither
    shop.execute("INSERT INTO orders (id, total) VALUES (?, ?)", (501, 4999))
    shop.execute(
        "INSERT INTO litepost_outbox (topic, key, type, payload) VALUES (?, ?, ?, ?)",
        ("orders", "501", "OrderCreated", json.dumps({"id": 501, "total": 4999})),
    )
shop.close()
