//! The post office for SQLite: write events in the transaction that writes your rows.
