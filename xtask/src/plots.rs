//! `cargo xtask plots`: draws the figures of `target/bench` into docs/images.
//!
//! Called by people after `cargo xtask bench`, for docs/performance.md. Invariant: what is drawn stands in the JSON;
//! figures of a quick run are refused, since they say nothing.

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use plotters::prelude::*;
use serde_json::Value;

use crate::Finding;
use crate::shell::{root, target};

/// A picture: lines through points on logarithmic axes.
struct Plot {
    file: &'static str,
    title: &'static str,
    x: &'static str,
    y: &'static str,
    lines: Vec<Line>,
}

struct Line {
    name: String,
    points: Vec<(f64, f64)>,
}

/// Colours that stay apart for people who see few of them.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
];

/// Draws those there are figures for; says which there are none for.
pub fn run() -> Result<()> {
    let mut missing = Vec::new();
    let [curves, drains, relay, ends] = ["curves", "drain-curve", "relay-curves", "e2e"].map(|bench| {
        figures(bench).unwrap_or_else(|error| {
            missing.push(format!("{error:#}"));
            Vec::new()
        })
    });
    let plots = [
        shape(&curves, "backlog", "performance-backlog.svg", "One event, one commit, by backlog", "events waiting"),
        shape(&curves, "payload", "performance-payload.svg", "One event, one commit, by size", "bytes of payload"),
        drain(&drains),
        producers(
            &curves,
            "performance-producers.svg",
            "Producers on one file, FULL",
            "events_per_s",
            "events per second",
        ),
        producers(&curves, "performance-tail.svg", "The same: one commit in a thousand takes", "p999_us", "µs, p99.9"),
        relay_payload(&relay),
        relay_counts(&relay),
        poisoned(&relay),
        end_to_end(&ends, "performance-e2e-p50.svg", "Commit to acknowledgement, p50", "p50_ms", "ms"),
        end_to_end(&ends, "performance-e2e-p99.svg", "Commit to acknowledgement, p99", "p99_ms", "ms"),
        end_to_end(&ends, "performance-e2e-cpu.svg", "The relay's processor time", "cpu_us_per_event", "µs per event"),
    ];
    for plot in plots {
        if plot.lines.iter().all(|line| line.points.is_empty()) {
            missing.push(format!("no figures for docs/images/{}", plot.file));
            continue;
        }
        let path = root().join("docs/images").join(plot.file);
        draw(&plot, &path).with_context(|| format!("{}", path.display()))?;
        println!("docs/images/{}", plot.file);
    }
    if missing.is_empty() { Ok(()) } else { Err(Finding(missing.join("\n")).into()) }
}

/// The figures of one bench, as it was run last.
fn figures(bench: &str) -> Result<Vec<Value>> {
    let path = target().join(format!("bench/{bench}.json"));
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("{}: run `cargo xtask bench {bench}` first", path.display()))?;
    let report: Value = serde_json::from_str(&text)?;
    if report["quick"] == Value::Bool(true) {
        bail!("{} is of a quick run; run `cargo xtask bench {bench}`", path.display());
    }
    Ok(report["figures"].as_array().cloned().unwrap_or_default())
}

/// The points of those figures that `which` takes, `y` also as the median of several rounds. A logarithmic axis has no 0.
fn line(name: &str, figures: &[Value], x: &str, y: &str, which: impl Fn(&Value) -> bool) -> Line {
    let value = |figure: &Value| figure[y].as_f64().or_else(|| figure[y]["median"].as_f64());
    let points = figures.iter().filter(|figure| which(figure));
    let points = points.filter_map(|figure| Some((figure[x].as_f64()?, value(figure)?)));
    Line { name: name.to_owned(), points: points.filter(|(x, y)| *x > 0.0 && *y > 0.0).collect() }
}

fn shape(figures: &[Value], axis: &str, file: &'static str, title: &'static str, x: &'static str) -> Plot {
    let of = |name: &str, y: &str| line(name, figures, "at", y, |figure| figure["curve"] == *axis);
    let lines = vec![
        of("bare INSERT, p50", "bare_p50_us"),
        of("litepost::enqueue, p50", "enqueue_p50_us"),
        of("bare INSERT, p99", "bare_p99_us"),
        of("litepost::enqueue, p99", "enqueue_p99_us"),
    ];
    Plot { file, title, x, y: "µs", lines }
}

fn drain(figures: &[Value]) -> Plot {
    let of = |name: &str| line(name, figures, "backlog", "events_per_s", |figure| figure["contender"] == *name);
    Plot {
        file: "performance-drain.svg",
        title: "Drain into a sink that confirms at once, by backlog",
        x: "events waiting",
        y: "events per second",
        lines: vec![of("litepost, durable reads"), of("litepost, durable_reads = false")],
    }
}

fn producers(figures: &[Value], file: &'static str, title: &'static str, y: &'static str, axis: &'static str) -> Plot {
    let mut lines = Vec::new();
    for way in ["litepost, FULL", "busy_timeout, FULL"] {
        for kind in ["threads", "processes"] {
            let name = format!("{way}, {kind}");
            lines
                .push(line(&name, figures, "number", y, |figure| figure["producers"] == *way && figure["as"] == *kind));
        }
    }
    Plot { file, title, x: "producers", y: axis, lines }
}

/// A curve of the relay.
fn relay_line(name: &str, figures: &[Value], curve: &str, y: &str) -> Line {
    line(name, figures, "at", y, |figure| figure["curve"] == *curve)
}

fn relay_payload(figures: &[Value]) -> Plot {
    let lines = vec![
        relay_line("events per second", figures, "payload", "events_per_s"),
        relay_line("MB per second", figures, "payload", "mb_per_s"),
    ];
    let title = "Drain into a sink that confirms at once, by size";
    Plot { file: "performance-relay-payload.svg", title, x: "bytes of payload", y: "per second", lines }
}

fn relay_counts(figures: &[Value]) -> Plot {
    let curves = ["topics", "keys", "files", "destinations"];
    let lines = curves.map(|curve| relay_line(curve, figures, curve, "events_per_s")).into();
    let title = "The same, by the number of topics, keys, files, destinations";
    Plot { file: "performance-relay-counts.svg", title, x: "number", y: "deliveries per second", lines }
}

fn poisoned(figures: &[Value]) -> Plot {
    let lines = vec![relay_line("events per second of the healthy keys", figures, "poisoned", "events_per_s")];
    let title = "The same, where keys are poisoned";
    Plot { file: "performance-relay-poisoned.svg", title, x: "% of the keys", y: "events per second", lines }
}

fn end_to_end(figures: &[Value], file: &'static str, title: &'static str, y: &'static str, axis: &'static str) -> Plot {
    let kinds = ["file", "sqlite", "postgres", "nats", "kafka", "webhook"];
    let lines = kinds.map(|kind| line(kind, figures, "rate", y, |figure| figure["to"] == *kind)).into();
    Plot { file, title, x: "events per second", y: axis, lines }
}

fn draw(plot: &Plot, path: &Path) -> Result<()> {
    let points = || plot.lines.iter().flat_map(|line| &line.points);
    if points().next().is_none() {
        bail!("there are no figures for it");
    }
    let range = |of: fn(&(f64, f64)) -> f64| {
        let values = points().map(of);
        values.fold((f64::INFINITY, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)))
    };
    let ((left, right), (low, high)) = (range(|point| point.0), range(|point| point.1));
    let whole = SVGBackend::new(path, (760, 420)).into_drawing_area();
    let broken = |error: &dyn std::fmt::Display| anyhow!("cannot draw: {error}");
    whole.fill(&WHITE).map_err(|error| broken(&error))?;
    let mut chart = ChartBuilder::on(&whole)
        .caption(plot.title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d((left..right).log_scale(), (low * 0.7..high * 2.5).log_scale())
        .map_err(|error| broken(&error))?;
    let number = |value: &f64| short(*value);
    chart
        .configure_mesh()
        .x_desc(plot.x)
        .y_desc(plot.y)
        .x_label_formatter(&number)
        .y_label_formatter(&number)
        .light_line_style(WHITE)
        .draw()
        .map_err(|error| broken(&error))?;
    for (line, colour) in plot.lines.iter().zip(COLOURS) {
        let style = colour.stroke_width(2);
        chart
            .draw_series(LineSeries::new(line.points.iter().copied(), style).point_size(3))
            .map_err(|error| broken(&error))?
            .label(&line.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.2))
        .draw()
        .map_err(|error| broken(&error))?;
    whole.present().map_err(|error| broken(&error))
}

/// A number on an axis: `10`, `1k`, `10M`.
fn short(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.0}M", v / 1e6),
        v if v >= 1e3 => format!("{:.0}k", v / 1e3),
        v if v >= 1.0 => format!("{v:.0}"),
        v => format!("{v:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_line_has_the_points_that_belong_to_it() {
        let figures = [
            json!({ "number": 1, "producers": "a", "rate": 5.0 }),
            json!({ "number": 2, "producers": "b", "rate": 6.0 }),
            json!({ "number": 4, "producers": "a", "rate": { "median": 7.0 } }),
            json!({ "number": 0, "producers": "a", "rate": 8.0 }),
        ];
        let line = line("a", &figures, "number", "rate", |figure| figure["producers"] == "a");
        assert_eq!(line.points, [(1.0, 5.0), (4.0, 7.0)]);
        assert_eq!([0.5, 12.0, 10_000.0, 1e7].map(short), ["0.50", "12", "10k", "10M"]);
    }

    #[test]
    fn a_picture_names_its_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.svg");
        let line = Line { name: "the line".into(), points: vec![(1.0, 5.0), (100.0, 50.0)] };
        let mut plot = Plot { file: "a.svg", title: "A title", x: "there", y: "here", lines: vec![line] };
        draw(&plot, &path).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        assert!(svg.contains("A title") && svg.contains("the line"), "{svg}");
        plot.lines.clear();
        assert!(draw(&plot, &path).is_err(), "nothing to draw");
    }
}
