//! `litepost top`: every destination, live in the terminal.
//!
//! Invariant: looks into the outbox files as `litepost status` does, read-only; only a deed that was confirmed changes
//! something, through the same functions as `litepost pause` and `litepost resume`. The terminal is as it was when the
//! command ends, whatever ends it short of SIGKILL; a part of it that fails ends the whole, since a screen that no longer
//! follows would be believed.

mod screen;
mod view;

use std::io::{self, IsTerminal as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use clap::Args;
use litepost::operate::Scope;
use litepost_relay::config::Purpose;
use ratatui::crossterm::event::{self, Event, KeyEventKind};

use self::screen::{Deed, Effect, Input, Screen};
use super::pause;
use crate::args::Where;
use crate::clock;
use crate::failure::Failure;
use crate::hands::{Hands, Taking};
use crate::places::Place;
use crate::standing;

const EXAMPLES: &str = "\
Examples:
  litepost top                             every destination of the configuration here
  litepost top --config litepost.toml --every 0.5
  litepost top --database shop.db          every destination that the file knows

Keys: up and down select, p pauses the destination, r resumes it (both ask first), ? shows help, q quits.
Without a terminal: `litepost status`.";

/// How long a key may wait for the screen, and a signal for the end.
const TICK: Duration = Duration::from_millis(100);

/// Watch delivery live in the terminal.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Top {
    #[command(flatten)]
    place: Where,
    /// Seconds between two looks
    #[arg(long, short = 'n', value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    every: Duration,
    /// No colours (so does the variable NO_COLOR)
    #[arg(long)]
    no_color: bool,
    #[command(flatten)]
    taking: Taking,
    #[command(flatten)]
    hands: Hands,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "a number of seconds, such as 0.5".to_owned())?;
    if (0.1..=3600.0).contains(&number) { Ok(Duration::from_secs_f64(number)) } else { Err("from 0.1 to 3600".into()) }
}

/// Watches until the user has seen enough.
pub(crate) fn run(command: &Top) -> Result<(), Failure> {
    if !(io::stdout().is_terminal() && io::stdin().is_terminal()) {
        return Err(Failure::user(
            "top draws on a terminal, and standard input or output is none",
            "`litepost status` says the same once, `litepost status --json` for programs",
        ));
    }
    let place = command.place.load(Purpose::Look)?;
    // A mistake is told before the screen is taken.
    let rows = standing::look(&place)?;
    let quiet = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let mut screen = Screen::new(named(command, &place), command.every, !command.no_color && !quiet);
    let began = clock::start();
    screen.take(Input::Looked { rows: Ok(rows), at: Duration::ZERO });

    let (inputs, inbox) = channel();
    let (deeds, todo) = channel();
    let (again, nudges) = channel();
    let stop = told_to_stop();
    let mut terminal = Raw::take()?;
    let (every, from_looks) = (command.every, inputs.clone());
    std::thread::spawn(move || watch(&place, every, began, &nudges, &from_looks));
    let hand = Hand { place: command.place.clone(), taking: command.taking, hands: command.hands.clone() };
    std::thread::spawn(move || hand.work(&todo, &inputs, &again));

    terminal.show(&mut screen, &inbox, &deeds, &stop)
}

/// What is watched, for the first line.
fn named(command: &Top, place: &Place) -> String {
    let path = match place {
        Place::Database(path) => path.display().to_string(),
        Place::Folder(..) => {
            let folder = command.place.db_dir.as_ref().or(command.place.database.as_ref());
            folder.map(|folder| folder.display().to_string()).unwrap_or_default()
        }
        Place::Config(config) => config.source.name(),
    };
    crate::output::harmless(&path)
}

/// Looks again and again, and at once when a deed is done.
fn watch(place: &Place, every: Duration, began: std::time::Instant, nudges: &Receiver<()>, inputs: &Sender<Input>) {
    loop {
        if nudges.recv_timeout(every) == Err(RecvTimeoutError::Disconnected) {
            return;
        }
        weak_spot("looking");
        let rows = standing::look(place).map_err(|failure| said(&failure));
        if inputs.send(Input::Looked { rows, at: began.elapsed() }).is_err() {
            return;
        }
    }
}

/// Does what was confirmed.
struct Hand {
    place: Where,
    taking: Taking,
    hands: Hands,
}

impl Hand {
    fn work(&self, todo: &Receiver<Deed>, inputs: &Sender<Input>, again: &Sender<()>) {
        for deed in todo {
            let done = self.act(&deed).unwrap_or_else(|failure| said(&failure));
            // The user may have left meanwhile; the deed is done all the same.
            let _ = inputs.send(Input::Done(done));
            let _ = again.send(());
        }
    }

    fn act(&self, deed: &Deed) -> Result<String, Failure> {
        weak_spot("doing");
        let (whole, hands) = (Scope::Destination, &self.hands);
        Ok(match deed {
            Deed::Pause(name) => {
                let new = pause::pause_everywhere(&self.place, name, &whole, hands, self.taking)?;
                if new {
                    format!("{} {name}", hands.would("paused", "would pause"))
                } else {
                    format!("{name} was paused already")
                }
            }
            Deed::Resume(name) => {
                pause::resume_everywhere(&self.place, name, &whole, hands, self.taking)?;
                format!("{} {name}", hands.would("resumed", "would resume"))
            }
        })
    }
}

/// A failure as one line.
fn said(failure: &Failure) -> String {
    match failure {
        Failure::User { message, hint } | Failure::Unexpected { message, hint } if !hint.is_empty() => {
            format!("{message} ({hint})")
        }
        Failure::User { message, .. } | Failure::Unexpected { message, .. } => message.clone(),
        Failure::Config(error) | Failure::Deployment(error) => error.to_string(),
        Failure::Finding | Failure::BrokenPipe => String::new(),
    }
}

/// True once a signal asks for the end. (Ctrl-C at the keyboard is a key here.) When this returns, no signal can end the
/// process with the terminal in its hands any more.
fn told_to_stop() -> Arc<AtomicBool> {
    use tokio::signal::unix::{SignalKind, signal};
    let stop = Arc::new(AtomicBool::new(false));
    let (told, (ready, listens)) = (Arc::clone(&stop), channel());
    std::thread::spawn(move || {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
        runtime.block_on(async {
            let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
            let [Ok(mut interrupt), Ok(mut terminate), Ok(mut hangup)] = kinds.map(signal) else { return };
            drop(ready);
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
            }
            told.store(true, Ordering::Relaxed);
        });
    });
    // Nothing is ever sent: the sender is gone when the handlers stand, or cannot be had.
    let _: Result<(), _> = listens.recv();
    stop
}

/// What a panic in another thread than the screen's has told.
static FAILED: OnceLock<String> = OnceLock::new();

/// Where a test can have a part of this command fail, to see what becomes of the terminal.
#[cfg(feature = "failpoints")]
fn weak_spot(name: &str) {
    assert!(std::env::var("LITEPOST_TOP_FAILS").as_deref() != Ok(name), "{name} fails, as the test wants it");
}

#[cfg(not(feature = "failpoints"))]
fn weak_spot(_: &str) {}

/// The terminal while it is ours.
struct Raw(ratatui::DefaultTerminal);

impl Raw {
    /// Takes it. A panic in this thread gives it back as well: ratatui hooks itself into that. One in another thread is kept
    /// for this one, which would else draw on over what the other has told.
    fn take() -> Result<Self, Failure> {
        let terminal = ratatui::try_init().map(Self).map_err(|error| fault(&error))?;
        let (gives_back, here) = (std::panic::take_hook(), std::thread::current().id());
        std::panic::set_hook(Box::new(move |panic| {
            if std::thread::current().id() == here {
                gives_back(panic);
            } else {
                let _ = FAILED.set(panic.to_string());
            }
        }));
        Ok(terminal)
    }

    fn show(
        &mut self,
        screen: &mut Screen,
        inbox: &Receiver<Input>,
        deeds: &Sender<Deed>,
        stop: &AtomicBool,
    ) -> Result<(), Failure> {
        let mut stale = true;
        while !stop.load(Ordering::Relaxed) {
            if let Some(what) = FAILED.get() {
                return Err(Failure::unexpected(what.replace('\n', " "), Failure::OURS));
            }
            if stale {
                self.0.draw(|frame| view::draw(frame, screen)).map_err(|error| fault(&error))?;
                weak_spot("drawing");
            }
            stale = false;
            let mut inputs: Vec<Input> = Vec::new();
            if event::poll(TICK).map_err(|error| fault(&error))? {
                match event::read().map_err(|error| fault(&error))? {
                    Event::Key(key) if key.kind == KeyEventKind::Press => inputs.push(Input::Key(key)),
                    Event::Resize(..) => stale = true,
                    _ => {}
                }
            }
            inputs.extend(inbox.try_iter());
            for input in inputs {
                stale = true;
                match screen.take(input) {
                    Effect::Nothing => {}
                    Effect::Quit => return Ok(()),
                    // The hand works as long as the screen lives.
                    Effect::Do(deed) => drop(deeds.send(deed)),
                }
            }
        }
        Ok(())
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // The hook has done it: once more would put the cursor over what it has told.
        if std::thread::panicking() {
            return;
        }
        // Nobody is left to be told when the terminal is gone.
        let _ = ratatui::try_restore();
    }
}

fn fault(error: &io::Error) -> Failure {
    Failure::unexpected(format!("the terminal cannot be used: {error}"), "`litepost status` needs none")
}
