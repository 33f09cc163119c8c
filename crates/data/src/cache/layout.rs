//! The names in a cache folder, and which files and folders there this program made.
//!
//! Only what is recognized here is removed: a folder of an entry or of a killed process, under the name that the program gives it, with
//! nothing in it but files that the program writes. Symbolic links are never the program's own.

use std::io;
use std::path::{Path, PathBuf};

use crate::hashing::is_hash;
use crate::stories;
use runner_files::{TEMPORARY_PREFIX, children, has_only, is_number, is_real_folder, is_temporary_name};

/// The file that marks the folder as a cache.
pub(super) const TAG: &str = "CACHEDIR.TAG";
/// The folder of unfinished work.
pub(super) const TMP: &str = "tmp";
/// The file in `tmp` that is locked while leftovers are removed.
pub(super) const TMP_LOCK: &str = ".lock";
/// The folder of files that are locked while an entry is built.
pub(super) const LOCKS: &str = "locks";
/// The folder of notes: which data consists of which entries.
pub(crate) const USES: &str = "uses";

/// The prefix of the folder in which an entry is built.
pub(super) const STAGE: &str = "stage-";
/// The names in such a folder: its lock, the unfinished entry, and an entry that is being removed.
pub(super) const STAGE_LOCK: &str = "lock";
pub(super) const STAGE_CONTENT: &str = "content";
pub(super) const STAGE_REMOVED: [&str; 2] = ["damaged", "evicted"];

/// The file of an entry with the hashes of its other files.
pub(super) const HASHES: &str = "hashes.json";

/// A kind of large entries, each of which is a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub(crate) enum EntryKind {
    Corpora,
    Tokenizers,
    Tokens,
}

impl EntryKind {
    pub(crate) const ALL: [Self; 3] = [Self::Corpora, Self::Tokenizers, Self::Tokens];

    /// The folder of the entries of this kind.
    pub(crate) fn folder(self) -> &'static str {
        self.into()
    }

    /// What an entry is, for messages.
    pub(super) fn noun(self) -> &'static str {
        match self {
            Self::Corpora => "the built-in corpus",
            Self::Tokenizers => "a tokenizer",
            Self::Tokens => "an entry of tokens",
        }
    }

    /// True if an entry has a file with the hashes of its files. Tokens have checksums, which are verified when the tokens are read.
    pub(super) fn has_hashes(self) -> bool {
        self.files().contains(&HASHES)
    }

    /// The files that an entry may have.
    fn files(self) -> &'static [&'static str] {
        match self {
            Self::Corpora => &[stories::TRAIN, stories::VALIDATION, stories::CHOICE, HASHES],
            Self::Tokenizers => &["characters.json", "tokenizer.json", "words.json", HASHES],
            Self::Tokens => &["tokens.bin", "documents.bin", "checksums.bin"],
        }
    }

    /// True if an entry may be called `name`.
    fn is_key(self, name: &str) -> bool {
        match self {
            // The stories' editions are numbered.
            Self::Corpora => name.strip_prefix("stories-").is_some_and(is_number),
            Self::Tokenizers | Self::Tokens => is_hash(name),
        }
    }

    /// True if `path` is an entry that the program wrote, whole or damaged, with nothing else in it.
    pub(crate) fn is_own(self, path: &Path) -> bool {
        is_real_folder(path.parent().unwrap_or(path))
            && path.file_name().and_then(|name| name.to_str()).is_some_and(|name| self.is_key(name))
            && has_only(path, &|names, kind| matches!(names, [file] if kind.is_file() && self.files().contains(file)))
            && !children(path).is_empty()
    }
}

/// True if `path` is a folder in which a process built an entry, with nothing else in it.
pub(super) fn is_own_stage(path: &Path) -> bool {
    let is_entry_file = |file: &&str| EntryKind::ALL.into_iter().any(|entry| entry.files().contains(file));
    path.file_name().is_some_and(|name| is_temporary_name(name, STAGE))
        && has_only(path, &|names, kind| match names {
            [STAGE_LOCK] => kind.is_file(),
            [part] => kind.is_dir() && (*part == STAGE_CONTENT || STAGE_REMOVED.contains(part)),
            [_, file] => kind.is_file() && is_entry_file(file),
            _ => false,
        })
}

/// The name of something in the folder `root` that shows that it is not an unmarked cache; `None` if there is nothing. `with_tag` is true if a
/// tag may be there.
///
/// # Errors
/// If a folder cannot be read.
pub(super) fn foreign_path(root: &Path, with_tag: bool) -> io::Result<Option<PathBuf>> {
    // A killed process may have left an unfinished tag.
    runner_files::foreign_path(root, &|names, kind| {
        kind.is_file() && (names == [TAG] && with_tag || names[0].starts_with(TEMPORARY_PREFIX))
    })
}
