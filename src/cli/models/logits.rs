//! `runner logits`: writes the logits of a checkpoint's model for given tokens, to compare with other programs. The command is hidden.

use std::path::PathBuf;

use candle_core::DType;
use clap::Args;

use crate::cli::args::model::ModelArgs;
use crate::cli::terminal::exit::{CommandError, Context as _, Exit, Result, refuse};
use runner_compute::kernels::on_host;
use runner_executor::ExecError;
use runner_files::read_regular_text;
use runner_report::Screen;

#[derive(Debug, Clone, Args)]
pub(crate) struct LogitsArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// A JSON file with rows of token ids, all of the same length.
    #[arg(long, value_name = "FILE")]
    pub tokens: PathBuf,
    /// The safetensors file to write, with the tensor `logits` [rows, length, vocabulary].
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

/// # Errors
/// If there is no such run or checkpoint, or the tokens are not rows that its model can read.
pub(crate) fn run(args: &LogitsArgs) -> Result<Exit> {
    let opened = args.model.open(&mut Screen::on_standard_error())?;
    let text = read_regular_text(&args.tokens).context(args.tokens.display().to_string())?;
    let rows: Vec<Vec<u32>> =
        serde_json::from_str(&text).map_err(|e| CommandError::request(format!("{}: {e}", args.tokens.display())))?;
    let spec = &opened.spec;
    let length = rows.first().map_or(0, Vec::len);
    if length == 0 || length > spec.context_length || rows.iter().any(|row| row.len() != length) {
        refuse!("rows must have the same length, 1 to {} tokens", spec.context_length);
    }
    if let Some(id) = rows.iter().flatten().find(|&&id| id as usize >= spec.vocab_size) {
        refuse!("token {id} is outside the vocabulary of {}", spec.vocab_size);
    }
    let device = args.model.choose_device(&opened)?;
    args.model.threads.pool()?.install(|| {
        let (model, weights, _) = opened.load(device)?;
        let write = || {
            let mb = model.micro_batch(&rows.concat(), Vec::new(), length)?;
            let logits = on_host(&model.logits(&weights, &mb)?)?.to_dtype(DType::F32)?;
            let logits = logits.reshape((rows.len(), length, spec.vocab_size))?;
            candle_core::safetensors::save(&[("logits", logits)].into(), &args.out)
        };
        write().map_err(ExecError::from)?;
        Ok(Exit::Done)
    })
}
