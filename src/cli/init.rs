//! `runner init`: writes a short experiment file that trains at once, to start from.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::exit::{Exit, RequestError};
use super::output::{print, write_file};
use runner_spec::format::printable;

/// Write a short experiment file with comments, which trains at once, to start from.
#[derive(Debug, Clone, Args)]
pub(crate) struct InitArgs {
    /// The experiment's name; the file is NAME.yaml in the current folder.
    #[arg(default_value = "experiment")]
    name: String,
    /// The model's family.
    #[arg(long, value_enum, default_value = "gpt2")]
    model: StarterModel,
    /// The division of the work.
    #[arg(long, value_enum, default_value = "single")]
    parallel: StarterLayout,
    /// Train on this text file instead of built-in stories.
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Replace a file of this name.
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum StarterModel {
    Gpt2,
    Llama,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum StarterLayout {
    Single,
    Dp,
    Ddp,
    Pipeline,
}

/// # Errors
/// If the name or the text file cannot be used; if the file exists and `--force` is not given.
pub(crate) fn run(args: &InitArgs) -> anyhow::Result<Exit> {
    let name = args.name.strip_suffix(".yaml").unwrap_or(&args.name);
    let is_legal = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.is_empty() || name.starts_with('.') || !name.chars().all(is_legal) {
        let message =
            format!("`{}` names no experiment: a name has letters, digits, `.`, `_` and `-`", printable(name));
        return Err(RequestError(message).into());
    }
    let path = PathBuf::from(format!("{name}.yaml"));
    let text = starter_file(args, &path.display().to_string());
    // The file must be a valid experiment, so a name or a text file that is not usable is reported now.
    runner_config::from_str(&text, &path, &runner_config::LoadOptions::default())?;
    write_file(&path, text.as_bytes(), args.force)?;
    let file = path.display();
    print(&format!(
        "wrote {file}\n  runner validate {file} --explain   # every key and its value\n  runner apply {file}\n"
    ))?;
    Ok(Exit::Done)
}

fn starter_file(args: &InitArgs, file: &str) -> String {
    let mut out = format!(
        "# `runner apply {file}` trains this model; the same command resumes an interrupted run.\n\
         # `runner plan {file}` shows its size, memory and FLOPs. docs/experiment.md lists all keys.\nversion: 1\n\n"
    );
    let preset = match args.model {
        StarterModel::Gpt2 => "gpt2-micro",
        StarterModel::Llama => "llama-micro",
    };
    let _ = writeln!(
        out,
        "model:\n  preset: {preset}   # keys beside it change a size: layers, heads, d_model, context_length\n"
    );
    out.push_str("data:\n");
    match &args.text {
        Some(path) => {
            let path = serde_json::Value::String(path.display().to_string());
            let _ = writeln!(out, "  train: {{text: {{files: [{path}]}}}}   # or jsonl, parquet, hub, tokens");
        }
        None => out.push_str(
            "  train: {builtin: {corpus: stories}}   # your own text: {text: {files: [input.txt]}}; or jsonl, parquet, hub, tokens\n",
        ),
    }
    out.push_str(
        "  validation: {fraction: 0.1}           # the end of the text is held out\n  \
           tokenizer: {bpe: {vocab_size: 1024}}  # trained on the text; or bytes, chars, gpt2, hub, file\n\n\
         batch:\n  sequences: 16   # of one optimizer step, all ranks together\n  micro_batch: 8  # of one forward pass; gradients accumulate\n\n\
         train: {steps: 300}\noptimizer: {adamw: {lr: 1e-3, weight_decay: 0.1}}\nschedule:\n  warmup: {steps: 30}\n  \
           decay: {cosine: {final: 0.1}}   # share of the peak learning rate at the end\n",
    );
    out.push_str(match args.parallel {
        StarterLayout::Single => "",
        StarterLayout::Dp => "\nparallel: {mode: dp, replicas: 2}   # gradients go to one root\n",
        StarterLayout::Ddp => "\nparallel: {mode: ddp, replicas: 2}   # two ranks share each batch and all-reduce their gradients\n",
        StarterLayout::Pipeline => {
            "\nparallel:\n  mode: pipeline\n  pipeline: {stages: 2, schedule: 1f1b}   # the layers are divided between two ranks\n"
        }
    });
    out.push_str("\neval:\n  every: 100   # steps\n  samples: {prompts: [\"Once upon a time\"], max_tokens: 40}\n");
    out
}
