//! `runner data inspect`: shows the contents of files of tokens or text.

use std::path::{Path, PathBuf};

use clap::Args;

use super::common::ThreadArgs;
use super::exit::{Exit, Result, refuse};
use super::output::print_result;
use super::text_source::{FileFormat, SourceArgs, check_file, find_tokenizer, printable_path, reword_for_flags};
use runner_data::{
    Card, InspectionReport, TextTokenizer, compression_advice, inspect_text, inspect_tokens, load_tokenizer,
};
use runner_report::data_page::data_page;
use runner_report::{OutputMode, Screen};
use runner_spec::experiment::Tokenizer;
use runner_spec::format::{bytes, printable};

/// The file of tokens in a cache entry.
const CACHE_TOKENS: &str = "tokens.bin";
/// The tokenizer beside shards.
const TOKENIZER: &str = "tokenizer.json";

/// Show the contents of files of tokens or text: documents, the first texts, and how much of the vocabulary is used.
///
/// Files of tokens are .bin files of llm.c and nanoGPT, .npy files, a folder with a dataset.json, or an entry of the cache. Several
/// files are read as one stream. Files of text are .txt, .md, .jsonl, .json and .parquet.
#[derive(Debug, Clone, Args)]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    pub source: SourceArgs,
    /// The tokenizer that decodes tokens or counts those of text: gpt2:FOLDER, hub:NAME, a tokenizer.json, or bytes [default: the
    /// tokenizer.json beside the shards].
    #[arg(long, value_name = "SPEC")]
    pub tokenizer: Option<String>,
    /// The token id between documents [default: the tokenizer's, or a guess].
    #[arg(long, value_name = "ID")]
    pub end_of_text: Option<u32>,
    /// The number of texts to show, from the first on.
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub texts: usize,
    /// The number of most frequent tokens to show.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub top: usize,
    #[command(flatten)]
    pub threads: ThreadArgs,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// # Errors
/// If a file has another format, or is damaged.
pub(crate) fn run(args: &InspectArgs) -> Result<Exit> {
    let mut files = Vec::new();
    for path in &args.source.files {
        files.extend(expand(path)?);
    }
    let Some(first) = files.first() else {
        refuse!("name the files to inspect");
    };
    let kind = FileFormat::from_path(first);
    let mut screen = if console::user_attended_stderr() && !args.json {
        Screen::new(OutputMode::Bar)
    } else {
        Screen::on_standard_error()
    };
    let tokenizer = load_named_or_beside(args, first, kind, &mut screen)?;
    screen.spinner();
    let found = inspect(args, &files, kind, tokenizer.as_ref(), &screen)?;
    screen.clear();
    print_result(args.json, &found, || data_page(&found))
}

fn inspect(
    args: &InspectArgs,
    files: &[PathBuf],
    kind: FileFormat,
    tokenizer: Option<&TextTokenizer>,
    screen: &Screen,
) -> Result<InspectionReport> {
    let progress = |done: u64, total: u64| {
        let text = format!("reading {} of {}", bytes(done), bytes(total));
        screen.progress(&text, || text.clone());
    };
    if kind == FileFormat::Other {
        let is_shard = |path: &Path| path.extension().is_some_and(|ending| ending == "bin" || ending == "npy");
        // Tokens without a header may begin with any bytes.
        for path in files.iter().filter(|path| !is_shard(path)) {
            if let Some(advice) = compression_advice(path) {
                refuse!("{}: {}", printable_path(path), printable(&advice));
            }
        }
        return Ok(inspect_tokens(files, tokenizer, args.end_of_text, args.texts, args.top, &progress)?);
    }
    let named = SourceArgs { files: files.to_vec(), ..args.source.clone() };
    let chosen = named.column.is_some() || named.field.is_some();
    let source = named.source()?;
    let pool = args.threads.pool()?;
    let inspect_files = || inspect_text(&source, files, chosen, tokenizer, args.texts, args.top, &progress);
    pool.install(inspect_files).map_err(|error| reword_for_flags(error, true))
}

/// The tokenizer that `--tokenizer` names, or the one beside the shards.
fn load_named_or_beside(
    args: &InspectArgs,
    first: &Path,
    kind: FileFormat,
    screen: &mut Screen,
) -> Result<Option<TextTokenizer>> {
    let spec = match (&args.tokenizer, kind) {
        (Some(spec), _) => find_tokenizer(spec, screen)?,
        (None, FileFormat::Other) => {
            let folder = first.parent().unwrap_or(Path::new("."));
            let beside = folder.join(TOKENIZER);
            // A file of that name counts only if the card names it.
            if Card::read(folder).is_none_or(|card| card.tokenizer.file.is_none()) || !beside.is_file() {
                return Ok(None);
            }
            Tokenizer::File(beside)
        }
        (None, _) => return Ok(None),
    };
    load_tokenizer(&spec).map(Some).map_err(|error| reword_for_flags(error, true))
}

/// The files that `path` names: those of a folder of shards with a card, the tokens of a cache entry, or the path itself.
fn expand(path: &Path) -> Result<Vec<PathBuf>> {
    if path.is_dir() {
        if path.join(CACHE_TOKENS).is_file() {
            return Ok(vec![path.join(CACHE_TOKENS)]);
        }
        if let Some(card) = Card::read(path) {
            // A card may name any path; only files beside it are read.
            let names = card.shards.into_iter().map(|shard| shard.file);
            return Ok(names.filter_map(|name| Some(path.join(Path::new(&name).file_name()?))).collect());
        }
    }
    check_file(path)?;
    Ok(vec![path.to_owned()])
}
