//! A recorded run, opened for reading: its plan, experiment, data, tokenizer, and the model of a checkpoint.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::Tensor;

use runner_compare::plan_files::{PlanDifference, rebuild_plan};
use runner_compare::stored_plan::{self, resolved_experiment};
use runner_data::{Prepared, TextTokenizer};
use runner_files::parent_folder;
use runner_inputs::{
    Host, RunEvent, RunObserver, check_same_data, explain_missing_data, prepare_data, recorded_tokenizer,
};
use runner_machine::local_cluster::local_cluster;
use runner_record::ancestry::{Ancestor, ancestors};
use runner_record::manifest::Manifest;
use runner_record::record_check::changed_descriptions;
use runner_record::run_dir::{self, CHECKPOINTS, PLAN, RESOLVED, TOKENIZER};
use runner_record::{CheckpointChoice, catalog, checkpoint};
use runner_spec::data::DataPart;
use runner_spec::error::{CommandError, Result};
use runner_spec::experiment::{DeviceChoice, Experiment};
use runner_spec::model::layout::ParamLayout;
use runner_spec::model::{ModelSpec, parameters};
use runner_spec::plan::Plan;
use runner_spec::program::{Device, Program};

/// A recorded run, opened for reading.
#[derive(Debug)]
pub struct OpenedRun {
    pub path: PathBuf,
    pub plan: Plan,
    /// From its `resolved.yaml`.
    pub experiment: Experiment,
}

/// Opens the run that `wanted` names in `root`: a folder, an id, or the unique prefix of an id.
///
/// # Errors
/// `RecordError` if there is no such run or its files are damaged; `ConfigError` for its `resolved.yaml`; if that was changed.
pub fn open_run(root: &Path, wanted: &str) -> Result<OpenedRun> {
    let path = catalog::resolve(root, wanted)?;
    let plan = stored_plan::read(&path)?;
    check_description(&path, &run_dir::read_manifest(&path)?)?;
    let experiment = resolved_experiment(&path)?;
    Ok(OpenedRun { path, plan, experiment })
}

/// Checks that `resolved.yaml` and `plan.json` in the run directory `path` still describe the run. Changes that leave the plan as it is are
/// allowed, such as other places of the data.
///
/// # Errors
/// If one of them was changed, and describes another run; with what differs.
pub(crate) fn check_description(path: &Path, manifest: &Manifest) -> Result<()> {
    run_dir::resolved_file(path)?;
    let changed = changed_descriptions(path, manifest)?;
    if changed.is_empty() {
        return Ok(());
    }
    let is_plan_file_unchanged = !changed.contains(&PLAN);
    let describes = match rebuild_plan(path, manifest)?.difference {
        PlanDifference::None => return Ok(()),
        PlanDifference::Edited if is_plan_file_unchanged => return Ok(()),
        PlanDifference::Edited => String::new(),
        PlanDifference::Other(keys) if keys.is_empty() => ", and describes a different run".to_owned(),
        PlanDifference::Other(keys) => format!(", and describes a different run ({})", keys.join(", ")),
    };
    let file = path.join(if is_plan_file_unchanged { RESOLVED } else { PLAN });
    let text = format!("it was changed after the run started{describes}; restore it from a copy");
    Err(CommandError::failure(format!("{}: {text}", file.display())))
}

/// The device that `choice` means for reading a model that was trained on `trained`. Machines are not asked for a CPU.
pub(crate) fn device_for_reading(
    choice: DeviceChoice,
    trained: Device,
    threads: usize,
    notes: &mut Vec<String>,
) -> Result<Device> {
    match choice {
        DeviceChoice::Cpu => Ok(Device::Cpu),
        _ => Ok(runner_plan::device_for_reading(choice, trained, &local_cluster(threads), notes)?),
    }
}

impl OpenedRun {
    /// The program of the first rank.
    ///
    /// # Errors
    /// If the plan has none, or one of a size that nothing here could have planned.
    pub fn program(&self) -> Result<&Program> {
        const MOST: usize = 1 << 32;
        let damaged = |problem| CommandError::failure(format!("{}: {problem}", self.path.display()));
        let program = &self.plan.ranks.first().ok_or_else(|| damaged("a plan without ranks"))?.program;
        let m = &program.model;
        if m.layers > 100_000 || m.sizes().iter().any(|&(_, size)| size == 0 || size > MOST) {
            return Err(damaged("its plan is damaged: impossible model sizes"));
        }
        Ok(program)
    }

    /// The model of a checkpoint, as the last step before it was trained. The checkpoint from which a run starts has the model of the ancestor
    /// that trained it, unless the folder of that run is gone.
    ///
    /// # Errors
    /// If a plan is damaged, or there is no such checkpoint.
    pub fn model(&self, which: CheckpointChoice) -> Result<ModelSpec> {
        let step = checkpoint::chosen_step(&self.path.join(CHECKPOINTS), which)?;
        let model = |run: &Self| Ok(run.program()?.model_at(step.saturating_sub(1)).clone());
        let root = parent_folder(&self.path);
        let ancestors = ancestors(root, &run_dir::read_manifest(&self.path)?);
        let inherited = |ancestor: &&Ancestor| !ancestor.gone && ancestor.step.is_some_and(|start| step <= start);
        match ancestors.iter().take_while(inherited).last() {
            Some(ancestor) => model(&open_run(root, &ancestor.id)?),
            None => model(self),
        }
    }

    /// The parameters of the whole model, however the run divided them among ranks.
    ///
    /// # Errors
    /// Those of [`Self::program`].
    pub fn whole_layout(&self) -> Result<ParamLayout> {
        Ok(ParamLayout::new(parameters(&self.program()?.model)))
    }

    /// The run's tokenizer: the one that it keeps, or made again from its data if that file is gone.
    ///
    /// # Errors
    /// Those of `prepare_data`.
    pub fn tokenizer(
        &self,
        pool: &rayon::ThreadPool,
        host: &Host,
        observer: &mut dyn RunObserver,
    ) -> Result<TextTokenizer> {
        match TextTokenizer::read_recorded(&self.path.join(TOKENIZER), &self.plan.data.tokenizer_hash) {
            Ok(Some(tokenizer)) => return Ok(tokenizer),
            Ok(None) => {}
            Err(error) => {
                observer.observe(&RunEvent::Warning(&format!("{error}; the tokenizer is built from the data again")));
            }
        }
        let prepared = prepare_data(&self.experiment, None, pool, host, observer)?;
        self.check_same_data(&self.experiment, &prepared, host)?;
        Ok(prepared.tokenizer.text)
    }

    /// Prepares the run's data again, for an experiment that differs from the run's in its evaluation and the places of its files at most.
    ///
    /// # Errors
    /// Those of `inputs::prepare_data`, and if the data is no longer what the run was trained on.
    pub fn prepare_data(
        &self,
        experiment: &Experiment,
        pool: &rayon::ThreadPool,
        host: &Host,
        observer: &mut dyn RunObserver,
    ) -> Result<Prepared> {
        let tokenizer = recorded_tokenizer(experiment, &self.plan.data, &self.path)?;
        let prepared = prepare_data(experiment, tokenizer.as_ref(), pool, host, observer);
        let prepared = prepared.map_err(|error| explain_missing_data(error, &self.path, experiment))?;
        self.check_same_data(experiment, &prepared, host)?;
        Ok(prepared)
    }

    /// # Errors
    /// If `prepared`, the data of `experiment`, is not what the run was trained on.
    fn check_same_data(&self, experiment: &Experiment, prepared: &Prepared, host: &Host) -> Result<()> {
        // An evaluation may have other items, and needs no initial weights.
        let without = [DataPart::Choice, DataPart::Weights];
        check_same_data(&self.path, &self.plan.data, experiment, prepared, host, &without)
    }

    /// The device that `choice` means for reading this run, in a process with `threads` threads. Auto is a GPU if the run was trained
    /// on GPUs, each of which had the whole model, and this machine has one; of several it is that of rank 0. Notes about the choice
    /// go to `notes`.
    ///
    /// # Errors
    /// If there is no such device.
    pub fn device(&self, choice: DeviceChoice, threads: usize, notes: &mut Vec<String>) -> Result<Device> {
        let program = self.program()?;
        let choice = match (choice, program.device) {
            (DeviceChoice::Auto, Device::Cuda(_)) if program.mesh.stages == 1 => DeviceChoice::Auto,
            (DeviceChoice::Auto, _) => DeviceChoice::Cpu,
            (asked, _) => asked,
        };
        device_for_reading(choice, program.device, threads, notes)
    }

    /// The weights of a checkpoint as f32 on the CPU, in the order of `layout`, which is that of the whole model; and the step after which
    /// they were saved.
    ///
    /// # Errors
    /// If there is no such checkpoint, or it is damaged.
    pub(crate) fn weights(&self, which: CheckpointChoice, layout: &Arc<ParamLayout>) -> Result<(Tensor, u64)> {
        Ok(runner_ranks::saved_state::load_weights(
            &self.path.join(CHECKPOINTS),
            which,
            layout,
            &candle_core::Device::Cpu,
        )?)
    }
}
