//! `cargo xtask musl`: the program without any library of the machine, for containers from scratch and old systems.
//!
//! Called by people before a release. Invariant: what is built is looked at (no dynamic section) and tried out (`litepost
//! demo`) before it is called done; nothing is installed on the machine beside the target's standard library.

use anyhow::{Context, Result, bail};

use crate::Finding;
use crate::shell::{cargo, command, has, read, run, target};

const TRIPLE: &str = "x86_64-unknown-linux-musl";

/// Options of `cargo xtask musl`.
#[derive(clap::Args)]
pub struct Args {
    /// The debug build
    #[arg(long)]
    debug: bool,
}

/// Builds, looks, tries out.
pub fn musl(args: &Args) -> Result<()> {
    if !has("musl-gcc") {
        bail!("there is no musl-gcc: `apt-get install musl-tools` brings it");
    }
    run(&mut command("rustup", &["target", "add", TRIPLE]))?;
    let (profile, folder) = if args.debug { ("dev", "debug") } else { ("release", "release") };
    let mut build = cargo(&["build", "--target", TRIPLE, "--package", "litepost-cli", "--bin", "litepost"]);
    build.args(["--profile", profile]).env("CC_x86_64_unknown_linux_musl", "musl-gcc");
    run(&mut build)?;
    let program = target().join(TRIPLE).join(folder).join("litepost");
    let dynamic = read(command("readelf", &["--dynamic"]).arg(&program))?;
    if dynamic.contains("(NEEDED)") {
        return Err(Finding(format!("the program needs libraries of the machine:\n{dynamic}")).into());
    }
    run(&mut command(&program, &["--version"]))?;
    run(&mut command(&program, &["demo"]))?;
    let bytes = std::fs::metadata(&program).context("the program is gone")?.len();
    println!("{} ({} MB)", program.display(), bytes / 1_000_000);
    Ok(())
}
