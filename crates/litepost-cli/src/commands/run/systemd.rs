//! What a service manager is told by sd_notify: READY, RELOADING, STOPPING, and WATCHDOG as long as the lanes turn.
//!
//! Used by `run`. Invariant: without `NOTIFY_SOCKET` nothing is sent; WATCHDOG is a sign of progress, so it stops when a
//! lane is stuck, and then the service manager ends the process and starts it anew.

use std::time::Duration;

use litepost_relay::relay::Pulse;
use sd_notify::NotifyState;

/// Says that delivery is under way.
pub(super) fn ready() {
    say(&[NotifyState::Ready, NotifyState::Status("delivering")]);
}

/// Says that what is in flight is being settled.
pub(super) fn stopping() {
    say(&[NotifyState::Stopping, NotifyState::Status("settling what is in flight")]);
}

fn say(what: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(false, what) {
        tracing::warn!(%error, "the service manager cannot be told");
    }
}

/// Tells the watchdog, when there is one, that the lanes turn; twice within the time that it allows.
pub(super) async fn watchdog(pulse: Pulse) {
    let mut allowed = 0;
    if !sd_notify::watchdog_enabled(false, &mut allowed) || allowed == 0 {
        return;
    }
    let mut tick = tokio::time::interval(Duration::from_micros(allowed / 2));
    let mut told = false;
    loop {
        tick.tick().await;
        let silent = pulse.silent();
        if silent.is_empty() {
            told = false;
            say(&[NotifyState::Watchdog]);
        } else if !told {
            told = true;
            tracing::error!(destinations = ?silent, "a lane is stuck: the watchdog is told nothing until it turns again");
        }
    }
}
