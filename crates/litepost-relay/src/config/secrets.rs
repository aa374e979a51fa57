//! Secrets that live outside the configuration: files, commands, systemd credentials.
//!
//! Called by the interpolation. Invariant: errors name the place, never the content.

use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// No secret is larger; a path to a log or a device is a slip.
const BYTES_MAX: u64 = 1 << 20;
/// A password manager that asks a person something never answers a service.
const COMMAND_SECONDS_MAX: u64 = 30;

/// The content of a file without its last line break.
pub(crate) fn from_file(path: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(BYTES_MAX + 1).read_to_end(&mut bytes))
        .map_err(|error| format!("the secret's file {} cannot be read: {error}", path.display()))?;
    text(bytes).map_err(|why| format!("the secret's file {} {why}", path.display()))
}

/// A credential that systemd gave the service.
pub(crate) fn from_credential(name: &str, folder: Option<&str>) -> Result<String, String> {
    if name.is_empty() || name.contains(['/', '\\', '\0']) || name == "." || name == ".." {
        return Err(format!("{name:?} is no name of a credential"));
    }
    let Some(folder) = folder else {
        return Err(format!("the credential {name} was asked for, but CREDENTIALS_DIRECTORY is not set"));
    };
    from_file(&Path::new(folder).join(name))
}

/// What a command prints, without its last line break.
pub(crate) fn from_command(command: &str, folder: &Path) -> Result<String, String> {
    if command.is_empty() {
        return Err("the secret's command is empty".into());
    }
    let mut child = Command::new("sh")
        .args(["-c", command])
        // The empty path stands for the working folder everywhere but here.
        .current_dir(if folder.as_os_str().is_empty() { Path::new(".") } else { folder })
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .map_err(|error| format!("the secret's command cannot be started: {error}"))?;
    let Some(stdout) = child.stdout.take() else {
        return Err("the secret's command has no output".into());
    };
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = stdout.take(BYTES_MAX + 1).read_to_end(&mut bytes).map(|_| bytes);
        // Nobody listens any more after the deadline.
        let _ = send.send(read);
    });
    let read = receive.recv_timeout(Duration::from_secs(COMMAND_SECONDS_MAX));
    let Ok(read) = read else {
        // It may have ended in this moment; either way nothing is waited for.
        let _ = child.kill();
        let _ = child.wait();
        return Err(format!("the secret's command {command:?} gave no answer within {COMMAND_SECONDS_MAX} s"));
    };
    let status = child.wait().map_err(|error| format!("the secret's command cannot be waited for: {error}"))?;
    if !status.success() {
        return Err(format!("the secret's command {command:?} failed: {status}"));
    }
    let bytes = read.map_err(|error| format!("the secret's command {command:?} cannot be read: {error}"))?;
    text(bytes).map_err(|why| format!("what the secret's command {command:?} prints {why}"))
}

fn text(bytes: Vec<u8>) -> Result<String, &'static str> {
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > BYTES_MAX {
        return Err("is larger than 1 MiB");
    }
    let mut text = String::from_utf8(bytes).map_err(|_| "is no UTF-8")?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    if text.is_empty() {
        return Err("is empty");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_loses_one_line_break_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        for (content, want) in [("s3cret\n", "s3cret"), ("s3cret\r\n", "s3cret"), ("a\n\n", "a\n"), (" a ", " a ")] {
            std::fs::write(&path, content).unwrap();
            assert_eq!(from_file(&path).unwrap(), want);
        }
        std::fs::write(&path, "").unwrap();
        assert!(from_file(&path).unwrap_err().ends_with("token is empty"));
        std::fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(from_file(&path).unwrap_err().ends_with("token is no UTF-8"));
        assert!(from_file(folder.path()).unwrap_err().contains("cannot be read"));
        assert!(from_file(Path::new("/dev/zero")).unwrap_err().ends_with("is larger than 1 MiB"));
    }

    #[test]
    fn a_command_must_succeed() {
        let here = Path::new(".");
        assert_eq!(from_command("printf 'a b\\n'", here).unwrap(), "a b");
        assert_eq!(
            from_command("echo leaked; exit 3", here).unwrap_err(),
            "the secret's command \"echo leaked; exit 3\" failed: exit status: 3"
        );
        assert!(from_command("true", here).unwrap_err().ends_with("is empty"));
    }

    #[test]
    fn a_credential_cannot_leave_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("db"), "pw").unwrap();
        let dir = folder.path().to_str();
        assert_eq!(from_credential("db", dir).unwrap(), "pw");
        assert_eq!(from_credential("../db", dir).unwrap_err(), "\"../db\" is no name of a credential");
        assert!(from_credential("db", None).unwrap_err().contains("CREDENTIALS_DIRECTORY is not set"));
    }
}
