//! `runner tokenizer`: trains tokenizers.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::cli::common::{TemplateArgs, ThreadArgs, cache_dir, default_load_options, host_without_runs};
use crate::cli::models::text_source::{SourceArgs, printable_path, reword_for_flags};
use crate::cli::terminal::exit::{Exit, Result, refuse};
use crate::cli::terminal::output::{check_replaceable, print_result, write_file};
use crate::cli::terminal::screen_observer::PreparationObserver;
use runner_config::LoadOptions;
use runner_data::{load_tokenizer, train_tokenizer};
use runner_files::parent_folder;
use runner_inputs::lower_hub;
use runner_report::data_progress::show_data_progress;
use runner_report::{OutputMode, Screen};
use runner_spec::experiment::{Data, MAX_BPE_VOCABULARY, Tokenizer, Validation};
use runner_spec::format::{bytes, count};

/// Train a tokenizer.
#[derive(Debug, Clone, Args)]
pub(crate) struct TokenizerArgs {
    #[command(subcommand)]
    command: TokenizerCommand,
}

#[derive(Debug, Clone, Subcommand)]
enum TokenizerCommand {
    Train(TrainArgs),
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

/// # Errors
/// If the request is wrong, or something cannot be read or written.
pub(crate) fn run(args: &TokenizerArgs) -> Result<Exit> {
    let TokenizerCommand::Train(args) = &args.command;
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
    let Some(file) = &args.from else { return Ok(Data::of_text(Tokenizer::Bytes {}, args.source.source()?)) };
    // Its tokenizer need not exist yet, and its weights are not read.
    let options = LoadOptions {
        sets: args.set.iter().cloned().chain(["data.tokenizer={bytes: {}}".to_owned()]).collect(),
        allows_absent_files: true,
        allows_absent_initial_inputs: true,
        ..default_load_options()
    };
    let mut data = runner_config::load(file, &args.template.add_to(options)?)?.experiment.data;
    // Only the text to train on is downloaded.
    data.validation = data.validation.filter(|validation| matches!(validation, Validation::Fraction(_)));
    let host = host_without_runs(args.threads)?;
    Ok(lower_hub(data.into(), &host, &mut PreparationObserver::new(screen))?.local.data)
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
