//! Every broken configuration in `broken/`, with the whole of what `litepost check` says about it.

use std::path::Path;

use crate::support::Place;

#[test]
fn every_broken_configuration_says_what_is_wrong_and_where() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/broken");
    let mut names: Vec<String> = std::fs::read_dir(folder.clone())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| name.strip_suffix(".toml").map(str::to_owned))
        .collect();
    names.sort();
    assert!(names.len() >= 40, "only {} configurations", names.len());
    for name in names {
        let place = Place::new();
        place.write("litepost.toml", std::fs::read(folder.join(format!("{name}.toml"))).unwrap());
        let answer = place.litepost(&["check"]);
        // A warning alone is no reason to refuse the start.
        let expected = i32::from(!name.starts_with("warning_"));
        assert_eq!(answer.code, expected, "{name}: {answer:#?}");
        insta::assert_snapshot!(name, answer.stderr);
    }
}
