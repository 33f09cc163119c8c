//! Text and tokenizers as command lines name them: files by their ending, `gpt2:FOLDER`.

use std::path::{Path, PathBuf};

use clap::Args;

use super::exit::RequestError;
use runner_data::DataError;
use runner_spec::experiment::{Data, JsonSource, Layout, MAIN, ParquetSource, Source, Tokenizer};
use runner_spec::format::printable;
use runner_spec::hub_name;

/// Files of text.
#[derive(Debug, Clone, Args)]
pub(crate) struct SourceArgs {
    /// Files of text: .txt and .md (a document each), .jsonl (one a line), .json (an array of them), .parquet (one a row).
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The column of parquet files that holds the text [default: text].
    #[arg(long, value_name = "NAME")]
    pub column: Option<String>,
    /// The field of JSON objects that holds the text [default: text].
    #[arg(long, value_name = "NAME")]
    pub field: Option<String>,
}

/// What the ending of a file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    Jsonl,
    Json,
    Parquet,
    /// Token shards, or something else.
    Other,
}

impl Kind {
    #[must_use]
    pub(crate) fn of(path: &Path) -> Self {
        let ending = path.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase();
        match ending.as_str() {
            "txt" | "text" | "md" => Self::Text,
            "jsonl" | "ndjson" => Self::Jsonl,
            "json" => Self::Json,
            "parquet" => Self::Parquet,
            _ => Self::Other,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Jsonl => "JSON lines",
            Self::Json => "a JSON array",
            Self::Parquet => "parquet",
            Self::Other => "no text",
        }
    }
}

impl SourceArgs {
    /// The source that the files are together.
    ///
    /// # Errors
    /// If a file is missing, or they are of several kinds.
    pub(crate) fn source(&self) -> Result<Source, RequestError> {
        let wrong = |text: String| Err(RequestError(text));
        let Some(first) = self.files.first() else { return wrong("name the files of text".to_owned()) };
        for path in &self.files {
            check_file(path)?;
        }
        let kind = Kind::of(first);
        if let Some(other) = self.files.iter().find(|path| Kind::of(path) != kind) {
            return wrong(format!(
                "{} is {} and {} is {}: one kind at a time",
                shown(first),
                kind.name(),
                shown(other),
                Kind::of(other).name()
            ));
        }
        let json = matches!(kind, Kind::Jsonl | Kind::Json);
        let given =
            [("--column", &self.column, kind == Kind::Parquet, "parquet"), ("--field", &self.field, json, "JSON")];
        for (flag, value, fits, of) in given {
            if value.is_some() && !fits {
                return wrong(format!("{flag} is for {of}, and {} is {}", shown(first), kind.name()));
            }
        }
        let text = |given: &Option<String>| Some(given.clone().unwrap_or_else(|| "text".to_owned()));
        // These are files, whatever characters their names have; sources take patterns.
        let escape = |path: &PathBuf| path.to_str().map_or_else(|| path.clone(), |p| glob::Pattern::escape(p).into());
        let files = self.files.iter().map(escape).collect();
        Ok(match kind {
            Kind::Text => Source::Text { files },
            Kind::Jsonl => Source::Jsonl(JsonSource { files, field: text(&self.field), template: None }),
            Kind::Json => Source::Json(JsonSource { files, field: text(&self.field), template: None }),
            Kind::Parquet => Source::Parquet(ParquetSource { files, column: text(&self.column), template: None }),
            Kind::Other => {
                return wrong(format!(
                    "{} ends in none of .txt, .md, .jsonl, .json and .parquet: what is it?",
                    shown(first)
                ));
            }
        })
    }

    /// The source with a tokenizer; nothing is held out by it.
    ///
    /// # Errors
    /// As `source`.
    pub(crate) fn data(&self, tokenizer: Tokenizer) -> Result<Data, RequestError> {
        Ok(Data {
            tokenizer,
            train: self.source()?,
            validation: None,
            layout: Layout::Packed { length: 1 },
            shuffle: false,
            drop_last: false,
        })
    }
}

/// # Errors
/// If there is no file at `path`.
pub(crate) fn check_file(path: &Path) -> Result<(), RequestError> {
    if path.is_dir() {
        return Err(RequestError(format!("{} is a folder: name its files, as {}/*", shown(path), shown(path))));
    }
    if path.exists() { Ok(()) } else { Err(RequestError(format!("there is no file {}", shown(path)))) }
}

/// A tokenizer by its name on the command line: `gpt2:FOLDER`, a tokenizer.json, `bytes`, `chars`, `bpe:SIZE`.
///
/// # Errors
/// If it is none of these.
pub(crate) fn tokenizer(spec: &str) -> Result<Tokenizer, RequestError> {
    let wrong = |text: String| Err(RequestError(format!("--tokenizer: {text}")));
    let (kind, rest) = spec.split_once(':').map_or((spec, None), |(kind, rest)| (kind, Some(rest)));
    match (kind, rest) {
        ("bytes", None) => Ok(Tokenizer::Bytes {}),
        ("chars", None) => Ok(Tokenizer::Chars {}),
        ("bpe", Some(size)) => match size.parse() {
            Ok(vocab_size) if vocab_size > 256 => {
                Ok(Tokenizer::Bpe { vocab_size, special_tokens: vec!["<|endoftext|>".to_owned()] })
            }
            _ => wrong(format!("bpe:{} wants the size of the vocabulary, 257 or more", printable(size))),
        },
        ("hub", Some(name)) => {
            let (name, revision) = name.split_once('@').unwrap_or((name, MAIN));
            match hub_name::name_problem(name).or_else(|| hub_name::revision_problem(revision)) {
                Some(problem) => wrong(format!("hub:{}: {problem}", printable(name))),
                None => Ok(Tokenizer::Hub { name: name.to_owned(), revision: revision.to_owned() }),
            }
        }
        ("gpt2", folder) => {
            let folder = Path::new(folder.unwrap_or("."));
            let (vocab, merges) = (folder.join("vocab.json"), folder.join("merges.txt"));
            for path in [&vocab, &merges] {
                if !path.is_file() {
                    return wrong(format!(
                        "gpt2:FOLDER wants GPT-2's vocab.json and merges.txt, and there is no {}",
                        shown(path)
                    ));
                }
            }
            Ok(Tokenizer::Gpt2 { vocab, merges })
        }
        _ => {
            let path = Path::new(spec);
            let path = if path.is_dir() { path.join("tokenizer.json") } else { path.to_owned() };
            if path.is_file() {
                return Ok(Tokenizer::File(path));
            }
            let help = ["bytes", "chars", "gpt2", "bpe"].into_iter().find(|name| strsim::levenshtein(name, kind) <= 1);
            let help = help.map_or(String::new(), |name| format!(" (did you mean `{name}`?)"));
            wrong(format!(
                "{} is no file{help}; give gpt2:FOLDER, hub:NAME, the path of a tokenizer.json, bytes, chars or bpe:SIZE",
                printable(spec)
            ))
        }
    }
}

/// `error` in the words of the command line. `files`: the text is that of files named there, not that of an experiment.
#[must_use]
pub(crate) fn worded(error: DataError, files: bool) -> DataError {
    const FILES: &str = "the files";
    let words = |key: &'static str| match key {
        "format" => "--to",
        "shard_tokens" => "--shard-tokens",
        "held_out" => "--validation",
        "tokenizer" => "--tokenizer",
        "data.train" if files => FILES,
        _ if files && key.starts_with("data.tokenizer") => "--tokenizer",
        _ => key,
    };
    let place = |context: String| if files && context == "data.train" { FILES.to_owned() } else { context };
    match error {
        DataError::Setting { key, message } => DataError::Setting { key: words(key), message },
        DataError::NoFile { key, path } => DataError::NoFile { key: words(key), path },
        DataError::Pattern { key, path, message } => DataError::Pattern { key: words(key), path, message },
        DataError::UnknownCharacter { context, character, known } => {
            DataError::UnknownCharacter { context: place(context), character, known }
        }
        DataError::Encode { context, message } => DataError::Encode { context: place(context), message },
        other => other,
    }
}

/// A path for a message.
#[must_use]
pub(crate) fn shown(path: &Path) -> String {
    printable(&path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokenizers_have_names() {
        assert_eq!(tokenizer("bytes").unwrap(), Tokenizer::Bytes {});
        assert!(matches!(tokenizer("bpe:300").unwrap(), Tokenizer::Bpe { vocab_size: 300, .. }));
        let dir = tempfile::tempdir().unwrap();
        let error = |spec: &str| tokenizer(spec).unwrap_err().to_string();
        assert!(error("bpe:12").contains("257 or more"));
        assert!(error("byte").contains("did you mean `bytes`?"));
        assert!(error(&format!("gpt2:{}", dir.path().display())).contains("there is no"));
        std::fs::write(dir.path().join("tokenizer.json"), "").unwrap();
        let folder = dir.path().to_str().unwrap();
        assert_eq!(tokenizer(folder).unwrap(), Tokenizer::File(dir.path().join("tokenizer.json")));
    }

    #[test]
    fn files_are_of_one_kind_and_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in ["a.txt", "b.JSONL", "c[1].txt", "d.bin"] {
            std::fs::write(path(name), "x").unwrap();
        }
        let args = |names: &[&str]| SourceArgs {
            files: names.iter().map(|name| path(name)).collect(),
            column: None,
            field: None,
        };
        let error = |names: &[&str]| args(names).source().unwrap_err().to_string();
        assert!(
            matches!(args(&["b.JSONL"]).source().unwrap(), Source::Jsonl(from) if from.field.as_deref() == Some("text"))
        );
        let Source::Text { files } = args(&["a.txt", "c[1].txt"]).source().unwrap() else { panic!() };
        assert!(files[1].to_str().unwrap().ends_with("c[[]1[]].txt"));
        assert!(error(&["a.txt", "b.JSONL"]).contains("one kind at a time"));
        assert!(error(&["d.bin"]).contains("ends in none of"));
        assert!(error(&["e.txt"]).contains("there is no file"));
        assert!(error(&[]).contains("name the files"));
        let columns = SourceArgs { column: Some("x".into()), ..args(&["a.txt"]) };
        assert!(columns.source().unwrap_err().to_string().contains("--column is for parquet"));
    }
}
