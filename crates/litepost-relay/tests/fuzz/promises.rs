//! What the loader of configurations promises about any file.
//!
//! Called by the harness beside this file, and by fuzzers.

use std::path::Path;
use std::time::{Duration, Instant};

use litepost_relay::config::{Config, ConfigError, Purpose, Variables, one_line};

/// The value of every variable.
const SECRET: &str = "zq7Xplanted9Wk";
/// No file of this size takes longer to refuse.
const PATIENCE: Duration = Duration::from_secs(5);

/// A command would be run, and a file read.
pub(crate) fn reaches_out(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text).to_lowercase();
    ["cmd:", "file:", "credential:", "doppler"].iter().any(|word| text.contains(word))
}

/// Loads the file both ways; what is promised is asserted.
pub(crate) fn load(folder: &Path, text: &[u8]) {
    let path = folder.join("litepost.toml");
    std::fs::write(&path, text).unwrap();
    for purpose in [Purpose::Deliver, Purpose::Look] {
        let began = Instant::now();
        let names = ["PASS", "SECRET", "DB", "NOT_SET", "TOKEN", "HOME"];
        let variables = Variables::of(names.map(|name| (name, SECRET)));
        let loaded = Config::load_with(&path, variables, purpose);
        assert!(began.elapsed() < PATIENCE, "took {:?}", began.elapsed());
        let (source, problems) = match loaded {
            Ok(config) => {
                let files = config.files();
                assert!(!config.masked().contains(SECRET), "the value of a variable is shown");
                if purpose == Purpose::Deliver {
                    let _ = config.relay();
                }
                assert!(files.iter().all(|file| file.path.starts_with(folder) || file.path.is_absolute()));
                (config.source, config.warnings)
            }
            Err(ConfigError::Invalid { source_file, problems }) => {
                assert!(!problems.is_empty());
                (source_file, problems)
            }
            Err(other) => {
                assert!(!other.to_string().is_empty());
                continue;
            }
        };
        // What is shown of the file has every place where it was.
        assert_eq!(source.shown().len(), source.text.len());
        for problem in &problems {
            for span in problem.span.iter().chain(problem.also.as_ref().map(|(span, _)| span)) {
                assert!(
                    source.text.get(span.clone()).is_some(),
                    "{span:?} is no place in the file: {}",
                    problem.message
                );
            }
            let line = one_line(&source, problem);
            assert!(!line.is_empty());
            let shown = format!("{line} {} {}", problem.label, problem.hint.clone().unwrap_or_default());
            assert!(!shown.contains(SECRET), "the value of a variable is shown: {shown}");
        }
    }
}
