//! The application of the demo, in a process of its own: orders and their events in one transaction, some rolled back.
//!
//! Started by `demo`. Invariant: it notes nowhere else what it has committed; the orders table is the truth that the
//! check compares deliveries with.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use litepost::NewEvent;
use litepost::connection::{self, Access};
use litepost_core::Value;
use rusqlite::TransactionBehavior;

use crate::failure::Failure;

/// The application of the demo.
#[derive(Debug, Args)]
pub(crate) struct DemoApp {
    /// Its database
    database: PathBuf,
    /// How many orders to attempt
    orders: u32,
    /// Orders per second; 0 for as fast as it goes
    rate: u32,
}

/// Every so many orders is rolled back.
pub(crate) const ROLLED_BACK_EVERY: u32 = 7;
/// Orders are for so many customers: the ordering keys.
pub(crate) const CUSTOMERS: u32 = 20;

/// Writes the orders.
pub(crate) fn run(command: &DemoApp) -> Result<(), Failure> {
    let mut connection = connection::open(&command.database, Access::ReadWrite)?;
    connection.execute_batch(
        "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, customer TEXT NOT NULL, total INTEGER NOT NULL) STRICT",
    )?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    for id in 1..=command.orders {
        let customer = format!("customer-{}", id % CUSTOMERS);
        let total = i64::from(id) * 17 % 10_000;
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        tx.execute("INSERT INTO orders (id, customer, total) VALUES (?1, ?2, ?3)", (id, &customer, total))?;
        let payload = serde_json::json!({ "order": id, "total": total });
        litepost::enqueue(&tx, &NewEvent::new("orders", payload).key(&customer).kind("OrderCreated"))?;
        let copy = NewEvent::statement(
            "order_copies",
            "INSERT INTO order_copies (id, customer, total) VALUES (?, ?, ?)",
            [Value::Integer(i64::from(id)), Value::Text(customer.clone()), Value::Integer(total)],
        );
        litepost::enqueue(&tx, &copy.key(&customer))?;
        if id % ROLLED_BACK_EVERY == 0 {
            tx.rollback()?;
        } else {
            tx.commit()?;
        }
        if let Some(pause) = 1_000_000_u32.checked_div(command.rate) {
            std::thread::sleep(Duration::from_micros(u64::from(pause)));
        }
    }
    Ok(())
}
