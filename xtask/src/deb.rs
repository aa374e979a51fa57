//! `cargo xtask deb`: builds the Debian package, installs it into a root of its own, starts it by its unit's command line,
//! upgrades it, and purges it.
//!
//! Called by people before a release, and by `test` with the debug build. Invariant: nothing of this machine is changed:
//! dpkg gets a root in a temporary folder, and the unit's paths are read below that.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::shell::{cargo, command, read, root, run, target};
use crate::{Finding, blocks, sandbox, sbom};

/// How often the relay is asked whether it answers, `POLL` apart: a minute.
const POLLS_MAX: u32 = 600;
const POLL: Duration = Duration::from_millis(100);

/// Options of `cargo xtask deb`.
#[derive(clap::Args)]
pub struct Args {
    /// The debug build of the tests
    #[arg(long)]
    debug: bool,
    /// Only build the package
    #[arg(long)]
    untested: bool,
}

/// Builds, and tries it out.
pub fn deb(args: &Args) -> Result<()> {
    let package = build(args.debug, 1)?;
    if !args.untested {
        try_out(&package, || build(args.debug, 2))?;
    }
    println!("{} ({} MB)", package.display(), std::fs::metadata(&package)?.len() / 1_000_000);
    Ok(())
}

/// As a step of `cargo xtask test`.
pub fn test() -> (bool, String) {
    let done = build(true, 1).and_then(|package| try_out(&package, || build(true, 2)));
    let closing = match &done {
        Ok(()) => "test result: 1 passed; 0 failed".to_owned(),
        Err(error) => format!("the Debian package: FAILED: {error:#}\ntest result: 0 passed; 1 failed"),
    };
    println!("{closing}");
    (done.is_ok(), closing)
}

/// The package of this revision.
fn build(debug: bool, revision: u32) -> Result<PathBuf> {
    // The debug build is the one that other steps of the tests use.
    let (program, built) = if debug {
        (blocks::litepost()?, target().join("debug"))
    } else {
        run(&mut cargo(&["build", "--locked", "--release", "--package", "litepost-cli", "--bin", "litepost"]))?;
        (target().join("release/litepost"), target().join("release"))
    };
    let tree = built.join("deb");
    let _ = std::fs::remove_dir_all(&tree);
    fill(&program, &tree)?;
    let version = format!("{}-{revision}", env!("CARGO_PKG_VERSION"));
    describe(&tree, &version)?;
    let package = built.join(format!("litepost_{version}.deb"));
    let mut deb = command("dpkg-deb", &["--root-owner-group"]);
    if debug {
        deb.args(["-Zgzip", "-z1"]);
    }
    run(deb.arg("--build").arg(&tree).arg(&package))?;
    Ok(package)
}

/// What is installed. The pages and completions come from the program.
fn fill(program: &Path, tree: &Path) -> Result<()> {
    let put = |name: &str, text: &str| -> Result<()> {
        let path = tree.join(name);
        std::fs::create_dir_all(path.parent().unwrap_or(tree))?;
        Ok(std::fs::write(path, text)?)
    };
    let copy = |from: &str, name: &str| put(name, &std::fs::read_to_string(root().join(from))?);
    let say = |args: &[&str]| read(&mut command(program, args));
    std::fs::create_dir_all(tree.join("usr/bin"))?;
    run(command("strip", &["-o"]).arg(tree.join("usr/bin/litepost")).arg(program))?;
    put("usr/share/man/man1/litepost.1", &say(&["man"])?)?;
    for name in commands(&say(&["--help"])?) {
        put(&format!("usr/share/man/man1/litepost-{name}.1"), &say(&["man", &name])?)?;
    }
    for page in std::fs::read_dir(tree.join("usr/share/man/man1"))? {
        read(command("gzip", &["-9", "--no-name"]).arg(page?.path()))?;
    }
    put("usr/share/bash-completion/completions/litepost", &say(&["completions", "bash"])?)?;
    put("usr/share/zsh/vendor-completions/_litepost", &say(&["completions", "zsh"])?)?;
    put("usr/share/fish/vendor_completions.d/litepost.fish", &say(&["completions", "fish"])?)?;
    copy("contrib/systemd/litepost.service", "usr/lib/systemd/system/litepost.service")?;
    copy("contrib/deb/litepost.toml", "etc/litepost/litepost.toml")?;
    put("usr/share/doc/litepost/litepost.cdx.json", &sbom::document()?)?;
    copy("LICENSE-MIT", "usr/share/doc/litepost/copyright")
}

/// What dpkg is told.
fn describe(tree: &Path, version: &str) -> Result<()> {
    let files = root().join("contrib/deb");
    let told = tree.join("DEBIAN");
    std::fs::create_dir_all(&told)?;
    for script in ["postinst", "prerm", "postrm"] {
        std::fs::copy(files.join(script), told.join(script))?;
    }
    std::fs::write(told.join("conffiles"), "/etc/litepost/litepost.toml\n")?;
    // dpkg-shlibdeps wants a source package around it.
    let source = tree.with_extension("source");
    std::fs::create_dir_all(source.join("debian"))?;
    std::fs::write(source.join("debian/control"), "Source: litepost\n")?;
    let mut libraries = command("dpkg-shlibdeps", &["-O"]);
    libraries.arg("-e").arg(tree.join("usr/bin/litepost")).current_dir(&source);
    let libraries = read(&mut libraries)?;
    let libraries = libraries.trim().strip_prefix("shlibs:Depends=").context("the program links nothing?")?;
    let architecture = read(&mut command("dpkg", &["--print-architecture"]))?;
    let control = std::fs::read_to_string(files.join("control"))?;
    let (before, description) = control.split_once("Description:").context("contrib/deb/control has no Description")?;
    let more = format!("Version: {version}\nArchitecture: {}\nDepends: adduser, {libraries}\n", architecture.trim());
    Ok(std::fs::write(told.join("control"), format!("{before}{more}Description:{description}"))?)
}

/// The commands that the help lists.
fn commands(help: &str) -> Vec<String> {
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let named = listed.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    named.filter_map(|line| line.split_whitespace().next().map(ToOwned::to_owned)).collect()
}

/// The life of a package on a machine.
fn try_out(package: &Path, next: impl Fn() -> Result<PathBuf>) -> Result<()> {
    let folder = read(&mut command("mktemp", &["--directory", "--tmpdir", "litepost-deb-XXXXXX"]))?;
    let machine = Machine { root: folder.trim().into() };
    let done = machine.life(package, next);
    let _ = std::fs::remove_dir_all(&machine.root);
    done
}

/// A root that dpkg installs into.
struct Machine {
    root: PathBuf,
}

impl Machine {
    fn life(&self, package: &Path, next: impl Fn() -> Result<PathBuf>) -> Result<()> {
        for folder in ["var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/litepost", "srv"] {
            std::fs::create_dir_all(self.root.join(folder))?;
        }
        std::fs::write(self.root.join("var/lib/dpkg/status"), "")?;
        self.dpkg(&["--install", &package.display().to_string()])?;
        self.complete(package)?;

        // Whoever installs it has nothing to deliver yet: the unit says so and the relay does not start.
        let unit = self.unit()?;
        let refused = self.line(&unit, "ExecStartPre")?.output()?;
        let told = String::from_utf8_lossy(&refused.stderr);
        if refused.status.success() || !told.contains("there is no app") {
            bail!("the unit's check says of the empty configuration: {told}");
        }
        let config = self.root.join("etc/litepost/litepost.toml");
        let (database, events) = (self.root.join("srv/shop.db"), self.root.join("var/lib/litepost/events.jsonl"));
        let text = format!(
            "[app.shop]\ndatabase = '{}'\n[app.shop.sink.audit]\ntype = 'file'\nconnection = {{ path = '{}' }}\n",
            database.display(),
            events.display()
        );
        std::fs::write(&config, &text)?;
        self.litepost(&["migrate", "--database", &database.display().to_string()])?;
        self.deliver(&unit, &database, &events, 1)?;

        self.dpkg(&["--install", &next()?.display().to_string()])?;
        let status = std::fs::read_to_string(self.root.join("var/lib/dpkg/status"))?;
        if !status.contains(concat!("Version: ", env!("CARGO_PKG_VERSION"), "-2\n")) {
            bail!("dpkg has not upgraded the package:\n{status}");
        }
        if std::fs::read_to_string(&config)? != text {
            bail!("the upgrade has changed the configuration");
        }
        self.deliver(&self.unit()?, &database, &events, 2)?;

        self.dpkg(&["--purge", "litepost"])?;
        if config.exists() || self.root.join("usr/bin/litepost").exists() {
            bail!("the package is purged, and files of it are still there");
        }
        if !(database.is_file() && events.is_file()) {
            bail!("purging the package has taken data along");
        }
        Ok(())
    }

    fn dpkg(&self, args: &[&str]) -> Result<()> {
        // The root holds no shell and no libc: scripts run outside of it, told by DPKG_ROOT.
        let mut dpkg = command("dpkg", &["--force-script-chrootless", "--force-depends", "--force-not-root"]);
        dpkg.arg(format!("--root={}", self.root.display())).arg("--log=/dev/null").args(args);
        run(dpkg.stdin(Stdio::null()))
    }

    /// Everything is where Debian looks for it.
    fn complete(&self, package: &Path) -> Result<()> {
        for file in [
            "usr/bin/litepost",
            "usr/share/man/man1/litepost.1.gz",
            "usr/share/man/man1/litepost-run.1.gz",
            "usr/share/man/man1/litepost-top.1.gz",
            "usr/share/bash-completion/completions/litepost",
            "usr/share/zsh/vendor-completions/_litepost",
            "usr/share/fish/vendor_completions.d/litepost.fish",
            "etc/litepost/litepost.toml",
            "usr/share/doc/litepost/copyright",
            "usr/share/doc/litepost/litepost.cdx.json",
        ] {
            if !self.root.join(file).is_file() {
                return Err(Finding(format!("the package lacks {file}")).into());
            }
        }
        let needs = read(command("dpkg-deb", &["--field"]).arg(package).arg("Depends"))?;
        if !needs.contains("libc6") || !needs.contains("adduser") {
            return Err(Finding(format!("the package depends on {needs}")).into());
        }
        run(command("bash", &["-n"]).arg(self.root.join("usr/share/bash-completion/completions/litepost")))?;
        self.litepost(&["--version"])
    }

    fn litepost(&self, args: &[&str]) -> Result<()> {
        run(&mut command(self.root.join("usr/bin/litepost"), args))
    }

    fn unit(&self) -> Result<String> {
        let places = ["usr/lib/systemd/system/litepost.service", "lib/systemd/system/litepost.service"];
        let found = places.iter().map(|place| self.root.join(place)).find(|path| path.is_file());
        Ok(std::fs::read_to_string(found.context("the package lacks its unit")?)?)
    }

    /// The command line that the unit gives for `key`, with paths below the root.
    fn line(&self, unit: &str, key: &str) -> Result<Command> {
        let given = |key: &str| unit.lines().find_map(|line| line.strip_prefix(&format!("{key}=")));
        let line = given(key).with_context(|| format!("the unit has no {key}"))?;
        let below = |word: &str| match word.strip_prefix('/') {
            Some(path) => self.root.join(path).display().to_string(),
            None => word.to_owned(),
        };
        let mut words = line.split_whitespace().map(below);
        let mut command = Command::new(words.next().context("an empty line")?);
        let folder = given("WorkingDirectory").context("the unit has no WorkingDirectory")?;
        command.args(words).current_dir(below(folder)).env_clear();
        Ok(command)
    }

    /// Starts the relay as the unit does, writes an event, and stops the relay when it is delivered.
    fn deliver(&self, unit: &str, database: &Path, events: &Path, count: usize) -> Result<()> {
        let check = self.line(unit, "ExecStartPre")?.status()?;
        if !check.success() {
            bail!("the unit's check refuses the configuration: {check}");
        }
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let start = self.line(&unit.replace("127.0.0.1:8765", &format!("127.0.0.1:{port}")), "ExecStart")?;
        let trace = self.root.join(format!("trace-{count}"));
        let mut relay = Relay::start(sandbox::watched(&start, &trace))?;
        let database = database.display().to_string();
        self.litepost(&["enqueue", "--database", &database, "--topic", "orders", "--payload", "{}"])?;
        let url = format!("http://127.0.0.1:{port}/live");
        relay.until("the relay delivers and answers", || {
            let lines = std::fs::read_to_string(events).unwrap_or_default().lines().count();
            lines == count && read(&mut command("curl", &["--silent", "--fail", &url])).is_ok()
        })?;
        relay.stop()?;
        sandbox::judge(&trace, unit)
    }
}

/// A relay that is killed when it was not stopped.
struct Relay(Child);

impl Relay {
    fn start(mut line: Command) -> Result<Self> {
        println!("$ {}", crate::shell::shown(&line));
        Ok(Self(line.stdin(Stdio::null()).spawn().context("the unit's command cannot be started")?))
    }

    fn until(&mut self, what: &str, holds: impl Fn() -> bool) -> Result<()> {
        for _ in 0..POLLS_MAX {
            if holds() {
                return Ok(());
            }
            if let Some(status) = self.0.try_wait()? {
                bail!("the relay ended with {status}");
            }
            std::thread::sleep(POLL);
        }
        bail!("never came true: {what}")
    }

    /// As the unit says: SIGTERM, and it ends well.
    fn stop(mut self) -> Result<()> {
        run(&mut command("kill", &["-TERM", &self.0.id().to_string()]))?;
        let status = self.0.wait()?;
        if status.success() { Ok(()) } else { bail!("the relay ended with {status} when it was told to stop") }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_are_those_that_the_help_lists() {
        let help = "What it is\n\nCommands:\n  run   Deliver\n          (sqloutbox's)\n  top   Watch\n\nOptions:\n  -h  Help\n";
        assert_eq!(commands(help), ["run", "top"]);
    }
}
