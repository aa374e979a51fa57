//! Notices that this process is a fork of another: what was drawn at random before must not be used twice.
//!
//! Called by [`crate::ids`] for each id. Asking the system for its process id instead would cost a system call per
//! event, a tenth of an enqueue. Invariant: [`generation`] never answers the same in a parent and in its child.
#![allow(
    unsafe_code,
    reason = "only the C library knows when a process forks; this and `durable` are the modules that call C"
)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

static GENERATION: AtomicU64 = AtomicU64::new(0);
static WATCHED: OnceLock<bool> = OnceLock::new();

/// Which generation of forks this process is; `None` where that cannot be known.
///
/// `fork()` is noticed, by whatever thread it is called. A bare `clone` system call that goes around the C library is
/// not; such a process may call nothing but `exec` and what is safe in a signal handler anyway.
pub(crate) fn generation() -> Option<u64> {
    WATCHED.get_or_init(watch).then(|| GENERATION.load(Ordering::Relaxed))
}

#[cfg(unix)]
fn watch() -> bool {
    extern "C" fn in_child() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: the handler adds to an atomic and does nothing else, which is allowed between fork and exec; it is a
    // function of this library, and the C library forgets it when the library is unloaded.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) == 0 }
}

#[cfg(not(unix))]
fn watch() -> bool {
    // Nothing forks there; but nothing is gained by relying on it either.
    false
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_another_generation_and_its_parent_is_not() {
        let before = generation().unwrap();
        // SAFETY: the child reads an atomic and ends, without running anything of the test harness.
        let child = unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(i32::from(GENERATION.load(Ordering::Relaxed) == before + 1));
            }
            child
        };
        let mut status = 0;
        // SAFETY: waits for our own child; `status` lives on our stack.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((waited, libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (child, true, 1));
        assert_eq!(generation(), Some(before));
    }
}
