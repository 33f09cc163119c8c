//! Sources of documents. What a source is, is described here: its keys, its files, and what a reader must know of it. Everything else asks
//! the methods of [`Source`]. `runner_data` has one reader for each format of files.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::hub_name::HUB_DEFAULT_BRANCH;
use crate::serde_defaults::{defaults, or_text};

defaults! {
    train_split: String = "train".to_owned();
    default_branch: String = HUB_DEFAULT_BRANCH.to_owned();
}

/// The column or field that holds the text, unless the file names one or a template.
pub const DEFAULT_FIELD: &str = "text";

/// A source of documents. `files` may contain patterns such as `data/*.parquet`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Source {
    /// Plain text; each file is a document.
    Text {
        /// Paths or patterns.
        #[schemars(length(min = 1))]
        files: Vec<PathBuf>,
    },
    /// Parquet files; each row is a document.
    Parquet(ParquetSource),
    /// One JSON object a line; each line is a document.
    Jsonl(JsonSource),
    /// A file of JSON objects, each a document: one array, or one object a line.
    Json(JsonSource),
    /// CSV files, whose first row names the columns; each further row is a document.
    Csv(CsvSource),
    /// A dataset of the Hugging Face hub, or of the server that `HF_ENDPOINT` names.
    Hub(HubSource),
    /// Token shards of llm.c (.bin), nanoGPT (.bin) or build-nanogpt (.npy).
    Tokens {
        /// Paths or patterns.
        #[schemars(length(min = 1))]
        files: Vec<PathBuf>,
        /// The type of a token in files without a header. Other files name it themselves, and it must be the same. Default: uint16.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(!skip_serializing_if)]
        dtype: Option<TokenType>,
    },
    /// A corpus that the program generates.
    Builtin {
        /// The corpus.
        corpus: Corpus,
    },
}

/// What a source holds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Content<'a> {
    /// Each file is a document.
    Text,
    /// Each record has a document: its column or field `field`, or the text that `template` makes of several.
    Records { format: RecordFormat, field: Option<&'a str>, template: Option<&'a str> },
    /// Token shards, which hold no text, with the type of a token in files without a header.
    Tokens(Option<TokenType>),
    /// Text that the program writes.
    Builtin(Corpus),
    /// Files that must be found on the hub first.
    Hub(&'a HubSource),
}

/// How files hold records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordFormat {
    Parquet,
    Jsonl,
    Json,
    Csv(ColumnSeparator),
}

impl RecordFormat {
    /// The words that stand for the format in the content hash of a source.
    #[must_use]
    pub fn identity(self) -> &'static str {
        match self {
            Self::Parquet => "parquet",
            Self::Jsonl => "jsonl",
            Self::Json => "json",
            Self::Csv(ColumnSeparator::Comma) => "csv",
            Self::Csv(ColumnSeparator::Semicolon) => "csv semicolon",
            Self::Csv(ColumnSeparator::Tab) => "csv tab",
            Self::Csv(ColumnSeparator::Pipe) => "csv pipe",
        }
    }
}

/// The column or field with the text, and the template in its place.
pub type RecordTextMut<'a> = (&'a mut Option<String>, &'a mut Option<String>);

impl Source {
    /// The key, the files and the content.
    fn parts(&self) -> (&'static str, &[PathBuf], Content<'_>) {
        let records = |format, field, template| Content::Records { format, field, template };
        match self {
            Self::Text { files } => ("text", files, Content::Text),
            Self::Parquet(ParquetSource { files, column, template }) => {
                ("parquet", files, records(RecordFormat::Parquet, column.as_deref(), template.as_deref()))
            }
            Self::Jsonl(JsonSource { files, field, template }) => {
                ("jsonl", files, records(RecordFormat::Jsonl, field.as_deref(), template.as_deref()))
            }
            Self::Json(JsonSource { files, field, template }) => {
                ("json", files, records(RecordFormat::Json, field.as_deref(), template.as_deref()))
            }
            Self::Csv(CsvSource { files, column, template, separator }) => {
                ("csv", files, records(RecordFormat::Csv(*separator), column.as_deref(), template.as_deref()))
            }
            Self::Hub(hub) => ("hub", &[], Content::Hub(hub)),
            Self::Tokens { files, dtype } => ("tokens", files, Content::Tokens(*dtype)),
            Self::Builtin { corpus } => ("builtin", &[], Content::Builtin(*corpus)),
        }
    }

    fn parts_mut(&mut self) -> (Option<&mut Vec<PathBuf>>, Option<RecordTextMut<'_>>) {
        match self {
            Self::Text { files } | Self::Tokens { files, .. } => (Some(files), None),
            Self::Parquet(ParquetSource { files, column: field, template })
            | Self::Csv(CsvSource { files, column: field, template, .. })
            | Self::Jsonl(JsonSource { files, field, template })
            | Self::Json(JsonSource { files, field, template }) => (Some(files), Some((field, template))),
            Self::Hub(HubSource { column, template, .. }) => (None, Some((column, template))),
            Self::Builtin { .. } => (None, None),
        }
    }

    /// The key that names it in a file.
    pub fn key(&self) -> &'static str {
        self.parts().0
    }

    /// Its paths or patterns; none if the program finds or makes the files.
    pub fn files(&self) -> &[PathBuf] {
        self.parts().1
    }

    /// [`Self::files`] to change; `None` if the program finds or makes the files.
    pub fn files_mut(&mut self) -> Option<&mut Vec<PathBuf>> {
        self.parts_mut().0
    }

    pub fn content(&self) -> Content<'_> {
        self.parts().2
    }

    /// What selects the text of a record; `None` if there are no records.
    pub fn record_text_mut(&mut self) -> Option<RecordTextMut<'_>> {
        self.parts_mut().1
    }

    /// The dataset of the hub, if it is one.
    pub fn hub(&self) -> Option<&HubSource> {
        match self.content() {
            Content::Hub(hub) => Some(hub),
            _ => None,
        }
    }

    pub fn is_tokens(&self) -> bool {
        matches!(self.content(), Content::Tokens(_))
    }
}

impl HubSource {
    /// The source at a commit, so that it means the same files for ever.
    #[must_use]
    pub fn pinned(&self, commit: String) -> Self {
        Self { revision: commit, ..self.clone() }
    }
}

/// A format of files with text, which the ending of a name tells.
#[derive(Debug, PartialEq, Eq)]
pub struct FileFormat {
    /// What such a file is, for a person.
    pub name: &'static str,
    /// Endings of names, in lower case, without the point. The first is the usual one.
    pub endings: &'static [&'static str],
    /// What a document is.
    pub document: &'static str,
    /// The format of the records; `None` if a file is a document.
    records: Option<RecordFormat>,
}

const fn format(
    name: &'static str,
    endings: &'static [&'static str],
    document: &'static str,
    records: Option<RecordFormat>,
) -> FileFormat {
    FileFormat { name, endings, document, records }
}

/// Every format of files with text.
pub static FILE_FORMATS: [FileFormat; 6] = [
    format("plain text", &["txt", "md", "text"], "file", None),
    format("JSON lines", &["jsonl", "ndjson"], "line", Some(RecordFormat::Jsonl)),
    format("a JSON array", &["json"], "item", Some(RecordFormat::Json)),
    format("parquet", &["parquet"], "row", Some(RecordFormat::Parquet)),
    format("CSV", &["csv"], "row", Some(RecordFormat::Csv(ColumnSeparator::Comma))),
    format("CSV with tabs", &["tsv"], "row", Some(RecordFormat::Csv(ColumnSeparator::Tab))),
];

impl FileFormat {
    /// The key that names the text of a record; `None` if a file is a document.
    pub fn text_key(&self) -> Option<&'static str> {
        self.records.map(|records| match records {
            RecordFormat::Jsonl | RecordFormat::Json => "field",
            RecordFormat::Parquet | RecordFormat::Csv(_) => "column",
        })
    }

    /// True if a field may hold a list.
    pub fn has_lists(&self) -> bool {
        self.records.is_some_and(|records| !matches!(records, RecordFormat::Csv(_)))
    }

    /// The format of files whose names end in `ending`, in lower case.
    pub fn of_ending(ending: &str) -> Option<&'static Self> {
        FILE_FORMATS.iter().find(|format| format.endings.contains(&ending))
    }

    /// The format of the file `path`, from its ending.
    pub fn of_path(path: &Path) -> Option<&'static Self> {
        Self::of_ending(&path.extension()?.to_str()?.to_ascii_lowercase())
    }

    /// The source of `files`; `text` is the column or field with the text.
    pub fn source(&self, files: Vec<PathBuf>, text: Option<String>, template: Option<String>) -> Source {
        match self.records {
            None => Source::Text { files },
            Some(RecordFormat::Parquet) => Source::Parquet(ParquetSource { files, column: text, template }),
            Some(RecordFormat::Jsonl) => Source::Jsonl(JsonSource { files, field: text, template }),
            Some(RecordFormat::Json) => Source::Json(JsonSource { files, field: text, template }),
            Some(RecordFormat::Csv(separator)) => Source::Csv(CsvSource { files, column: text, template, separator }),
        }
    }

    /// The names of the formats in which `key` names the text, such as `JSON lines or a JSON array`.
    pub fn names_with(key: &str) -> String {
        let names = FILE_FORMATS.iter().filter(|format| format.text_key() == Some(key)).map(|format| format.name);
        alternatives(names.map(str::to_owned).collect())
    }

    /// The usual ending of each format: `.txt, .jsonl or .json`.
    pub fn usual_endings() -> String {
        alternatives(FILE_FORMATS.iter().map(|format| format!(".{}", format.endings[0])).collect())
    }

    /// What a document is in each format: `one file (.txt) or one line (.jsonl)`.
    pub fn describe_all() -> String {
        let describe = |format: &Self| {
            let endings: Vec<String> = format.endings.iter().map(|ending| format!(".{ending}")).collect();
            format!("one {} ({})", format.document, endings.join(", "))
        };
        alternatives(FILE_FORMATS.iter().map(describe).collect())
    }
}

fn alternatives(mut names: Vec<String>) -> String {
    match (names.pop(), names.join(", ")) {
        (Some(last), first) if !first.is_empty() => format!("{first} or {last}"),
        (last, _) => last.unwrap_or_default(),
    }
}

/// The type of a stored token, as NumPy names it. Tokens are little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, strum::IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum TokenType {
    Uint16,
    Uint32,
    Int32,
    Uint64,
    Int64,
}

impl TokenType {
    pub const ALL: [Self; 5] = [Self::Uint16, Self::Uint32, Self::Int32, Self::Uint64, Self::Int64];

    /// The narrowest unsigned type for ids below `vocab_size`.
    #[must_use]
    pub fn for_vocabulary(vocab_size: usize) -> Self {
        if vocab_size <= 1 << 16 { Self::Uint16 } else { Self::Uint32 }
    }

    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::Uint16 => 2,
            Self::Uint32 | Self::Int32 => 4,
            Self::Uint64 | Self::Int64 => 8,
        }
    }

    /// Its name in files and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Parquet files, and which text of a row is a document.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Parquet", extend("x-exclusive" = ["column", "template"]))]
pub struct ParquetSource {
    /// Paths or patterns.
    #[schemars(length(min = 1))]
    pub files: Vec<PathBuf>,
    /// The column with the text. Default: text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if)]
    pub column: Option<String>,
    /// A minijinja template that makes the text from columns. Or `column`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if)]
    pub template: Option<String>,
}

/// Files of JSON objects, and which text of an object is a document.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Json", extend("x-exclusive" = ["field", "template"]))]
pub struct JsonSource {
    /// Paths or patterns.
    #[schemars(length(min = 1))]
    pub files: Vec<PathBuf>,
    /// The field with the text. Default: text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if)]
    pub field: Option<String>,
    /// A minijinja template that makes the text from fields. Or `field`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if)]
    pub template: Option<String>,
}

/// CSV files with a header, and which text of a row is a document.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Csv", extend("x-exclusive" = ["column", "template"]))]
pub struct CsvSource {
    /// Paths or patterns.
    #[schemars(length(min = 1))]
    pub files: Vec<PathBuf>,
    /// The column with the text. Default: text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if)]
    pub column: Option<String>,
    /// A minijinja template that makes the text from columns. Or `column`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if)]
    pub template: Option<String>,
    /// The character between the fields of a row.
    #[serde(default)]
    pub separator: ColumnSeparator,
}

/// The character between the fields of a row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ColumnSeparator {
    #[default]
    Comma,
    Semicolon,
    Tab,
    Pipe,
}

impl ColumnSeparator {
    #[must_use]
    pub fn byte(self) -> u8 {
        match self {
            Self::Comma => b',',
            Self::Semicolon => b';',
            Self::Tab => b'\t',
            Self::Pipe => b'|',
        }
    }
}

/// A dataset by its name: the files of one split are downloaded into the cache of Python's huggingface_hub, and read there. Its name
/// is enough: `hub: roneneldan/TinyStories`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-exclusive" = ["column", "template"], "x-short" = "dataset"), transform = or_text)]
pub struct HubSource {
    /// Its name, such as `HuggingFaceFW/fineweb`.
    pub dataset: String,
    /// The configuration to read. Default: the dataset's own default, or its only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if)]
    pub config: Option<String>,
    /// The split to read. Default: train.
    #[serde(default = "train_split")]
    pub split: String,
    /// The column or field with the text. Default: text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if)]
    pub column: Option<String>,
    /// A minijinja template that makes the text from columns or fields. Or `column`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if)]
    pub template: Option<String>,
    /// Branch, tag or commit. Default: main. In the record of a run it is the commit that was read.
    #[serde(default = "default_branch")]
    pub revision: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Corpus {
    Stories,
}
