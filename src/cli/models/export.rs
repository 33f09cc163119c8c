//! `runner export`: writes a checkpoint's weights for other programs.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use serde_json::json;

use crate::cli::args::checkpoint::CheckpointArgs;
use crate::cli::common::{RunsFolderArgs, ThreadArgs, host_without_runs};
use crate::cli::models::best_point::open_model_run;
use crate::cli::terminal::exit::{Exit, Result, refuse};
use crate::cli::terminal::output::{check_replaceable, print_result, print_to_stderr};
use crate::cli::terminal::screen_observer::PreparationObserver;
use runner_record::checkpoint;
use runner_record::checkpoint::MODEL;
use runner_record::run_dir::CHECKPOINTS;
use runner_report::Screen;
use runner_weights::{Dtype, TorchExport, WrittenFiles};
use runner_workflows::exported_weights::{HfOptions, WeightSink};
use runner_workflows::opened_run::OpenedRun;

#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub(crate) struct ExportArgs {
    /// The run: its directory, its id, or a prefix of its id; or a sweep, whose best point counts.
    pub run: String,
    /// The format to write.
    #[arg(long, value_enum)]
    pub to: Target,
    /// The folder to write to, which is created if it is missing. For torch: a file (*.pt, *.pth or *.bin).
    pub path: PathBuf,
    #[command(flatten)]
    pub checkpoint: CheckpointArgs,
    /// The type of the written numbers [default: f32]. A type with fewer bits than the run's weights rounds to the nearest value.
    #[arg(long, value_parser = dtype_parser())]
    pub dtype: Option<Dtype>,
    /// With hf: the largest size of a weights file [default: 5GB]. A larger model is written to several files with an index.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub shard_size: Option<u64>,
    /// With hf: write all rows of the vocabulary, or only as many as the tokenizer has tokens [default: padded].
    #[arg(long, value_enum)]
    pub vocab: Option<Vocab>,
    /// With hf: skip the comparison of the folder's logits with the run's, which needs the model in f32 in memory.
    #[arg(long)]
    pub no_check: bool,
    /// With torch: leave out the head, and the prefix of the other names, as in model.base_model.state_dict().
    #[arg(long)]
    pub base_model: bool,
    /// Replace existing files.
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub root: RunsFolderArgs,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// The values of `--to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Target {
    /// One model.safetensors with the whole model in f32; names and matrices ([out, in]) are those of checkpoints.
    Safetensors,
    /// A folder for `transformers`: config.json, safetensors files, the tokenizer.
    Hf,
    /// A state dict for torch.load; names and matrices are those of `transformers`.
    Torch,
}

/// Parses the values of `--dtype`.
fn dtype_parser() -> impl TypedValueParser<Value = Dtype> {
    PossibleValuesParser::new(["f32", "f16", "bf16"]).map(|name| match name.as_str() {
        "f16" => Dtype::F16,
        "bf16" => Dtype::Bf16,
        _ => Dtype::F32,
    })
}

/// The values of `--vocab`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Vocab {
    /// All rows of the model's vocabulary.
    Padded,
    /// One row for each token of the tokenizer.
    Trimmed,
}

/// `5GB`, `500MB`, `20KB` or bytes, as `transformers` counts them.
fn parse_size(text: &str) -> Result<u64, String> {
    let upper = text.to_ascii_uppercase();
    let units = [("GB", 1_000_000_000), ("MB", 1_000_000), ("KB", 1000), ("B", 1), ("", 1)];
    let (digits, unit) =
        units.iter().find_map(|(end, unit)| Some((upper.strip_suffix(end)?, *unit))).unwrap_or(("", 1));
    let bytes = digits.trim().parse::<u64>().ok().and_then(|n: u64| n.checked_mul(unit)).filter(|n| *n > 0);
    bytes.ok_or_else(|| "give a size such as 5GB or 500MB".to_owned())
}

/// # Errors
/// If there is no such run or checkpoint, it is damaged, the model has no such form, or files already exist or cannot be
/// written.
pub(crate) fn run(args: &ExportArgs) -> Result<Exit> {
    let only_for = [
        ("--shard-size", args.shard_size.is_some(), Target::Hf, "hf"),
        ("--vocab", args.vocab.is_some(), Target::Hf, "hf"),
        ("--no-check", args.no_check, Target::Hf, "hf"),
        ("--base-model", args.base_model, Target::Torch, "torch"),
    ];
    if let Some((flag, _, _, to)) = only_for.iter().find(|(_, given, target, _)| *given && args.to != *target) {
        refuse!("{flag} is for --to {to}");
    }
    if args.to == Target::Safetensors && args.dtype.is_some() {
        refuse!("--dtype is for --to hf and --to torch: --to safetensors writes the numbers of the run");
    }
    let ends = ["pt", "pth", "bin"].map(Some);
    if args.to == Target::Torch
        && (!ends.contains(&args.path.extension().and_then(|end| end.to_str())) || args.path.is_dir())
    {
        refuse!("--to torch writes a file: give it a name that ends in .pt, .pth or .bin, got {}", args.path.display());
    }
    // The path of PyTorch's file may be that of a file.
    let mut folders = args.path.ancestors().skip(usize::from(args.to == Target::Torch));
    if let Some(file) = folders.find(|path| path.is_file()) {
        refuse!("{} is a file; name a folder, or a different path", file.display());
    }
    let opened = open_model_run(&args.root.root(), &args.run)?;
    let written = match args.to {
        Target::Safetensors => safetensors(args, &opened)?,
        Target::Hf => hf(args, &opened)?,
        Target::Torch => torch(args, &opened)?,
    };
    let place = match args.to {
        Target::Hf => args.path.clone(),
        _ => written.files.first().cloned().unwrap_or_default(),
    };
    for note in &written.notes {
        print_to_stderr(&format!("note: {note}"));
    }
    let WrittenFiles { files, bytes, step, logit_difference, notes } = &written;
    let mut value = json!({"path": place, "bytes": bytes, "step": step});
    let mut count = String::new();
    if args.to == Target::Hf {
        (value["files"], value["notes"]) = (json!(files), json!(notes));
        value["logit_difference"] = json!(logit_difference);
        count = format!("{} files, ", files.len());
    }
    let checked = logit_difference.map_or_else(String::new, |difference| match difference {
        0.0 => ", logits equal to the run's".to_owned(),
        difference => format!(", logits within {difference:.0e} of the run's, relative to the largest"),
    });
    print_result(args.json, &value, || format!("{}: {count}{bytes} bytes, step {step}{checked}\n", place.display()))
}

fn safetensors(args: &ExportArgs, opened: &OpenedRun) -> Result<WrittenFiles> {
    let path = args.path.join(MODEL);
    check_replaceable(&path, args.force)?;
    let folder = opened.path.join(CHECKPOINTS);
    let made = checkpoint::export_weights(&folder, args.checkpoint.which(), &opened.whole_layout()?, &args.path)?;
    let (bytes, step) = (made.bytes, made.step);
    Ok(WrittenFiles { files: vec![made.path], bytes, step, logit_difference: None, notes: Vec::new() })
}

fn hf(args: &ExportArgs, opened: &OpenedRun) -> Result<WrittenFiles> {
    let whole = HfOptions::default();
    let options = HfOptions {
        dtype: args.dtype.unwrap_or(whole.dtype),
        shard_bytes: args.shard_size.unwrap_or(whole.shard_bytes),
        trims_vocabulary: args.vocab == Some(Vocab::Trimmed),
        compares_logits: !args.no_check,
    };
    let host = host_without_runs(ThreadArgs { threads: None })?;
    let mut screen = Screen::on_standard_error();
    let observer = &mut PreparationObserver::new(&mut screen);
    opened.export_hf(args.checkpoint.which(), options, &args.path, args.force, &host, observer)
}

fn torch(args: &ExportArgs, opened: &OpenedRun) -> Result<WrittenFiles> {
    let layout = opened.whole_layout()?;
    let spec = opened.model(args.checkpoint.which())?;
    let export = TorchExport {
        spec: &spec,
        layout: &layout,
        dtype: args.dtype.unwrap_or(Dtype::F32),
        base_model: args.base_model,
    };
    let source = &mut |sink: WeightSink<'_>| opened.stream_weights(args.checkpoint.which(), &layout, sink);
    Ok(export.write(&args.path, args.force, source)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        let all = [("5GB", 5_000_000_000), ("20kb", 20_000), ("7", 7), ("3B", 3), ("1 MB", 1_000_000)];
        for (text, bytes) in all {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for bad in ["", "GB", "0", "-1", "1.5GB", "99999999999999GB", "5TB"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }
}
