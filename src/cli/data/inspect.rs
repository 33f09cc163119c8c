//! `runner data inspect`: shows the contents of files of tokens.

use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::cli::models::text_source::{check_file, find_tokenizer, reword_for_flags};
use crate::cli::terminal::exit::{Exit, Result};
use crate::cli::terminal::output::print_result;
use runner_data::{Card, TextTokenizer, inspect_tokens, load_tokenizer};
use runner_report::data_page::data_page;
use runner_report::{OutputMode, Screen};
use runner_spec::experiment::{TokenType, Tokenizer};
use runner_spec::format::bytes;

/// The tokenizer beside shards.
const TOKENIZER: &str = "tokenizer.json";

/// Show the contents of files of tokens: documents, the first texts, and how much of the vocabulary is used.
///
/// Files of tokens are .bin files of llm.c and nanoGPT, .npy files, or a folder with a dataset.json. Several files are read as one stream.
#[derive(Debug, Clone, Args)]
pub(crate) struct InspectArgs {
    /// The files, or a folder of shards.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// The type of a token in files without a header [default: uint16].
    #[arg(long, value_parser = token_type_parser())]
    pub dtype: Option<TokenType>,

    /// The tokenizer that decodes tokens: gpt2:FOLDER, hub:NAME, a tokenizer.json, or bytes [default: the tokenizer.json beside the
    /// shards].
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

    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Parses the values of `--dtype`.
fn token_type_parser() -> impl TypedValueParser<Value = TokenType> {
    let parser = PossibleValuesParser::new(TokenType::ALL.map(TokenType::name));
    parser.try_map(|name| TokenType::ALL.into_iter().find(|kind| kind.name() == name).ok_or("unknown type"))
}

/// # Errors
/// If a file holds no tokens, or is damaged.
pub(crate) fn run(args: &InspectArgs) -> Result<Exit> {
    let mut files = Vec::new();
    for path in &args.files {
        files.extend(expand(path)?);
    }
    let mut screen = if console::user_attended_stderr() && !args.json {
        Screen::new(OutputMode::Bar)
    } else {
        Screen::on_standard_error()
    };
    let tokenizer = load_named_or_beside(args, files.first(), &mut screen)?;
    screen.spinner();
    let progress = |done: u64, total: u64| {
        let text = format!("reading {} of {}", bytes(done), bytes(total));
        screen.progress(&text, || text.clone());
    };
    let found =
        inspect_tokens(&files, args.dtype, tokenizer.as_ref(), args.end_of_text, args.texts, args.top, &progress)?;
    screen.clear();
    print_result(args.json, &found, || data_page(&found))
}

/// The tokenizer that `--tokenizer` names, or the one beside the shards.
fn load_named_or_beside(
    args: &InspectArgs,
    first: Option<&PathBuf>,
    screen: &mut Screen,
) -> Result<Option<TextTokenizer>> {
    let folder = first.and_then(|first| first.parent()).unwrap_or(Path::new("."));
    let beside = folder.join(TOKENIZER);
    let spec = if let Some(spec) = &args.tokenizer {
        find_tokenizer(spec, screen)?
    } else if Card::read(folder).is_some_and(|card| card.tokenizer.file.is_some()) && beside.is_file() {
        // A file of that name counts only if the card names it.
        Tokenizer::File(beside)
    } else {
        return Ok(None);
    };
    load_tokenizer(&spec).map(Some).map_err(|error| reword_for_flags(error, true))
}

/// The files that `path` names: those of a folder of shards with a card, or the path itself.
fn expand(path: &Path) -> Result<Vec<PathBuf>> {
    if let Some(card) = Some(path).filter(|path| path.is_dir()).and_then(Card::read) {
        // A card may name any path; only files beside it are read.
        let names = card.shards.into_iter().map(|shard| shard.file);
        return Ok(names.filter_map(|name| Some(path.join(Path::new(&name).file_name()?))).collect());
    }
    check_file(path)?;
    Ok(vec![path.to_owned()])
}
