//! The brokers: each runs the conformance suite on its real server, consumed by a client in another language, and has
//! tests of its own for what no other broker has.

#[cfg(feature = "s3")]
pub(crate) mod aws;
#[cfg(any(
    feature = "nats",
    feature = "redis",
    feature = "amqp",
    feature = "mqtt",
    feature = "kafka",
    feature = "aws"
))]
mod cloudevents;
pub(crate) mod exec;
pub(crate) mod http;
#[cfg(feature = "kafka")]
pub(crate) mod kafka;
#[cfg(feature = "mqtt")]
pub(crate) mod mqtt;
#[cfg(feature = "nats")]
pub(crate) mod nats;
#[cfg(feature = "amqp")]
pub(crate) mod rabbitmq;
#[cfg(feature = "redis")]
pub(crate) mod redis;
#[cfg(feature = "redis")]
mod redis_direct;
#[cfg(feature = "aws")]
pub(crate) mod sns;
#[cfg(feature = "aws")]
pub(crate) mod sqs;

/// A certificate for `localhost`, made for this test, and its key.
#[cfg(any(feature = "amqp", feature = "mqtt"))]
pub(crate) fn certificate(folder: &std::path::Path) -> (String, String) {
    let (cert, key) = (folder.join("cert.pem").display().to_string(), folder.join("key.pem").display().to_string());
    let arguments = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"];
    let made = std::process::Command::new("openssl")
        .args(arguments)
        .args(["-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=critical,CA:FALSE"])
        .args(["-out", &cert, "-keyout", &key])
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    (cert, key)
}
