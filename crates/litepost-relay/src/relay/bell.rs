//! What a reader thread waits on: a word from the lanes, a commit of another process, or time.
//!
//! Made by [`Wakes`](super::wake::Wakes) for each reader. On Linux the thread waits on the file-system watch itself, so
//! that a commit costs one wake-up and not two; elsewhere, and where the system has no more watches, another thread
//! tells it. Invariant: what is said while nobody waits ends the next wait at once.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// Somebody has rung.
    Rung,
    /// The database may have been written to.
    Written,
    /// Neither, for as long as was asked.
    Nothing,
}

/// The waiting side.
pub(super) enum Bell {
    /// Waits on the watch itself.
    #[cfg(target_os = "linux")]
    Watching(watching::Watching),
    /// Is told by another thread.
    Told(Arc<Told>),
}

impl Bell {
    /// Waits, for as long as `timeout` at most.
    pub(super) fn wait(&mut self, timeout: Duration) -> Heard {
        match self {
            #[cfg(target_os = "linux")]
            Self::Watching(watching) => watching.wait(timeout),
            Self::Told(told) => told.wait(timeout),
        }
    }

    /// Waits for a ring alone: whoever is in the middle of a backlog learns nothing from a write, and would be woken by
    /// each, its own relay's included. What is written meanwhile ends the next [`Bell::wait`].
    pub(super) fn wait_for_ring(&mut self, timeout: Duration) -> Heard {
        match self {
            #[cfg(target_os = "linux")]
            Self::Watching(watching) => watching.wait_for_ring(timeout),
            Self::Told(told) => told.wait_for_ring(timeout),
        }
    }

    /// The ringing side.
    pub(super) fn ring(&self) -> Ring {
        match self {
            #[cfg(target_os = "linux")]
            Self::Watching(watching) => Ring::Event(watching.ring()),
            Self::Told(told) => Ring::Told(Arc::clone(told)),
        }
    }
}

/// The ringing side. Cheap to clone.
#[derive(Clone)]
pub(super) enum Ring {
    #[cfg(target_os = "linux")]
    Event(Arc<std::os::fd::OwnedFd>),
    Told(Arc<Told>),
}

impl Ring {
    /// Ends a wait.
    pub(super) fn ring(&self) {
        match self {
            #[cfg(target_os = "linux")]
            Self::Event(event) => watching::ring(event),
            Self::Told(told) => told.rung(),
        }
    }
}

/// A bell between threads.
#[derive(Default)]
pub(super) struct Told {
    said: Mutex<Said>,
    news: Condvar,
}

#[derive(Default)]
struct Said {
    rung: bool,
    written: bool,
    /// Whoever waits wants to hear of a ring alone.
    ring_only: bool,
}

impl Told {
    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a wait: the database may have been written to.
    pub(super) fn written(&self) {
        let mut said = self.said();
        said.written = true;
        if !said.ring_only {
            self.news.notify_one();
        }
    }

    fn rung(&self) {
        self.said().rung = true;
        self.news.notify_one();
    }

    fn wait_for_ring(&self, timeout: Duration) -> Heard {
        let mut said = self.said();
        said.ring_only = true;
        let quiet = |said: &mut Said| !said.rung;
        let (mut said, _) = self.news.wait_timeout_while(said, timeout, quiet).unwrap_or_else(PoisonError::into_inner);
        said.ring_only = false;
        if std::mem::take(&mut said.rung) { Heard::Rung } else { Heard::Nothing }
    }

    fn wait(&self, timeout: Duration) -> Heard {
        let said = self.said();
        let quiet = |said: &mut Said| !said.rung && !said.written;
        let (mut said, _) = self.news.wait_timeout_while(said, timeout, quiet).unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut said.rung) {
            Heard::Rung
        } else if std::mem::take(&mut said.written) {
            Heard::Written
        } else {
            Heard::Nothing
        }
    }
}

#[cfg(target_os = "linux")]
pub(super) mod watching {
    //! The bell that watches the file system itself (inotify(7), eventfd(2)).

    use std::ffi::{OsStr, OsString};
    use std::mem::MaybeUninit;
    use std::os::fd::OwnedFd;
    use std::os::unix::ffi::OsStrExt as _;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
    use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
    use rustix::io;

    use super::Heard;
    use crate::clock;

    /// A name is 255 bytes at most; enough for some events.
    const BUFFER: usize = 4_096;

    /// A watch of some files of one folder and an event to ring with.
    pub(in super::super) struct Watching {
        watch: OwnedFd,
        event: Arc<OwnedFd>,
        folder: PathBuf,
        names: Vec<OsString>,
    }

    impl Watching {
        /// Watches for writes to `names` in `folder`. A write to another file there, be it the target's, wakes nobody:
        /// SQLite writes each page by itself, and each would be a wake-up. A watch does not open a file (closing it
        /// would drop SQLite's locks).
        pub(in super::super) fn new(folder: &Path, names: Vec<OsString>) -> io::Result<Self> {
            let watch = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
            // Before the files: one that is made in between is heard of.
            inotify::add_watch(&watch, folder, WatchFlags::CREATE | WatchFlags::MOVED_TO)?;
            let event = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
            let watching = Self { watch, event, folder: folder.to_owned(), names };
            watching.names.iter().try_for_each(|name| watching.watch(name))?;
            Ok(watching)
        }

        /// Watches the file that has this name now, if any. Again and again, it is one watch.
        fn watch(&self, name: &OsStr) -> io::Result<()> {
            match inotify::add_watch(&self.watch, self.folder.join(name), WatchFlags::MODIFY) {
                Ok(_) | Err(io::Errno::NOENT) => Ok(()),
                Err(error) => Err(error),
            }
        }

        pub(super) fn ring(&self) -> Arc<OwnedFd> {
            Arc::clone(&self.event)
        }

        pub(super) fn wait(&mut self, timeout: Duration) -> Heard {
            let until = clock::instant() + timeout;
            loop {
                match self.poll(until) {
                    Ok((false, false)) => return Heard::Nothing,
                    Ok((true, _)) => {
                        // A counter that is read is zero again.
                        let _ = io::read(&*self.event, &mut [0_u8; 8]);
                        return Heard::Rung;
                    }
                    Ok((false, true)) if self.ours() => return Heard::Written,
                    // Another file of the folder; or a signal.
                    Ok((false, true)) | Err(io::Errno::INTR) => {}
                    Err(error) => {
                        tracing::debug!(%error, "cannot wait for the file system");
                        std::thread::sleep(timeout);
                        return Heard::Nothing;
                    }
                }
            }
        }

        pub(super) fn wait_for_ring(&self, timeout: Duration) -> Heard {
            let until = clock::instant() + timeout;
            loop {
                let mut fds = [PollFd::new(&*self.event, PollFlags::IN)];
                match poll(&mut fds, Some(&left(until))) {
                    Ok(0) => return Heard::Nothing,
                    Ok(_) => {
                        let _ = io::read(&*self.event, &mut [0_u8; 8]);
                        return Heard::Rung;
                    }
                    Err(io::Errno::INTR) => {}
                    Err(error) => {
                        tracing::debug!(%error, "cannot wait for a ring");
                        std::thread::sleep(timeout);
                        return Heard::Nothing;
                    }
                }
            }
        }

        /// Whether somebody has rung, and whether the watch has something to say.
        pub(super) fn poll(&self, until: Instant) -> io::Result<(bool, bool)> {
            let mut fds = [PollFd::new(&*self.event, PollFlags::IN), PollFd::new(&self.watch, PollFlags::IN)];
            poll(&mut fds, Some(&left(until)))?;
            Ok((!fds[0].revents().is_empty(), !fds[1].revents().is_empty()))
        }

        /// Reads what the watch has to say; whether any of it is about our files, or may be.
        fn ours(&self) -> bool {
            let mut buffer = [MaybeUninit::uninit(); BUFFER];
            let mut told = inotify::Reader::new(&self.watch, &mut buffer);
            let mut ours = false;
            while let Ok(event) = told.next() {
                // Without a name it is about one of our files, the folder itself, or the queue has run over.
                let Some(name) = event.file_name() else {
                    ours = true;
                    continue;
                };
                let Some(name) = self.names.iter().find(|one| one.as_bytes() == name.to_bytes()) else { continue };
                // Another file has the name now. What was written before it is watched is found by looking.
                ours = true;
                if let Err(error) = self.watch(name) {
                    tracing::debug!(%error, "cannot watch a file");
                }
            }
            ours
        }
    }

    fn left(until: Instant) -> Timespec {
        let left = until.saturating_duration_since(clock::instant());
        Timespec { tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() }
    }

    pub(super) fn ring(event: &OwnedFd) {
        // Fails only when the counter is full: then it rings already.
        let _ = io::write(event, &1_u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_os = "linux")]
    use crate::clock;

    const LONG: Duration = Duration::from_secs(20);
    const SHORT: Duration = Duration::from_millis(1);

    #[cfg(target_os = "linux")]
    fn watching(folder: &std::path::Path) -> Bell {
        Bell::Watching(watching::Watching::new(folder, vec!["shop.db-wal".into()]).unwrap())
    }

    #[test]
    fn what_is_said_before_the_wait_ends_it_and_only_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut bells = vec![Bell::Told(Arc::default())];
        #[cfg(target_os = "linux")]
        bells.push(watching(folder.path()));
        for bell in &mut bells {
            let ring = bell.ring();
            ring.ring();
            ring.ring();
            assert_eq!(bell.wait(LONG), Heard::Rung);
            assert_eq!(bell.wait(SHORT), Heard::Nothing);
            std::thread::scope(|scope| {
                scope.spawn(|| ring.ring());
                assert_eq!(bell.wait(LONG), Heard::Rung);
            });
        }
        drop(folder);
    }

    #[test]
    fn a_word_of_the_other_thread_is_not_lost_behind_a_ring() {
        let told = Arc::<Told>::default();
        let mut bell = Bell::Told(Arc::clone(&told));
        told.written();
        bell.ring().ring();
        assert_eq!(bell.wait(LONG), Heard::Rung);
        assert_eq!(bell.wait(LONG), Heard::Written);
        assert_eq!(bell.wait(SHORT), Heard::Nothing);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_write_to_our_file_is_heard_and_to_another_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let mut bell = watching(folder.path());
        std::fs::write(folder.path().join("other.log"), "x").unwrap();
        assert_eq!(bell.wait(Duration::from_millis(50)), Heard::Nothing);
        std::fs::write(folder.path().join("shop.db-wal"), "x").unwrap();
        assert_eq!(bell.wait(LONG), Heard::Written);
        assert_eq!(bell.wait(SHORT), Heard::Nothing, "all of it is read at once");
        // Both at once: neither is lost.
        std::fs::write(folder.path().join("shop.db-wal"), "y").unwrap();
        bell.ring().ring();
        assert_eq!(bell.wait(LONG), Heard::Rung);
        assert_eq!(bell.wait(LONG), Heard::Written);
    }

    #[test]
    fn a_write_wakes_nobody_who_waits_for_a_ring_alone_and_is_heard_of_afterwards() {
        let folder = tempfile::tempdir().unwrap();
        let told = Arc::<Told>::default();
        let mut bells = vec![Bell::Told(Arc::clone(&told))];
        #[cfg(target_os = "linux")]
        bells.push(watching(folder.path()));
        for bell in &mut bells {
            told.written();
            std::fs::write(folder.path().join("shop.db-wal"), "x").unwrap();
            assert_eq!(bell.wait_for_ring(Duration::from_millis(50)), Heard::Nothing);
            bell.ring().ring();
            assert_eq!(bell.wait_for_ring(LONG), Heard::Rung);
            assert_eq!(bell.wait(LONG), Heard::Written);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_that_is_made_anew_or_takes_the_name_is_heard_and_a_neighbour_is_not_even_told_of() {
        let folder = tempfile::tempdir().unwrap();
        let (wal, other) = (folder.path().join("shop.db-wal"), folder.path().join("target.db-wal"));
        std::fs::write(&wal, "x").unwrap();
        std::fs::write(&other, "x").unwrap();
        let mut bell = watching(folder.path());
        std::fs::write(&other, "y").unwrap();
        let Bell::Watching(watching) = &bell else { panic!() };
        assert_eq!(watching.poll(clock::instant() + SHORT).unwrap(), (false, false));

        std::fs::remove_file(&wal).unwrap();
        std::fs::write(&wal, "z").unwrap();
        assert_eq!(bell.wait(LONG), Heard::Written);
        std::fs::rename(&other, &wal).unwrap();
        assert_eq!(bell.wait(LONG), Heard::Written);
        // The news of what has gone may come by themselves.
        while bell.wait(Duration::from_millis(50)) != Heard::Nothing {}
        std::fs::write(&wal, "in the file that took the name").unwrap();
        assert_eq!(bell.wait(LONG), Heard::Written);
    }
}
