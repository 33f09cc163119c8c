//! Reads token shards in place: llm.c's and nanoGPT's `.bin` and build-nanogpt's `.npy`, recognized by their content.

use std::path::Path;

use super::cache::DataCache;
use super::error::{DataError, Result};
use super::hashing::hash_parts;
use super::mapped_file::MappedFile;
use super::shard::{LLMC_HEADER, ShardFormat};
use super::source::LocatedSource;
use super::token_stream::{TokenSegment, TokenStream, TokenWidth};

/// Other files of llm.c that are called .bin.
const LLMC_OTHERS: [(&str, u32); 3] = [("model", 20_240_326), ("debug state", 20_240_327), ("tokenizer", 20_240_328)];
const NPY_MAGIC: &[u8] = b"\x93NUMPY";

/// Opens the shards of `source` as one stream. Also returns the highest token and the number of documents: the end-of-text tokens `end`,
/// and at least one for each shard.
pub(super) fn open(
    source: &LocatedSource,
    end: Option<u32>,
    cache: &DataCache,
    progress: &dyn Fn(u64, u64),
) -> Result<(TokenStream, u32, u64)> {
    let segments = source
        .files
        .iter()
        .map(|file| recognize(&file.path).map(|(segment, _)| segment))
        .collect::<Result<Vec<_>, _>>()?;
    let (mut max, mut documents, mut bytes, mut tokens) = (0, 0, 0, 0);
    for (segment, file) in segments.iter().zip(&source.files) {
        let memo = hash_parts([&*file.hash, &format!("{end:?}")]);
        let (highest, ends) = cache.remember("scans", &memo, || segment.scan(end))?;
        max = max.max(highest);
        documents += ends.max(1);
        bytes += file.size;
        tokens += segment.count;
        progress(bytes, tokens);
    }
    Ok((TokenStream::new(segments), max, documents))
}

/// The tokens in the file `path`, and the name of the format.
pub(super) fn recognize(path: &Path) -> Result<(TokenSegment, &'static str)> {
    let wrong = |message: String| DataError::file(path, message);
    // An empty file cannot be mapped everywhere.
    let size = std::fs::metadata(path).map_err(DataError::io(path))?.len();
    if size == 0 {
        return Err(wrong("an empty file; token shards are llm.c's or nanoGPT's .bin, or a .npy".into()));
    }
    let file = MappedFile::open(path)?;
    let map = file.unverified();
    let word = |index: usize| {
        map.get(index * 4..).and_then(|bytes| bytes.first_chunk::<4>()).map_or(0, |bytes| u32::from_le_bytes(*bytes))
    };
    let is_llmc = |format: ShardFormat| format.magic().is_some_and(|(magic, _)| magic == word(0));
    let (name, offset, width, count) = if map.starts_with(NPY_MAGIC) {
        let (offset, width, count) =
            parse_npy_header(map).map_err(|message| wrong(format!("a .npy file, but {message}")))?;
        let expected = count.checked_mul(width.bytes() as u64).and_then(|bytes| bytes.checked_add(offset as u64));
        if expected != Some(size) {
            return Err(wrong(format!(
                "the .npy header says {count} tokens, which does not match the file's size ({size} bytes)"
            )));
        }
        ("npy", offset, width, count)
    } else if let Some((what, _)) = LLMC_OTHERS.into_iter().find(|(_, magic)| *magic == word(0)) {
        return Err(wrong(format!("llm.c's {what}, not tokens")));
    } else if let Some(format) = ShardFormat::ALL.into_iter().find(|format| is_llmc(*format)) {
        let (width, version) = (format.width(), format.magic().map_or(0, |(_, version)| version));
        if word(1) != version {
            return Err(wrong(format!(
                "llm.c token shard of version {}; only version {version} is supported",
                word(1)
            )));
        }
        let count = u64::from(word(2));
        if size != LLMC_HEADER as u64 + count * width.bytes() as u64 {
            let message =
                format!("llm.c header says {count} tokens, which does not match the file's size ({size} bytes)");
            return Err(wrong(message));
        }
        (format.name(), LLMC_HEADER, width, count)
    } else if path.extension().is_none_or(|e| e != "bin") {
        // Without a header, 16-bit numbers can be anything, even text: only the name says that they are tokens.
        return Err(wrong(
            "no header of llm.c or NumPy; tokens without a header (nanoGPT's) must be in a .bin file".into(),
        ));
    } else if size.is_multiple_of(2) {
        ("nanogpt", 0, TokenWidth::U16, size / 2)
    } else {
        return Err(wrong(format!(
            "no header of llm.c or NumPy, and its size must be a multiple of 2 bytes for 16-bit tokens, got {size}"
        )));
    };
    let segment = TokenSegment::new(file, offset, width, count);
    Ok((segment.ok_or_else(|| wrong("shorter than its header says".into()))?, name))
}

/// The offset, type and number of the elements of a .npy file of one dimension.
fn parse_npy_header(bytes: &[u8]) -> Result<(usize, TokenWidth, u64), String> {
    let version = *bytes.get(6).ok_or("it is cut short")?;
    let short = bytes.get(8..10).and_then(|b| b.first_chunk()).map(|b| usize::from(u16::from_le_bytes(*b)));
    let long = bytes.get(8..12).and_then(|b| b.first_chunk()).map(|b| u32::from_le_bytes(*b) as usize);
    let (start, length) = match version {
        1 => (10, short),
        2 | 3 => (12, long),
        other => return Err(format!("its format version is {other}")),
    };
    let end = length.and_then(|length| length.checked_add(start)).ok_or("it is cut short")?;
    let header = bytes.get(start..end).ok_or("its header is cut short")?;
    let header = std::str::from_utf8(header).map_err(|_| "its header is not text")?;
    let value = |key: &str| {
        let after = [format!("'{key}'"), format!("\"{key}\"")].iter().find_map(|k| Some(header.split_once(k)?.1));
        after.and_then(|rest| rest.trim_start().strip_prefix(':')).map(str::trim_start)
    };
    let quoted = |text: &str| text.get(1..)?.split(['\'', '"']).next().map(str::to_owned);
    let kind = value("descr").and_then(quoted).ok_or("its header names no type")?;
    let width = match kind.as_str() {
        "<u2" => TokenWidth::U16,
        "<u4" => TokenWidth::U32,
        other => return Err(format!("its elements are {other:?}; tokens must be '<u2' or '<u4'")),
    };
    let shape = value("shape").and_then(|text| text.strip_prefix('(')?.split_once(')')).ok_or("it has no shape")?.0;
    let dimensions: Vec<_> = shape.split(',').map(str::trim).filter(|d| !d.is_empty()).collect();
    let [count] = dimensions[..] else {
        return Err(format!("its shape is ({shape}); tokens must have one dimension"));
    };
    let count = count.trim_end_matches('L').parse().map_err(|_| format!("its shape is ({shape})"))?;
    Ok((end, width, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn npy_file(header: &str, tokens: &[u16]) -> Vec<u8> {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        let padded = format!("{header:117}\n");
        bytes.extend((padded.len() as u16).to_le_bytes());
        bytes.extend(padded.as_bytes());
        bytes.extend(tokens.iter().flat_map(|t| t.to_le_bytes()));
        bytes
    }

    fn llmc(magic: u32, version: u32, count: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; LLMC_HEADER];
        for (i, word) in [magic, version, count].into_iter().enumerate() {
            bytes[i * 4..][..4].copy_from_slice(&word.to_le_bytes());
        }
        bytes.extend(body);
        bytes
    }

    fn tokens(content: &[u8]) -> Result<Vec<u32>, String> {
        tokens_of("shard.bin", content)
    }

    fn tokens_of(name: &str, content: &[u8]) -> Result<Vec<u32>, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        let (segment, _) =
            recognize(&path).map_err(|error| error.to_string().split_once(": ").unwrap().1.to_owned())?;
        let mut tokens = Vec::new();
        let count = segment.count;
        TokenStream::new(vec![segment]).read(0, count, |token| tokens.push(token)).unwrap();
        Ok(tokens)
    }

    #[test]
    fn distinguishes_the_formats() {
        let header = "{'descr': '<u2', 'fortran_order': False, 'shape': (3,), }";
        assert_eq!(tokens(&npy_file(header, &[5, 50_256, 7])).unwrap(), [5, 50_256, 7]);
        assert_eq!(tokens(&llmc(20_240_520, 1, 2, &[1, 0, 2, 0])).unwrap(), [1, 2]);
        assert_eq!(tokens(&llmc(20_240_801, 7, 1, &[0, 0, 1, 0])).unwrap(), [65_536]);
        assert_eq!(tokens(&[1, 0, 0, 1]).unwrap(), [1, 256]);
        assert!(tokens(&llmc(20_240_326, 3, 2, &[1, 0, 2, 0])).unwrap_err().contains("llm.c's model"));
    }

    #[test]
    fn lying_headers_are_errors() {
        let error = |content: &[u8]| tokens(content).unwrap_err();
        assert!(error(&llmc(20_240_520, 1, 3, &[1, 0, 2, 0])).contains("says 3 tokens"));
        assert!(error(&llmc(20_240_520, 1, u32::MAX, &[])).contains("does not match the file's size"));
        assert!(error(&llmc(20_240_520, 2, 0, &[])).contains("version 2"));
        assert!(error(&20_240_801_u32.to_le_bytes()).contains("version 0"));
        assert!(error(&[1, 2, 3]).contains("must be a multiple of 2 bytes for 16-bit tokens, got 3"));
        assert!(error(&[]).contains("empty file"));
        assert!(tokens_of("text.txt", b"To be, or not to be").unwrap_err().contains(".bin"));
        let npy = |header: &str| error(&npy_file(header, &[1, 2]));
        assert!(npy("{'descr': '<u2', 'fortran_order': False, 'shape': (9,), }").contains("says 9 tokens"));
        assert!(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }").contains("\"<f4\""));
        assert!(npy("{'descr': '<u2', 'fortran_order': False, 'shape': (1, 2), }").contains("one dimension"));
        assert!(npy("{'descr': '<u2', 'shape': (99999999999999999999,), }").contains("its shape is"));
        assert!(npy("{'descr': '<u2', 'shape': (18446744073709551615,), }").contains("does not match the file's size"));
        assert!(npy("").contains("no type"));
        for cut in 6..128 {
            let whole = npy_file("{'descr': '<u2', 'fortran_order': False, 'shape': (0,), }", &[]);
            assert!(tokens(&whole[..cut]).is_err(), "{cut}");
        }
    }
}
