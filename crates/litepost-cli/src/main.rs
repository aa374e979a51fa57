//! The litepost command.
fn main() {}
