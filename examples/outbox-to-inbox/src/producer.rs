//! Takes orders: each with its event, in one SQLite transaction.
//!
//! Started by `main`, killed at any moment. Invariant: an order without its event, or an event without its order,
//! cannot be.

use std::path::Path;
use std::time::Duration;

use litepost::{NewEvent, enqueue};
use rusqlite::{Connection, TransactionBehavior};

/// Takes orders up to number `last`, from where the one before was killed.
pub(crate) fn run(shop: &Path, last: i64) -> anyhow::Result<()> {
    let mut shop = Connection::open(shop)?;
    shop.busy_timeout(Duration::from_secs(10))?;
    loop {
        let tx = shop.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let id: i64 = tx.query_row("SELECT coalesce(max(id), 0) + 1 FROM orders", [], |row| row.get(0))?;
        if id > last {
            return Ok(());
        }
        tx.execute("INSERT INTO orders (id, total) VALUES (?1, ?2)", (id, id * 100))?;
        let event = NewEvent::new("orders", id.to_string()).key(format!("customer-{}", id % 10)).kind("OrderTaken");
        enqueue(&tx, &event)?;
        tx.commit()?;
        std::thread::sleep(Duration::from_millis(2));
    }
}
