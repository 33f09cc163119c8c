//! A stream of tokens over memory-mapped files.

use super::error::Result;
use super::mapped_file::MappedFile;

/// The width of a stored token, little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenWidth {
    U16,
    U32,
}

impl TokenWidth {
    /// The narrowest width that holds ids below `vocab_size`.
    pub(super) fn for_vocabulary(vocab_size: usize) -> Self {
        if vocab_size <= 1 << 16 { Self::U16 } else { Self::U32 }
    }

    pub(super) fn bytes(self) -> usize {
        match self {
            Self::U16 => 2,
            Self::U32 => 4,
        }
    }

    /// The bytes of `tokens`, which fit into the width.
    pub(super) fn encode(self, tokens: &[u32]) -> Vec<u8> {
        match self {
            Self::U16 => tokens.iter().flat_map(|&token| (token as u16).to_le_bytes()).collect(),
            Self::U32 => tokens.iter().flat_map(|&token| token.to_le_bytes()).collect(),
        }
    }
}

/// Tokens in one mapped file.
#[derive(Debug, Clone)]
pub(super) struct TokenSegment {
    pub(super) file: MappedFile,
    /// The start of the tokens, in bytes.
    offset: usize,
    pub(super) width: TokenWidth,
    /// The number of tokens.
    pub(super) count: u64,
}

impl TokenSegment {
    /// `count` tokens at byte `offset` of `file`; `None` if they are not all in it.
    pub(super) fn new(file: MappedFile, offset: usize, width: TokenWidth, count: u64) -> Option<Self> {
        let bytes = usize::try_from(count).ok()?.checked_mul(width.bytes())?;
        (offset.checked_add(bytes)? <= file.len()).then_some(Self { file, offset, width, count })
    }

    /// `count` tokens from `start` on, which must be within the segment.
    fn tokens(&self, start: u64, count: u64) -> Result<impl Iterator<Item = u32>> {
        let width = self.width.bytes();
        let from = self.offset + start as usize * width;
        let bytes = self.file.bytes(from..from + count as usize * width)?;
        let wide = self.width == TokenWidth::U32;
        let (narrow, broad) = if wide { (&[][..], bytes) } else { (bytes, &[][..]) };
        let narrow = narrow.as_chunks::<2>().0.iter().map(|&b| u32::from(u16::from_le_bytes(b)));
        Ok(narrow.chain(broad.as_chunks::<4>().0.iter().map(|&b| u32::from_le_bytes(b))))
    }

    /// The highest token, and the number of tokens equal to `wanted`.
    pub(super) fn scan(&self, wanted: Option<u32>) -> Result<(u32, u64)> {
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
