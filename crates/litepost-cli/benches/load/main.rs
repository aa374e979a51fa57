//! The relay at the sizes that `cargo xtask load` promises. Arguments: the shapes that are wanted; all unless given.

#![allow(clippy::unwrap_used, reason = "a run that cannot go on has failed")]

mod relay;
mod shapes;
#[path = "../../tests/it/support.rs"]
#[allow(dead_code, reason = "the tests ask for more of it")]
mod support;

fn main() {
    let sizes = shapes::Sizes {
        backlog: 10_000_000,
        keys: 1_000_000,
        topics: 1_000,
        files: 200,
        in_each_file: 20_000,
        of_a_mib: 500,
        of_sixteen_mib: 60,
    };
    let wanted: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    for (name, shape) in shapes::ALL {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            shape(&sizes);
        }
    }
}
