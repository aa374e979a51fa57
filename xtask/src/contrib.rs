//! What lies in `contrib/`, judged by the tools that will read it: alert rules, the Dockerfile, the unit.
//!
//! Called by `test`. Invariant: nothing is started and nothing is installed on the machine.

use anyhow::Result;

use crate::setup;
use crate::shell::{command, run};

/// What `systemd-analyze security` may say of the unit at most, in tenths: 0 is a program that can do nothing, 100 one that
/// can do everything.
const EXPOSURE_MAX: &str = "--threshold=20";

/// Has them all judged.
pub fn check() -> Result<()> {
    run(&mut command("promtool", &["check", "rules", "contrib/prometheus/litepost.rules.yml"]))?;
    run(&mut command("promtool", &["test", "rules", "contrib/prometheus/litepost.rules.test.yml"]))?;
    let hadolint = setup::venv("hadolint")?.join("hadolint");
    run(&mut command(hadolint, &["contrib/Dockerfile"]))?;
    let judge = ["security", "--offline=true", "--no-pager", EXPOSURE_MAX, "contrib/systemd/litepost.service"];
    run(&mut command("systemd-analyze", &judge))
}
