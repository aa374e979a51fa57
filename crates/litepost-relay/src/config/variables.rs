//! Where `${VAR}` gets its value: the environment first, then `.env` beside the file, then Doppler.
//!
//! Made once per load. Invariant: the process's own environment is read and never changed, and a source that was
//! asked for and failed stops the load; it is never taken for empty.

use std::collections::BTreeMap;
use std::path::Path;

use super::doppler;
use super::problem::ConfigError;

/// The sources of variables, in order of precedence.
#[derive(Default)]
pub struct Variables {
    given: BTreeMap<String, String>,
    process: bool,
    dotenv: BTreeMap<String, String>,
    doppler: Option<BTreeMap<String, String>>,
}

impl std::fmt::Debug for Variables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names =
            self.given.keys().chain(self.dotenv.keys()).chain(self.doppler.iter().flatten().map(|(name, _)| name));
        f.debug_set().entries(names).finish()
    }
}

impl Variables {
    /// The environment of this process.
    #[must_use]
    pub fn from_process() -> Self {
        Self { process: true, ..Self::default() }
    }

    /// These variables and no others: for programs that keep their settings elsewhere, and for tests.
    pub fn of<K: Into<String>, V: Into<String>>(given: impl IntoIterator<Item = (K, V)>) -> Self {
        Self { given: given.into_iter().map(|(k, v)| (k.into(), v.into())).collect(), ..Self::default() }
    }

    /// Reads `.env` in `folder`, when there is one. What the environment has already keeps its value.
    pub(crate) fn read_dotenv(&mut self, folder: &Path) -> Result<(), ConfigError> {
        let path = folder.join(".env");
        let fault = |what: String| ConfigError::Variables {
            message: format!("{}: {what}", path.display()),
            hint: "one NAME=value a line; quote values with spaces or #".into(),
        };
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(fault(format!("cannot be read: {error}"))),
        };
        // A byte order mark is no part of the first name.
        let text = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&bytes);
        for entry in dotenvy::from_read_iter(text) {
            match entry {
                Ok((name, value)) => {
                    // The first line wins, as with setdefault().
                    self.dotenv.entry(name).or_insert(value);
                }
                // The line itself may hold a secret, so only its shape is told.
                Err(dotenvy::Error::LineParse(line, at)) => {
                    let name = line.split('=').next().unwrap_or_default().trim().to_owned();
                    return Err(fault(format!("the line of {name:?} is malformed at character {}", at + 1)));
                }
                Err(error) => return Err(fault(format!("cannot be read: {error}"))),
            }
        }
        Ok(())
    }

    /// Fetches from Doppler when `DOPPLER_TOKEN` is set and that has not happened yet.
    pub(crate) fn read_doppler(&mut self) -> Result<(), ConfigError> {
        if self.doppler.is_some() {
            return Ok(());
        }
        self.doppler = Some(match self.get("DOPPLER_TOKEN") {
            Some(token) if !token.is_empty() => doppler::fetch(&doppler::Request {
                token: token.into(),
                host: self.get("DOPPLER_API_HOST"),
                project: self.get("DOPPLER_PROJECT"),
                config: self.get("DOPPLER_CONFIG"),
            })?,
            _ => BTreeMap::new(),
        });
        Ok(())
    }

    /// Looks `name` up everywhere; Doppler is asked only now when it was not before.
    pub(crate) fn lookup(&mut self, name: &str) -> Result<Option<String>, ConfigError> {
        if let Some(value) = self.get(name) {
            return Ok(Some(value));
        }
        self.read_doppler()?;
        Ok(self.doppler.as_ref().and_then(|secrets| secrets.get(name)).cloned())
    }

    /// Looks `name` up without Doppler.
    pub(crate) fn get(&self, name: &str) -> Option<String> {
        self.given
            .get(name)
            .cloned()
            .or_else(|| self.process.then(|| std::env::var(name).ok()).flatten())
            .or_else(|| self.dotenv.get(name).cloned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_goes_before_dotenv() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(".env"), "# c\nA=file\nexport B=\"from file\"\nB=later\nC='x y'\n").unwrap();
        let mut variables = Variables::of([("A", "environment")]);
        variables.read_dotenv(folder.path()).unwrap();
        assert_eq!(variables.lookup("A").unwrap().as_deref(), Some("environment"));
        assert_eq!(variables.lookup("B").unwrap().as_deref(), Some("from file"));
        assert_eq!(variables.lookup("C").unwrap().as_deref(), Some("x y"));
        assert_eq!(variables.lookup("D").unwrap(), None);
        assert!(std::env::var("B").is_err(), "the process's environment was changed");
    }

    #[test]
    fn a_broken_dotenv_stops_without_showing_the_value() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(".env"), "PASSWORD='hunter22\n").unwrap();
        let error = Variables::of([("A", "b")]).read_dotenv(folder.path()).unwrap_err().to_string();
        assert!(error.contains("the line of \"PASSWORD\" is malformed"), "{error}");
        assert!(!error.contains("hunter22"), "{error}");
    }
}
