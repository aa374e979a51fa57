//! Tests of the dialect layer; SQLite itself is the judge where it can be.

use proptest::prelude::*;

use super::lexer::lex;
use super::*;

const MYSQL: Dialect = Dialect::MySql(MySqlModes { ansi_quotes: false, no_backslash_escapes: false });
const ALL: [Dialect; 3] = [Dialect::Sqlite, Dialect::Postgres, MYSQL];

fn positional(sql: &str, count: usize, dialect: Dialect) -> Result<Translated, DialectError> {
    translate(sql, &Arguments::Positional(count), dialect)
}

fn named(sql: &str, names: &[&str], dialect: Dialect) -> Result<Translated, DialectError> {
    translate(sql, &Arguments::Named(names.to_vec()), dialect)
}

fn ok(result: Result<Translated, DialectError>) -> (String, Vec<usize>) {
    let t = result.unwrap();
    (t.sql, t.order)
}

#[test]
fn every_form_of_parameter_reaches_every_target() {
    for (sql, count, order) in [
        ("UPDATE t SET a = ?, b = ? WHERE c = ?", 3, vec![0, 1, 2]),
        ("UPDATE t SET a = ?2, b = ?3 WHERE c = ?1", 3, vec![1, 2, 0]),
        ("UPDATE t SET a = $2, b = $3 WHERE c = $1", 3, vec![1, 2, 0]),
        ("UPDATE t SET a = :x, b = :y WHERE c = :z", 3, vec![0, 1, 2]),
        ("UPDATE t SET a = ?2, b = ?2 WHERE c = ?1", 2, vec![1, 1, 0]),
        ("UPDATE t SET a = :x, b = :x WHERE c = :y", 2, vec![0, 0, 1]),
        ("UPDATE t SET a = ?3, b = ? WHERE c = ?1", 4, vec![2, 3, 0]),
    ] {
        let (text, my_order) = ok(positional(sql, count, MYSQL));
        assert_eq!(text, "UPDATE t SET a = ?, b = ? WHERE c = ?", "{sql}");
        assert_eq!(my_order, order, "{sql}");
        for (dialect, sign) in [(Dialect::Postgres, '$'), (Dialect::Sqlite, '?')] {
            let (text, used) = ok(positional(sql, count, dialect));
            // The values seen through the numbers must be the same as in textual order.
            let seen: Vec<usize> = text
                .split(sign)
                .skip(1)
                .map(|tail| tail.chars().take_while(char::is_ascii_digit).collect::<String>().parse::<usize>().unwrap())
                .map(|number| used[number - 1])
                .collect();
            assert_eq!(seen, order, "{sql} -> {text}");
        }
    }
}

#[test]
fn a_parameter_stays_one_whatever_it_stands_behind() {
    let sql = "UPDATE t SET a = CASE WHEN b THEN? ELSE:x END WHERE $:y";
    let (text, _) = ok(positional(sql, 3, Dialect::Postgres));
    assert_eq!(text, "UPDATE t SET a = CASE WHEN b THEN $1 ELSE $2 END WHERE $ $3");
    assert_eq!(ok(positional(sql, 3, MYSQL)).0, "UPDATE t SET a = CASE WHEN b THEN? ELSE? END WHERE $?");
    // Found by libFuzzer: what followed was taken for a text that begins with `$$`.
    fuzzing::feed(
        "\u{3}WITH g AS (g AS ($E CLSET2, :ag$' --SELECT $1, :x, '$:ag$' -- it's\n) UPDATE [t] EST =\" 'a \" ?ETUGI NN*R",
        3,
    );
}

#[test]
fn named_values_are_bound_by_name_and_never_by_position() {
    let sql = "INSERT INTO t (a, b, c) VALUES (:second, @first, $second)";
    assert_eq!(
        ok(named(sql, &["first", "second"], Dialect::Sqlite)),
        ("INSERT INTO t (a, b, c) VALUES (?2, ?1, ?2)".into(), vec![0, 1])
    );
    assert_eq!(
        ok(named(sql, &["first", "second"], MYSQL)),
        ("INSERT INTO t (a, b, c) VALUES (?, ?, ?)".into(), vec![1, 0, 1])
    );
    assert_eq!(
        ok(named("SELECT a::text, '{1}'::int[], b[1:2] WHERE a @> :v", &["v"], Dialect::Postgres)),
        ("SELECT a::text, '{1}'::int[], b[1:2] WHERE a @> $1".into(), vec![0])
    );
    assert_eq!(
        named(sql, &["first"], Dialect::Sqlite).unwrap_err().to_string(),
        "the payload has no value for the parameter \"second\""
    );
    assert_eq!(
        named("DELETE FROM t WHERE a = ?", &["a"], Dialect::Sqlite).unwrap_err().to_string(),
        "the statement has the positional parameter ?, but the payload's values have names"
    );
}

#[test]
fn text_in_literals_names_and_comments_is_left_alone() {
    for (dialect, sql) in [
        (Dialect::Sqlite, "INSERT INTO [a?] VALUES ('it''s ?', \"b?\", `c?`, x'00' /* ? */) -- ?"),
        (Dialect::Sqlite, "SELECT '\\' || '?'"),
        (Dialect::Postgres, "SELECT $$ ? $1 $$, $tag$ $$ ? $tag$, E'\\' ? ', '\\', /* a /* ? */ ? */ 1 -- ?"),
        (Dialect::Postgres, "SELECT E'a'\n 'b\\' ? '"),
        (Dialect::Postgres, "SELECT u&\"d?\", foo$1, 'x' ~ '?'"),
        (MYSQL, "SELECT 'it\\'s ?', \"b ? \"\" \", `c?`, 1 # ?\n, 2 -- ?"),
        (MYSQL, "SELECT @user, @@session.sql_mode, @`x`"),
    ] {
        assert_eq!(ok(positional(sql, 0, dialect)), (sql.into(), vec![]), "{sql}");
    }
    // MySQL: two dashes without white space are two minus signs.
    assert_eq!(ok(positional("SELECT 5--?", 1, MYSQL)).1, vec![0]);
    let modes = Dialect::MySql(MySqlModes::parse("STRICT_ALL_TABLES,ANSI_QUOTES,NO_BACKSLASH_ESCAPES"));
    assert_eq!(ok(positional(r#"SELECT '\', "a?" , ?"#, 1, modes)).1, vec![0]);
}

#[test]
fn postgres_keeps_its_question_mark_operators() {
    assert_eq!(
        ok(positional("SELECT * FROM t WHERE j ? 'a' AND id = $1", 1, Dialect::Postgres)).0,
        "SELECT * FROM t WHERE j ? 'a' AND id = $1"
    );
    assert_eq!(
        ok(positional("SELECT * FROM t WHERE j ?| array['a'] AND j ?? 'b' AND id = ?", 1, Dialect::Postgres)).0,
        "SELECT * FROM t WHERE j ?| array['a'] AND j ? 'b' AND id = $1"
    );
    assert_eq!(
        positional("SELECT * FROM t WHERE j ? 'a' AND id = ?", 1, Dialect::Postgres).unwrap_err().to_string(),
        "the statement has 2 bind parameters and the payload 1 values \
         (in PostgreSQL, write parameters as $1 when the statement uses the operator ?)"
    );
}

#[test]
fn a_payload_is_one_statement_that_cannot_leave_its_transaction() {
    let message = |sql: &str, dialect| positional(sql, 0, dialect).unwrap_err().to_string();
    for dialect in ALL {
        for sql in ["COMMIT", " /* x */ rollback", "BEGIN", "Savepoint a", "(commit)", "RELEASE a", "END"] {
            assert!(message(sql, dialect).contains("would end the transaction"), "{sql}");
        }
        assert_eq!(message("DELETE FROM a; DELETE FROM b", dialect), DialectError::Several.to_string());
        assert_eq!(message(" ; -- nothing\n", dialect), "the statement is empty");
        assert_eq!(message("SELECT 'abc", dialect), "the string that starts at character 8 does not end");
        assert_eq!(message("SELECT 'ä' /* x", dialect), "the comment that starts at character 12 does not end");
        assert_eq!(message("SELECT 'a\0b'", dialect), "the statement has a NUL character; bind the value instead");
        assert_eq!(ok(positional(" DELETE FROM a ; -- end", 0, dialect)).0, " DELETE FROM a  -- end");
    }
    assert!(message("CREATE TABLE x (a INT)", MYSQL).contains("MySQL commits before and after it"));
    assert!(message("SELECT 1 /*!50000 , ? */", MYSQL).contains("the server executes it or not by its version"));
    assert!(positional("CREATE TABLE x (a INT)", 0, Dialect::Postgres).is_ok());
    for sql in [
        "CREATE TEMP TABLE x (a INT)",
        "create or replace temporary view x AS SELECT 1",
        "CREATE LOCAL TEMP TABLE x ()",
    ] {
        assert!(message(sql, Dialect::Postgres).contains("as long as the relay's connection"), "{sql}");
    }
    assert!(positional("CREATE INDEX temp ON temporary (a)", 0, Dialect::Postgres).is_ok());
    assert!(message("PRAGMA user_version = 3", Dialect::Sqlite).contains("changes the session"));
    assert_eq!(message("SELECT ?0", Dialect::Sqlite), "the parameter number in ?0 is not between 1 and 65535");
    assert!(message("SELECT ?99999999999999999999", Dialect::Sqlite).contains("not between 1 and 65535"));
    assert_eq!(message("SELECT ?", MYSQL), "the statement has 1 bind parameters and the payload 0 values");
}

#[test]
fn the_relays_own_tables_are_recognised_as_names_and_not_as_text() {
    for sql in [
        "DELETE FROM litepost_ledger",
        "UPDATE main.\"LITEPOST_LEDGER_EVENT\" SET seq = 1",
        "DROP TABLE [litepost_outbox_seq]",
    ] {
        assert!(own_table(sql, Dialect::Sqlite).is_some(), "{sql}");
    }
    for sql in ["INSERT INTO notes VALUES ('litepost_ledger') -- litepost_ledger", "DELETE FROM litepost_ledgers"] {
        assert_eq!(own_table(sql, Dialect::Sqlite), None, "{sql}");
    }
}

#[test]
fn only_plain_single_row_inserts_are_joined() {
    let shape = |sql: &str, n, dialect| positional(sql, n, dialect).unwrap().insert;
    let pg = shape("insert into a.\"B c\" (x, \"y\") values (?, -1.5, ?1, 'k', NULL);", 1, Dialect::Postgres).unwrap();
    assert_eq!(pg.table, "a.\"B c\"");
    let two = pg.with_rows(2, |out, i| translate::push_parameter(out, Dialect::Postgres, i));
    assert_eq!(
        two,
        "insert into a . \"B c\" ( x , \"y\" ) values ($1,- 1.5 ,$1, 'k' , NULL ), ($2,- 1.5 ,$2, 'k' , NULL )"
    );
    let my = shape("INSERT INTO t VALUES (?1, ?1)", 1, MYSQL).unwrap();
    assert_eq!(
        (my.params(), my.with_rows(1, |out, i| translate::push_parameter(out, MYSQL, i))),
        (2, "INSERT INTO t VALUES (?,?)".to_owned())
    );
    for sql in [
        "INSERT INTO t VALUES (?), (2)",
        "INSERT INTO t VALUES (now(), ?)",
        "INSERT INTO t VALUES (?) ON CONFLICT DO NOTHING",
        "INSERT INTO t VALUES (?) RETURNING a",
        "INSERT INTO t SELECT ?",
        "INSERT INTO t VALUES ((SELECT max(a) FROM t), ?)",
        "INSERT INTO t VALUES (? + 1 * 2)",
        "WITH x AS (SELECT 1) INSERT INTO t VALUES (?)",
    ] {
        assert_eq!(shape(sql, 1, Dialect::Postgres), None, "{sql}");
    }
    assert_eq!(shape("INSERT INTO t VALUES (@a, ?)", 1, MYSQL), None, "a user variable is no parameter");
}

#[test]
fn names_are_quoted_whatever_they_hold() {
    assert_eq!(Dialect::Postgres.quote("select\"x").unwrap(), "\"select\"\"x\"");
    assert_eq!(MYSQL.quote("a`b\"c").unwrap(), "`a``b\"c`");
    assert_eq!(Dialect::Sqlite.quote("../grün; DROP").unwrap(), "\"../grün; DROP\"");
    assert_eq!(Dialect::Postgres.quote_path("shop.orders").unwrap(), "\"shop\".\"orders\"");
    assert_eq!(Dialect::Sqlite.quote("a\0b"), Err(DialectError::Nul));
    assert_eq!(MYSQL.quote(""), Err(DialectError::EmptyName));
}

/// Pieces of SQLite's grammar, each complete in itself, so that any row of them is a list of expressions.
fn piece() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("?".to_owned()),
        (1_usize..12).prop_map(|n| format!("?{n}")),
        "[:@$][a-z_é]{1,3}".prop_map(|s| s),
        "'([a-z?:$@;\\\\\"`\\[-]|''){0,8}'".prop_map(|s| s),
        "/\\*[a-z?':;$]{0,6}\\*/ 1".prop_map(|s| s),
        "--[a-z?':;$]{0,6}\n 2".prop_map(|s| s),
        "[0-9]{1,3}(\\.[0-9]{1,2})?".prop_map(|s| s),
        "x'([0-9a-f]{2}){0,3}'".prop_map(|s| s),
    ]
}

proptest! {
    #[test]
    fn numbering_is_what_sqlite_itself_says(pieces in prop::collection::vec(piece(), 1..12)) {
        let sql = format!("SELECT {}", pieces.join(" , "));
        let db = rusqlite::Connection::open_in_memory().unwrap();
        let statement = db.prepare(&sql).unwrap();
        let count = statement.parameter_count();
        let translated = positional(&sql, count, Dialect::Sqlite).unwrap();
        // Bind the index itself everywhere: the rows must be equal.
        let bind: Vec<i64> = (0..i64::try_from(count).unwrap()).collect();
        let row = |sql: &str, values: &[i64]| -> Vec<rusqlite::types::Value> {
            let mut s = db.prepare(sql).unwrap();
            let columns = s.column_count();
            s.query_row(rusqlite::params_from_iter(values), |r| (0..columns).map(|i| r.get(i)).collect()).unwrap()
        };
        let moved: Vec<i64> = translated.order.iter().map(|&i| bind[i]).collect();
        prop_assert_eq!(row(&sql, &bind), row(&translated.sql, &moved), "{} -> {}", sql, translated.sql);
        prop_assert!(count == 0 || positional(&sql, count - 1, Dialect::Sqlite).is_err());
    }

    #[test]
    fn no_text_makes_the_lexer_lose_or_change_a_byte(sql in "[a-zA-Z0-9?$:@'\"`\\[\\]\\\\/*#;.,()é \n-]{0,60}") {
        for dialect in ALL {
            if let Ok(tokens) = lex(&sql, dialect) {
                prop_assert_eq!(tokens.iter().map(|t| t.text).collect::<String>(), sql.clone());
            }
            let _ = positional(&sql, 0, dialect);
        }
    }

    #[test]
    fn a_quoted_name_reads_back_in_sqlite(name in "[^\0]{1,20}") {
        let db = rusqlite::Connection::open_in_memory().unwrap();
        let quoted = Dialect::Sqlite.quote(&name).unwrap();
        let create = format!("CREATE TABLE t ({quoted} INT)");
        prop_assume!(positional(&create, 0, Dialect::Sqlite).is_ok());
        db.execute_batch(&create).unwrap();
        let read: String = db.query_row("SELECT name FROM pragma_table_info('t')", [], |r| r.get(0)).unwrap();
        prop_assert_eq!(read, name);
    }
}

/// Text made of what statements are made of, and of anything.
fn scraps() -> impl Strategy<Value = String> {
    const SCRAPS: &[&str] = &[
        "INSERT INTO t ",
        "(a, b)",
        " VALUES ",
        "(?, ?)",
        " SELECT ",
        "$1",
        "?2",
        ":name",
        "@x",
        "$tag$",
        "$$",
        "'",
        "''",
        "\"",
        "`",
        "[",
        "]",
        "/*",
        "*/",
        "--",
        "\n",
        ";",
        "\\",
        " ON CONFLICT DO NOTHING",
        " RETURNING *",
        "WITH w AS (",
        ")",
        "COMMIT",
        "x'00'",
        "E'",
        "litepost_ledger",
        ".",
        ",",
        "1e9",
        "0x",
        "\0",
        "\u{2028}",
        "#",
        " DEFAULT VALUES",
    ];
    let scrap =
        prop_oneof![4 => proptest::sample::select(SCRAPS).prop_map(str::to_owned), 1 => "\\PC{0,4}", 1 => ".{0,3}"];
    proptest::collection::vec(scrap, 0..24).prop_map(|scraps| scraps.concat())
}

proptest! {
    #[test]
    fn fuzz_dialect(sql in scraps(), count in 0..4_usize) {
        fuzzing::feed(&sql, count);
    }
}
