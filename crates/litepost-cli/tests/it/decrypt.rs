//! `litepost decrypt`: opens what another program has encrypted, and nothing that was changed.

use std::fs::File;

use crate::support::{Answer, Place};

/// Encrypted by the Python package `cryptography`.
const TOKEN: &str = "eyJhbGciOiJkaXIiLCJlbmMiOiJBMjU2R0NNIiwia2lkIjoiazEiLCJjdHkiOiJ0ZXh0L3BsYWluIiwiaWQiOiJlMSIsInRvcGljIjoib3JkZXJzIn0..AAECAwQFBgcICQoL.JGOkf-XR8C-_.r91qlA1DRActryXY8j09PA";
const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

fn decrypt(place: &Place, token: &str, arguments: &[&str]) -> Answer {
    let input = place.write("payload.jwe", token);
    let mut command = place.command(&[&["decrypt"], arguments].concat());
    Answer::of(command.stdin(File::open(input).unwrap()).output().unwrap())
}

#[test]
fn opens_with_the_key_that_is_named_and_says_what_is_wrong() {
    let place = Place::new();
    place.write("payload.key", format!("{KEY}\n"));
    place.write("other.key", KEY.replace('A', "B"));
    let opened = decrypt(&place, TOKEN, &["--key", "k1=payload.key", "--key", "old=other.key", "--event-id", "e1"]);
    assert_eq!((opened.code, opened.stdout.as_str()), (0, "card 4242"), "{}", opened.stderr);
    let header = decrypt(&place, TOKEN, &["--header", "--key", "k1=payload.key"]).stdout;
    assert!(header.contains("\"id\":\"e1\"") && header.contains("\"cty\":\"text/plain\""), "{header}");
    for (token, arguments, why) in [
        (TOKEN, vec!["--key", "k1=other.key"], "does not open it"),
        (TOKEN, vec!["--key", "k2=payload.key"], "\"k1\", which was not given"),
        (TOKEN, vec!["--key", "k1=payload.key", "--event-id", "e2"], "belongs to the event \"e1\""),
        (TOKEN, vec!["--key", "k1=payload.jwe"], "32 bytes in base64"),
        ("{}", vec!["--key", "k1=payload.key"], "no encrypted payload"),
    ] {
        let answer = decrypt(&place, token, &arguments);
        assert!(answer.code == 1 && answer.stdout.is_empty() && answer.stderr.contains(why), "{}", answer.stderr);
        assert!(!answer.stderr.contains("AAEC"), "{}", answer.stderr);
    }
}
