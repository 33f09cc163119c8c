//! Text and tokenizers on the command line: text files by their ending, tokenizers by names such as `gpt2:FOLDER`.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::cli::common::{ThreadArgs, host_without_runs};
use crate::cli::terminal::exit::{Result, refuse};
use crate::cli::terminal::screen_observer::PreparationObserver;
use runner_data::{DataError, compression_advice};
use runner_files::special_file_kind;
use runner_inputs::local_tokenizer;
use runner_report::Screen;
use runner_spec::diagnostic::nearest;
use runner_spec::error::CommandError;
use runner_spec::experiment::{DEFAULT_FIELD, FileFormat, HubModel, MAX_BPE_VOCABULARY, Source, Tokenizer};
use runner_spec::format::{count, printable};

/// Files of text.
#[derive(Debug, Clone, Args)]
pub(crate) struct SourceArgs {
    #[arg(value_name = "FILE", help = files_help("Files of text"))]
    pub files: Vec<PathBuf>,
    #[arg(long, value_name = "NAME", help = text_help("column"))]
    pub column: Option<String>,
    #[arg(long, value_name = "NAME", help = text_help("field"))]
    pub field: Option<String>,
}

/// The help of an argument for `files`, with what a document is.
pub(crate) fn files_help(files: &str) -> String {
    format!("{files}. A document is {}", FileFormat::describe_all())
}

/// The help of the flag `--KEY`, which names the text of a record.
pub(crate) fn text_help(key: &str) -> String {
    format!(
        "The {key} that holds the text, if the files are {} [default: {DEFAULT_FIELD}]",
        FileFormat::names_with(key)
    )
}

impl SourceArgs {
    /// The source that consists of the files.
    ///
    /// # Errors
    /// If a file is missing, or the files have several formats.
    pub(crate) fn source(&self) -> Result<Source> {
        let Some(first) = self.files.first() else { refuse!("name one or more files of text") };
        for path in &self.files {
            check_file(path)?;
        }
        let format = FileFormat::of_path(first);
        let name = |path: &Path| FileFormat::of_path(path).map_or("no text", |format| format.name);
        if let Some(other) = self.files.iter().find(|path| FileFormat::of_path(path) != format) {
            let describe = |path| format!("{} is {}", printable_path(path), name(path));
            refuse!("{} and {}: all files must have the same format", describe(first), describe(other));
        }
        let Some(format) = format else {
            if let Some(advice) = compression_advice(first) {
                refuse!("{}: {}", printable_path(first), printable(&advice));
            }
            refuse!("the name of {} must end in {}", printable_path(first), FileFormat::usual_endings());
        };
        let given = [("column", &self.column), ("field", &self.field)];
        if let Some((key, _)) = given.iter().find(|(key, value)| value.is_some() && format.text_key() != Some(*key)) {
            let formats = FileFormat::names_with(key);
            refuse!("--{key} is for {formats}, but {} is {}", printable_path(first), format.name);
        }
        let text = self.column.as_ref().or(self.field.as_ref()).cloned();
        // Sources take patterns, but these are names of files.
        let escape = |path: &PathBuf| path.to_str().map_or_else(|| path.clone(), |p| glob::Pattern::escape(p).into());
        let files = self.files.iter().map(escape).collect();
        Ok(format.source(files, Some(text.unwrap_or_else(|| DEFAULT_FIELD.to_owned())), None))
    }
}

/// # Errors
/// If there is no file at `path`.
pub(crate) fn check_file(path: &Path) -> Result<()> {
    if let Some(kind) = special_file_kind(path) {
        let advice =
            if path.is_dir() { format!("its files, such as {}/*", printable_path(path)) } else { "a file".into() };
        refuse!("{} is {kind}; name {advice}", printable_path(path));
    }
    if !path.exists() {
        refuse!("there is no file {}", printable_path(path));
    }
    Ok(())
}

/// Parses the name of a repository of the hub, `NAME` or `NAME@REVISION`, after `hub:` in the value of `flag`.
///
/// # Errors
/// If it is not a name, or the revision is not valid.
pub(crate) fn parse_hub_name(flag: &str, text: &str) -> Result<(String, String)> {
    let model = HubModel::from_text(text);
    match model.problem() {
        Some(problem) => refuse!("{flag}: hub:{}: {problem}", printable(text)),
        None => Ok((model.name, model.revision)),
    }
}

/// Parses the name of a tokenizer: `gpt2:FOLDER`, `hub:NAME`, the path of a tokenizer.json, `bytes`, `chars` or `bpe:SIZE`.
///
/// # Errors
/// If it has none of these forms.
pub(crate) fn parse_tokenizer(spec: &str) -> Result<Tokenizer> {
    let (kind, rest) = spec.split_once(':').map_or((spec, None), |(kind, rest)| (kind, Some(rest)));
    match (kind, rest) {
        ("bytes", None) => Ok(Tokenizer::Bytes {}),
        ("chars", None) => Ok(Tokenizer::Chars {}),
        ("bpe", Some(size)) => match size.parse() {
            Ok(vocab_size) if (257..=MAX_BPE_VOCABULARY as usize).contains(&vocab_size) => {
                Ok(Tokenizer::Bpe { vocab_size, special_tokens: vec!["<|endoftext|>".to_owned()] })
            }
            _ => refuse!(
                "--tokenizer: the SIZE in bpe:SIZE must be from 257 to {}, got {}",
                count(MAX_BPE_VOCABULARY),
                printable(size)
            ),
        },
        ("hub", Some(name)) => {
            let (name, revision) = parse_hub_name("--tokenizer", name)?;
            Ok(Tokenizer::Hub(HubModel { name, revision }))
        }
        ("gpt2", folder) => {
            let folder = Path::new(folder.unwrap_or("."));
            let (vocab, merges) = (folder.join("vocab.json"), folder.join("merges.txt"));
            if let Some(missing) = [&vocab, &merges].into_iter().find(|path| !path.is_file()) {
                let missing = printable_path(missing);
                refuse!("--tokenizer: gpt2:FOLDER needs GPT-2's vocab.json and merges.txt, but there is no {missing}");
            }
            Ok(Tokenizer::Gpt2 { vocab, merges })
        }
        _ => {
            let path = Path::new(spec);
            let path = if path.is_dir() { path.join("tokenizer.json") } else { path.to_owned() };
            if path.is_file() {
                return Ok(Tokenizer::File(path));
            }
            let help = nearest(kind, ["bytes", "chars", "gpt2", "hub", "bpe"])
                .map_or(String::new(), |name| format!(" (did you mean `{name}`?)"));
            refuse!(
                "--tokenizer: {} is not a file{help}; use gpt2:FOLDER, hub:NAME, the path of a tokenizer.json, \
                 bytes, chars or bpe:SIZE",
                printable(spec)
            )
        }
    }
}

/// The tokenizer that `spec` names, as [`parse_tokenizer`] reads it, in files of this machine. Downloads are shown on `screen`.
///
/// # Errors
/// Those of [`parse_tokenizer`]; a hub that refuses or cannot be reached.
pub(crate) fn find_tokenizer(spec: &str, screen: &mut Screen) -> Result<Tokenizer> {
    let host = host_without_runs(ThreadArgs { threads: None })?;
    local_tokenizer(parse_tokenizer(spec)?, &host, &mut PreparationObserver::new(screen))
}

/// Replaces names of settings in `error` with those of command-line flags. `files` is true if the text comes from files on the
/// command line, and false if it comes from an experiment.
#[must_use]
pub(crate) fn reword_for_flags(error: impl Into<CommandError>, files: bool) -> CommandError {
    const FILES: &str = "the files";
    let flag = |key: &str| -> Option<&'static str> {
        Some(match key {
            "format" => "--to",
            "shard_tokens" => "--shard-tokens",
            "held_out" => "--validation",
            "max_tokens" => "--max-tokens",
            "max_rows" => "--max-rows",
            "tokenizer" => "--tokenizer",
            "data.validation" if files => "--text",
            "eval.hellaswag" if files => "--hellaswag",
            "data.train" if files => FILES,
            _ if files && key.starts_with("data.tokenizer") => "--tokenizer",
            _ => return None,
        })
    };
    let is_source = |context: &str| files && matches!(context, "data.train" | "data.validation");
    let place = |context: &str| if is_source(context) { FILES.to_owned() } else { context.to_owned() };
    let mut error = error.into();
    match error.cause_mut() {
        Some(DataError::TokenBeyondVocabulary { what, key, .. }) if files => {
            *key = if *key == "model.vocab_size" { "that of the model" } else { flag(key).unwrap_or(key) };
            *what = place(what.strip_prefix("eval.hellaswag: ").unwrap_or(what));
        }
        Some(DataError::Setting { key, .. }) => {
            if let Some(flag) = flag(key) {
                *key = flag.into();
            }
        }
        Some(DataError::Encode { context, .. }) => *context = place(context),
        _ => {}
    }
    error
}

/// A path for a message, without control characters.
#[must_use]
pub(crate) fn printable_path(path: &Path) -> String {
    printable(&path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokenizers_have_names() {
        assert_eq!(parse_tokenizer("bytes").unwrap(), Tokenizer::Bytes {});
        assert!(matches!(parse_tokenizer("bpe:300").unwrap(), Tokenizer::Bpe { vocab_size: 300, .. }));
        let dir = tempfile::tempdir().unwrap();
        let error = |spec: &str| parse_tokenizer(spec).unwrap_err().to_string();
        assert!(error("bpe:12").contains("must be from 257 to 10,000,000"));
        assert!(error("byte").contains("did you mean `bytes`?"));
        assert!(error("hup:gpt2").contains("did you mean `hub`?"));
        assert!(error(&format!("gpt2:{}", dir.path().display())).contains("there is no"));
        std::fs::write(dir.path().join("tokenizer.json"), "").unwrap();
        let folder = dir.path().to_str().unwrap();
        assert_eq!(parse_tokenizer(folder).unwrap(), Tokenizer::File(dir.path().join("tokenizer.json")));
    }

    #[test]
    fn files_have_one_format_and_exist() {
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
        assert!(error(&["a.txt", "b.JSONL"]).contains("the same format"));
        assert!(error(&["d.bin"]).contains("must end in"));
        assert!(error(&["e.txt"]).contains("there is no file"));
        assert!(error(&[]).contains("name one or more files"));
        let columns = SourceArgs { column: Some("x".into()), ..args(&["a.txt"]) };
        assert!(columns.source().unwrap_err().to_string().contains("--column is for parquet"));
    }
}
