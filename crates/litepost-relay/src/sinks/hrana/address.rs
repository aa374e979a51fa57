//! Where the database is: `libsql://`, `https://`, `http://`, with what libSQL's clients read from the query.
//!
//! Called when the destination is built. Invariant: a token in the URL becomes a secret and never part of an address
//! that anybody sees.

use reqwest::Url;

use crate::sink::SinkConfigError;

/// The address of a server.
#[derive(Clone)]
pub(super) struct Address {
    /// With a `/` at its end, so that `v3/pipeline` can be joined; without query and user.
    pub(super) base: Url,
    /// `authToken` of the query.
    pub(super) token: Option<String>,
}

/// Reads the URL of the configuration.
pub(super) fn parse(text: &str) -> Result<Address, SinkConfigError> {
    let error = |message: String| SinkConfigError::new("connection.url", message);
    let url = Url::parse(text).map_err(|e| error(format!("is no URL: {e}")))?;
    let (mut token, mut tls) = (None, None);
    for (key, value) in url.query_pairs() {
        match (&*key, &*value) {
            ("authToken", value) => token = Some(value.to_owned()),
            ("tls", "0") => tls = Some(false),
            ("tls", "1") => tls = Some(true),
            ("tls", _) => return Err(error("tls must be 0 or 1".into())),
            (other, _) => {
                return Err(error(format!("has the unknown query key {other:?}; known are authToken and tls")));
            }
        }
    }
    let scheme = match (url.scheme(), tls) {
        ("libsql", Some(false)) | ("http", None | Some(false)) => "http",
        ("libsql" | "https", None | Some(true)) => "https",
        ("http", Some(true)) => return Err(error("http:// cannot have tls=1; write https:// or libsql://".into())),
        ("https", Some(false)) => return Err(error("https:// cannot have tls=0; write http:// or libsql://".into())),
        (other, _) => {
            return Err(error(format!("must begin with libsql://, https:// or http://, not {other}:")));
        }
    };
    if !url.username().is_empty() || url.password().is_some() {
        return Err(error("must not hold a user or password; set connection.auth_token".into()));
    }
    let host = url.host_str().filter(|host| !host.is_empty());
    let host = host.ok_or_else(|| error("names no host: libsql://my-db-me.turso.io".into()))?;
    let port = url.port().map_or_else(String::new, |port| format!(":{port}"));
    let path = url.path().trim_end_matches('/');
    // `libsql:` is no scheme that the URL type lets us replace.
    let base = Url::parse(&format!("{scheme}://{host}{port}{path}/")).map_err(|e| error(format!("is no URL: {e}")))?;
    Ok(Address { base, token })
}

/// The address for the rest of a stream that the server has sent; an error when following it would be unsafe.
pub(super) fn follow(from: &Url, to: &str) -> Result<Url, String> {
    let url = Url::parse(to).map_err(|e| format!("the server sent a base_url that is no URL: {e}"))?;
    let safe = match url.scheme() {
        "https" => true,
        "http" => from.scheme() == "http",
        _ => false,
    };
    if !safe || url.host_str().is_none() {
        return Err(format!("the server sent a base_url ({}:) that would give up TLS", url.scheme()));
    }
    let mut base = url;
    base.set_query(None);
    base.set_fragment(None);
    if !base.path().ends_with('/') {
        let path = format!("{}/", base.path());
        base.set_path(&path);
    }
    Ok(base)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_address() {
        for (text, base) in [
            ("libsql://db-me.turso.io", "https://db-me.turso.io/"),
            ("libsql://127.0.0.1:8080?tls=0", "http://127.0.0.1:8080/"),
            ("https://example.com/dev/db", "https://example.com/dev/db/"),
            ("http://localhost:8080/", "http://localhost:8080/"),
            ("libsql://[::1]:8080?tls=0", "http://[::1]:8080/"),
        ] {
            assert_eq!(parse(text).unwrap().base.as_str(), base, "{text}");
        }
        let with_token = parse("libsql://db.turso.io?authToken=s3cret").unwrap();
        assert_eq!((with_token.base.as_str(), with_token.token.as_deref()), ("https://db.turso.io/", Some("s3cret")));
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in
            ["file:x.db", "ws://h", "libsql://", "https://h?tls=0", "http://h?tls=1", "https://me:pw@h", "http://h?x=1"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_stream_is_followed_but_never_out_of_tls() {
        let https = Url::parse("https://a/").unwrap();
        assert_eq!(follow(&https, "https://b:1/x").unwrap().as_str(), "https://b:1/x/");
        assert!(follow(&https, "http://b").is_err());
        assert!(follow(&https, "nonsense").is_err());
        let http = Url::parse("http://a/").unwrap();
        assert_eq!(follow(&http, "http://b").unwrap().as_str(), "http://b/");
    }
}
