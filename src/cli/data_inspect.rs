//! `runner data inspect`: what files of tokens or text hold.

use std::path::{Path, PathBuf};

use clap::Args;

use super::common::{ThreadArgs, cache_dir, local_tokenizer};
use super::exit::{Exit, RequestError};
use super::output::{print, print_json};
use super::text_source::{Kind, SourceArgs, check_file, tokenizer, worded};
use runner_data::{Card, Inspected, TextTokenizer, inspect_text, inspect_tokens, load_tokenizer};
use runner_report::data_page::data_page;
use runner_report::{OutputMode, Screen};
use runner_spec::experiment::Tokenizer;
use runner_spec::format::bytes;

/// The tokens of a cache's entry.
const CACHE_TOKENS: &str = "tokens.bin";
/// A tokenizer beside shards.
const TOKENIZER: &str = "tokenizer.json";

/// Show what files of tokens or text hold: documents, the first texts, the vocabulary's use.
///
/// Files of tokens are llm.c's and nanoGPT's .bin, .npy, a folder with a dataset.json, or an entry of the cache; several are looked at
/// as one stream. Files of text are .txt, .md, .jsonl, .json and .parquet.
#[derive(Debug, Clone, Args)]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    pub source: SourceArgs,
    /// The tokenizer, to decode tokens or to count those of text: gpt2:FOLDER, a tokenizer.json, bytes [default: tokenizer.json
    /// beside the shards].
    #[arg(long, value_name = "SPEC")]
    pub tokenizer: Option<String>,
    /// The id between documents [default: the tokenizer's, or a guess].
    #[arg(long, value_name = "ID")]
    pub end_of_text: Option<u32>,
    /// How many of the first texts to show.
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub texts: usize,
    /// How many of the most frequent tokens to show.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub top: usize,
    #[command(flatten)]
    pub threads: ThreadArgs,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// # Errors
/// If a file is none of these, or is not what it says.
pub(crate) fn run(args: &InspectArgs) -> anyhow::Result<Exit> {
    let mut files = Vec::new();
    for path in &args.source.files {
        files.extend(expand(path)?);
    }
    let Some(first) = files.first() else {
        return Err(RequestError("name the files to look at".to_owned()).into());
    };
    let kind = Kind::of(first);
    let person = console::user_attended_stderr();
    let mut screen =
        Screen::new(if person && !args.json { OutputMode::Bar } else { OutputMode::Json { quiet: !person } });
    screen.spinner();
    let found = look(args, &files, kind, &screen)?;
    screen.clear();
    if args.json {
        print_json(&found)?;
    } else {
        print(&data_page(&found))?;
    }
    Ok(Exit::Done)
}

fn look(args: &InspectArgs, files: &[PathBuf], kind: Kind, screen: &Screen) -> anyhow::Result<Inspected> {
    let progress = |done: u64, total: u64| {
        let text = format!("reading {} of {}", bytes(done), bytes(total));
        screen.progress(&text, || text.clone());
    };
    let tokenizer = load(args, &files[0], kind)?;
    let tokenizer = tokenizer.as_ref();
    if kind == Kind::Other {
        return Ok(inspect_tokens(files, tokenizer, args.end_of_text, args.texts, args.top, &progress)?);
    }
    let named = SourceArgs { files: files.to_vec(), ..args.source.clone() };
    let chosen = named.column.is_some() || named.field.is_some();
    let source = named.source()?;
    let pool = args.threads.pool()?;
    let inspect = || inspect_text(&source, files, chosen, tokenizer, args.texts, args.top, &progress);
    Ok(pool.install(inspect).map_err(|error| worded(error, true))?)
}

/// The tokenizer that was named, or the one beside shards.
fn load(args: &InspectArgs, first: &Path, kind: Kind) -> anyhow::Result<Option<TextTokenizer>> {
    let spec = match (&args.tokenizer, kind) {
        (Some(spec), _) => local_tokenizer(tokenizer(spec)?, &mut Screen::new(OutputMode::Json { quiet: true }))?,
        (None, Kind::Other) => {
            let folder = first.parent().unwrap_or(Path::new("."));
            let beside = folder.join(TOKENIZER);
            // Whatever else is called so is nothing to go by.
            if Card::read(folder).is_none_or(|card| card.tokenizer.file.is_none()) || !beside.is_file() {
                return Ok(None);
            }
            Tokenizer::File(beside)
        }
        (None, _) => return Ok(None),
    };
    let cache = cache_dir()?;
    Ok(Some(load_tokenizer(&spec, &cache, &|_| ()).map_err(|error| worded(error, true))?))
}

/// The files that a path means: a folder of shards with its card, a cache's entry, or the path itself.
fn expand(path: &Path) -> Result<Vec<PathBuf>, RequestError> {
    if path.is_dir() {
        if path.join(CACHE_TOKENS).is_file() {
            return Ok(vec![path.join(CACHE_TOKENS)]);
        }
        if let Some(card) = Card::read(path) {
            // A card may say anything: only files beside it.
            let names = card.shards.into_iter().map(|shard| shard.file);
            return Ok(names.filter_map(|name| Some(path.join(Path::new(&name).file_name()?))).collect());
        }
    }
    check_file(path)?;
    Ok(vec![path.to_owned()])
}
