//! Where `${VAR}` gets its value: environment, `.env`, Doppler on a local server; and that no value is ever shown.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::mpsc;

use crate::support::{Answer, Place};

const CONFIG: &str = "[app.shop]\ndatabase = '${DB}'\n[app.shop.sink.s]\ntype = 'stdout'\n";

fn outbox(answer: &Answer) -> String {
    assert_eq!(answer.code, 0, "{answer:#?}");
    let json: serde_json::Value = serde_json::from_str(&answer.stdout).unwrap();
    json["outboxes"][0]["database"].as_str().unwrap().to_owned()
}

fn check(place: &Place, variables: &[(&str, &str)]) -> Answer {
    let mut command = place.command(&["check", "--json"]);
    command.envs(variables.iter().copied());
    Answer::of(command.output().unwrap())
}

fn check_text(place: &Place, variables: &[(&str, &str)]) -> Answer {
    let mut command = place.command(&["check"]);
    command.envs(variables.iter().copied());
    Answer::of(command.output().unwrap())
}

/// Answers one request with `response`, and tells what was asked.
fn server(response: Option<&'static str>) -> (String, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut buffer = [0; 8_192];
        let read = stream.read(&mut buffer).unwrap();
        let _ = send.send(String::from_utf8_lossy(&buffer[..read]).into_owned());
        match response {
            Some(response) => stream.write_all(response.as_bytes()).unwrap(),
            // Silence until the client gives up.
            None => std::thread::sleep(std::time::Duration::from_secs(60)),
        }
    });
    (url, receive)
}

fn http(status: &str, body: &str) -> &'static str {
    let text = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
    Box::leak(text.into_boxed_str())
}

const TOKEN: &str = "dp.st.prd.abcdefghijklmnopqrstuvwxyz";

fn with_doppler(response: Option<&'static str>) -> (Answer, String, String) {
    let place = Place::new();
    place.write("litepost.toml", CONFIG);
    let (url, asked) = server(response);
    let answer =
        check_text(&place, &[("DOPPLER_TOKEN", TOKEN), ("DOPPLER_API_HOST", &url), ("DOPPLER_PROJECT", "shop")]);
    assert!(!answer.stderr.contains(TOKEN) && !answer.stdout.contains(TOKEN), "the token is shown: {answer:#?}");
    (answer, asked.recv().unwrap(), url)
}

#[test]
fn environment_then_dotenv_then_doppler() {
    let place = Place::new();
    place.write("litepost.toml", CONFIG);
    let (url, _asked) = server(Some(http("200 OK", "{\"DB\":\"doppler.db\"}")));
    let doppler = [("DOPPLER_TOKEN", TOKEN), ("DOPPLER_API_HOST", &url)];
    assert_eq!(outbox(&check(&place, &doppler)), "doppler.db");
    place.write(".env", "DB=dotenv.db\n");
    assert_eq!(outbox(&check(&place, &[])), "dotenv.db");
    assert_eq!(outbox(&check(&place, &[("DB", "environment.db")])), "environment.db");
}

#[test]
fn doppler_is_asked_with_the_token_and_the_project() {
    let (answer, asked, _) = with_doppler(Some(http("200 OK", "{\"DB\":\"d.db\",\"OTHER\":\"x\"}")));
    assert_eq!(answer.code, 0, "{answer:#?}");
    assert!(
        asked.starts_with("GET /v3/configs/config/secrets/download?format=json&project=shop HTTP/1.1\r\n"),
        "{asked}"
    );
    assert!(asked.to_lowercase().contains(&format!("authorization: bearer {TOKEN}")), "{asked}");
}

#[test]
fn a_token_in_dotenv_counts_too() {
    let place = Place::new();
    place.write("litepost.toml", CONFIG);
    let (url, _asked) = server(Some(http("200 OK", "{\"DB\":\"d.db\"}")));
    place.write(".env", format!("DOPPLER_TOKEN={TOKEN}\nDOPPLER_API_HOST={url}\n"));
    assert_eq!(outbox(&check(&place, &[])), "d.db");
}

#[test]
fn a_fetch_that_fails_stops_the_start() {
    let message = |response| {
        let (answer, _, url) = with_doppler(response);
        assert_eq!(answer.code, 1, "{answer:#?}");
        answer.stderr.replace(&url, "URL")
    };
    let hint = "  hint: check DOPPLER_TOKEN and the network, or unset DOPPLER_TOKEN to start without Doppler\n";
    let head = "error: the secrets cannot be fetched from Doppler at URL (token dp.st.pr***): ";
    assert_eq!(
        message(Some(http("401 Unauthorized", "{\"messages\":[\"no\"]}"))),
        format!("{head}it refused the token (401 Unauthorized)\n{hint}")
    );
    assert_eq!(message(Some(http("500 Oops", ""))), format!("{head}it answered 500 Internal Server Error\n{hint}"));
    assert_eq!(message(Some(http("302 Found", ""))), format!("{head}it answered 302 Found\n{hint}"));
    assert_eq!(message(Some(http("200 OK", ""))), format!("{head}its answer is empty\n{hint}"));
    assert_eq!(message(Some(http("200 OK", "{}"))), format!("{head}its answer holds no secret\n{hint}"));
    assert_eq!(
        message(Some(http("200 OK", "{\"DB\":"))),
        format!("{head}its answer is no JSON object (line 1, column 6)\n{hint}")
    );
}

#[test]
fn a_doppler_that_does_not_answer_is_given_up() {
    let (answer, _, url) = with_doppler(None);
    assert_eq!(answer.code, 1);
    assert!(
        answer.stderr.replace(&url, "URL").contains("at URL (token dp.st.pr***): no answer within 15 s"),
        "{}",
        answer.stderr
    );
}

#[test]
fn a_variable_that_is_missing_names_file_line_key_and_variable() {
    let place = Place::new();
    place.write("litepost.toml", CONFIG);
    let stderr = check_text(&place, &[]).stderr;
    assert!(stderr.contains("app.shop.database: the variable DB is not set"), "{stderr}");
    assert!(stderr.contains("[litepost.toml:2:12]"), "{stderr}");
}

#[test]
fn secrets_from_files_commands_and_credentials() {
    let place = Place::new();
    for (written, env) in
        [("${file:secret.txt}", None), ("${cmd:printf 'from-secret.db\\n'}", None), ("${credential:db}", Some("creds"))]
    {
        place.write("secret.txt", "from-secret.db\n");
        place.write("creds/db", "from-secret.db");
        place.write("litepost.toml", CONFIG.replace("'${DB}'", &format!("{written:?}")));
        let folder = place.path("creds").display().to_string();
        let variables: Vec<(&str, &str)> =
            env.map(|_| ("CREDENTIALS_DIRECTORY", folder.as_str())).into_iter().collect();
        assert_eq!(outbox(&check(&place, &variables)), "from-secret.db", "{written}");
    }
}

#[test]
fn no_message_shows_what_a_variable_holds() {
    let place = Place::new();
    place.write(
        "litepost.toml",
        "[app.shop]\ndatabase = 'shop.db'\nbatch_size = '${SECRET}'\nordering = '${SECRET}'\nlease = '${SECRET}'\n\
         [app.shop.sink.s]\ntype = 'http'\ntopics = ['${SECRET}', '${SECRET}']\nconnection = { url = '${SECRET}://x' }\n",
    );
    let answer = check_text(&place, &[("SECRET", "hunter2")]);
    assert_eq!(answer.code, 1);
    assert!(!format!("{answer:?}").contains("hunter2"), "{}", answer.stderr);
    assert!(answer.stderr.matches("error: ").count() >= 4, "{}", answer.stderr);
}
