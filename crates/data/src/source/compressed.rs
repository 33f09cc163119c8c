//! Compressed files, which are not read: the error says how to decompress them.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;

use crate::error::{DataError, Result};
use runner_files::{open_regular, without_byte_order_mark};
use runner_yaml::source::read_limited;

pub(super) const BLOCK_BYTES: usize = 256 << 10;

/// The first bytes of each kind of compressed file, its name, and a program that decompresses it beside the file.
const KINDS: [(&[u8], &str, &str); 5] = [
    (b"\x1f\x8b", "gzip", "gunzip -k"),
    (b"\x28\xb5\x2f\xfd", "zstd", "unzstd"),
    (b"\xfd7zXZ\0", "xz", "unxz -k"),
    (b"PK\x03\x04", "zip", "unzip"),
    // The digit after BZh varies.
    (b"BZh", "bzip2", "bunzip2 -k"),
];

/// What to do with the file `path` that begins with the bytes `start`; `None` if they are not those of a compressed file.
fn advice(path: &Path, start: &[u8]) -> Option<String> {
    let is_bzip2 = |start: &[u8]| start.get(4..10) == Some(b"\x31\x41\x59\x26\x53\x59");
    let (_, kind, program) =
        KINDS.into_iter().find(|(magic, kind, _)| start.starts_with(magic) && (*kind != "bzip2" || is_bzip2(start)))?;
    Some(format!("compressed with {kind}; decompress it first: `{program} {}`", path.display()))
}

/// What to do with the file `path` if it is compressed.
pub fn compression_advice(path: &Path) -> Option<String> {
    advice(path, &open_regular(path).and_then(|file| read_limited(file, 16)).ok()?)
}

/// Opens the text file `path` behind its byte order mark. Returns the number of the mark's bytes, too.
///
/// # Errors
/// If it cannot be read, or is compressed.
pub(super) fn open_text(path: &Path) -> Result<(BufReader<File>, usize)> {
    let mut file = BufReader::with_capacity(BLOCK_BYTES, open_regular(path).map_err(DataError::io(path))?);
    let start = file.fill_buf().map_err(DataError::io(path))?;
    if let Some(advice) = advice(path, start) {
        return Err(DataError::file(path, advice));
    }
    let mark = start.len() - without_byte_order_mark(start).len();
    file.consume(mark);
    Ok((file, mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressed_files_are_recognized_by_their_content() {
        let of = |start: &[u8]| advice(Path::new("a b.jsonl"), start);
        assert_eq!(
            of(b"\x1f\x8b\x08\x00").unwrap(),
            "compressed with gzip; decompress it first: `gunzip -k a b.jsonl`"
        );
        assert!(of(b"\x28\xb5\x2f\xfd\x04").unwrap().contains("zstd"));
        assert!(of(b"BZh91AY&SY\0").unwrap().contains("bzip2"));
        for text in [&b"BZh9 is a text"[..], b"{\"text\": 1}", b"PAR1", b"", b"\x1f"] {
            assert_eq!(of(text), None);
        }
    }
}
