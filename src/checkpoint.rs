//! Files of a training's state: written whole or not at all, and read with all doubts.
//! Knows nothing of what the state means.
//!
//! A file is the word `DUALTAPE`, a version, a kind, the length of the body, its CRC-32, and
//! the body: [postcard](https://docs.rs/postcard), a compact and stable format for serde
//! that keeps every bit of a number.

use crate::error::{Error, write_whole};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs;
use std::path::Path;

const WORD: &[u8; 8] = b"DUALTAPE";
const VERSION: u32 = 1;
/// Word, version, length of the body and its checksum.
const HEADER: usize = 8 + 4 + 8 + 4;

/// Anything serialisable as bytes, such as an optimiser's state.
///
/// # Panics
/// Never for types made of numbers, strings, lists, maps and the like.
pub fn encode<T: Serialize + ?Sized>(thing: &T) -> Vec<u8> {
    match postcard::to_allocvec(thing) {
        Ok(bytes) => bytes,
        Err(error) => unreachable!("plain data has a form: {error}"),
    }
}

/// The inverse of [`encode`]; `what` names the thing in errors.
///
/// # Errors
/// Bytes that are not such a thing.
pub fn decode<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T, Error> {
    match postcard::take_from_bytes(bytes) {
        Ok((thing, [])) => Ok(thing),
        Ok(_) => Err(foreign(what, "bytes are left over".to_owned())),
        Err(error) => Err(foreign(what, error.to_string())),
    }
}

fn foreign(what: &str, reason: String) -> Error {
    Error::Foreign {
        what: what.to_owned(),
        reason,
    }
}

/// Writes a thing into a file, whole or not at all.
pub(crate) fn write(path: &Path, thing: &impl Serialize) -> Result<(), Error> {
    let body = encode(thing);
    let mut bytes = Vec::with_capacity(HEADER + body.len());
    bytes.extend(WORD);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend((body.len() as u64).to_le_bytes());
    bytes.extend(crc32fast::hash(&body).to_le_bytes());
    bytes.extend(body);
    write_whole(path, &bytes)
}

/// Reads what [`write`] wrote.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<T, Error> {
    let bytes = fs::read(path).map_err(|error| Error::file(path, error.to_string()))?;
    let bad = |reason: &str| Err(Error::file(path, reason.to_owned()));
    if !bytes.starts_with(WORD) {
        return bad("not a checkpoint of dualtape: it does not start with `DUALTAPE`");
    }
    let Some((header, body)) = bytes.split_at_checked(HEADER) else {
        return bad("the checkpoint is truncated: its header is incomplete");
    };
    let number = |from: usize, len: usize| {
        let mut number = [0; 8];
        number[..len].copy_from_slice(&header[from..from + len]);
        u64::from_le_bytes(number)
    };
    let (version, length, checksum) = (number(8, 4), number(12, 8), number(20, 4));
    if version != u64::from(VERSION) {
        return bad(&format!(
            "a checkpoint of version {version}; this version of dualtape reads version {VERSION}"
        ));
    }
    if length != body.len() as u64 {
        return bad(&format!(
            "the checkpoint is truncated or has grown: {} bytes of {length}",
            body.len()
        ));
    }
    if checksum != u64::from(crc32fast::hash(body)) {
        return bad("the checkpoint is damaged: its checksum does not fit; use an older one");
    }
    decode("checkpoint", body).map_err(|error| Error::file(path, error.to_string()))
}
