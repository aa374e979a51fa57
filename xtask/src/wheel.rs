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
    /// With link-time optimisation, as it is published (slow to build)
    #[arg(long, conflicts_with = "debug")]
    release: bool,
    /// The debug build of the tests: the program is large and slow
    #[arg(long)]
    debug: bool,
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
# As services start sqloutbox.
subprocess.run([sys.executable, "-m", "litepost", "runservice", "--help"], check=True, stdout=subprocess.DEVNULL)
subprocess.run([program, "run", "--until-idle"], check=True)
assert '"OrderCreated"' in Path("events.jsonl").read_text()
found = sqlite3.connect("target.db").execute("SELECT count(*), sum(id) FROM orders").fetchone()
assert found == (100, 4950), found
print("the wheel works")
"#;

/// The journey of `cargo xtask test`: the program is built by the debug profile, whose parts are there already.
pub fn test() -> Result<(bool, String)> {
    let done = used(&build("dev")?);
    let closing = match &done {
        Ok(()) => "test result: 1 passed; 0 failed".to_owned(),
        Err(error) => format!("the wheel: FAILED: {error:#}\ntest result: 0 passed; 1 failed"),
    };
    println!("{closing}");
    Ok((done.is_ok(), closing))
}

/// Builds, installs, uses.
pub fn wheel(args: &Args) -> Result<()> {
    let profile = match args {
        Args { release: true, .. } => "release",
        Args { debug: true, .. } => "dev",
        _ => "wheel",
    };
    let wheel = build(profile)?;
    used(&wheel)?;
    let bytes = std::fs::metadata(&wheel)?.len();
    println!("{} ({} MB)", wheel.display(), bytes / 1_000_000);
    Ok(())
}

/// Looks into it, installs it, uses it.
fn used(wheel: &Path) -> Result<()> {
    let name = wheel.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // Whatever the interpreter; and on Linux for every machine whose C library is not older.
    if !name.contains("-py3-none-") || (cfg!(target_os = "linux") && !name.contains("manylinux")) {
        return Err(Finding(format!("{name} is tagged for less than it should be")).into());
    }
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
    run(pip.arg(wheel))?;
    let folder = read(&mut command("mktemp", &["--directory", "--tmpdir", "litepost-wheel-XXXXXX"]))?;
    let folder = Path::new(folder.trim());
    let done = journeys(&clean, folder);
    let _ = std::fs::remove_dir_all(folder);
    done
}

/// The README's quick start, then the longer way, each in a folder of its own with nothing else in reach.
fn journeys(clean: &Path, folder: &Path) -> Result<()> {
    let start = root().join("examples/quickstart");
    let (shop, longer) = (folder.join("quickstart"), folder.join("longer"));
    for made in [&shop, &longer] {
        std::fs::create_dir(made)?;
    }
    for name in ["shop.py", "litepost.toml"] {
        std::fs::copy(start.join(name), shop.join(name))?;
    }
    let here = |folder: &Path, program: &str, args: &[&str]| {
        let mut command = Command::new(clean.join("bin").join(program));
        command.args(args).current_dir(folder).env_clear().env("PATH", "/usr/bin:/bin");
        run(&mut command)
    };
    here(&shop, "litepost", &["migrate", "--database", "shop.db"])?;
    here(&shop, "python", &["shop.py"])?;
    here(&shop, "litepost", &["run", "--until-idle"])?;
    let line = std::fs::read_to_string(shop.join("events.jsonl")).context("the relay wrote no events.jsonl")?;
    if !line.contains("OrderCreated") {
        return Err(Finding(format!("the quick start's event is not in {line:?}")).into());
    }
    here(&longer, "python", &["-c", SCRIPT])
}

/// The wheel, built anew.
fn build(profile: &str) -> Result<PathBuf> {
    let maturin = setup::venv("wheel")?.join("maturin");
    let out = target().join("wheels");
    let _ = std::fs::remove_dir_all(&out);
    let mut build = command(maturin, &["build", "--profile", profile, "--out"]);
    build.arg(&out).current_dir(root().join("clients/python"));
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
