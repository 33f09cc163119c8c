//! `runner export`: a checkpoint's weights as files for other programs.

use std::path::PathBuf;

use anyhow::bail;
use clap::{Args, ValueEnum};

use super::common::{RootArgs, ThreadArgs};
use super::exit::{Exit, RequestError};
use super::opened;
use super::opened::{CheckpointArgs, OpenedRun};
use super::output::{complain, print, print_json};
use runner_report::{OutputMode, Screen};
use runner_spec::model::layout::ParamLayout;
use runner_spec::model::parameters;
use runner_store::checkpoint;
use runner_store::checkpoint::MODEL;
use runner_store::run_dir::CHECKPOINTS;
use runner_weights::{Dtype, Foreign, HfExport, LlmcExport, WeightsError, Written};

#[derive(Debug, Clone, Args)]
pub(crate) struct ExportArgs {
    /// A run directory, a run's id, or the beginning of an id that no other run shares.
    pub run: String,
    /// What to write.
    #[arg(long, value_enum)]
    pub to: Target,
    /// The folder to write to, which is created if missing; of llmc the file (*.bin), or a folder for model.bin.
    pub dir: PathBuf,
    #[command(flatten)]
    pub checkpoint: CheckpointArgs,
    /// Type of the written numbers [default: f32]. Weights are f32, and of runs without master weights bf16 values; others are rounded to the nearest.
    #[arg(long, value_enum)]
    pub dtype: Option<DtypeArg>,
    /// Of hf: weights in one file, at most; of a larger model there are several, with an index [default: 5GB].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub shard_size: Option<u64>,
    /// Of hf: all rows of the vocabulary, or only as many as the tokenizer has tokens [default: padded].
    #[arg(long, value_enum)]
    pub vocab: Option<Vocab>,
    /// Replace files that are there.
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub root: RootArgs,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// What `--to` can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Target {
    /// One model.safetensors of all parts: f32, names and matrices ([out, in]) as in checkpoints.
    Safetensors,
    /// A folder for `transformers`: config.json, safetensors, the tokenizer.
    Hf,
    /// A model file of llm.c, of a GPT-2.
    Llmc,
}

/// What `--dtype` can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DtypeArg {
    F32,
    F16,
    Bf16,
}

impl From<DtypeArg> for Dtype {
    fn from(arg: DtypeArg) -> Self {
        match arg {
            DtypeArg::F32 => Self::F32,
            DtypeArg::F16 => Self::F16,
            DtypeArg::Bf16 => Self::Bf16,
        }
    }
}

/// What `--vocab` can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Vocab {
    /// As the model has it.
    Padded,
    /// The tokenizer's.
    Trimmed,
}

/// `5GB`, `500MB`, `20KB` or bytes, as `transformers` counts them.
fn size(text: &str) -> Result<u64, String> {
    let upper = text.to_ascii_uppercase();
    let units = [("GB", 1_000_000_000), ("MB", 1_000_000), ("KB", 1000), ("B", 1), ("", 1)];
    let (digits, unit) =
        units.iter().find_map(|(end, unit)| Some((upper.strip_suffix(end)?, *unit))).unwrap_or(("", 1));
    let bytes = digits.trim().parse::<u64>().ok().and_then(|n: u64| n.checked_mul(unit)).filter(|n| *n > 0);
    bytes.ok_or_else(|| "a size is meant, such as 5GB or 500MB".to_owned())
}

/// # Errors
/// If there is no such run or checkpoint, it is damaged, the model has no such form, or files are there already or cannot be
/// written.
pub(crate) fn run(args: &ExportArgs) -> anyhow::Result<Exit> {
    let of_hf = [("--shard-size", args.shard_size.is_some()), ("--vocab", args.vocab.is_some())];
    if let Some((flag, _)) = of_hf.iter().find(|(_, given)| *given && args.to != Target::Hf) {
        bail!(RequestError(format!("{flag} is for --to hf")));
    }
    if args.to == Target::Safetensors && args.dtype.is_some() {
        bail!(RequestError(
            "--dtype is for --to hf and --to llmc: of safetensors the numbers are those of the run".into()
        ));
    }
    let opened = opened::open_run(&args.root.root(), &args.run)?;
    let written = match args.to {
        Target::Safetensors => safetensors(args, &opened)?,
        Target::Hf => hf(args, &opened)?,
        Target::Llmc => llmc(args, &opened)?,
    };
    let place = match args.to {
        Target::Hf => args.dir.clone(),
        _ => written.files.first().cloned().unwrap_or_default(),
    };
    for note in &written.notes {
        complain(&format!("note: {note}"));
    }
    if args.json {
        let mut value = serde_json::json!({"path": place, "bytes": written.bytes, "step": written.step});
        if args.to == Target::Hf {
            value["files"] = serde_json::json!(written.files);
            value["notes"] = serde_json::json!(written.notes);
        }
        print_json(&value)?;
    } else {
        let files = if args.to == Target::Hf { format!("{} files, ", written.files.len()) } else { String::new() };
        print(&format!("{}: {files}{} bytes, step {}\n", place.display(), written.bytes, written.step))?;
    }
    Ok(Exit::Done)
}

/// The whole model's parameters, whatever the run's ranks hold of them.
fn layout(opened: &OpenedRun) -> anyhow::Result<ParamLayout> {
    Ok(ParamLayout::new(parameters(&opened.program()?.model)))
}

fn safetensors(args: &ExportArgs, opened: &OpenedRun) -> anyhow::Result<Written> {
    let path = args.dir.join(MODEL);
    if !args.force && path.symlink_metadata().is_ok() {
        bail!(RequestError(format!("{} is there already: --force replaces it", path.display())));
    }
    let folder = opened.path.join(CHECKPOINTS);
    let made = checkpoint::export(&folder, args.checkpoint.which(), &layout(opened)?, &args.dir)?;
    Ok(Written { files: vec![made.path], bytes: made.bytes, step: made.step, notes: Vec::new() })
}

fn hf(args: &ExportArgs, opened: &OpenedRun) -> anyhow::Result<Written> {
    let spec = &opened.program()?.model;
    let layout = layout(opened)?;
    let pool = ThreadArgs { threads: None }.pool()?;
    let tokenizer = opened.tokenizer(&pool, &mut Screen::new(OutputMode::Quiet))?;
    let rows = &opened.experiment.data.layout;
    let tokens = opened.plan.data.tokenizer_vocab;
    let export = HfExport {
        spec,
        layout: &layout,
        dtype: args.dtype.map_or(Dtype::F32, Into::into),
        shard_bytes: args.shard_size.unwrap_or(5_000_000_000),
        vocab_size: match args.vocab.unwrap_or(Vocab::Padded) {
            Vocab::Padded => spec.vocab_size,
            Vocab::Trimmed => tokens.clamp(1, spec.vocab_size),
        },
        tokenizer: tokenizer.to_hf(rows, spec.context_length),
        special: tokenizer.special_tokens(rows).0,
    };
    let source = &mut |take: Take<'_>| stream(args, opened, &layout, take);
    Ok(export.write(&args.dir, args.force, source)?)
}

fn llmc(args: &ExportArgs, opened: &OpenedRun) -> anyhow::Result<Written> {
    let spec = &opened.program()?.model;
    let layout = layout(opened)?;
    let export = LlmcExport {
        spec,
        layout: &layout,
        dtype: args.dtype.map_or(Dtype::F32, Into::into),
        vocab_size: opened.plan.data.tokenizer_vocab.clamp(1, spec.vocab_size),
    };
    let is_file = args.dir.extension().is_some_and(|end| end == "bin") && !args.dir.is_dir();
    let to = if is_file { args.dir.clone() } else { args.dir.join("model.bin") };
    let source = &mut |take: Take<'_>| stream(args, opened, &layout, take);
    Ok(export.write(&to, args.force, source)?)
}

type Take<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<(), WeightsError>;

/// Hands the checkpoint's weights to `take`; the step that they are of.
fn stream(args: &ExportArgs, opened: &OpenedRun, layout: &ParamLayout, take: Take<'_>) -> Result<u64, Foreign> {
    let folder = opened.path.join(CHECKPOINTS);
    let step =
        checkpoint::stream(&folder, args.checkpoint.which(), layout, &mut |place, bytes| Ok(take(place, bytes)?))?;
    Ok(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        let all = [("5GB", 5_000_000_000), ("20kb", 20_000), ("7", 7), ("3B", 3), ("1 MB", 1_000_000)];
        for (text, bytes) in all {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for bad in ["", "GB", "0", "-1", "1.5GB", "99999999999999GB", "5TB"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
