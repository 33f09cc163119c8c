//! `runner export`: a checkpoint's weights as a file for other programs.

use std::path::PathBuf;

use anyhow::bail;
use clap::{Args, ValueEnum};

use super::common::{self, CheckpointArgs, RootArgs};
use super::exit::{Exit, RequestError};
use super::output::{print, print_json};
use crate::model::{ParamLayout, parameters};
use crate::store::checkpoint::{self, MODEL};
use crate::store::run_dir::CHECKPOINTS;

#[derive(Debug, Clone, Args)]
pub struct ExportArgs {
    /// A run directory, a run's id, or the beginning of an id that no other run shares.
    pub run: String,
    /// What to write.
    #[arg(long, value_enum)]
    pub to: Target,
    /// The folder to write to; it is created if missing.
    pub dir: PathBuf,
    #[command(flatten)]
    pub checkpoint: CheckpointArgs,
    /// Replace a file that is there.
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
pub enum Target {
    /// One model.safetensors of all parts: f32, names and matrices ([out, in]) as in checkpoints.
    Safetensors,
}

/// # Errors
/// If there is no such run or checkpoint, it is damaged, or the file is there already or cannot be written.
pub fn run(args: &ExportArgs) -> anyhow::Result<Exit> {
    let Target::Safetensors = args.to;
    let opened = common::open_run(&args.root.root(), &args.run)?;
    let path = args.dir.join(MODEL);
    if !args.force && path.symlink_metadata().is_ok() {
        bail!(RequestError(format!("{} is there already: --force replaces it", path.display())));
    }
    // The whole model's parameters, whatever the run's ranks hold of them.
    let layout = ParamLayout::new(parameters(&opened.program()?.model));
    let folder = opened.path.join(CHECKPOINTS);
    let made = checkpoint::export(&folder, args.checkpoint.which(), &layout, &args.dir)?;
    if args.json {
        print_json(&serde_json::json!({"path": made.path, "bytes": made.bytes, "step": made.step}))?;
    } else {
        print(&format!("{}: {} bytes, step {}\n", made.path.display(), made.bytes, made.step))?;
    }
    Ok(Exit::Done)
}
