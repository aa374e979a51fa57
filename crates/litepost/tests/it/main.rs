//! Tests of the store on real SQLite files. One binary; each module is a promise or a family of them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop there")]

mod contract;
mod damage;
mod damaged;
mod dead;
mod enqueue;
mod group;
mod guards;
mod housekeeping;
mod lanes;
mod locate;
mod log;
mod operate;
mod plans;
mod schema;
mod settle;
mod shares;
mod splits;
mod support;
mod trouble;
mod verify;
mod versions;
