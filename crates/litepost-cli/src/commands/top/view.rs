//! How the screen of `litepost top` looks.
//!
//! Called for every frame. Invariant: nothing is told by colour alone, and nothing that comes from a file can move the
//! cursor; a small window leaves columns out, never the name and the state.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Margin, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Clear, Paragraph, Row as TableRow, Table, TableState, Wrap};

use super::screen::{Deed, Mode, Screen, name};
use crate::output::{age, harmless, size};
use crate::standing::{Row, next_step};

/// A window that is lower has no room for details.
const DETAILS_FROM_HEIGHT: u16 = 14;
/// Rows of the details.
const DETAILS_HEIGHT: u16 = 7;

const HELP: &str = "\
up, k     the destination above
down, j   the one below
p         pause it: nothing of it leaves
r         resume it
?         this help
q, Esc    quit

STATE: new (no relay yet), closed (all is
well), open (unreachable, is probed),
half_open (a probe is under way), stalled
(an operator is needed), paused.
RATE: deliveries per second.
LAG: age of the oldest that waits.
! before a name: see its next step below.";

/// A column: its head, its width, and from which width of the window it is shown.
struct Column {
    head: &'static str,
    width: u16,
    from: u16,
}

/// Behind the name, in this order.
const COLUMNS: [Column; 6] = [
    Column { head: "STATE", width: 9, from: 0 },
    Column { head: "PENDING", width: 8, from: 38 },
    Column { head: "LAG", width: 7, from: 50 },
    Column { head: "DEAD", width: 6, from: 58 },
    Column { head: "RATE", width: 8, from: 66 },
    Column { head: "", width: 14, from: 78 },
];

/// Draws it all.
pub(super) fn draw(frame: &mut Frame<'_>, screen: &Screen) {
    let area = frame.area();
    let details = if area.height >= DETAILS_FROM_HEIGHT { DETAILS_HEIGHT } else { 0 };
    let [title, table, below, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(details),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(first_line(screen)), title);
    destinations(frame, screen, table);
    if details > 0 {
        frame.render_widget(Paragraph::new(about(screen)).wrap(Wrap { trim: false }), below);
    }
    frame.render_widget(Paragraph::new(last_line(screen)), keys);
    if screen.mode == Mode::Help {
        let help = area.inner(Margin { horizontal: 0, vertical: 1 });
        frame.render_widget(Clear, help);
        frame.render_widget(Paragraph::new(HELP), help);
    }
}

fn first_line(screen: &Screen) -> Line<'static> {
    let every = screen.every.as_secs_f64();
    let count = screen.rows.len();
    let noun = if count == 1 { "destination" } else { "destinations" };
    let bold = Style::new().add_modifier(Modifier::BOLD);
    Line::from(vec![
        Span::styled("litepost", bold),
        Span::raw(format!("  {}  {count} {noun}, every {every} s", screen.title)),
    ])
}

fn destinations(frame: &mut Frame<'_>, screen: &Screen, area: Rect) {
    if screen.rows.is_empty() {
        let text = "no destination: no relay has served this file yet, or the configuration names none";
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), area);
        return;
    }
    let shown = || COLUMNS.iter().enumerate().filter(|(_, column)| area.width >= column.from);
    let mut widths = vec![Constraint::Fill(1)];
    widths.extend(shown().map(|(_, column)| Constraint::Length(column.width)));
    let mut head = vec![Cell::from("DESTINATION")];
    head.extend(shown().map(|(at, column)| cell(at, column, column.head.to_owned())));
    let rows = screen.rows.iter().map(|row| {
        let mark = if next_step(row).is_some() { "!" } else { " " };
        let mut cells = vec![Cell::from(format!("{mark}{}", harmless(&name(row))))];
        cells.extend(shown().map(|(at, column)| {
            let cell = cell(at, column, value(screen, row, at, column.width));
            if at == 0 { cell.style(state_style(screen, row)) } else { cell }
        }));
        TableRow::new(cells)
    });
    let table = Table::new(rows, widths)
        .column_spacing(1)
        .header(TableRow::new(head).style(Style::new().add_modifier(Modifier::BOLD)))
        .highlight_symbol("> ")
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(screen.selected));
}

/// Words stand left, numbers right.
fn cell(at: usize, column: &Column, text: String) -> Cell<'static> {
    if at == 0 { Cell::from(text) } else { Cell::from(format!("{text:>width$}", width = usize::from(column.width))) }
}

fn value(screen: &Screen, row: &Row, column: usize, width: u16) -> String {
    match column {
        0 => state(row).to_owned(),
        1 => row.pending.to_string(),
        2 => row.oldest_age_ms.map_or_else(|| "-".into(), age),
        3 => row.dead.to_string(),
        4 => screen.rate(row).map_or_else(|| "-".into(), per_second),
        _ => screen.sparkline(row, usize::from(width)),
    }
}

fn per_second(rate: f64) -> String {
    if rate > 0.0 && rate < 10.0 { format!("{rate:.1}/s") } else { format!("{rate:.0}/s") }
}

fn paused(row: &Row) -> bool {
    row.paused.iter().any(|pause| pause.kind == "destination")
}

fn state(row: &Row) -> &str {
    if paused(row) { "paused" } else { &row.state }
}

fn state_style(screen: &Screen, row: &Row) -> Style {
    if !screen.colour {
        return Style::new();
    }
    match state(row) {
        "closed" => Style::new().fg(Color::Green),
        "open" | "half_open" => Style::new().fg(Color::Yellow),
        "paused" => Style::new().fg(Color::Cyan),
        "new" => Style::new(),
        _ => Style::new().fg(Color::Red),
    }
}

/// The selected destination.
fn about(screen: &Screen) -> Vec<Line<'static>> {
    let Some(row) = screen.rows.get(screen.selected) else { return Vec::new() };
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let step = next_step(row).unwrap_or_else(|| "nothing to do".into());
    let mut lines = vec![
        Line::styled(harmless(&name(row)), bold),
        Line::from(format!("next: {step}")),
        Line::from(format!(
            "delivered {}, expired {}, skipped {}, blocked keys {}, scheduled {}",
            row.delivered, row.expired, row.skipped, row.blocked_keys, row.scheduled
        )),
    ];
    for file in &row.outboxes {
        let held = file.lanes.iter().filter(|lane| lane.owner.is_some()).count();
        let lanes =
            if file.lanes.is_empty() { String::new() } else { format!(", {held} of {} lanes held", file.lanes.len()) };
        lines.push(Line::from(format!(
            "{}: {} events kept, {}, WAL {}{lanes}",
            harmless(&file.database),
            file.growth.log_rows,
            size(file.growth.file_bytes),
            size(file.growth.wal_bytes)
        )));
    }
    lines
}

fn last_line(screen: &Screen) -> Line<'static> {
    let loud = Style::new().add_modifier(Modifier::REVERSED);
    match &screen.mode {
        Mode::Confirm(Deed::Pause(name)) => {
            Line::styled(format!("pause {}? y: yes, any other key: no", harmless(name)), loud)
        }
        Mode::Confirm(Deed::Resume(name)) => {
            Line::styled(format!("resume {}? y: yes, any other key: no", harmless(name)), loud)
        }
        Mode::Help => Line::from("any key goes back"),
        Mode::Watch => match (&screen.message, &screen.trouble) {
            (Some(message), _) => Line::styled(harmless(message), loud),
            (None, Some(trouble)) => Line::styled(format!("older figures: {}", harmless(trouble)), loud),
            (None, None) => Line::from("q quit  ? help  p pause  r resume"),
        },
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use litepost::operate::Pause;
    use litepost::status::Growth;
    use litepost_core::Millis;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::screen::Input;
    use super::*;
    use crate::standing::OutboxRow;

    /// A destination of the tests.
    pub(in crate::commands::top) fn row(name: &str, state: &str) -> Row {
        Row {
            app: "shop".into(),
            name: name.into(),
            pending: 0,
            oldest_age_ms: None,
            dead: 0,
            too_many_dead: false,
            blocked_keys: 0,
            scheduled: 0,
            state: state.into(),
            error: None,
            delivered: 0,
            expired: 0,
            skipped: 0,
            paused: Vec::new(),
            configured: Some(true),
            outboxes: Vec::new(),
        }
    }

    /// A shop with all kinds of trouble, seen a few times.
    fn shop(colour: bool) -> Screen {
        let mut screen = Screen::new("litepost.toml".into(), Duration::from_secs(1), colour);
        for (at, delivered) in [(0, 0), (1, 90), (2, 270), (3, 480), (4, 600)] {
            let mut audit = row("audit", "closed");
            (audit.delivered, audit.pending, audit.oldest_age_ms) = (delivered, 12, Some(40));
            let mut webhook = row("webhook", "open");
            (webhook.pending, webhook.oldest_age_ms) = (130_412, Some(1_260_000));
            webhook.error = Some("connection\u{1b}[31m refused".into());
            let growth = Growth { log_rows: 130_600, file_bytes: 73_400_320, free_bytes: 0, wal_bytes: 4_194_304 };
            webhook.outboxes = vec![OutboxRow {
                database: "shop.db".into(),
                pending: 130_412,
                head: 131_012,
                growth,
                lanes: Vec::new(),
            }];
            let mut warehouse = row("warehouse", "stalled");
            (warehouse.dead, warehouse.error) = (3, Some("event 7 is missing from the log".into()));
            let mut fresh = row("fresh", "closed");
            fresh.paused = vec![Pause {
                destination: "shop.fresh".into(),
                kind: "destination".into(),
                name: String::new(),
                paused_at: Millis(0),
                actor: "ada".into(),
                reason: None,
            }];
            let rows = vec![audit, webhook, warehouse, fresh];
            screen.take(Input::Looked { rows: Ok(rows), at: Duration::from_secs(at) });
        }
        screen.selected = 1;
        screen
    }

    fn drawn(screen: &Screen, width: u16, height: u16) -> TestBackend {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, screen)).unwrap();
        terminal.backend().clone()
    }

    #[test]
    fn eighty_columns() {
        insta::assert_snapshot!(drawn(&shop(false), 80, 24));
    }

    #[test]
    fn forty_columns() {
        insta::assert_snapshot!(drawn(&shop(false), 40, 16));
    }

    #[test]
    fn a_question_and_the_help() {
        let mut screen = shop(false);
        screen.mode = Mode::Confirm(Deed::Pause("shop.webhook".into()));
        insta::assert_snapshot!(drawn(&screen, 80, 8));
        screen.mode = Mode::Help;
        insta::assert_snapshot!(drawn(&screen, 48, 20));
    }

    #[test]
    fn colours_only_where_they_are_wanted_and_never_alone() {
        let coloured = |screen: &Screen| {
            let backend = drawn(screen, 80, 24);
            backend.buffer().content().iter().filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset).count()
        };
        assert_eq!(coloured(&shop(false)), 0);
        assert!(coloured(&shop(true)) > 0);
        assert_eq!(drawn(&shop(true), 80, 24).to_string(), drawn(&shop(false), 80, 24).to_string());
    }

    #[test]
    fn any_window_is_large_enough() {
        for (width, height) in [(1, 1), (5, 3), (20, 2), (200, 3), (300, 90)] {
            drawn(&shop(true), width, height);
            let mut help = shop(true);
            help.mode = Mode::Help;
            drawn(&help, width, height);
            drawn(&Screen::new(String::new(), Duration::from_secs(1), true), width, height);
        }
    }

    #[test]
    fn a_hundred_destinations_scroll_to_the_selected_one() {
        let mut screen = shop(false);
        let rows = (0..100).map(|number| row(&format!("d{number}"), "closed")).collect();
        screen.take(Input::Looked { rows: Ok(rows), at: Duration::from_secs(9) });
        screen.selected = 99;
        assert!(drawn(&screen, 80, 24).to_string().contains("shop.d99"));
    }
}
