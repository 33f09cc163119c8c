//! Hashes of files and texts, and their form as text.

use std::io::{self, Read as _};
use std::path::Path;

use ring::digest::{Context, SHA256};

use super::error::{DataError, Result};
use runner_files::open_regular;

const BLOCK_BYTES: usize = 1 << 20;

/// BLAKE3 of the content of the file `path`, in hexadecimal digits. `progress` receives the numbers of bytes that were read.
pub(crate) fn hash_file(path: &Path, progress: &dyn Fn(u64)) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    let read = read_blocks(path, |block| {
        hasher.update(block);
        progress(block.len() as u64);
    });
    read.map_err(DataError::io(path))?;
    Ok(hasher.finalize().to_hex().to_string())
}

/// Hands the blocks of the file `path` to `take`.
fn read_blocks(path: &Path, mut take: impl FnMut(&[u8])) -> io::Result<()> {
    let (mut file, mut block) = (open_regular(path)?, vec![0; BLOCK_BYTES]);
    loop {
        match file.read(&mut block)? {
            0 => return Ok(()),
            read => take(&block[..read]),
        }
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

/// Mixes the bits of `x`: the finalizer of SplitMix64.
pub(crate) fn split_mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The SHA-256 of the content of the file `path`, in hexadecimal digits.
pub(crate) fn sha256_of(path: &Path) -> io::Result<String> {
    let mut sha256 = Context::new(&SHA256);
    read_blocks(path, |block| sha256.update(block))?;
    Ok(hex(sha256.finish().as_ref()))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat()
}

/// True if `name` is a hash in hexadecimal digits.
pub(crate) fn is_hash(name: &str) -> bool {
    name.len() == 2 * blake3::OUT_LEN && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
