//! Compressed files, which are not read: the error says how to decompress them.

use std::io::Read as _;
use std::path::Path;

use crate::error::{DataError, Result};
use runner_files::open_regular;

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
    let mut start = Vec::new();
    open_regular(path).and_then(|file| file.take(16).read_to_end(&mut start)).ok()?;
    advice(path, &start)
}

/// # Errors
/// If the file `path`, which begins with the bytes `start`, is compressed.
pub(super) fn refuse_compressed(path: &Path, start: &[u8]) -> Result<()> {
    advice(path, start).map_or(Ok(()), |advice| Err(DataError::file(path, advice)))
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
