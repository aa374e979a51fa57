//! Logging: for people on a terminal, JSON elsewhere, always on stderr.
//!
//! Called once by `main`. `RUST_LOG` (tracing's own filter) goes before `LOG_LEVEL` (one word for all).

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

/// Starts logging at `default` unless the environment says otherwise.
pub(crate) fn start(default: &str) {
    let (filter, complaint) = filter(default);
    // A reader of the log that goes away must not end a relay: a line that cannot be written is lost, and the complaint
    // about it, which would go to the same place and panic there, is not made.
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).log_internal_errors(false);
    // A program that embeds this binary's code may have set its own.
    let _ = if std::io::stderr().is_terminal() {
        builder.with_target(false).try_init()
    } else {
        builder.json().flatten_event(true).with_ansi(false).try_init()
    };
    if let Some(complaint) = complaint {
        tracing::warn!("{complaint}");
    }
}

fn filter(default: &str) -> (EnvFilter, Option<String>) {
    for name in ["RUST_LOG", "LOG_LEVEL"] {
        let Some(text) = std::env::var(name).ok().filter(|text| !text.is_empty()) else { continue };
        let text = text.to_lowercase();
        let asked = if matches!(text.as_str(), "error" | "warn" | "info") { quiet(&text) } else { text };
        return match EnvFilter::try_new(asked) {
            Ok(filter) => (without_payloads(filter), None),
            Err(error) => {
                (EnvFilter::new(default), Some(format!("{name} is not understood ({error}); logging at {default}")))
            }
        };
    }
    (without_payloads(EnvFilter::new(quiet(default))), None)
}

/// The log of the libraries below is of interest to nobody at this level.
fn quiet(level: &str) -> String {
    format!("{level},hyper=warn,reqwest=warn,rustls=warn,lapin=off,rumqttc=error,opentelemetry=warn")
}

/// What is never logged, whatever the environment asks for. The AMQP client logs a returned message whole, payload
/// included; the relay tells of it without. The AWS SDK logs what it signs, session token included, and whole requests.
const NEVER: [&str; 4] =
    ["lapin::returned_messages=off", "aws_sigv4=info", "aws_sigv4::http_request::sign=off", "aws_smithy_runtime=info"];

fn without_payloads(filter: EnvFilter) -> EnvFilter {
    let directives = NEVER.iter().filter_map(|directive| directive.parse().ok());
    directives.fold(filter, EnvFilter::add_directive)
}
