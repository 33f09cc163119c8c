//! `runner tokenizer`: trains tokenizers, and encodes and decodes text.

use std::io::Read as _;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::cli::common::{TemplateArgs, ThreadArgs, cache_dir, host_without_runs};
use crate::cli::models::text_source::{SourceArgs, find_tokenizer, load_text_source, printable_path, reword_for_flags};
use crate::cli::terminal::exit::{CommandError, Context as _, Exit, Result, refuse};
use crate::cli::terminal::output::{check_replaceable, print, print_content, print_json, print_result, write_file};
use crate::cli::terminal::screen_observer::PreparationObserver;
use runner_data::{TextTokenizer, load_tokenizer, train_tokenizer};
use runner_files::parent_folder;
use runner_inputs::lower_hub;
use runner_report::data_progress::show_data_progress;
use runner_report::table::{Align, table};
use runner_report::{OutputMode, Screen};
use runner_spec::experiment::{Data, MAX_BPE_VOCABULARY, Tokenizer, Validation};
use runner_spec::format::{bytes, count, printable};

/// The most bytes of text that are read from standard input.
const MAX_STDIN_BYTES: u64 = 64 << 20;

/// Train a tokenizer, or encode and decode text with one.
#[derive(Debug, Clone, Args)]
pub(crate) struct TokenizerArgs {
    #[command(subcommand)]
    command: TokenizerCommand,
}

#[derive(Debug, Clone, Subcommand)]
enum TokenizerCommand {
    Train(TrainArgs),
    Encode(EncodeArgs),
    Decode(DecodeArgs),
}

/// Train a byte-level BPE tokenizer on text, and write it as a tokenizer.json for Python's tokenizers and transformers.
///
/// The same text always gives the same tokenizer. Special tokens have the first ids.
#[derive(Debug, Clone, Args)]
pub(crate) struct TrainArgs {
    #[command(flatten)]
    pub source: SourceArgs,
    /// Train on the training text of this experiment file, without the fraction that it holds out. Its tokenizer need not exist yet.
    #[arg(long, value_name = "EXPERIMENT", conflicts_with_all = ["files", "column", "field"])]
    pub from: Option<PathBuf>,
    /// With --from: override a key of the file, such as `data.validation=null`.
    #[arg(long, value_name = "KEY.PATH=VALUE", requires = "from", conflicts_with = "files")]
    pub set: Vec<String>,
    #[command(flatten)]
    pub template: TemplateArgs,
    /// The number of tokens, including bytes and special tokens.
    #[arg(long, value_name = "N")]
    pub vocab_size: usize,
    /// A special token, which text never produces; may be given several times [default: <|endoftext|>].
    #[arg(long, value_name = "TOKEN")]
    pub special_token: Vec<String>,
    /// The file to write.
    #[arg(long, value_name = "FILE", default_value = "tokenizer.json")]
    pub out: PathBuf,
    /// Replace an existing file.
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub threads: ThreadArgs,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Show the tokens of a text: ids and pieces.
#[derive(Debug, Clone, Args)]
pub(crate) struct EncodeArgs {
    /// The text [default: standard input].
    pub text: Option<String>,
    /// The tokenizer: gpt2:FOLDER, hub:NAME, the path of a tokenizer.json, or bytes.
    #[arg(long, value_name = "SPEC")]
    pub tokenizer: String,
    /// Encode the names of special tokens, such as <|endoftext|>, as these tokens and not as text.
    #[arg(long)]
    pub special: bool,
    /// Print only the ids.
    #[arg(long)]
    pub ids: bool,
    /// Print JSON.
    #[arg(long, conflicts_with = "ids")]
    pub json: bool,
}

/// Show the text of tokens.
#[derive(Debug, Clone, Args)]
pub(crate) struct DecodeArgs {
    /// The ids, separated by spaces or commas [default: standard input].
    pub ids: Vec<String>,
    /// The tokenizer: gpt2:FOLDER, hub:NAME, the path of a tokenizer.json, or bytes.
    #[arg(long, value_name = "SPEC")]
    pub tokenizer: String,
}

/// # Errors
/// If the request is wrong, or something cannot be read or written.
pub(crate) fn run(args: &TokenizerArgs) -> Result<Exit> {
    match &args.command {
        TokenizerCommand::Train(args) => train(args),
        TokenizerCommand::Encode(args) => encode(args),
        TokenizerCommand::Decode(args) => decode(args),
    }
}

fn train(args: &TrainArgs) -> Result<Exit> {
    let special =
        if args.special_token.is_empty() { vec!["<|endoftext|>".to_owned()] } else { args.special_token.clone() };
    check_vocabulary(args.vocab_size, &special)?;
    check_replaceable(&args.out, args.force)?;
    let folder = parent_folder(&args.out);
    if args.out.is_dir() || !folder.is_dir() {
        refuse!("--out must name a file in an existing folder, got {}", printable_path(&args.out));
    }
    let mut screen = Screen::new(OutputMode::detect(args.json, false));
    let data = training_text(args, &mut screen)?;
    let (cache, pool) = (cache_dir()?, args.threads.pool()?);
    screen.spinner();
    let show = |progress| show_data_progress(&screen, progress);
    let made = pool.install(|| train_tokenizer(&data, args.vocab_size, &special, &cache, &show));
    screen.clear();
    let json = made.map_err(|error| reword_for_flags(error, args.from.is_none()))?;
    write_file(&args.out, json.as_bytes(), args.force)?;
    let spec = Tokenizer::File(args.out.clone());
    let size = load_tokenizer(&spec)?.vocab_size();
    if size < args.vocab_size {
        screen.warn(&format!(
            "the vocabulary has only {} tokens, because no remaining pair of tokens occurs twice",
            count(size as u64)
        ));
    }
    let summary = serde_json::json!({"path": args.out, "vocab_size": size, "bytes": json.len()});
    print_result(args.json, &summary, || {
        let (path, size, length) = (printable_path(&args.out), count(size as u64), bytes(json.len() as u64));
        format!("{path}: {size} tokens, {length}\n")
    })
}

/// The text to train on: the files of the command line, or the training source of an experiment.
fn training_text(args: &TrainArgs, screen: &mut Screen) -> Result<Data> {
    let Some(file) = &args.from else { return args.source.data(Tokenizer::Bytes {}) };
    let mut data = load_text_source(file, &args.set, &args.template)?;
    // Only the text to train on is downloaded.
    data.validation = data.validation.filter(|validation| matches!(validation, Validation::Fraction(_)));
    let lowered =
        lower_hub(&data, None, &[], &host_without_runs(args.threads)?, &mut PreparationObserver::new(screen))?;
    Ok(lowered.map_or(data, |lowered| lowered.local))
}

/// # Errors
/// If the vocabulary cannot have this size, or a special token is repeated or too short.
fn check_vocabulary(vocab_size: usize, special: &[String]) -> Result<()> {
    let mut names: Vec<_> = special.iter().collect();
    names.sort();
    names.dedup();
    if names.len() < special.len() {
        refuse!("--special-token: the same token is given twice");
    }
    if let Some(short) = special.iter().find(|name| name.chars().count() < 2) {
        refuse!("--special-token must have at least 2 characters, got {short:?}");
    }
    let least = 256 + special.len();
    if vocab_size < least || vocab_size > MAX_BPE_VOCABULARY as usize {
        refuse!(
            "--vocab-size must be from {least} (256 bytes and {} special tokens) to {}, got {vocab_size}",
            special.len(),
            count(MAX_BPE_VOCABULARY)
        );
    }
    Ok(())
}

fn load(spec: &str) -> Result<TextTokenizer> {
    let tokenizer = find_tokenizer(spec, &mut Screen::on_standard_error())?;
    load_tokenizer(&tokenizer).map_err(|error| reword_for_flags(error, true))
}

fn encode(args: &EncodeArgs) -> Result<Exit> {
    let loaded = load(&args.tokenizer)?;
    let text = args.text.as_ref().map_or_else(read_standard_input, |text| Ok(text.clone()))?;
    let ids = if args.special { loaded.encode_prompt(&text)? } else { loaded.encode_document(&text)? };
    // Without a token in front, many decoders drop the blank of a word.
    let pieces: Vec<String> =
        ids.iter().enumerate().map(|(at, &id)| if at == 0 { loaded.decode(&[id]) } else { loaded.piece(id) }).collect();
    if args.json {
        print_json(&serde_json::json!({"ids": ids, "pieces": pieces}))?;
    } else if args.ids {
        let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
        print(&(ids.join(" ") + "\n"))?;
    } else {
        let lines: Vec<_> = ids
            .iter()
            .zip(&pieces)
            .map(|(id, piece)| vec![id.to_string(), format!("{:?}", printable(piece))])
            .collect();
        let rows = table(&[("ID", Align::Right), ("PIECE", Align::Left)], &lines);
        print(&format!("{rows}{} tokens of {}\n", count(ids.len() as u64), bytes(text.len() as u64)))?;
    }
    Ok(Exit::Done)
}

fn decode(args: &DecodeArgs) -> Result<Exit> {
    let loaded = load(&args.tokenizer)?;
    let text = if args.ids.is_empty() { read_standard_input()? } else { args.ids.join(" ") };
    let words = text.split(|c: char| c.is_whitespace() || matches!(c, ',' | '[' | ']')).filter(|word| !word.is_empty());
    let parse = |word: &str| match word.parse::<u32>() {
        Ok(id) if (id as usize) < loaded.vocab_size() => Ok(id),
        Ok(id) => Err(CommandError::request(format!(
            "{id} is outside the tokenizer's {} ids",
            count(loaded.vocab_size() as u64)
        ))),
        Err(_) => Err(CommandError::request(format!("{:?} is not an id", printable(word)))),
    };
    let ids = words.map(parse).collect::<Result<Vec<_>, _>>()?;
    print_content(&(loaded.decode(&ids) + "\n"))?;
    Ok(Exit::Done)
}

fn read_standard_input() -> Result<String> {
    let mut bytes = Vec::new();
    std::io::stdin().lock().take(MAX_STDIN_BYTES + 1).read_to_end(&mut bytes).context("standard input")?;
    if bytes.len() as u64 > MAX_STDIN_BYTES {
        refuse!("standard input has more than 64 MiB; use `runner data prepare` for larger texts");
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        CommandError::request(format!("standard input: not UTF-8 text: the first bad byte is at offset {at}"))
    })
}
