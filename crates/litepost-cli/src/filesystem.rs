//! Which file system a database lies on, and whether SQLite can trust it.
//!
//! Asked by the relay at its start and by `litepost doctor`. SQLite needs byte-range locks that hold between processes, a
//! shared memory for the -shm file, and a sync that reaches the disk (<https://sqlite.org/useovernet.html>,
//! <https://sqlite.org/wal.html>). Invariant: what is not known to be bad is let through.

use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// What is known of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// Nothing speaks against it.
    Fine,
    /// Locks or syncs are known not to hold.
    Broken,
    /// Works, and forgets: gone with a restart or with the container.
    Forgets,
}

/// Types over the network or through another machine: locks or shared memory do not hold between hosts.
const BROKEN: [&str; 20] = [
    "nfs",
    "nfs3",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "smb2",
    "ncpfs",
    "9p",
    "afs",
    "ceph",
    "lustre",
    "coda",
    "vboxsf",
    "vmhgfs",
    "prl_fs",
    "drvfs",
    "beegfs",
    "glusterfs",
    "virtiofs",
];
/// Programs behind FUSE that are known to keep no locks between processes, or to lose a sync.
const BROKEN_FUSE: [&str; 16] = [
    "sshfs",
    "s3fs",
    "gcsfuse",
    "rclone",
    "goofys",
    "curlftpfs",
    "davfs",
    "glusterfs",
    "blobfuse",
    "blobfuse2",
    "mount-s3",
    "mergerfs",
    "vmhgfs-fuse",
    "grpcfuse",
    "gvfsd-fuse",
    "juicefs",
];

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mounted {
    /// Its type, `ext4` or `fuse.sshfs` for example.
    pub(crate) kind: String,
    /// Where it is mounted.
    pub(crate) at: PathBuf,
}

impl Mounted {
    pub(crate) fn trust(&self) -> Trust {
        match self.kind.strip_prefix("fuse.") {
            Some(program) if BROKEN_FUSE.contains(&program) => Trust::Broken,
            None if BROKEN.contains(&self.kind.as_str()) => Trust::Broken,
            None if matches!(self.kind.as_str(), "tmpfs" | "ramfs" | "overlay") => Trust::Forgets,
            _ => Trust::Fine,
        }
    }
}

/// The file system of a path; `None` where the system does not tell.
pub(crate) fn of(path: &Path) -> Option<Mounted> {
    // A file that does not exist yet lies where its folder is.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let real = path.canonicalize().or_else(|_| folder.canonicalize()).ok()?;
    find(&std::fs::read_to_string("/proc/self/mountinfo").ok()?, &real)
}

/// The mount of `path` in a text as `/proc/self/mountinfo` has it (proc(5)): the longest that is a parent, and of several at
/// one place the last.
fn find(mounts: &str, path: &Path) -> Option<Mounted> {
    let mounted = |line: &str| {
        let (place, kind) = line.split_once(" - ")?;
        let at = PathBuf::from(unescaped(place.split(' ').nth(4)?));
        Some(Mounted { kind: kind.split(' ').next()?.to_owned(), at })
    };
    mounts
        .lines()
        .filter_map(mounted)
        .filter(|found| path.starts_with(&found.at))
        .max_by_key(|found| found.at.components().count())
}

/// `\040` is a space, and so on.
fn unescaped(text: &str) -> String {
    ["\\040", "\\011", "\\012", "\\134"]
        .iter()
        .zip([" ", "\t", "\n", "\\"])
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// An error when the file lies where SQLite's locks do not hold.
pub(crate) fn refuse_broken(path: &Path) -> Result<(), Failure> {
    match of(path) {
        Some(found) if found.trust() == Trust::Broken => Err(refusal(path, &found)),
        _ => Ok(()),
    }
}

fn refusal(path: &Path, found: &Mounted) -> Failure {
    Failure::user(
        format!(
            "{} lies on {} (mounted at {}), whose locks SQLite cannot rely on: two processes can damage the file",
            path.display(),
            found.kind,
            found.at.display()
        ),
        "move it to a local disk; or, when only this machine ever opens it, insist with --any-file-system",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 27 0:31 / /srv rw - nfs4 server:/export rw,vers=4.2
31 30 0:32 / /srv/local\\040disk rw shared:7 - xfs /dev/vdb rw
32 27 0:33 / /media/ada/s3 rw - fuse.s3fs s3fs rw
33 27 0:34 / /media/ada/crypt rw - fuse.gocryptfs x rw
34 27 0:35 / /data rw - ext4 /dev/vdc rw
35 34 0:36 / /data rw - cifs //server/share rw
36 27 0:37 / /run rw - tmpfs tmpfs rw
";

    #[test]
    fn the_innermost_and_last_mount_counts() {
        for (path, kind, trust) in [
            ("/var/shop.db", "ext4", Trust::Fine),
            ("/srv/shop.db", "nfs4", Trust::Broken),
            ("/srv/local disk/shop.db", "xfs", Trust::Fine),
            ("/srvother/shop.db", "ext4", Trust::Fine),
            ("/media/ada/s3/shop.db", "fuse.s3fs", Trust::Broken),
            ("/media/ada/crypt/shop.db", "fuse.gocryptfs", Trust::Fine),
            ("/data/shop.db", "cifs", Trust::Broken),
            ("/run/shop.db", "tmpfs", Trust::Forgets),
        ] {
            let found = find(MOUNTS, Path::new(path)).unwrap();
            assert_eq!((found.kind.as_str(), found.trust()), (kind, trust), "{path}");
        }
        assert_eq!(find("", Path::new("/")), None);
    }

    #[test]
    fn the_refusal_says_what_to_do() {
        let found = find(MOUNTS, Path::new("/srv/shop.db")).unwrap();
        let Failure::User { message, hint } = refusal(Path::new("/srv/shop.db"), &found) else {
            panic!("a user's error")
        };
        assert!(message.contains("nfs4 (mounted at /srv)") && hint.contains("--any-file-system"));
    }
}
