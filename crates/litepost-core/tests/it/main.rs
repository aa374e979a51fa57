//! The pipeline against a naive model of what it promises; see also `tests/sim`, which adds everything that fails.

mod model;
