//! The formats of token shards: headers, file names, and how the trainer separates documents.

use serde::{Deserialize, Serialize};

use crate::split_name::SplitName;
use runner_files::is_number;
use runner_spec::experiment::TokenType;

/// A format of token shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum ShardFormat {
    /// llm.c: a header of 256 i32, then 16-bit tokens.
    Llmc,
    /// llm.c for large vocabularies: a different magic number from `Llmc`, and 32-bit tokens.
    LlmcU32,
    /// nanoGPT: `train.bin` and `val.bin`, 16-bit tokens and nothing else.
    #[serde(rename = "nanogpt")]
    #[strum(serialize = "nanogpt")]
    NanoGpt,
    /// build-nanogpt: one-dimensional 16-bit arrays of numpy.
    Npy,
}

/// Bytes of llm.c's header.
pub(crate) const LLMC_HEADER: usize = 1024;
/// Bytes of the .npy header that numpy writes for every one-dimensional array.
const NPY_HEADER: usize = 128;

impl ShardFormat {
    pub const ALL: [Self; 4] = [Self::Llmc, Self::LlmcU32, Self::NanoGpt, Self::Npy];

    /// The name on the command line and in cards.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// The type of a token, in numpy's words.
    #[must_use]
    pub fn dtype(self) -> &'static str {
        self.token_type().name()
    }

    /// The magic number and the version in llm.c's headers.
    pub(crate) fn magic(self) -> Option<(u32, u32)> {
        match self {
            Self::Llmc => Some((20_240_520, 1)),
            Self::LlmcU32 => Some((20_240_801, 7)),
            Self::NanoGpt | Self::Npy => None,
        }
    }

    pub(crate) fn token_type(self) -> TokenType {
        if self == Self::LlmcU32 { TokenType::Uint32 } else { TokenType::Uint16 }
    }

    /// True if the end of text follows a document, false if it comes before.
    pub(super) fn appends_end(self) -> bool {
        self == Self::NanoGpt
    }

    /// True if a split is one file of any length.
    pub(super) fn one_file(self) -> bool {
        self == Self::NanoGpt
    }

    /// The maximum number of tokens that a header can state.
    pub(super) fn max_shard_tokens(self) -> u64 {
        if self.magic().is_some() { i32::MAX as u64 } else { u64::MAX >> 8 }
    }

    /// The file of shard `index` of `split`.
    pub(super) fn file_name(self, name: &str, split: SplitName, index: u64) -> String {
        let split = split.short();
        match self {
            Self::Llmc | Self::LlmcU32 => format!("{name}_{split}_{index:06}.bin"),
            Self::NanoGpt => format!("{split}.bin"),
            Self::Npy => format!("{name}_{split}_{index:06}.npy"),
        }
    }

    /// True if a file called `file` may be in a set called `name`.
    pub(super) fn is_in_set(self, name: &str, file: &str) -> bool {
        [SplitName::Train, SplitName::Validation].into_iter().any(|split| {
            let first = self.file_name(name, split, 0);
            let Some((start, end)) = first.split_once("000000") else { return file == first };
            let number = file.strip_prefix(start).and_then(|rest| rest.strip_suffix(end));
            number.is_some_and(|number| number.len() == 6 && is_number(number))
        })
    }

    /// The header in front of `tokens` tokens.
    pub(super) fn header(self, tokens: u64) -> Vec<u8> {
        let mut header = Vec::new();
        if let Some((magic, version)) = self.magic() {
            header.extend([magic, version, tokens as u32].iter().flat_map(|word| word.to_le_bytes()));
            header.resize(LLMC_HEADER, 0);
        } else if self == Self::Npy {
            header.extend(b"\x93NUMPY\x01\x00");
            header.extend(((NPY_HEADER - 10) as u16).to_le_bytes());
            header.extend(format!("{{'descr': '<u2', 'fortran_order': False, 'shape': ({tokens},), }}").bytes());
            header.resize(NPY_HEADER - 1, b' ');
            header.push(b'\n');
        }
        header
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against `struct.pack("<256i", 20240520, 1, 3, *[0] * 253)` and `numpy.save` of three uint16 (numpy 2).
    #[test]
    fn headers_are_those_of_the_peers() {
        let llmc = ShardFormat::Llmc.header(3);
        assert_eq!(llmc[..12], [0x88, 0xd8, 0x34, 0x01, 1, 0, 0, 0, 3, 0, 0, 0]);
        assert!(llmc.len() == 1024 && llmc[12..].iter().all(|&b| b == 0));
        assert_eq!(ShardFormat::LlmcU32.header(1)[..8], [0xa1, 0xd9, 0x34, 0x01, 7, 0, 0, 0]);
        let npy = ShardFormat::Npy.header(3);
        let text = "{'descr': '<u2', 'fortran_order': False, 'shape': (3,), }";
        let expected = [b"\x93NUMPY\x01\x00\x76\x00".as_slice(), format!("{text:117}\n").as_bytes()].concat();
        assert_eq!(npy, expected);
        assert_eq!(ShardFormat::Npy.header(u64::MAX >> 8).len(), 128);
    }

    #[test]
    fn files_are_called_as_the_peers_call_them() {
        let (npy, llmc) = (ShardFormat::Npy, ShardFormat::Llmc);
        assert_eq!(npy.file_name("edufineweb", SplitName::Validation, 0), "edufineweb_val_000000.npy");
        assert_eq!(llmc.file_name("fineweb", SplitName::Train, 12), "fineweb_train_000012.bin");
        assert_eq!(ShardFormat::NanoGpt.file_name("x", SplitName::Validation, 0), "val.bin");
        assert!(npy.is_in_set("a", "a_train_000012.npy") && !npy.is_in_set("a", "a_train_000012.bin"));
        assert!(!npy.is_in_set("a", "a_b_train_000012.npy") && !llmc.is_in_set("a", "a_train_12.bin"));
        assert!(ShardFormat::NanoGpt.is_in_set("a", "train.bin") && !ShardFormat::NanoGpt.is_in_set("a", "test.bin"));
    }
}
