//! Servers for the documentation's blocks: starts those that the arguments name, prints how they are reached, a line
//! `NAME=value` each and an empty one behind the last, and stops them when its standard input ends.
//!
//! Called by `cargo xtask blocks`. Invariant: a name that it does not know starts nothing.
#![allow(clippy::print_stdout, reason = "what it prints is what it is for")]

use std::any::Any;
use std::io::Read as _;

use litepost_testkit::servers::{Kafka, MariaDb, Mosquitto, Nats, Postgres, RabbitMq, Redis, Turso};

fn main() -> Result<(), String> {
    let mut running: Vec<Box<dyn Any>> = Vec::new();
    for name in std::env::args().skip(1) {
        let (server, variables) = start(&name)?;
        running.push(server);
        for (variable, value) in variables {
            println!("{variable}={value}");
        }
    }
    println!();
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    drop(running);
    Ok(())
}

type Variables = Vec<(&'static str, String)>;

fn start(name: &str) -> Result<(Box<dyn Any>, Variables), String> {
    Ok(match name {
        "postgres" => {
            let server = Postgres::start();
            let variables = vec![("POSTGRES_URL", server.url())];
            (Box::new(server), variables)
        }
        "mysql" => {
            let server = MariaDb::start();
            // The last three are what the client program reads by itself.
            let variables = vec![
                ("MYSQL_URL", server.url()),
                ("MYSQL_HOST", "127.0.0.1".to_owned()),
                ("MYSQL_TCP_PORT", server.port().to_string()),
                ("MYSQL_PWD", "litepost".to_owned()),
            ];
            (Box::new(server), variables)
        }
        "turso" => {
            let server = Turso::start();
            let variables = vec![("TURSO_URL", server.url())];
            (Box::new(server), variables)
        }
        "nats" => {
            let server = Nats::start();
            let variables = vec![("NATS_URL", server.url())];
            (Box::new(server), variables)
        }
        "kafka" => {
            let server = Kafka::start();
            let variables = vec![("KAFKA_BROKERS", server.bootstrap())];
            (Box::new(server), variables)
        }
        "rabbitmq" => {
            let server = RabbitMq::start();
            let variables = vec![("AMQP_URL", server.url())];
            (Box::new(server), variables)
        }
        "redis" => {
            let server = Redis::start();
            let variables = vec![("REDIS_URL", server.url())];
            (Box::new(server), variables)
        }
        "mqtt" => {
            let server = Mosquitto::start();
            let variables = vec![("MQTT_URL", server.url()), ("MQTT_PORT", server.port().to_string())];
            (Box::new(server), variables)
        }
        other => return Err(format!("no server is called {other}")),
    })
}
