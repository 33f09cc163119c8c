//! `runner data prepare`: writes token shards for other trainers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::cli::common::{
    TemplateArgs, ThreadArgs, cache_dir, default_load_options, host_without_runs, utf8_environment,
};
use crate::cli::models::text_source::{SourceArgs, find_tokenizer, printable_path, reword_for_flags};
use crate::cli::terminal::exit::{CommandError, Exit, Result, refuse};
use crate::cli::terminal::output::{exit_of_screen, print_json};
use crate::cli::terminal::screen_observer::PreparationObserver;
use runner_config::LoadOptions;
use runner_data::hub;
use runner_data::{HeldOut, ShardEvent, ShardFormat, ShardRequest, claim_cache, write_shards};
use runner_inputs::local_tokenizer;
use runner_report::data_progress::show_data_progress;
use runner_report::shard_progress::{ShardProgress, shard_summary};
use runner_report::{OutputMode, Screen};
use runner_spec::data::NO_SEPARATOR_WARNING;
use runner_spec::diagnostic::nearest;
use runner_spec::experiment::{Data, Validation};
use runner_spec::format::printable;

/// Tokenize text into the shards that llm.c, nanoGPT and build-nanogpt read.
///
/// Documents are separated in the way of each format. Shard 0 holds the validation data; for nanogpt `val.bin` does. The
/// same command does nothing if the shards are there. `dataset.json` beside the shards describes them.
#[derive(Debug, Clone, Args)]
pub(crate) struct PrepareArgs {
    #[command(flatten)]
    pub source: SourceArgs,
    /// Use the tokenizer, text and validation from the data section of this experiment file.
    #[arg(long, value_name = "EXPERIMENT", conflicts_with_all = ["files", "tokenizer", "column", "field"])]
    pub from: Option<PathBuf>,
    /// With --from: override a key of the file, such as `data.tokenizer={bytes: {}}`.
    #[arg(long, value_name = "KEY.PATH=VALUE", requires = "from", conflicts_with = "files")]
    pub set: Vec<String>,
    /// The tokenizer: gpt2:FOLDER (with vocab.json and merges.txt), hub:NAME (hub:gpt2), the path of a tokenizer.json, bytes,
    /// chars, or bpe:SIZE to train one on the text.
    #[arg(long, value_name = "SPEC", required_unless_present = "from")]
    pub tokenizer: Option<String>,
    /// The format, and the folder to write to. Formats: llmc, llmc-u32 (32 bits per token), nanogpt, npy (build-nanogpt).
    #[arg(long, num_args = 2, value_names = ["FORMAT", "DIR"], required = true)]
    pub to: Vec<String>,
    /// The prefix of the shards' file names, as in NAME_train_000001.bin [default: the name of DIR, else data].
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Tokens in a shard.
    #[arg(long, value_name = "N", default_value_t = 100_000_000, value_parser = parse_count)]
    pub shard_tokens: u64,
    /// Stop after N tokens of the text.
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub max_tokens: Option<u64>,
    /// Stop after N documents (rows, lines or items).
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub max_rows: Option<u64>,
    /// The data held out for validation: `first-shard`, `none`, or a fraction. A fraction is the end of a single text, or documents
    /// drawn at random [default: the experiment's validation source, else `first-shard`; for nanogpt 0.1 of text files and 0.0005
    /// of other documents].
    #[arg(long, value_name = "WHAT")]
    pub validation: Option<String>,
    #[command(flatten)]
    pub template: TemplateArgs,
    /// Replace existing shards.
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub threads: ThreadArgs,
    /// Print only errors, warnings and the summary.
    #[arg(long)]
    pub quiet: bool,
    /// Print JSON: the contents of dataset.json, and the time it took.
    #[arg(long)]
    pub json: bool,
}

/// A count, which may have `_` between digits.
fn parse_count(text: &str) -> Result<u64, String> {
    text.replace('_', "").parse().map_err(|_| "must be a whole number".to_owned())
}

/// # Errors
/// If the request is wrong, the text cannot be read or the shards cannot be written.
pub(crate) fn run(args: &PrepareArgs) -> Result<Exit> {
    let [format, folder] = &args.to[..] else {
        refuse!("--to needs a format and a folder");
    };
    let (format, folder) = (parse_format(format)?, Path::new(folder));
    let mut screen = Screen::new(OutputMode::detect(args.json, args.quiet));
    let data = data(args, &mut screen)?;
    let name = args.name.as_deref().or_else(|| folder.file_name()?.to_str()).unwrap_or("data");
    if name.is_empty() || name.contains('/') || name.starts_with('.') || name.chars().any(char::is_control) {
        refuse!("--name: file names cannot start with {:?}", printable(name));
    }
    let fraction = match data.validation {
        Some(Validation::Fraction(fraction)) => Some(HeldOut::Fraction(fraction)),
        _ => None,
    };
    let held_out = args.validation.as_deref().map(parse_held_out).transpose()?.or(fraction);
    let cache_dir = cache_dir()?;
    let settings = hub_settings(&data, &cache_dir)?;
    let request = ShardRequest {
        data: &data,
        cache_dir: &cache_dir,
        format,
        folder,
        name,
        shard_tokens: args.shard_tokens,
        held_out,
        max_tokens: args.max_tokens,
        max_rows: args.max_rows,
        hub: settings.as_ref(),
        force: args.force,
    };
    let pool = args.threads.pool()?;
    screen.spinner();
    let result = {
        let shards = ShardProgress::new(&screen);
        let report = |event: ShardEvent<'_>| match event {
            ShardEvent::Preparing(progress) => show_data_progress(&screen, progress),
            ShardEvent::Warning(text) => screen.warn(&printable(&text)),
            other => shards.show(&other),
        };
        pool.install(|| write_shards(&request, &report))
    };
    screen.clear();
    let made = result.map_err(|error| reword_for_flags(error, args.from.is_none()))?;
    if args.json {
        print_json(&serde_json::json!({
            "folder": folder, "up_to_date": made.up_to_date, "seconds": made.seconds, "card": made.card,
        }))?;
    } else {
        screen.result_line(&shard_summary(&made, &printable_path(folder)));
    }
    if made.card.documents > 1 && made.card.tokenizer.end_of_text.is_none() {
        screen.warn(NO_SEPARATOR_WARNING);
    }
    exit_of_screen(&screen, Exit::Done)
}

/// The settings of the hub, if a source of `data` is there.
fn hub_settings(data: &Data, cache_dir: &Path) -> Result<Option<hub::Settings>> {
    if !hub::DataSources::from(data.clone()).names_hub() {
        return Ok(None);
    }
    let environment: BTreeMap<String, String> = utf8_environment().collect();
    let memos = claim_cache(cache_dir)?.join("hub");
    Ok(Some(hub::Settings::new(&|name| environment.get(name).cloned(), memos)?))
}

/// The tokenizer and the sources. Datasets of the hub keep their names: each of their files is downloaded when it is read.
fn data(args: &PrepareArgs, screen: &mut Screen) -> Result<Data> {
    if let Some(file) = &args.from {
        let options = LoadOptions { sets: args.set.clone(), ..default_load_options() };
        let data = runner_config::load(file, &args.template.add_to(options)?)?.experiment.data;
        let host = host_without_runs(args.threads)?;
        let tokenizer = local_tokenizer(data.tokenizer, &host, &mut PreparationObserver::new(screen))?;
        return Ok(Data { tokenizer, ..data });
    }
    let tokenizer = find_tokenizer(args.tokenizer.as_deref().unwrap_or_default(), screen)?;
    Ok(Data::of_text(tokenizer, args.source.source()?))
}

fn parse_format(name: &str) -> Result<ShardFormat> {
    let formats = ShardFormat::ALL;
    if let Some(format) = formats.into_iter().find(|format| format.name() == name) {
        return Ok(format);
    }
    let names = formats.map(ShardFormat::name);
    let near = nearest(name, names).map_or(String::new(), |near| format!(" (did you mean `{near}`?)"));
    refuse!("--to: unknown format {:?}{near}; the formats are {}", printable(name), names.join(", "))
}

fn parse_held_out(text: &str) -> Result<HeldOut> {
    match text {
        "first-shard" => Ok(HeldOut::FirstShard),
        "none" => Ok(HeldOut::Nothing),
        _ => text.parse().map(HeldOut::Fraction).map_err(|_| {
            let text = printable(text);
            CommandError::request(format!(
                "--validation must be `first-shard`, `none`, or a fraction such as 0.1, got {text:?}"
            ))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_parsed() {
        assert_eq!(parse_format("npy").unwrap(), ShardFormat::Npy);
        assert!(parse_format("nanoGPT").unwrap_err().to_string().contains("did you mean `nanogpt`?"));
        assert_eq!(parse_held_out("0.05").unwrap(), HeldOut::Fraction(0.05));
        assert_eq!(parse_held_out("none").unwrap(), HeldOut::Nothing);
        assert!(parse_held_out("first").is_err());
        assert_eq!((parse_count("100_000"), parse_count("1e8").is_err()), (Ok(100_000), true));
    }
}
