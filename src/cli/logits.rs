//! `runner logits`: writes the logits of a checkpoint's model for given tokens, to compare with other programs. The command is hidden.

use std::path::PathBuf;

use anyhow::{Context, bail};
use candle_core::{DType, Tensor};
use clap::Args;

use super::checkpoint_args::{CheckpointArgs, DeviceArgs};
use super::common::{RunsFolderArgs, ThreadArgs};
use super::exit::{Exit, RequestError};
use runner_compute::kernels::on_host;
use runner_engine::opened_run::open_run;

#[derive(Debug, Clone, Args)]
pub(crate) struct LogitsArgs {
    /// The run: its directory, its id, or the beginning of its id.
    pub run: String,
    /// A JSON file with rows of token ids, all of the same length.
    pub tokens: PathBuf,
    /// The safetensors file to write, with the tensor `logits` [rows, length, vocabulary].
    pub out: PathBuf,
    #[command(flatten)]
    pub checkpoint: CheckpointArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
    #[command(flatten)]
    pub threads: ThreadArgs,
    #[command(flatten)]
    pub root: RunsFolderArgs,
}

/// # Errors
/// If there is no such run or checkpoint, or the tokens are not rows that its model can read.
pub(crate) fn run(args: &LogitsArgs) -> anyhow::Result<Exit> {
    let opened = open_run(&args.root.root(), &args.run)?;
    let text = std::fs::read_to_string(&args.tokens).with_context(|| args.tokens.display().to_string())?;
    let rows: Vec<Vec<u32>> =
        serde_json::from_str(&text).map_err(|e| RequestError(format!("{}: {e}", args.tokens.display())))?;
    let spec = &opened.program()?.model;
    let length = rows.first().map_or(0, Vec::len);
    if length == 0 || length > spec.context_length || rows.iter().any(|row| row.len() != length) {
        bail!(RequestError(format!("rows must have the same length, 1 to {} tokens", spec.context_length)));
    }
    if let Some(id) = rows.iter().flatten().find(|&&id| id as usize >= spec.vocab_size) {
        bail!(RequestError(format!("token {id} is beyond the vocabulary of {}", spec.vocab_size)));
    }
    let device = args.device.choose(&opened, args.threads.count())?;
    let logits = args.threads.pool()?.install(|| -> anyhow::Result<Tensor> {
        let (model, weights, _) = opened.model(args.checkpoint.which(), device)?;
        let mb = model.micro_batch(&rows.concat(), Vec::new(), length)?;
        let logits = on_host(&model.logits(&weights, &mb)?)?.to_dtype(DType::F32)?;
        Ok(logits.reshape((rows.len(), length, spec.vocab_size))?)
    })?;
    candle_core::safetensors::save(&[("logits", logits)].into(), &args.out)?;
    Ok(Exit::Done)
}
