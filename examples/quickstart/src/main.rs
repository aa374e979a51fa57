//! A producer in Rust: an order and its event in one transaction.

use litepost::{NewEvent, enqueue, schema};
use rusqlite::{Connection, TransactionBehavior};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut shop = Connection::open("shop.db")?;
    schema::migrate(&mut shop)?;
    shop.execute_batch("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, total INTEGER NOT NULL)")?;

    // One transaction: the order and its event, or neither.
    let tx = shop.transaction_with_behavior(TransactionBehavior::Immediate)?;
    tx.execute("INSERT INTO orders (id, total) VALUES (?1, ?2)", (501, 4999))?;
    let event = NewEvent::new("orders", r#"{"id":501,"total":4999}"#).key("501").kind("OrderCreated");
    enqueue(&tx, &event)?;
    tx.commit()?;
    Ok(())
}
