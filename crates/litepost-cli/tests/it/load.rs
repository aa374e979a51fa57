//! The shapes of `cargo xtask load` in a size that every run can carry: the bounds of memory are the same.

#[path = "../../benches/load/relay.rs"]
mod relay;
#[path = "../../benches/load/shapes.rs"]
mod shapes;

use self::shapes::{ALL, Sizes};

fn holds(name: &str) {
    let sizes = Sizes {
        backlog: 100_000,
        keys: 10_000,
        topics: 100,
        files: 20,
        in_each_file: 4_000,
        of_a_mib: 48,
        of_sixteen_mib: 6,
    };
    ALL.iter().find(|(known, _)| *known == name).unwrap().1(&sizes);
}

#[test]
fn a_backlog_over_many_keys_and_topics_stays_under_the_bound() {
    holds("backlog");
}

#[test]
fn many_files_in_one_relay_stay_under_the_bound() {
    holds("files");
}

#[test]
fn payloads_of_a_mebibyte_stay_under_the_bound() {
    holds("payloads-1-mib");
}

#[test]
fn payloads_of_sixteen_mebibytes_stay_under_the_bound() {
    holds("payloads-16-mib");
}
