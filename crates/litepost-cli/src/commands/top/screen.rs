//! What the screen of `litepost top` knows, and what a key does to it.
//!
//! Called by the command's loop, drawn by `view.rs`. Invariant: no clock, no file, no terminal: inputs go in, an effect
//! comes out, and nothing is done that was not asked for twice.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::standing::Row;

/// Looks that the sparkline remembers.
const HISTORY_MAX: usize = 60;

/// What can happen to the screen.
pub(super) enum Input {
    /// A key was pressed.
    Key(KeyEvent),
    /// The files were looked at, so long after the start; or could not be.
    Looked {
        /// What they say.
        rows: Result<Vec<Row>, String>,
        /// When.
        at: Duration,
    },
    /// A deed has ended: what became of it.
    Done(String),
}

/// What the loop must do.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Draw.
    Nothing,
    /// End.
    Quit,
    /// Have this done.
    Do(Deed),
}

/// What the operator can do to a destination from here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    /// Stop delivering to it.
    Pause(String),
    /// Deliver again.
    Resume(String),
}

/// What the keys mean at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// They watch.
    Watch,
    /// Help is shown; any key ends it.
    Help,
    /// A deed waits for `y`.
    Confirm(Deed),
}

/// How a destination's count of deliveries grew.
#[derive(Default)]
struct History {
    last: Option<(Duration, i64)>,
    rates: VecDeque<f64>,
}

impl History {
    fn add(&mut self, at: Duration, delivered: i64) {
        if let Some((before, count)) = self.last
            && let passed = at.saturating_sub(before).as_secs_f64()
            && passed > 0.0
        {
            // A restored file counts from an older figure: that is no rate.
            self.rates.push_back(float((delivered - count).max(0)) / passed);
            if self.rates.len() > HISTORY_MAX {
                self.rates.pop_front();
            }
        }
        self.last = Some((at, delivered));
    }
}

/// All that is shown.
pub(super) struct Screen {
    /// What is watched.
    pub(super) title: String,
    /// How often.
    pub(super) every: Duration,
    /// Whether colours are wanted.
    pub(super) colour: bool,
    /// The destinations.
    pub(super) rows: Vec<Row>,
    /// Which of them is selected.
    pub(super) selected: usize,
    /// What the keys mean.
    pub(super) mode: Mode,
    /// What became of the last deed.
    pub(super) message: Option<String>,
    /// Why the last look failed; the rows are older then.
    pub(super) trouble: Option<String>,
    histories: HashMap<String, History>,
}

impl Screen {
    /// A screen that knows nothing yet.
    pub(super) fn new(title: String, every: Duration, colour: bool) -> Self {
        Self {
            title,
            every,
            colour,
            rows: Vec::new(),
            selected: 0,
            mode: Mode::Watch,
            message: None,
            trouble: None,
            histories: HashMap::new(),
        }
    }

    /// Takes what happened.
    pub(super) fn take(&mut self, input: Input) -> Effect {
        match input {
            Input::Looked { rows: Ok(rows), at } => self.looked(rows, at),
            Input::Looked { rows: Err(why), .. } => self.trouble = Some(why),
            Input::Done(what) => self.message = Some(what),
            Input::Key(key) => return self.key(key),
        }
        Effect::Nothing
    }

    /// The selected destination stays selected, wherever its row has gone.
    fn looked(&mut self, rows: Vec<Row>, at: Duration) {
        let selected = self.rows.get(self.selected).map(name);
        for row in &rows {
            self.histories.entry(name(row)).or_default().add(at, row.delivered);
        }
        self.histories.retain(|known, _| rows.iter().any(|row| name(row) == *known));
        let still = selected.and_then(|selected| rows.iter().position(|row| name(row) == selected));
        self.selected = still.unwrap_or(self.selected).min(rows.len().saturating_sub(1));
        self.rows = rows;
        self.trouble = None;
    }

    fn key(&mut self, key: KeyEvent) -> Effect {
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return Effect::Quit;
        }
        match std::mem::replace(&mut self.mode, Mode::Watch) {
            // Any key closes the help, and does nothing else.
            Mode::Help => return Effect::Nothing,
            Mode::Confirm(deed) => {
                if matches!(key.code, KeyCode::Char('y' | 'Y')) {
                    self.message = Some("asking the relay ...".into());
                    return Effect::Do(deed);
                }
                self.message = Some("nothing was done".into());
                return Effect::Nothing;
            }
            Mode::Watch => {}
        }
        self.message = None;
        let last = self.rows.len().saturating_sub(1);
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Effect::Quit,
            KeyCode::Down | KeyCode::Char('j') => self.selected = (self.selected + 1).min(last),
            KeyCode::Up | KeyCode::Char('k') => self.selected = self.selected.saturating_sub(1),
            KeyCode::Home | KeyCode::Char('g') => self.selected = 0,
            KeyCode::End | KeyCode::Char('G') => self.selected = last,
            KeyCode::Char('?' | 'h') => self.mode = Mode::Help,
            KeyCode::Char('p') => self.confirm(Deed::Pause),
            KeyCode::Char('r') => self.confirm(Deed::Resume),
            _ => {}
        }
        Effect::Nothing
    }

    fn confirm(&mut self, deed: impl Fn(String) -> Deed) {
        if let Some(row) = self.rows.get(self.selected) {
            self.mode = Mode::Confirm(deed(name(row)));
        }
    }

    /// Deliveries per second between the last two looks.
    pub(super) fn rate(&self, row: &Row) -> Option<f64> {
        self.histories.get(&name(row))?.rates.back().copied()
    }

    /// The last rates as bars, newest right, at most `width` of them; the highest fills its cell.
    pub(super) fn sparkline(&self, row: &Row, width: usize) -> String {
        const BARS: [char; 8] =
            ['\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}', '\u{2588}'];
        let Some(history) = self.histories.get(&name(row)) else { return String::new() };
        let shown = history.rates.iter().skip(history.rates.len().saturating_sub(width)).copied();
        let most = shown.clone().fold(0.0, f64::max);
        let bar = |rate: f64| (1..BARS.len()).rev().find(|step| rate >= most * float(*step) / 8.0).unwrap_or(0);
        shown.map(|rate| if rate > 0.0 { BARS[bar(rate)] } else { ' ' }).collect()
    }
}

/// A destination's full name.
pub(super) fn name(row: &Row) -> String {
    if row.app.is_empty() { row.name.clone() } else { format!("{}.{}", row.app, row.name) }
}

#[allow(clippy::cast_precision_loss, reason = "counts are below 2^53")]
fn float(number: impl TryInto<i64>) -> f64 {
    number.try_into().unwrap_or(i64::MAX) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::top::view::tests::row;

    fn press(screen: &mut Screen, code: KeyCode) -> Effect {
        screen.take(Input::Key(KeyEvent::new(code, KeyModifiers::NONE)))
    }

    fn screen() -> Screen {
        let mut screen = Screen::new("litepost.toml".into(), Duration::from_secs(1), false);
        let rows = vec![row("audit", "closed"), row("webhook", "open")];
        screen.take(Input::Looked { rows: Ok(rows), at: Duration::ZERO });
        screen
    }

    #[test]
    fn a_deed_is_done_only_when_it_was_confirmed() {
        let mut screen = screen();
        assert_eq!(press(&mut screen, KeyCode::Down), Effect::Nothing);
        assert_eq!(press(&mut screen, KeyCode::Char('p')), Effect::Nothing);
        assert_eq!(screen.mode, Mode::Confirm(Deed::Pause("shop.webhook".into())));
        // Enter is no yes: a key that is pressed by habit pauses nothing.
        for no in [KeyCode::Enter, KeyCode::Char('n'), KeyCode::Esc, KeyCode::Char('q')] {
            press(&mut screen, KeyCode::Char('p'));
            assert_eq!(press(&mut screen, no), Effect::Nothing);
            assert_eq!(screen.mode, Mode::Watch);
        }
        press(&mut screen, KeyCode::Char('r'));
        assert_eq!(press(&mut screen, KeyCode::Char('y')), Effect::Do(Deed::Resume("shop.webhook".into())));
    }

    #[test]
    fn a_deed_is_about_what_was_selected_when_it_was_asked_for() {
        let mut screen = screen();
        press(&mut screen, KeyCode::Down);
        press(&mut screen, KeyCode::Char('p'));
        let rows = vec![row("webhook", "open"), row("audit", "closed")];
        screen.take(Input::Looked { rows: Ok(rows), at: Duration::from_secs(1) });
        assert_eq!(screen.selected, 0, "the selection went with its row");
        assert_eq!(press(&mut screen, KeyCode::Char('y')), Effect::Do(Deed::Pause("shop.webhook".into())));
    }

    #[test]
    fn the_selection_stays_inside() {
        let mut screen = screen();
        press(&mut screen, KeyCode::Up);
        assert_eq!(screen.selected, 0);
        for _ in 0..5 {
            press(&mut screen, KeyCode::Down);
        }
        assert_eq!(screen.selected, 1);
        screen.take(Input::Looked { rows: Ok(Vec::new()), at: Duration::from_secs(1) });
        assert_eq!((screen.selected, press(&mut screen, KeyCode::Char('p'))), (0, Effect::Nothing));
        assert_eq!(screen.mode, Mode::Watch, "there is nothing to pause");
    }

    #[test]
    fn a_rate_is_the_growth_between_two_looks() {
        let mut screen = screen();
        for (at, delivered) in [(2, 200), (3, 600), (4, 600), (5, 0)] {
            let mut found = row("audit", "closed");
            found.delivered = delivered;
            screen.take(Input::Looked { rows: Ok(vec![found]), at: Duration::from_secs(at) });
        }
        assert_eq!(screen.rate(&screen.rows[0]), Some(0.0), "a count that fell is no rate");
        assert_eq!(screen.sparkline(&screen.rows[0], 10), "\u{2583}\u{2588}  ");
        assert_eq!(screen.sparkline(&screen.rows[0], 3), "\u{2588}  ");
    }

    #[test]
    fn a_look_that_fails_keeps_the_rows() {
        let mut screen = screen();
        screen.take(Input::Looked { rows: Err("shop.db: locked".into()), at: Duration::from_secs(1) });
        assert_eq!((screen.rows.len(), screen.trouble.as_deref()), (2, Some("shop.db: locked")));
        screen.take(Input::Looked { rows: Ok(vec![row("audit", "closed")]), at: Duration::from_secs(2) });
        assert_eq!((screen.rows.len(), screen.trouble), (1, None));
    }

    #[test]
    fn keys_that_end_it() {
        let control = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        for mode in [Mode::Watch, Mode::Help, Mode::Confirm(Deed::Pause("shop.audit".into()))] {
            let mut screen = screen();
            screen.mode = mode;
            assert_eq!(screen.take(Input::Key(control)), Effect::Quit);
        }
        let mut screen = screen();
        press(&mut screen, KeyCode::Char('?'));
        assert_eq!(press(&mut screen, KeyCode::Char('q')), Effect::Nothing, "the help closes first");
        assert_eq!(press(&mut screen, KeyCode::Char('q')), Effect::Quit);
    }
}
