//! Hashes of files and texts, and their form as text.

use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::Path;

use ring::digest::{Context, SHA256};

use super::error::{DataError, Result};
use runner_files::open_regular;

const BLOCK_BYTES: usize = 1 << 20;

/// BLAKE3 of the content of the file `path`, in hexadecimal digits. `progress` receives the numbers of bytes that were read.
pub(crate) fn hash_file(path: &Path, progress: &dyn Fn(u64)) -> Result<String> {
    let mut file = open_regular(path).map_err(DataError::io(path))?;
    let mut hasher = blake3::Hasher::new();
    let mut block = vec![0; BLOCK_BYTES];
    loop {
        let read = file.read(&mut block).map_err(DataError::io(path))?;
        if read == 0 {
            return Ok(hasher.finalize().to_hex().to_string());
        }
        hasher.update(&block[..read]);
        progress(read as u64);
    }
}

/// BLAKE3 over parts, in hexadecimal digits. Each part follows its length, so that different lists of parts have different hashes.
pub(crate) fn hash_parts<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

/// The SHA-256 of the content of the file `path`, in hexadecimal digits.
pub(crate) fn sha256_of(path: &Path) -> io::Result<String> {
    let (mut file, mut sha256) = (BufReader::with_capacity(BLOCK_BYTES, open_regular(path)?), Context::new(&SHA256));
    loop {
        let block = file.fill_buf()?;
        if block.is_empty() {
            return Ok(hex(sha256.finish().as_ref()));
        }
        sha256.update(block);
        let read = block.len();
        file.consume(read);
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat()
}

/// True if `name` is a hash in hexadecimal digits.
pub(crate) fn is_hash(name: &str) -> bool {
    name.len() == 2 * blake3::OUT_LEN && is_hexadecimal(name)
}

pub(crate) fn is_hexadecimal(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
