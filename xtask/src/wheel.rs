//! `cargo xtask wheel`: builds the pip package, installs it in an environment that has nothing else, and uses it.
//!
//! Called by people before a release. Invariant: what is tested is what was installed from the wheel, in an empty folder, with
//! nothing of the repository in reach; the wheel links no native module into the interpreter.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell::{command, read, root, run, target};
use crate::{Finding, setup};

/// Options of `cargo xtask wheel`.
#[derive(clap::Args)]
pub struct Args {
    /// Build what is published (slow); the debug profile otherwise
    #[arg(long)]
    release: bool,
}

/// The journey of a newcomer: an event in a transaction, a statement through sqloutbox's names, both delivered.
const SCRIPT: &str = r#"
import sqlite3, subprocess, sys
from pathlib import Path
import litepost, litepost.compat as sqloutbox
from importlib import metadata

assert metadata.requires("litepost") is None, metadata.requires("litepost")
litepost.migrate("shop.db")
shop = sqlite3.connect("shop.db")
with shop:
    shop.execute("CREATE TABLE orders (id)")
    shop.execute("INSERT INTO orders VALUES (501)")
    litepost.enqueue(shop, "orders", {"id": 501}, key=501, type="OrderCreated")
shop.close()

class Orders(sqloutbox.SQLMiddleware):
    def __init__(self):
        self._config = sqloutbox.OutboxConfig(db_dir=Path("data"))

for n in range(100):
    Orders()._push("orders", "INSERT INTO orders (id) VALUES (?)", [n])

Path("mywriter.py").write_text('''
import sqlite3
class Sqlite:
    def __init__(self, path):
        self.db = sqlite3.connect(path, isolation_level=None)
        self.db.execute("CREATE TABLE IF NOT EXISTS orders (id)")
    async def write_batch(self, stmts):
        return [{"ok": True, "rows_affected": self.db.execute(sql, args).rowcount} for sql, args in stmts]
''')
Path("litepost.toml").write_text('''
[app.shop]
database = "shop.db"
[app.shop.sink.audit]
type = "file"
connection = { path = "events.jsonl" }
[app.old]
db_dir = "data"
[app.old.db.primary]
writer_class = "mywriter:Sqlite"
tables = ["orders"]
connection = { path = "target.db" }
''')
program = Path(sys.executable).with_name("litepost")
subprocess.run([program, "--version"], check=True)
subprocess.run([program, "run", "--until-idle"], check=True)
assert '"OrderCreated"' in Path("events.jsonl").read_text()
found = sqlite3.connect("target.db").execute("SELECT count(*), sum(id) FROM orders").fetchone()
assert found == (100, 4950), found
print("the wheel works")
"#;

/// Builds, installs, uses.
pub fn wheel(args: &Args) -> Result<()> {
    let wheel = build(args.release)?;
    println!("{}", wheel.display());
    let listed = read(&mut command("python3", &["-m", "zipfile", "-l", &wheel.display().to_string()]))?;
    if listed.lines().any(|line| line.contains(".so ") || line.contains(".pyd ")) {
        return Err(Finding(format!("the wheel holds a native module:\n{listed}")).into());
    }
    for needed in ["litepost/py.typed", "litepost/host.py", "litepost/inbox.py", "litepost/sql/0001_log.sql"] {
        if !listed.contains(needed) {
            return Err(Finding(format!("the wheel lacks {needed}:\n{listed}")).into());
        }
    }
    let clean = target().join("venv-wheel-clean");
    run(&mut command("python3", &["-m", "venv", "--clear", &clean.display().to_string()]))?;
    let mut pip = command(clean.join("bin/pip"), &["install", "--quiet", "--no-index", "--no-deps"]);
    run(pip.arg(&wheel))?;
    let folder = read(&mut command("mktemp", &["--directory", "--tmpdir", "litepost-wheel-XXXXXX"]))?;
    let folder = Path::new(folder.trim());
    let mut script = Command::new(clean.join("bin/python"));
    script.args(["-c", SCRIPT]).current_dir(folder).env_clear().env("PATH", "/usr/bin:/bin");
    let done = run(&mut script);
    let _ = std::fs::remove_dir_all(folder);
    done
}

/// The wheel, built anew.
fn build(release: bool) -> Result<PathBuf> {
    let maturin = setup::venv("wheel")?.join("maturin");
    let out = target().join("wheels");
    let _ = std::fs::remove_dir_all(&out);
    let profile: &[&str] = if release { &["--release"] } else { &["--profile", "dev"] };
    let mut build = Command::new(maturin);
    build.arg("build").args(profile).arg("--out").arg(&out).current_dir(root().join("clients/python"));
    run(build.env("CARGO_TARGET_DIR", target()))?;
    let found = std::fs::read_dir(&out).with_context(|| format!("{} is missing", out.display()))?;
    let mut wheels: Vec<PathBuf> = found
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|end| end == "whl"))
        .collect();
    match (wheels.pop(), wheels.is_empty()) {
        (Some(wheel), true) => Ok(wheel),
        _ => bail!("one wheel was expected in {}", out.display()),
    }
}
