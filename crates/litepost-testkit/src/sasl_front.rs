//! A front that asks Kafka's clients who they are (SASL), for a broker that does not.
//!
//! Called by tests of Kafka with users. It answers SaslHandshake and SaslAuthenticate (KIP-43, KIP-152) with the mechanisms
//! PLAIN (RFC 4616) and SCRAM-SHA-256 (RFC 5802, 7677), and passes everything else on to a real broker. Invariant: before a
//! client has proven that it knows the password, nothing but the question for versions reaches the broker.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, Mac as _};
use sha2::{Digest as _, Sha256};

/// Numbers of Kafka's requests.
const SASL_HANDSHAKE: i16 = 17;
const API_VERSIONS: i16 = 18;
const SASL_AUTHENTICATE: i16 = 36;
/// Numbers of its errors.
const UNSUPPORTED_MECHANISM: i16 = 33;
const AUTHENTICATION_FAILED: i16 = 58;
/// The largest request of a client that nobody knows yet, bytes.
const FRAME_MAX: usize = 64 << 10;
const ITERATIONS: u32 = 4_096;
const SALT: &[u8] = b"litepost's salt";

/// Who may connect.
#[derive(Clone, Debug)]
struct User {
    name: String,
    password: String,
}

/// Asks for `user` and `password` in front of a broker on 127.0.0.1 that does not, until the process ends; its port.
///
/// # Panics
/// When it cannot start.
#[must_use]
pub fn front(server: u16, user: &str, password: &str) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a loopback port");
    let port = listener.local_addr().expect("a local address").port();
    let user = User { name: user.into(), password: password.into() };
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let user = user.clone();
            // A client that is not known, or hangs up, is its own concern.
            std::thread::spawn(move || {
                let _ = serve(client, server, &user);
            });
        }
    });
    port
}

fn serve(mut client: TcpStream, server: u16, user: &User) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut broker = TcpStream::connect(("127.0.0.1", server))?;
    broker.set_nodelay(true)?;
    let mut exchange: Option<Exchange> = None;
    loop {
        let frame = read_frame(&mut client)?;
        let (number, version) = (word(&frame, 0)?, word(&frame, 2)?);
        match number {
            API_VERSIONS => {
                write_frame(&mut broker, &frame)?;
                let answer = read_frame(&mut broker)?;
                write_frame(&mut client, &answer)?;
            }
            SASL_HANDSHAKE => {
                let mechanism = string(body(&frame)?)?;
                exchange = Exchange::of(&mechanism);
                let error = if exchange.is_some() { 0 } else { UNSUPPORTED_MECHANISM };
                let mut answer = correlation(&frame)?.to_vec();
                answer.extend(error.to_be_bytes());
                answer.extend(2_i32.to_be_bytes());
                for offered in ["PLAIN", "SCRAM-SHA-256"] {
                    push_string(&mut answer, offered);
                }
                write_frame(&mut client, &answer)?;
            }
            SASL_AUTHENTICATE if version < 2 => {
                let said = bytes(body(&frame)?)?;
                let step = exchange.as_mut().map_or(Step::Failed, |exchange| exchange.hears(said, user));
                let (error, says, known) = match step {
                    Step::More(says) => (0, says, false),
                    Step::Known(says) => (0, says, true),
                    Step::Failed => (AUTHENTICATION_FAILED, Vec::new(), false),
                };
                write_frame(&mut client, &authenticated(&frame, version, error, &says)?)?;
                if known {
                    return pass_on(&client, &broker);
                }
                if error != 0 {
                    return Ok(());
                }
            }
            // Nobody may ask that yet.
            _ => return Ok(()),
        }
    }
}

fn authenticated(frame: &[u8], version: i16, error: i16, says: &[u8]) -> io::Result<Vec<u8>> {
    let mut answer = correlation(frame)?.to_vec();
    answer.extend(error.to_be_bytes());
    match error {
        0 => answer.extend((-1_i16).to_be_bytes()),
        _ => push_string(&mut answer, "who is that?"),
    }
    answer.extend(i32::try_from(says.len()).map_err(io::Error::other)?.to_be_bytes());
    answer.extend(says);
    if version == 1 {
        answer.extend(0_i64.to_be_bytes());
    }
    Ok(answer)
}

/// Both ways, until one side hangs up.
fn pass_on(client: &TcpStream, broker: &TcpStream) -> io::Result<()> {
    let (mut from, mut to) = (broker.try_clone()?, client.try_clone()?);
    std::thread::spawn(move || {
        let _ = io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Both);
    });
    let (mut from, mut to) = (client.try_clone()?, broker.try_clone()?);
    let _ = io::copy(&mut from, &mut to);
    to.shutdown(Shutdown::Both)
}

/// What is said next.
enum Step {
    More(Vec<u8>),
    Known(Vec<u8>),
    Failed,
}

/// Where a client stands that proves who it is.
enum Exchange {
    Plain,
    Scram,
    /// SCRAM, when the salt is sent: both first messages, and the nonce.
    ScramFinal {
        first: String,
        nonce: String,
    },
}

impl Exchange {
    fn of(mechanism: &str) -> Option<Self> {
        match mechanism {
            "PLAIN" => Some(Self::Plain),
            "SCRAM-SHA-256" => Some(Self::Scram),
            _ => None,
        }
    }

    fn hears(&mut self, said: &[u8], user: &User) -> Step {
        match self {
            Self::Plain => {
                let expected = format!("\0{}\0{}", user.name, user.password);
                if said == expected.as_bytes() { Step::Known(Vec::new()) } else { Step::Failed }
            }
            Self::Scram => {
                let Some(bare) = std::str::from_utf8(said).ok().and_then(|said| said.strip_prefix("n,,")) else {
                    return Step::Failed;
                };
                let Some(theirs) = attribute(bare, 'r').filter(|_| attribute(bare, 'n') == Some(&user.name)) else {
                    return Step::Failed;
                };
                let nonce = format!("{theirs}litepost");
                let says = format!("r={nonce},s={},i={ITERATIONS}", BASE64.encode(SALT));
                *self = Self::ScramFinal { first: format!("{bare},{says}"), nonce };
                Step::More(says.into_bytes())
            }
            Self::ScramFinal { first, nonce } => {
                let said = String::from_utf8_lossy(said);
                let Some((without_proof, proof)) = said.rsplit_once(",p=") else { return Step::Failed };
                if attribute(without_proof, 'r') != Some(nonce) {
                    return Step::Failed;
                }
                let salted = salted(user.password.as_bytes(), SALT);
                let signed = format!("{first},{without_proof}");
                if BASE64.decode(proof).ok() != Some(proof_of(&salted, &signed)) {
                    return Step::Failed;
                }
                let ours = mac(&mac(&salted, b"Server Key"), signed.as_bytes());
                Step::Known(format!("v={}", BASE64.encode(ours)).into_bytes())
            }
        }
    }
}

/// The value of an attribute `name=value` of a message of SCRAM.
fn attribute(message: &str, name: char) -> Option<&str> {
    message.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
}

fn mac(key: &[u8], text: &[u8]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length");
    mac.update(text);
    mac.finalize().into_bytes().to_vec()
}

/// `Hi` of RFC 5802: PBKDF2 with one block.
fn salted(password: &[u8], salt: &[u8]) -> Vec<u8> {
    let mut block = mac(password, &[salt, &1_u32.to_be_bytes()].concat());
    let mut salted = block.clone();
    for _ in 1..ITERATIONS {
        block = mac(password, &block);
        salted.iter_mut().zip(&block).for_each(|(all, one)| *all ^= one);
    }
    salted
}

/// What a client sends that knows the password.
fn proof_of(salted: &[u8], signed: &str) -> Vec<u8> {
    let key = mac(salted, b"Client Key");
    let signature = mac(&Sha256::digest(&key), signed.as_bytes());
    key.iter().zip(&signature).map(|(key, mask)| key ^ mask).collect()
}

fn short() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "a request that ends too soon")
}

fn read_frame(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut len = [0; 4];
    stream.read_exact(&mut len)?;
    let len = usize::try_from(i32::from_be_bytes(len)).ok().filter(|len| *len <= FRAME_MAX);
    let mut frame = vec![0; len.ok_or_else(|| io::Error::other("a request of that length"))?];
    stream.read_exact(&mut frame)?;
    Ok(frame)
}

fn write_frame(stream: &mut TcpStream, frame: &[u8]) -> io::Result<()> {
    let len = i32::try_from(frame.len()).map_err(io::Error::other)?;
    stream.write_all(&[&len.to_be_bytes()[..], frame].concat())
}

fn word(frame: &[u8], at: usize) -> io::Result<i16> {
    let bytes = frame.get(at..at + 2).and_then(|bytes| bytes.try_into().ok()).ok_or_else(short)?;
    Ok(i16::from_be_bytes(bytes))
}

fn correlation(frame: &[u8]) -> io::Result<&[u8]> {
    frame.get(4..8).ok_or_else(short)
}

/// What follows a request's header: number, version, correlation, the client's name.
fn body(frame: &[u8]) -> io::Result<&[u8]> {
    let name = usize::try_from(word(frame, 8)?).unwrap_or(0);
    frame.get(10 + name..).ok_or_else(short)
}

fn string(body: &[u8]) -> io::Result<String> {
    let len = usize::try_from(word(body, 0)?).map_err(io::Error::other)?;
    let text = body.get(2..2 + len).ok_or_else(short)?;
    String::from_utf8(text.to_vec()).map_err(io::Error::other)
}

fn bytes(body: &[u8]) -> io::Result<&[u8]> {
    let len = body.get(..4).and_then(|len| len.try_into().ok()).map(i32::from_be_bytes).ok_or_else(short)?;
    body.get(4..4 + usize::try_from(len).map_err(io::Error::other)?).ok_or_else(short)
}

fn push_string(out: &mut Vec<u8>, text: &str) {
    out.extend(u16::try_from(text.len()).unwrap_or(0).to_be_bytes());
    out.extend(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The exchange of RFC 7677, section 3, with its password, salt and nonces.
    #[test]
    fn a_proof_is_the_one_of_the_standard() {
        let salt = BASE64.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        let salted = salted(b"pencil", &salt);
        let signed = "n=user,r=rOprNGfwEbeRWgbNEkqO,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
        assert_eq!(BASE64.encode(proof_of(&salted, signed)), "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=");
    }
}
