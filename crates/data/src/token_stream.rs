//! A stream of tokens over memory-mapped files.

use super::error::{DataError, Result};
use super::mapped_file::MappedFile;
use runner_spec::experiment::TokenType;

/// The bytes of `tokens`, which fit into the type, an unsigned one of 16 or 32 bits.
pub(super) fn encode_tokens(kind: TokenType, tokens: &[u32]) -> Vec<u8> {
    match kind {
        TokenType::Uint16 => tokens.iter().flat_map(|&token| (token as u16).to_le_bytes()).collect(),
        _ => tokens.iter().flat_map(|&token| token.to_le_bytes()).collect(),
    }
}

/// Tokens in one mapped file.
#[derive(Debug, Clone)]
pub(super) struct TokenSegment {
    pub(super) file: MappedFile,
    /// The start of the tokens, in bytes.
    pub(super) offset: usize,
    pub(super) kind: TokenType,
    /// The number of tokens.
    pub(super) count: u64,
}

impl TokenSegment {
    /// `count` tokens at byte `offset` of `file`; `None` if they are not all in it.
    pub(super) fn new(file: MappedFile, offset: usize, kind: TokenType, count: u64) -> Option<Self> {
        let bytes = usize::try_from(count).ok()?.checked_mul(kind.bytes())?;
        (offset.checked_add(bytes)? <= file.len()).then_some(Self { file, offset, kind, count })
    }

    /// The bytes of `count` tokens from `start` on, which must be within the segment.
    fn bytes(&self, start: u64, count: u64) -> Result<&[u8]> {
        let width = self.kind.bytes();
        let from = self.offset + start as usize * width;
        self.file.bytes(from..from + count as usize * width)
    }

    /// `count` tokens from `start` on, which must be within the segment. [`check_values`](Self::check_values) must have passed.
    fn tokens(&self, start: u64, count: u64) -> Result<impl Iterator<Item = u32>> {
        let bytes = self.bytes(start, count)?;
        let of_width = |width| if self.kind.bytes() == width { bytes } else { &[] };
        let narrow = of_width(2).as_chunks::<2>().0.iter().map(|&b| u32::from(u16::from_le_bytes(b)));
        let middle = of_width(4).as_chunks::<4>().0.iter().map(|&b| u32::from_le_bytes(b));
        Ok(narrow.chain(middle).chain(of_width(8).as_chunks::<8>().0.iter().map(|&b| u64::from_le_bytes(b) as u32)))
    }

    /// # Errors
    /// If a value cannot be a token, with its place.
    pub(super) fn check_values(&self) -> Result<()> {
        let bytes = self.bytes(0, self.count)?;
        let (words, longs) = (bytes.as_chunks::<4>().0.iter(), bytes.as_chunks::<8>().0.iter());
        let outside = |(_, value): &(usize, i128)| !(0..=i128::from(u32::MAX)).contains(value);
        let wrong = match self.kind {
            TokenType::Uint16 | TokenType::Uint32 => None,
            TokenType::Int32 => words.map(|&b| i128::from(i32::from_le_bytes(b))).enumerate().find(outside),
            TokenType::Uint64 => longs.map(|&b| i128::from(u64::from_le_bytes(b))).enumerate().find(outside),
            TokenType::Int64 => longs.map(|&b| i128::from(i64::from_le_bytes(b))).enumerate().find(outside),
        };
        match wrong {
            Some((position, value)) => Err(DataError::file(
                self.file.path(),
                format!("a token must be 0 to {}, got {value} at position {position}", u32::MAX),
            )),
            None => Ok(()),
        }
    }

    /// The highest token, and the number of tokens equal to `wanted`.
    pub(super) fn scan(&self, wanted: Option<u32>) -> Result<(u32, u64)> {
        self.check_values()?;
        let tokens = self.tokens(0, self.count)?;
        Ok(tokens.fold((0, 0), |(max, hits), token| (token.max(max), hits + u64::from(Some(token) == wanted))))
    }
}

/// Segments, one after the other.
#[derive(Debug, Clone, Default)]
pub(super) struct TokenStream {
    segments: Vec<TokenSegment>,
    /// The position at which each segment starts.
    starts: Vec<u64>,
    count: u64,
}

impl TokenStream {
    pub(super) fn new(segments: Vec<TokenSegment>) -> Self {
        let mut stream = Self::default();
        for segment in segments {
            stream.starts.push(stream.count);
            stream.count += segment.count;
            stream.segments.push(segment);
        }
        stream
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Hands `count` tokens from `start` on, which must be within the stream, to `take`.
    pub(super) fn read(&self, start: u64, count: u64, mut take: impl FnMut(u32)) -> Result<()> {
        let mut index = self.starts.partition_point(|&s| s <= start).saturating_sub(1);
        let (mut position, end) = (start, (start + count).min(self.count));
        while position < end {
            let (segment, first) = (&self.segments[index], self.starts[index]);
            let last = end.min(first + segment.count);
            segment.tokens(position - first, last - position)?.for_each(&mut take);
            position = last;
            index += 1;
        }
        Ok(())
    }

    /// The segment that holds `position`, and the position in it.
    pub(super) fn segment_at(&self, position: u64) -> Option<(&TokenSegment, u64)> {
        let index = self.starts.partition_point(|&s| s <= position).checked_sub(1)?;
        Some((self.segments.get(index)?, position - self.starts[index]))
    }

    /// The first token that is `limit` or more.
    pub(super) fn first_beyond(&self, limit: usize) -> Result<Option<(u64, u32)>> {
        for (segment, start) in self.segments.iter().zip(&self.starts) {
            let mut tokens = (*start..).zip(segment.tokens(0, segment.count)?);
            if let Some(found) = tokens.find(|&(_, token)| token as usize >= limit) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}
