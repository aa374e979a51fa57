//! `cargo xtask bench`: measure side by side with the peers, and keep the figures.
//!
//! Called by people. Invariant: a figure is kept with the machine, the versions and the date it belongs to, and
//! a bench that fails leaves no file behind that looks like a result. A target that is missed is kept with the figures,
//! and makes the run a finding (exit code 1) unless it was a quick one.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::shell::{cargo, command, read, root, shown, target, tee};
use crate::{Finding, clock, setup};

/// Options of `cargo xtask bench`.
#[derive(clap::Args)]
pub struct Args {
    /// Which bench; all of them when left out
    area: Option<String>,
    /// Fewer rows and rounds: shows that the benches work, not what they measure
    #[arg(long)]
    quick: bool,
    /// What the benches draw their keys by
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only this part of the bench (a curve, a destination, a backlog): its figures take the place of the same part's in
    /// target/bench/AREA.json, beside those of other parts that were run like this
    #[arg(long, requires = "area", value_name = "PART")]
    only: Option<String>,
    /// Only name the benches
    #[arg(long)]
    list: bool,
}

/// A bench: a target of the workspace, or a script of the Python package.
struct Bench {
    name: String,
    kind: Kind,
}

enum Kind {
    Cargo { target: String, args: &'static [&'static str] },
    Python { script: &'static str },
}

impl Bench {
    fn command(&self, options: &Args, python: &Path) -> Command {
        let quick = options.quick;
        match &self.kind {
            Kind::Cargo { target, args } => {
                // The whole workspace's features, so that nothing is compiled twice.
                let mut command = cargo(&["bench", "--workspace", "--all-features", "--bench", target, "--"]);
                command.env("LITEPOST_BENCH_PYTHON", python).env("LITEPOST_BENCH_SEED", options.seed.to_string());
                command.args(*args).args(&options.only);
                if quick {
                    command.env("LITEPOST_BENCH_QUICK", "1").arg("--quick");
                }
                command
            }
            Kind::Python { script } => {
                let mut command = command(python, &[script, "--json"]);
                if quick {
                    command.args(["--turns", "100", "--backlog", "0", "1000"]);
                }
                command
            }
        }
    }
}

/// Runs the benches and writes target/bench/NAME.json for each.
pub fn run(args: &Args) -> Result<()> {
    let benches = benches()?;
    let known = benches.iter().map(|bench| bench.name.as_str()).collect::<Vec<_>>().join(", ");
    if args.list {
        println!("{known}");
        return Ok(());
    }
    let wanted = |bench: &&Bench| args.area.as_ref().is_none_or(|area| bench.name == *area);
    let chosen: Vec<&Bench> = benches.iter().filter(wanted).collect();
    if chosen.is_empty() {
        bail!("there is no such bench; there are: {known}");
    }
    setup::everything()?;
    let python = setup::venv("bench")?.join("python");
    let folder = target().join("bench");
    std::fs::create_dir_all(&folder)?;
    let machine = machine(&python)?;
    println!("{}, seed {}", clock::date(), args.seed);
    for (what, value) in machine.as_object().into_iter().flatten() {
        println!("{what:>16}  {}", value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned));
    }
    let (mut failed, mut missed) = (Vec::new(), Vec::new());
    for bench in chosen {
        match one(bench, args, &python, &folder, &machine) {
            Ok(targets) => missed.extend(targets),
            Err(error) => {
                println!("{}: {error:#}", bench.name);
                failed.push(bench.name.as_str());
            }
        }
    }
    if !failed.is_empty() {
        return Err(Finding(format!("failed: {}", failed.join(", "))).into());
    }
    // A quick run shows that the benches work; its figures say nothing.
    if missed.is_empty() || args.quick {
        return Ok(());
    }
    println!("\nmissed:\n  {}", missed.join("\n  "));
    Err(Finding(format!("{} targets missed", missed.len())).into())
}

/// Runs one bench. The JSON objects among the lines it prints are its figures; what it prints for people is kept too.
/// Returns the targets that it missed.
fn one(bench: &Bench, options: &Args, python: &Path, folder: &Path, machine: &Value) -> Result<Vec<String>> {
    let mut command = bench.command(options, python);
    let file = folder.join(format!("{}.json", bench.name));
    let before = std::fs::read_to_string(&file).ok().and_then(|text| serde_json::from_str(&text).ok());
    if file.exists() && options.only.is_none() {
        std::fs::remove_file(&file)?;
    }
    let (fine, output) = tee(&mut command)?;
    if !fine {
        bail!("`{}` failed", shown(&command));
    }
    let printed = printed(&output);
    if printed.is_empty() && figures(&output).is_empty() {
        bail!("it printed nothing");
    }
    let mut report = json!({
        "bench": bench.name, "quick": options.quick, "seed": options.seed, "date": clock::date(), "machine": machine,
        "figures": figures(&output), "printed": printed,
    });
    if let Some(part) = &options.only {
        if figures(&output).is_empty() {
            bail!("`{part}` is no part of it");
        }
        report = with_part(before, report, part);
    }
    std::fs::write(&file, format!("{report:#}\n"))?;
    println!("kept in {}", file.display());
    Ok(missed(&figures(&output)))
}

/// The figures of one part beside those of the other parts there are; whatever else the file held gives way.
fn with_part(before: Option<Value>, mut report: Value, part: &str) -> Value {
    let mut before = before.filter(|before| before["quick"] == report["quick"]).unwrap_or_default();
    let mut figures = before["figures"].take();
    let others = figures.as_array_mut().map(std::mem::take).unwrap_or_default();
    let mut all: Vec<Value> =
        others.into_iter().filter(|figure| figure["part"].is_string() && figure["part"] != part).collect();
    for mut figure in report["figures"].as_array_mut().map(std::mem::take).unwrap_or_default() {
        figure["part"] = json!(part);
        all.push(figure);
    }
    let mut parts = before["parts"].take();
    parts[part] = json!({
        "date": report["date"], "seed": report["seed"], "commit": report["machine"]["commit"],
        "printed": report["printed"].take(),
    });
    (report["figures"], report["parts"]) = (json!(all), parts);
    report
}

/// The targets among the figures that were not reached.
fn missed(figures: &[Value]) -> Vec<String> {
    let missed = figures.iter().filter(|figure| figure["met"] == Value::Bool(false));
    missed
        .map(|figure| {
            let seen = figure["seen"].as_f64().unwrap_or_default();
            format!(
                "{}: {} asked, {seen:.3} seen",
                figure["target"].as_str().unwrap_or_default(),
                figure["asked"].as_str().unwrap_or_default()
            )
        })
        .collect()
}

/// The lines of a bench's output that are JSON objects.
fn figures(output: &str) -> Vec<Value> {
    output.lines().filter(|line| line.starts_with('{')).filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// What a bench printed for people: its output behind cargo's own lines.
fn printed(output: &str) -> Vec<&str> {
    let lines: Vec<&str> = output.lines().collect();
    let from = lines.iter().rposition(|line| line.trim_start().starts_with("Running ")).map_or(0, |at| at + 1);
    lines[from..].iter().copied().filter(|line| !line.trim().is_empty() && !line.starts_with('{')).collect()
}

/// The Python package's own bench, beside sqloutbox.
const PUSH: &str = "clients/python/benches/push.py";

/// The bench targets, as cargo knows them, and the Python package's.
fn benches() -> Result<Vec<Bench>> {
    let text = read(&mut cargo(&["metadata", "--format-version", "1", "--no-deps"]))?;
    let metadata: Value = serde_json::from_str(&text)?;
    let packages = metadata["packages"].as_array().context("cargo metadata without packages")?;
    let mut benches = Vec::new();
    for package in packages {
        for target in package["targets"].as_array().into_iter().flatten() {
            // What `cargo xtask instructions` and `cargo xtask load` run are no comparisons.
            let other = ["instructions", "load"].iter().any(|name| target["name"] == *name);
            if target["kind"][0] != "bench" || other {
                continue;
            }
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let mut add = |name: String, args| {
                let kind = Kind::Cargo { target: text(&target["name"]), args };
                benches.push(Bench { name, kind });
            };
            add(text(&target["name"]), &[]);
            if target["name"] == "drain" {
                add("drain-curve".into(), &["--curve"]);
                add("relay-curves".into(), &["--curves"]);
            }
        }
    }
    if root().join(PUSH).is_file() {
        benches.push(Bench { name: "push".into(), kind: Kind::Python { script: PUSH } });
    }
    Ok(benches)
}

/// What the figures belong to: processor, memory, kernel, file system, versions.
fn machine(python: &Path) -> Result<Value> {
    let line = |text: &str, start: &str| {
        let found = text.lines().find(|line| line.starts_with(start)).and_then(|line| line.split_once(':'));
        found.map(|(_, value)| value.trim().to_owned())
    };
    let ask = |program: &str, args: &[&str]| read(&mut command(program, args)).map(|text| text.trim().to_owned()).ok();
    let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let lock = read(&mut cargo(&["tree", "--workspace", "--all-features", "--prefix", "none", "--edges", "normal"]))?;
    let version = |name: &str| {
        lock.lines()
            .find_map(|line| line.strip_prefix(&format!("{name} v")))
            .map(|rest| rest.split(' ').next().unwrap_or_default().to_owned())
    };
    Ok(json!({
        "processor": line(&processors, "model name"),
        "cores": std::thread::available_parallelism()?.get(),
        "memory": line(&memory, "MemTotal"),
        "kernel": ask("uname", &["-sr"]),
        "file_system": ask("stat", &["--file-system", "--format=%T", &target().display().to_string()]),
        "commit": ask("git", &["rev-parse", "HEAD"]),
        "rustc": ask("rustc", &["--version"]),
        "rusqlite": version("rusqlite"),
        "libsqlite3-sys": version("libsqlite3-sys"),
        "python": ask(&python.display().to_string(), &["-c", "import sqlite3, sys; print(sys.version.split()[0], 'sqlite', sqlite3.sqlite_version)"]),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_takes_its_own_place_and_leaves_the_others() {
        let run = |date: &str, value: i64| json!({ "quick": false, "date": date, "machine": { "commit": "c" }, "figures": [{ "v": value }], "printed": ["p"] });
        let whole = run("d0", 0);
        let first = with_part(Some(whole), run("d1", 1), "a");
        assert_eq!(first["figures"], json!([{ "v": 1, "part": "a" }]), "of a whole run nothing can be told apart");
        let second = with_part(Some(first), run("d2", 2), "b");
        let third = with_part(Some(second), run("d3", 3), "a");
        assert_eq!(third["figures"], json!([{ "v": 2, "part": "b" }, { "v": 3, "part": "a" }]));
        assert_eq!((&third["parts"]["a"]["date"], &third["parts"]["b"]["date"]), (&json!("d3"), &json!("d2")));
        let mut quick = run("d4", 4);
        quick["quick"] = json!(true);
        assert_eq!(with_part(Some(third), quick, "b")["figures"], json!([{ "v": 4, "part": "b" }]));
    }

    #[test]
    fn only_whole_json_objects_are_figures() {
        let found = figures("running\n{\"name\": \"a\", \"p50_us\": 8.5}\n{broken\n  {\"no\": 1}\n{\"name\": \"b\"}");
        assert_eq!(found.len(), 2);
        assert_eq!(found[0]["p50_us"], 8.5);
        assert_eq!(
            missed(&figures("{\"target\":\"t\",\"asked\":\"at most 1\",\"seen\":2.5,\"met\":false}\n{\"met\":true}")),
            ["t: at most 1 asked, 2.500 seen"]
        );
        assert_eq!(printed("   Compiling a\n     Running benches/a.rs\n\na table\n{\"name\": 1}\n"), ["a table"]);
    }
}
