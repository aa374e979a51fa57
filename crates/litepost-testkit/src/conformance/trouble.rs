//! The cases in which something goes wrong: servers that die, freeze or refuse, connections that break, relays that
//! stop.
//!
//! Called by [`crate::conformance!`]. Whatever happens, no event is lost, no key's order is broken, and nothing of it
//! costs an event an attempt unless the event itself is at fault.

use std::thread::sleep;
use std::time::Duration;

use litepost::NewEvent;
use litepost_relay::relay::Drained;

use super::cases::compare;
use super::{Desk, Duplicates, Harness, Target, WRONG_PASSWORD, judge};
use crate::proxy::Proxy;

/// A short deadline, so that a frozen server is noticed while a test waits.
const IMPATIENT: &str = "timeout = \"2s\"";

fn pause(ms: u64) {
    sleep(Duration::from_millis(ms));
}

/// A desk whose sink reaches the server through a proxy.
fn behind_proxy(harness: &mut impl Harness, keys: &str) -> (Proxy, Desk) {
    let proxy = Proxy::start(harness.port());
    harness.behind(proxy.port());
    let desk = Desk::new(harness.traits().kind, keys, &harness.connection(proxy.port(), Target::Ready));
    (proxy, desk)
}

fn direct(harness: &impl Harness, keys: &str, target: Target) -> Desk {
    Desk::new(harness.traits().kind, keys, &harness.connection(harness.port(), target))
}

fn nobody_was_blamed(desk: &Desk) {
    assert_eq!(desk.dead(), 0, "{}", desk.text("SELECT coalesce(group_concat(error), '') FROM litepost_dead"));
    assert_eq!(desk.number("SELECT count(*) FROM litepost_blocked"), 0);
}

/// The server is killed and started again while events flow.
pub fn server_restarted(mut harness: impl Harness) {
    let mut desk = direct(&harness, IMPATIENT, Target::Ready);
    for round in 0..3 {
        desk.write_many(200, 10);
        let relay = desk.start();
        if round == 0 {
            desk.until_settled();
        } else {
            pause(10 * round);
        }
        harness.kill();
        pause(50);
        harness.start_again();
        desk.until_settled();
        relay.stop();
    }
    nobody_was_blamed(&desk);
    compare(&mut harness, &desk, Duplicates::Allowed);
}

/// The connection is cut in the middle of a batch, at many places.
pub fn connection_cut_mid_batch(mut harness: impl Harness) {
    const CUTS: u32 = 8;
    let (proxy, mut desk) = behind_proxy(&mut harness, "batch_size = 200");
    for round in 1..=CUTS {
        proxy.cut_after(2_111 * round);
        // More bytes than the last cut lets through, however small a broker's packets are.
        desk.write_many(700, 10);
        let relay = desk.start();
        desk.until_settled();
        relay.stop();
        assert_eq!(proxy.cuts(), u64::from(round), "the cut fell within the batch");
    }
    nobody_was_blamed(&desk);
    let duplicates = harness.traits().duplicates;
    compare(&mut harness, &desk, duplicates);
}

/// The server freezes for longer than the deadline, with events under way, and goes on.
pub fn server_paused_and_resumed(mut harness: impl Harness) {
    let mut desk = direct(&harness, IMPATIENT, Target::Ready);
    desk.write_many(50, 5);
    let relay = desk.start();
    desk.until_settled();
    harness.pause();
    desk.write_many(200, 5);
    pause(2_600);
    harness.resume();
    desk.until_settled();
    relay.stop();
    nobody_was_blamed(&desk);
    let duplicates = harness.traits().duplicates;
    compare(&mut harness, &desk, duplicates);
}

/// A server whose every answer takes its time is no unavailable one.
pub fn slow_server(mut harness: impl Harness) {
    let (proxy, mut desk) = behind_proxy(&mut harness, "batch_size = 100");
    proxy.delay_replies(30);
    desk.write_many(500, 10);
    desk.drain_everything();
    nobody_was_blamed(&desk);
    compare(&mut harness, &desk, Duplicates::Never);
}

/// Wrong credentials are an operator's business: no event pays, and no message repeats them.
pub fn credentials_wrong(mut harness: impl Harness) {
    let mut desk = direct(&harness, IMPATIENT, Target::WrongCredentials);
    desk.write_many(10, 2);
    let report = desk.drain();
    let Drained::Unavailable { error } = &report.lanes[0].drained else { panic!("{report:?}") };
    assert!(!error.contains(WRONG_PASSWORD), "{error}");
    assert_eq!(desk.delivered(), 0);
    nobody_was_blamed(&desk);
    let traits = harness.traits();
    desk.configure(traits.kind, "", &harness.connection(harness.port(), Target::Ready));
    desk.drain_everything();
    compare(&mut harness, &desk, Duplicates::Never);
}

/// Where there is no topic, events wait, for as long as it takes, and leave when somebody has made it.
pub fn topic_missing(mut harness: impl Harness) {
    let mut desk = direct(&harness, "timeout = \"2s\"\nmax_attempts = 2", Target::Missing);
    desk.write_many(30, 5);
    let relay = desk.start();
    pause(1_000);
    assert_eq!((desk.delivered(), desk.dead()), (0, 0));
    harness.make_missing();
    desk.until_settled();
    relay.stop();
    assert_eq!(desk.dead(), 0);
    let received = harness.consume(Target::Missing);
    judge(desk.sent(), &received, harness.traits().duplicates).unwrap_or_else(|wrong| panic!("{wrong}"));
    desk.verify();
}

/// An event that the server will never take is a dead letter; its neighbours arrive.
pub fn message_too_large(mut harness: impl Harness) {
    let mut desk = direct(&harness, "max_batch_bytes = \"16MiB\"", Target::Ready);
    desk.write_many(20, 4);
    let body = vec![b'x'; harness.traits().too_large];
    let id = desk.write(NewEvent::new("orders", &body[..]), Some("k1"), &body);
    desk.write_many(20, 4);
    let relay = desk.start();
    desk.until_settled();
    relay.stop();
    assert_eq!(desk.text("SELECT group_concat(id || ' ' || reason) FROM litepost_dead"), format!("{id} permanent"));
    desk.unsend(&id);
    let duplicates = harness.traits().duplicates;
    compare(&mut harness, &desk, duplicates);
}

/// The server has stored a batch and its answer never arrives: duplicates where the sink admits them, loss never.
pub fn acknowledgement_lost(mut harness: impl Harness) {
    let (proxy, mut desk) = behind_proxy(&mut harness, IMPATIENT);
    desk.write_many(50, 5);
    let relay = desk.start();
    desk.until_settled();
    for _ in 0..3 {
        proxy.swallow_replies(true);
        let before = proxy.sent();
        desk.write_many(100, 5);
        // One event of each key at least may leave before an answer, and the smallest packets have 20 bytes.
        desk.until("the batch has left", |_| proxy.sent() >= before + 100);
        // Time for the server to store it and to say so, to nobody.
        pause(300);
        proxy.cut();
        proxy.swallow_replies(false);
        desk.until_settled();
    }
    relay.stop();
    nobody_was_blamed(&desk);
    let duplicates = harness.traits().duplicates;
    compare(&mut harness, &desk, duplicates);
}

/// Relays that are stopped, and relays that are dropped, with events under way; the last one finishes.
pub fn shutdown_mid_batch(mut harness: impl Harness) {
    let traits = harness.traits();
    let mut desk = direct(&harness, traits.in_flight, Target::Ready);
    for round in 0..6 {
        desk.write_many(1_500, 10);
        let relay = desk.start();
        let before = desk.delivered();
        if round % 2 == 1 {
            desk.until("it delivers", |desk| desk.delivered() > before);
        } else {
            pause(15 * (round + 1));
        }
        if round % 3 == 2 {
            relay.kill(&desk);
        } else {
            relay.stop();
        }
    }
    desk.drain_everything();
    nobody_was_blamed(&desk);
    compare(&mut harness, &desk, traits.duplicates);
}
