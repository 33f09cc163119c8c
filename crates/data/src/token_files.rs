//! Reads token shards in place: llm.c's and nanoGPT's `.bin` and build-nanogpt's `.npy`, recognized by their content.

use std::path::Path;

use super::cache::DataCache;
use super::error::{DataError, Result};
use super::hashing::hash_parts;
use super::mapped_file::MappedFile;
use super::shard::{LLMC_HEADER, ShardFormat};
use super::source::LocatedSource;
use super::token_stream::{TokenSegment, TokenStream};
use runner_spec::experiment::TokenType;

/// Other files of llm.c that are called .bin.
const LLMC_OTHERS: [(&str, u32); 3] = [("model", 20_240_326), ("debug state", 20_240_327), ("tokenizer", 20_240_328)];
const NPY_MAGIC: &[u8] = b"\x93NUMPY";

/// Opens the shards of `source` as one stream. In files without a header a token has the type `kind`, or 16 bits. `end` is the end-of-text
/// token. Also returns the highest token, and the number of documents: the end-of-text tokens, and at least one for each shard.
///
/// # Errors
/// If a file holds no tokens, or its type is not given and 16 bits cannot be right for it or for `vocabulary`.
pub(super) fn open(
    source: &LocatedSource,
    kind: Option<TokenType>,
    vocabulary: usize,
    end: Option<u32>,
    cache: &DataCache,
    progress: &dyn Fn(u64, u64),
) -> Result<(TokenStream, u32, u64)> {
    let (mut max, mut documents, mut bytes, mut tokens) = (0, 0, 0, 0);
    let mut segments = Vec::new();
    for file in &source.files {
        let segment = recognize(&file.path, kind)?;
        if segment.offset == 0 && kind.is_none() && vocabulary > 1 << 16 {
            let message = format!(
                "no header of llm.c or NumPy, so its tokens are read as {}, but the vocabulary has {vocabulary} tokens; {}",
                TokenType::Uint16.name(),
                SET_TYPE
            );
            return Err(DataError::file(&file.path, message));
        }
        let settings = match kind {
            Some(kind) if kind != TokenType::Uint16 => format!("{end:?} {}", kind.name()),
            _ => format!("{end:?}"),
        };
        let memo = hash_parts([&*file.hash, &settings]);
        let (highest, ends) = cache.remember("scans", &memo, || segment.scan(end))?;
        max = max.max(highest);
        documents += ends.max(1);
        bytes += file.size;
        tokens += segment.count;
        progress(bytes, tokens);
        segments.push(segment);
    }
    Ok((TokenStream::new(segments), max, documents))
}

/// The tokens in the file `path`. Without a header they have the type `given`, or 16 bits.
///
/// # Errors
/// If the file holds no tokens, names a different type, or shows that its tokens are wider than 16 bits.
pub(super) fn recognize(path: &Path, given: Option<TokenType>) -> Result<TokenSegment> {
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
    let (offset, kind, count) = if map.starts_with(NPY_MAGIC) {
        parse_npy_header(map).map_err(|message| wrong(format!("a .npy file, but {message}")))?
    } else if let Some((what, _)) = LLMC_OTHERS.into_iter().find(|(_, magic)| *magic == word(0)) {
        return Err(wrong(format!("llm.c's {what}, not tokens")));
    } else if let Some(format) = ShardFormat::ALL.into_iter().find(|format| is_llmc(*format)) {
        let (kind, version) = (format.token_type(), format.magic().map_or(0, |(_, version)| version));
        if word(1) != version {
            return Err(wrong(format!(
                "llm.c token shard of version {}; only version {version} is supported",
                word(1)
            )));
        }
        (LLMC_HEADER, kind, u64::from(word(2)))
    } else if path.extension().is_none_or(|e| e != "bin") {
        // Without a header, 16-bit numbers can be anything, even text: only the name says that they are tokens.
        return Err(wrong(
            "no header of llm.c or NumPy; tokens without a header (nanoGPT's) must be in a .bin file".into(),
        ));
    } else {
        let kind = given.unwrap_or(TokenType::Uint16);
        let width = kind.bytes() as u64;
        if !size.is_multiple_of(width) {
            let bits = width * 8;
            return Err(wrong(format!(
                "no header of llm.c or NumPy, and its size must be a multiple of {width} bytes for {bits}-bit tokens, got {size}"
            )));
        }
        if given.is_none() && has_upper_halves(map) {
            return Err(wrong(format!(
                "no header of llm.c or NumPy, and nearly every second {} is 0, as if tokens were wider; {}",
                kind.name(),
                SET_TYPE
            )));
        }
        (0, kind, size / width)
    };
    let expected = count.checked_mul(kind.bytes() as u64).and_then(|bytes| bytes.checked_add(offset as u64));
    if expected != Some(size) {
        let message = format!("its header says {count} tokens, which does not match the file's size ({size} bytes)");
        return Err(wrong(message));
    }
    if let Some(given) = given.filter(|given| *given != kind) {
        let (given, kind) = (given.name(), kind.name());
        return Err(wrong(format!("`dtype` is `{given}`, but the file's header says `{kind}`; leave `dtype` out")));
    }
    let segment = TokenSegment::new(file, offset, kind, count);
    segment.ok_or_else(|| wrong("shorter than its header says".into()))
}

/// The advice for a file without a header whose tokens seem to be wider than 16 bits.
const SET_TYPE: &str =
    "set `dtype` to the type of its tokens, such as `uint32` or `int64`, or to `uint16` if they have 16 bits";

/// True if nearly every second 16-bit number of `bytes` is 0, and the others are not: these are the upper halves of wider tokens.
fn has_upper_halves(bytes: &[u8]) -> bool {
    /// The numbers that are looked at, and the pairs that are needed.
    const READ: usize = 1 << 20;
    const LEAST_PAIRS: usize = 32;
    let pairs = bytes.as_chunks::<4>().0.iter().take(READ / 2);
    let count = pairs.len();
    let (lower, upper) = pairs.fold((0, 0), |(lower, upper), [a, b, c, d]| {
        (lower + usize::from([a, b] != [&0, &0]), upper + usize::from([c, d] != [&0, &0]))
    });
    count >= LEAST_PAIRS && upper * 100 <= count && lower * 20 >= count
}

/// The offset, type and number of the elements of a .npy file of one dimension.
fn parse_npy_header(bytes: &[u8]) -> Result<(usize, TokenType, u64), String> {
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
    let types = TokenType::ALL.map(|token| (format!("<{}{}", &token.name()[..1], token.bytes()), token));
    let Some((_, token)) = types.iter().find(|(name, _)| *name == kind) else {
        let names = types.map(|(name, _)| format!("'{name}'")).join(", ");
        return Err(format!("its elements are {kind:?}; tokens must be one of {names}"));
    };
    let shape = value("shape").and_then(|text| text.strip_prefix('(')?.split_once(')')).ok_or("it has no shape")?.0;
    let dimensions: Vec<_> = shape.split(',').map(str::trim).filter(|d| !d.is_empty()).collect();
    let [count] = dimensions[..] else {
        return Err(format!("its shape is ({shape}); tokens must have one dimension"));
    };
    let count = count.trim_end_matches('L').parse().map_err(|_| format!("its shape is ({shape})"))?;
    Ok((end, *token, count))
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
        typed_tokens_of(name, content, None)
    }

    fn typed_tokens_of(name: &str, content: &[u8], kind: Option<TokenType>) -> Result<Vec<u32>, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        let checked = recognize(&path, kind).and_then(|segment| segment.check_values().map(|()| segment));
        let segment = checked.map_err(|error| error.to_string().split_once(": ").unwrap().1.to_owned())?;
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
    /// The bytes of `tokens` as NumPy's `tofile` writes them.
    fn raw(kind: TokenType, tokens: &[i64]) -> Vec<u8> {
        tokens.iter().flat_map(|token| token.to_le_bytes()[..kind.bytes()].to_vec()).collect()
    }

    /// `count` numbers below `bound`, the same ones each time.
    fn numbers(count: usize, bound: u64) -> Vec<i64> {
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % bound) as i64
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn tokens_of_every_type_are_read() {
        let expected = [5, 50_256, 0, 7];
        for kind in TokenType::ALL {
            let read = |kind, bytes: &[u8]| typed_tokens_of("a.bin", bytes, kind);
            let bytes = raw(kind, &expected);
            assert_eq!(read(Some(kind), &bytes).unwrap(), expected.map(|token| token as u32));
            let code = format!("<{}{}", &kind.name()[..1], kind.bytes());
            let header = format!("{{'descr': '{code}', 'fortran_order': False, 'shape': (4,), }}");
            let npy = [npy_file(&header, &[]), bytes].concat();
            for given in [None, Some(kind)] {
                assert_eq!(typed_tokens_of("a.npy", &npy, given).unwrap(), expected.map(|token| token as u32));
            }
            let other = if kind == TokenType::Int64 { TokenType::Uint16 } else { TokenType::Int64 };
            let error = typed_tokens_of("a.npy", &npy, Some(other)).unwrap_err();
            assert!(error.contains(&format!("but the file's header says `{}`", kind.name())), "{error}");
        }
        assert!(typed_tokens_of("a.bin", &llmc(20_240_520, 1, 2, &[1, 0, 2, 0]), Some(TokenType::Uint32)).is_err());
        let error = typed_tokens_of("a.bin", &[0; 12], Some(TokenType::Int64)).unwrap_err();
        assert!(error.contains("must be a multiple of 8 bytes for 64-bit tokens, got 12"), "{error}");
    }

    #[test]
    fn values_that_are_no_tokens_have_their_place() {
        for (kind, value) in [
            (TokenType::Int32, -1),
            (TokenType::Int64, -100),
            (TokenType::Int64, 1 << 32),
            (TokenType::Uint64, i64::MAX),
        ] {
            let error = typed_tokens_of("a.bin", &raw(kind, &[1, 2, value, 3]), Some(kind)).unwrap_err();
            assert_eq!(error, format!("a token must be 0 to 4294967295, got {value} at position 2"));
        }
    }

    #[test]
    fn wider_tokens_are_not_read_as_16_bits() {
        for kind in [TokenType::Uint32, TokenType::Int32, TokenType::Uint64, TokenType::Int64] {
            for bound in [2, 5, 257, 1000, 50_257] {
                let error = tokens(&raw(kind, &numbers(400, bound))).unwrap_err();
                assert!(error.contains("as if tokens were wider; set `dtype`"), "{bound}: {error}");
            }
        }
        // Tokens of padding, and one damaged number.
        let mut padded = numbers(1000, 300);
        padded[100..].fill(0);
        padded[7] = -1;
        assert!(tokens(&raw(TokenType::Int32, &padded)).is_err());
    }

    #[test]
    fn tokens_of_16_bits_are_not_taken_for_wider_ones() {
        for bound in [1, 2, 3, 4, 17, 65, 256, 1000, 50_257, 65_536] {
            let genuine = numbers(2000, bound);
            assert_eq!(tokens(&raw(TokenType::Uint16, &genuine)).unwrap().len(), 2000, "{bound}");
        }
        // Runs of zeros, frequent separators, numbers that count, and a short file.
        let mut zeros = numbers(2000, 1000);
        zeros[..1800].fill(0);
        let separated: Vec<i64> =
            numbers(2000, 65).into_iter().enumerate().map(|(i, n)| if i % 3 == 0 { 0 } else { n }).collect();
        for genuine in [zeros, separated, (0..2000).collect(), vec![5, 0, 6, 0]] {
            assert!(tokens(&raw(TokenType::Uint16, &genuine)).is_ok());
        }
        // Alternating zeros must be confirmed.
        let alternating: Vec<i64> = (0..2000).map(|i| if i % 2 == 0 { 9 } else { 0 }).collect();
        let bytes = raw(TokenType::Uint16, &alternating);
        assert!(tokens(&bytes).is_err());
        assert_eq!(typed_tokens_of("a.bin", &bytes, Some(TokenType::Uint16)).unwrap().len(), 2000);
    }
}
