//! `fork` starts a new run from another run's settings, changed, from the start or from one of its checkpoints.

mod source;

use std::path::Path;

use runner_compare::stored_plan::resolved_experiment;
use runner_config::{LoadOptions, Loaded};
use runner_files::read_regular_text;
use runner_record::manifest::Manifest;
use runner_record::run_dir::{self, RESOLVED};
use runner_record::{CheckpointChoice, checkpoint};
use runner_spec::experiment::{Data, Experiment, Train, TrainLength, Validation};
use runner_spec::format::{counted, shell_word};
use runner_spec::model::parameters;
use runner_spec::plan::Plan;
use runner_spec::program::Program;

use crate::launched::find_devices;
use crate::outcome::RunReport;
use crate::run_start::{Beginning, Claim, RecordedRun, RunStart};
use crate::session::{RunSession, SessionOptions};
use runner_inputs::{Host, PreparedInputs, RecordedInputs, RunEvent, RunObserver, model_fetcher, pin_hub_commits};
use runner_spec::error::{CommandError, Result};
use runner_threads::stop::StopSwitch;
use source::ForkCheckpoint;

/// A request to `fork`.
#[derive(Debug, Clone)]
pub struct ForkRequest {
    /// The run to fork: a folder, an id, or the unique prefix of an id.
    pub run: String,
    /// Where the new run begins; `None`: the start, if the run has no checkpoint. If it has one, the choice is required.
    pub from: Option<ForkStart>,
    /// The new run's name; `None`: that of the forked run.
    pub name: Option<String>,
    /// True to start another fork even if there is the same one.
    pub start_new: bool,
    /// Options of the new run. The overrides change the settings of the forked run.
    pub options: SessionOptions,
}

/// The beginning of a fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForkStart {
    /// At step 0, with initial weights.
    Start,
    Checkpoint(CheckpointChoice),
}

/// The run that is forked, and where from.
struct ForkedRun {
    run: RecordedRun,
    /// The checkpoint to begin with; `None`: the start.
    source: Option<ForkCheckpoint>,
}

/// Starts or resumes the fork that `request` describes, or finds it done; `observer` receives its events, and `stop` requests an early stop.
///
/// # Errors
/// If there is no such run or checkpoint, the changes do not fit it, or the new run failed (which its record then shows, too).
pub fn fork(
    request: &ForkRequest,
    host: &Host,
    stop: &StopSwitch,
    observer: &mut dyn RunObserver,
) -> Result<RunReport> {
    let run = RecordedRun::find(&host.runs, &request.run)?;
    let step = match request.from {
        Some(ForkStart::Checkpoint(which)) => Some(checkpoint::chosen_step(&run.checkpoints(), which)?),
        Some(ForkStart::Start) => None,
        None => {
            check_has_no_checkpoint(&run.checkpoints(), &run.manifest.id)?;
            None
        }
    };
    let source = step.map(|step| ForkCheckpoint::read(&run.path, &run.manifest.id, step)).transpose()?;
    let parent = ForkedRun { run, source };
    let mut loaded = load_changed_settings(request, &parent, host, observer)?;
    let theirs = resolved_experiment(&parent.run.path)?;
    warn_of_unchanged_rows(&theirs, &loaded.experiment, observer);
    let read_inputs = |_| RecordedInputs::read(&parent.run.path, &theirs, &loaded.experiment);
    let recorded_inputs = parent.source.as_ref().map(read_inputs).transpose()?;
    let tokenizer = recorded_inputs.as_ref().and_then(|inputs| inputs.tokenizer.as_ref());
    pin_hub_commits(&mut loaded.experiment, tokenizer, host, observer)?;
    let devices = find_devices(&loaded.experiment, host, None)?;
    let inputs = PreparedInputs::new(&loaded.experiment, recorded_inputs.as_ref(), devices, host, observer)?;
    let position = parent.source.as_ref().map(|s| s.position_of_fork(&loaded.experiment, &inputs.prepared.facts));
    loaded.experiment.data.position = position.as_ref().and_then(|found| found.position);
    let ready = inputs.plan_file(&mut loaded, parent.step().unwrap_or(0), observer)?;
    parent.check_can_begin(&loaded.experiment.train, &ready.plan)?;
    if parent.source.is_some()
        && let Some(reason) = describe_trained_validation(&theirs.data, &loaded.experiment.data)
    {
        let id = &parent.run.manifest.id;
        observer.observe(&RunEvent::Warning(&format!(
            "{id} may have trained on text that is validation data of this fork, whose validation losses are then too low: {reason}"
        )));
    }
    let (experiment, options, plan) = (&loaded.experiment, &request.options, &ready.plan);
    let announce = |existing: Option<&Manifest>, observer: &mut dyn RunObserver| {
        if let (None, Some(source), Some(position)) = (existing, &parent.source, &position) {
            let rounding = describe_rounding(&source.plan, plan, &parent.run.manifest.id);
            for line in source.describe_fork(plan, position).into_iter().chain(rounding) {
                observer.observe(&RunEvent::Note(&format!("fork   {line}")));
            }
            if let Some(warning) = source.describe_jump(plan) {
                observer.observe(&RunEvent::Warning(&warning));
            }
        }
        Ok(())
    };
    let session = RunSession { options, host, experiment, ready: &ready, stop, launched: None };
    let start = RunStart {
        beginning: parent.beginning(),
        claim: Claim::Different,
        parent: Some(&parent.run.manifest),
        is_new: request.start_new,
        ..RunStart::new(&loaded, &session)
    };
    start.train(None, &announce, observer)
}

/// Warns of a changed context whose rows have the length that the run with the experiment `old` resolved from its own context.
fn warn_of_unchanged_rows(old: &Experiment, new: &Experiment, observer: &mut dyn RunObserver) {
    let (context, length) = (new.model.context_length, new.data.layout.length());
    if old.model.context_length != context && old.data.layout.length() == length && length != context {
        observer.observe(&RunEvent::Warning(&format!(
            "model.context_length is {context}, but the rows of the forked run stay {length} tokens long; set the length in `data.layout`, too"
        )));
    }
}

/// # Errors
/// If there is a checkpoint in the folder `checkpoints` of the run `id`, with all of them: then a fork must name where it starts.
fn check_has_no_checkpoint(checkpoints: &Path, id: &str) -> Result<()> {
    let steps = checkpoint::saved_steps(checkpoints)?;
    let Some(latest) = steps.last() else { return Ok(()) };
    // A run without a validation loss has no best checkpoint.
    let best = checkpoint::chosen_step(checkpoints, CheckpointChoice::Best).ok();
    let best = best.map_or_else(String::new, |step| format!(", --from best (step {step})"));
    let steps = steps.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    Err(CommandError::request(format!(
        "{id} has checkpoints; choose where the fork starts: --from start (step 0, with initial weights), --from \
         latest (step {latest}){best}, \
         or --from STEP (one of {steps})"
    )))
}

/// The parent's settings under the changes. `RUNNER_…` variables are not read. What the parent started from may be gone, if the fork begins
/// with a checkpoint.
fn load_changed_settings(
    request: &ForkRequest,
    parent: &ForkedRun,
    host: &Host,
    observer: &mut dyn RunObserver,
) -> Result<Loaded> {
    let file = run_dir::resolved_file(&parent.run.path)?;
    let text = read_regular_text(&file).map_err(CommandError::io(format!("reading {}", file.display())))?;
    let mut sets = request.options.overrides.clone();
    if let Some(name) = &request.name {
        // A JSON string is a YAML string.
        sets.push(format!("name={}", serde_json::Value::from(name.as_str())));
    }
    let fetch = model_fetcher(host, observer);
    let options = LoadOptions {
        sets,
        allows_absent_initial_inputs: parent.source.is_some(),
        fork_step: Some(parent.step().unwrap_or(0)),
        fetch_model: Some(&fetch),
        ..LoadOptions::default()
    };
    // Paths in the settings are absolute; those in the changes are relative to the current folder.
    let loaded = runner_config::from_str(&text, Path::new(RESOLVED), &options);
    drop(fetch);
    let loaded = loaded?;
    for overridden in &loaded.overridden {
        observer.observe(&RunEvent::Warning(&overridden.to_string()));
    }
    Ok(Loaded { path: file, ..loaded })
}

impl ForkedRun {
    /// The step of the checkpoint to begin with; `None`: the start.
    fn step(&self) -> Option<u64> {
        self.source.as_ref().map(|source| source.step)
    }

    fn beginning(&self) -> Beginning<'_> {
        self.source.as_ref().map_or(Beginning::Scratch, |source| Beginning::Checkpoint {
            run: &self.run,
            plan: &source.plan,
            which: CheckpointChoice::Step(source.step),
        })
    }

    /// # Errors
    /// If a run of `plan` cannot begin with this run's checkpoint, or would be this run once more.
    fn check_can_begin(&self, train: &Train, plan: &Plan) -> Result<()> {
        let RecordedRun { path, manifest } = &self.run;
        let id = &manifest.id;
        let Some(ForkCheckpoint { step, plan: theirs, .. }) = &self.source else {
            if (&plan.hash, &plan.experiment_name) != (&manifest.plan_hash, &manifest.name) {
                return Ok(());
            }
            return Err(CommandError::request(format!(
                "the fork does not differ from {id}; change a setting with `--set KEY=VALUE`, start from a \
                 checkpoint with `--from STEP`, or repeat the run with `runner reproduce {}`",
                shell_word(&path.display().to_string())
            )));
        };
        let step = *step;
        let mut wrong: Vec<String> =
            checkpoint_problems(theirs, plan).into_iter().map(|(what, advice)| format!("{what}; {advice}")).collect();
        if step >= plan.totals.steps {
            let steps = plan.totals.steps;
            let length = match train.length() {
                Ok(TrainLength::Steps(_)) | Err(_) => format!("train.steps is {steps}"),
                Ok(length) => format!("{} makes {steps} steps", length.describe()),
            };
            wrong.push(format!("{length}, but {step} are done; use `--set train.steps={}`", step + steps));
        }
        if wrong.is_empty() {
            return Ok(());
        }
        let wrong = wrong.join("; ");
        Err(CommandError::request(format!("{id} cannot be forked from step {step} like this: {wrong}")))
    }
}

/// The note that a fork of the plan `new` rounds the f32 state of the run `id`, of the plan `old`, to bf16; `None` if it does not.
fn describe_rounding(old: &Plan, new: &Plan, id: &str) -> Option<String> {
    let [had_f32, has_f32] = [old, new].map(|plan| plan.ranks.first().map(|rank| rank.program.master_weights));
    (had_f32? && !has_f32?)
        .then(|| format!("master_weights is false: weights and moments of {id}, which are f32, are rounded to bf16"))
}

/// The reason why a run with the data `old` may have trained on validation data of a fork with the data `new`, which is held out from the
/// training source; `None` if it cannot have.
fn describe_trained_validation(old: &Data, new: &Data) -> Option<String> {
    let Some(Validation::Fraction(held_out)) = new.validation else { return None };
    let percent = |share: f64| format!("{:.1}%", 100.0 * share);
    if old.train != new.train {
        return Some("data.train differs, and data.validation is its end".to_owned());
    }
    match old.validation {
        Some(Validation::Fraction(share)) if share >= held_out => None,
        Some(Validation::Fraction(share)) => Some(format!(
            "data.validation is the last {} of data.train, was the last {}",
            percent(held_out),
            percent(share)
        )),
        _ => Some(format!("data.validation is the last {} of data.train, which it read to the end", percent(held_out))),
    }
}

/// The reasons why a run of the plan `new` cannot begin with a checkpoint of a run of the plan `old`, each with advice for a fork.
pub(crate) fn checkpoint_problems(old: &Plan, new: &Plan) -> Vec<(String, String)> {
    let (Some(a), Some(b)) = (old.ranks.first(), new.ranks.first()) else { return Vec::new() };
    let differs = "the tokenizer differs, so rows of the embedding stand for different tokens";
    let advice = "keep data.tokenizer and the files that it was made from, or use --from start to train from scratch";
    let tokenizer_problem =
        (old.data.tokenizer_hash != new.data.tokenizer_hash).then(|| (differs.to_owned(), advice.to_owned()));
    let problems = [shape_problem(&a.program, &b.program), moments_problem(&a.program, &b.program), tokenizer_problem];
    problems.into_iter().flatten().collect()
}

/// The first parameter that the two models do not have alike.
fn shape_problem(old: &Program, new: &Program) -> Option<(String, String)> {
    let (old, new) = (parameters(&old.model), parameters(&new.model));
    let mut pairs = old.iter().zip(&new);
    let different = pairs.find(|(a, b)| (&a.name, &a.shape) != (&b.name, &b.shape));
    let what = match different {
        Some((a, b)) if a.name == b.name => format!("{} was {:?}, would be {:?}", a.name, a.shape, b.shape),
        Some((a, b)) => format!("it has {}, but the new model has {}", a.name, b.name),
        None if old.len() == new.len() => return None,
        None => format!("it has {} parameters, but the new model has {}", old.len(), new.len()),
    };
    Some((format!("the model's shapes differ ({what})"), "use --from start to train from scratch".to_owned()))
}

/// Why the new optimizer cannot use the old one's moments.
fn moments_problem(old: &Program, new: &Program) -> Option<(String, String)> {
    let [(had, old), (needs, new)] =
        [old, new].map(|program| (program.optimizer.description().moments(), program.optimizer.name()));
    if needs == 0 || (had, old) == (needs, new) {
        return None;
    }
    let what = if had == needs {
        format!("the checkpoint has the moments of {old}, and {new} cannot use them")
    } else {
        let has = format!("the checkpoint has {} of {old}", counted(had as u64, "moment"));
        format!("{has}, but {new} with these settings needs {needs}, and no optimizer uses another's")
    };
    Some((what, format!("keep {old}, use sgd without momentum, or use --from start to train from scratch")))
}
