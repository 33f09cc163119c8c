//! Flags of commands that read a model: that of a recorded run's checkpoint, or weights of another program.

use std::path::PathBuf;

use clap::builder::PossibleValue;
use runner_data::ModelTokenizer;
use runner_inputs::fetch_model_folder;
use runner_report::Screen;
use runner_spec::experiment::{DeviceChoice, HubModel, Precision};
use runner_spec::program::Device;
use runner_workflows::evaluated_model::EvaluatedModel;

use crate::cli::args::checkpoint::CheckpointArgs;
use crate::cli::common::{RunsFolderArgs, ThreadArgs, host_without_runs, word_parser};
use crate::cli::machine::completions::runs_and_sweeps_completer;
use crate::cli::models::best_point::open_model_run;
use crate::cli::models::text_source::{find_tokenizer, parse_hub_name, reword_for_flags};
use crate::cli::terminal::exit::{Result, refuse};
use crate::cli::terminal::output::print_to_stderr;
use crate::cli::terminal::screen_observer::PreparationObserver;

/// A model that computes something.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ModelArgs {
    /// The run: its directory, its id, or a prefix of its id; or a sweep, whose best point counts.
    #[arg(add = runs_and_sweeps_completer(), required_unless_present = "weights")]
    pub run: Option<String>,
    /// Instead of a run: a Hugging Face folder of a GPT-2 or a Llama, a state dict of PyTorch with the model's config.json beside it, or
    /// hub:NAME of a model on the Hugging Face hub.
    #[arg(long, value_name = "DIR|FILE|hub:NAME", conflicts_with_all = ["run", "step", "best"])]
    pub weights: Option<String>,
    /// The tokenizer of weights, or of a run on token shards without one: gpt2:FOLDER, hub:NAME, the path of a tokenizer.json, or bytes
    /// [default: the tokenizer beside the weights].
    #[arg(long, value_name = "TOKENIZER")]
    pub tokenizer: Option<String>,
    /// Do not put a token in front of text (`bos` of data.layout.padded, or the token that the tokenizer of weights adds). `eval --text`
    /// then reads packed rows.
    #[arg(long)]
    pub no_bos: bool,
    #[command(flatten)]
    pub checkpoint: CheckpointArgs,
    /// The device to compute on.
    #[arg(long, value_name = "DEVICE", default_value = "auto", value_parser = word_parser::<DeviceChoice>([
        PossibleValue::new("auto").help("A GPU if there is one here and the run was trained on one, else the CPU"),
        PossibleValue::new("cpu"),
        PossibleValue::new("cuda"),
    ]))]
    pub device: DeviceChoice,
    /// The precision to compute in [default: that of the run; fp32 for --weights].
    #[arg(long, value_name = "PRECISION", value_parser = word_parser::<Precision>(["fp32", "tf32", "bf16"]))]
    pub precision: Option<Precision>,
    #[command(flatten)]
    pub threads: ThreadArgs,
    #[command(flatten)]
    pub root: RunsFolderArgs,
}

impl ModelArgs {
    /// The model, whose weights are not read yet. Downloads are shown on `screen`.
    ///
    /// # Errors
    /// If there is no such run, or there are no such weights; a hub that refuses or cannot be reached.
    pub(crate) fn open(&self, screen: &mut Screen) -> Result<EvaluatedModel> {
        if let Some(run) = &self.run {
            let run = open_model_run(&self.root.root(), run)?;
            return EvaluatedModel::of_run(run, self.checkpoint.which(), self.precision);
        }
        let weights = self.weights.as_deref().unwrap_or_default();
        let path = match weights.strip_prefix("hub:") {
            Some(name) => {
                let (name, revision) = parse_hub_name("--weights", name)?;
                let host = host_without_runs(self.threads)?;
                fetch_model_folder(&HubModel { name, revision }, &host, &mut PreparationObserver::new(screen))?.path
            }
            None => PathBuf::from(weights),
        };
        if !path.exists() {
            refuse!(
                "--weights: there is no {}; name a Hugging Face folder, a file of PyTorch, or hub:NAME",
                path.display()
            );
        }
        EvaluatedModel::of_weights(&path, self.precision)
    }

    /// The tokenizer of `model`.
    ///
    /// # Errors
    /// If `--tokenizer` names none, its files cannot be read, or it has more tokens than the model.
    pub(crate) fn read_tokenizer(
        &self,
        model: &EvaluatedModel,
        pool: &rayon::ThreadPool,
        screen: &mut Screen,
    ) -> Result<ModelTokenizer> {
        let named = self.tokenizer.as_deref().map(|name| find_tokenizer(name, screen)).transpose()?;
        let host = host_without_runs(self.threads)?;
        let tokenizer = model.tokenizer(named.as_ref(), pool, &host, &mut PreparationObserver::new(screen));
        let tokenizer = tokenizer.map_err(|error| reword_for_flags(error, true))?;
        Ok(if self.no_bos { tokenizer.without_prefix() } else { tokenizer })
    }

    /// The device to read `model` on; notes about the choice go to standard error.
    ///
    /// # Errors
    /// If there is no such device.
    pub(crate) fn choose_device(&self, model: &EvaluatedModel) -> Result<Device> {
        let mut notes = Vec::new();
        let device = model.device(self.device, self.threads.count(), &mut notes)?;
        for note in &notes {
            print_to_stderr(note);
        }
        Ok(device)
    }
}
