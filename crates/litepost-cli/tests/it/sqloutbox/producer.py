"""An application on sqloutbox: `python producer.py FOLDER COUNT` pushes rows through its middleware, a few hundred a second."""

import sys
import time
from pathlib import Path

from sqloutbox import OutboxConfig, SQLMiddleware


class Orders(SQLMiddleware):
    def __init__(self, folder):
        self._config = OutboxConfig(db_dir=folder)


orders = Orders(Path(sys.argv[1]))
for n in range(1, int(sys.argv[2]) + 1):
    if n % 10 == 0:
        orders._push_many("orders", [("INSERT INTO orders (n) VALUES (?)", [n])])
    else:
        orders._push("orders", "INSERT INTO orders (n) VALUES (?)", [n])
    time.sleep(0.002)
