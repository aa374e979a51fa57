//! Compression of large bodies.
//!
//! Called for each request of the http sink and for each message of the brokers that have headers. Invariant: what does not
//! become smaller is sent as it is, and what is compressed says so.

use std::io::Write as _;

use bytes::Bytes;
use serde::Deserialize;

/// Bodies up to this size are sent as they are, unless the configuration says otherwise.
const ABOVE_BYTES: usize = 1_024;

/// `compression` of a connection.
#[derive(Clone, Copy, Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Compression {
    /// How: `zstd` or `gzip`. Receivers find it in the header `content-encoding`.
    algorithm: Algorithm,
    /// Bodies of more bytes than this are compressed. What does not become smaller is sent as it is.
    #[serde(default = "default_above")]
    above_bytes: usize,
}

fn default_above() -> usize {
    ABOVE_BYTES
}

/// A content coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Algorithm {
    /// RFC 8878.
    Zstd,
    /// RFC 1952.
    Gzip,
}

impl Compression {
    /// The body as it travels, and its content coding when it has one.
    pub(crate) fn compressed(self, body: Bytes) -> (Bytes, Option<&'static str>) {
        if body.len() <= self.above_bytes {
            return (body, None);
        }
        let (smaller, name) = match self.algorithm {
            Algorithm::Zstd => (zstd::bulk::compress(&body, zstd::DEFAULT_COMPRESSION_LEVEL).ok(), "zstd"),
            Algorithm::Gzip => (gzip(&body), "gzip"),
        };
        match smaller.filter(|smaller| smaller.len() < body.len()) {
            Some(smaller) => (smaller.into(), Some(name)),
            None => (body, None),
        }
    }
}

fn gzip(body: &[u8]) -> Option<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(body).ok()?;
    encoder.finish().ok()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn only_what_is_large_and_becomes_smaller_is_compressed() {
        for algorithm in [Algorithm::Zstd, Algorithm::Gzip] {
            let transform = Compression { algorithm, above_bytes: 100 };
            let small = Bytes::from(vec![b'x'; 100]);
            assert_eq!(transform.compressed(small.clone()), (small, None));
            let mut noise = 1_u32;
            let dense: Bytes = std::iter::repeat_with(|| {
                noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                noise.to_be_bytes()[0]
            })
            .take(4_000)
            .collect();
            assert_eq!(transform.compressed(dense.clone()).1, None);
            let large = Bytes::from(vec![b'x'; 10_000]);
            let (body, coding) = transform.compressed(large.clone());
            assert!(body.len() < 200);
            let mut back = Vec::new();
            match coding.unwrap() {
                "zstd" => back = zstd::bulk::decompress(&body, 20_000).unwrap(),
                _ => drop(flate2::read::GzDecoder::new(&body[..]).read_to_end(&mut back).unwrap()),
            }
            assert_eq!(back, large);
        }
    }
}
