//! `${VAR}`, `${VAR:-default}`, `${file:PATH}`, `${cmd:COMMAND}`, `${credential:NAME}` in any string.
//!
//! Called by the reader for every string of the file. Invariant: a value that was resolved is remembered, so that no
//! message ever shows it.

use super::masked::REFERENCES;
use super::problem::{Problem, Span};
use super::secrets;
use super::variables::Variables;

/// What resolving needs, and what it has resolved so far.
pub(crate) struct Resolver<'a> {
    /// Where variables come from.
    pub(crate) variables: &'a mut Variables,
    /// Folder of the configuration file.
    pub(crate) folder: &'a std::path::Path,
    /// Leave `connection` tables as they are: whoever only looks at files needs no secrets.
    pub(crate) skip_connections: bool,
    /// Resolved values with the words they are shown as.
    pub(crate) masks: Vec<(String, String)>,
}

/// Why a string could not be resolved.
#[derive(Debug)]
pub(crate) struct Fault {
    message: String,
    label: String,
    hint: Option<String>,
}

impl Fault {
    fn new(message: impl Into<String>, label: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { message: message.into(), label: label.into(), hint: Some(hint.into()) }
    }

    pub(crate) fn into_problem(self, path: &str, span: Span) -> Problem {
        Problem {
            hint: self.hint,
            ..Problem::error(path, format!("{path}: {}", self.message)).at(Some(span)).label(self.label)
        }
    }
}

/// Resolves `text`; true when it held anything to resolve.
pub(crate) fn resolve_text(
    text: &str,
    path: &str,
    connection: bool,
    resolver: &mut Resolver<'_>,
) -> Result<(String, bool), Fault> {
    if connection && resolver.skip_connections {
        return Ok((text.to_owned(), false));
    }
    if connection && is_secret(path) && REFERENCES.iter().any(|word| text.starts_with(word)) {
        return Ok((reference(text, resolver)?, true));
    }
    if !text.contains("${") {
        return Ok((text.to_owned(), false));
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut resolved = false;
    while let Some(at) = rest.find("${") {
        if rest[..at].ends_with('$') {
            // `$${` stands for `${`.
            out.push_str(&rest[..at]);
            out.push('{');
            rest = &rest[at + 2..];
            continue;
        }
        out.push_str(&rest[..at]);
        let Some(end) = rest[at..].find('}') else {
            return Err(Fault::new(
                "a ${ is never closed",
                "no } follows",
                "write ${NAME}, or $${ for the characters themselves",
            ));
        };
        out.push_str(&reference(&rest[at + 2..at + end], resolver)?);
        resolved = true;
        rest = &rest[at + end + 1..];
    }
    out.push_str(rest);
    if resolved {
        // What the file itself says around the variable is no secret, but the whole is what a driver may repeat.
        resolver.masks.push((out.clone(), text.to_owned()));
    }
    Ok((out, resolved))
}

/// Whether the last key of `path` names a secret.
pub(super) fn is_secret(path: &str) -> bool {
    let last = path.rsplit('.').next().unwrap_or(path).to_lowercase();
    ["token", "password", "passphrase", "secret"].iter().any(|word| last.contains(word))
}

/// Resolves what stands between the braces.
fn reference(inner: &str, resolver: &mut Resolver<'_>) -> Result<String, Fault> {
    let show = format!("${{{inner}}}");
    let value = if let Some(file) = inner.strip_prefix("file:") {
        secrets::from_file(&resolver.folder.join(file.trim()))
            .map_err(|why| Fault::new(why, "this file", "write one readable file; its last line break is left out"))?
    } else if let Some(command) = inner.strip_prefix("cmd:") {
        secrets::from_command(command.trim(), resolver.folder)
            .map_err(|why| Fault::new(why, "this command", "the command must print the secret and exit 0"))?
    } else if let Some(name) = inner.strip_prefix("credential:") {
        secrets::from_credential(name.trim(), resolver.variables.get("CREDENTIALS_DIRECTORY").as_deref())
            .map_err(|why| Fault::new(why, "this credential", "give it with LoadCredential= in the systemd unit"))?
    } else {
        return variable(inner, &show, resolver);
    };
    resolver.masks.push((value.clone(), show));
    Ok(value)
}

fn variable(inner: &str, show: &str, resolver: &mut Resolver<'_>) -> Result<String, Fault> {
    let (name, default) = match inner.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inner, None),
    };
    let legal = name.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !legal {
        return Err(Fault::new(
            format!("{show} names no variable"),
            "not a variable's name",
            "a name has letters, digits and _; write $${ for the characters themselves",
        ));
    }
    let found = resolver.variables.lookup(name).map_err(|why| {
        Fault::new(format!("the variable {name} could not be looked up: {why}"), "this variable", "see above")
    })?;
    match (found, default) {
        // As in a shell, `:-` also stands in for an empty value.
        (Some(value), Some(default)) if value.is_empty() => Ok(default.to_owned()),
        (Some(value), _) => {
            resolver.masks.push((value.clone(), format!("${{{name}}}")));
            Ok(value)
        }
        (None, Some(default)) => Ok(default.to_owned()),
        (None, None) => Err(Fault::new(
            format!("the variable {name} is not set"),
            "needs this variable",
            format!(
                "set {name} in the environment or in {}, or give a default: ${{{name}:-…}}",
                resolver.folder.join(".env").display()
            ),
        )),
    }
}

/// Replaces resolved values in a message by the words of the file.
pub(crate) fn mask(message: &str, masks: &[(String, String)]) -> String {
    // The longest first: a password may contain a user's name.
    let mut ordered: Vec<&(String, String)> = masks.iter().filter(|(value, _)| value.len() > 2).collect();
    ordered.sort_by_key(|(value, _)| std::cmp::Reverse(value.len()));
    ordered.into_iter().fold(message.to_owned(), |text, (value, shown)| {
        // A library may have put it into quotes of its own.
        let quoted = format!("{value:?}");
        text.replace(value.as_str(), shown).replace(quoted.trim_matches('"'), shown)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(text: &str) -> Result<String, String> {
        let mut variables = Variables::of([("HOST", "db.example"), ("EMPTY", ""), ("PASS", "hunter22")]);
        let mut resolver = Resolver {
            variables: &mut variables,
            folder: std::path::Path::new("."),
            skip_connections: false,
            masks: Vec::new(),
        };
        resolve_text(text, "app.a.sink.b.connection.url", true, &mut resolver)
            .map(|(text, _)| text)
            .map_err(|fault| fault.message)
    }

    #[test]
    fn variables_defaults_and_escapes() {
        assert_eq!(resolve("pg://${HOST}:${PORT:-5432}/x").unwrap(), "pg://db.example:5432/x");
        assert_eq!(resolve("${EMPTY}|${EMPTY:-full}|${NONE:-}").unwrap(), "|full|");
        assert_eq!(resolve("$${HOST} $HOST $5 }").unwrap(), "${HOST} $HOST $5 }");
        assert_eq!(resolve("plain").unwrap(), "plain");
    }

    #[test]
    fn what_cannot_be_resolved_says_which() {
        assert_eq!(resolve("${NONE}").unwrap_err(), "the variable NONE is not set");
        assert_eq!(resolve("${HOST").unwrap_err(), "a ${ is never closed");
        assert_eq!(resolve("${}").unwrap_err(), "${} names no variable");
        assert_eq!(resolve("${A-B}").unwrap_err(), "${A-B} names no variable");
    }

    #[test]
    fn a_value_never_stands_in_a_message() {
        let masks = vec![("hunter22".to_owned(), "${PASS}".to_owned()), ("hunt".to_owned(), "${USER}".to_owned())];
        assert_eq!(mask("login as hunt:hunter22 failed", &masks), "login as ${USER}:${PASS} failed");
    }
}
