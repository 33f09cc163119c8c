//! `runner plan`: shows what a run would compute, need and cost, without running it.

use std::path::{Path, PathBuf};

use crate::cli::common::{
    ExperimentArgs, RunsFolderArgs, ThreadArgs, host_without_runs, parse_non_negative, read_cluster,
    warn_of_absent_files,
};
use crate::cli::experiment::plan_search::{self, SearchArgs};
use crate::cli::terminal::exit::{CommandError, Exit, Result, refuse};
use crate::cli::terminal::output::{check_replaceable, print_result, print_to_stderr};
use crate::cli::terminal::screen_observer::PreparationObserver;
use runner_compare::stored_plan;
use runner_compare::unread_data::{assume_data_hashed, known_vocabulary, sufficient_rows};
use runner_config::{ExperimentFile, LoadOptions, Loaded};
use runner_data::hub::HubError;
use runner_inputs::{local_devices, prepare_inputs, settle_micro_batch};
use runner_plan::compile_continuation;
use runner_record::run_dir::RESOLVED;
use runner_record::{catalog, run_dir};
use runner_report::Screen;
use runner_report::plan::{RenderOptions, render};
use runner_spec::cluster::ClusterFacts;
use runner_spec::data::{ASSUMED_HASH, DataFacts};
use runner_spec::diagnostic::{ConfigError, Diagnostic};
use runner_spec::experiment::{DeviceChoice, Experiment, Parallel};
use runner_spec::format::{count, counted, seconds};
use runner_spec::plan::Plan;
use runner_spec::program::Device;

/// Show the plan of an experiment: whether it fits, the predicted time and cost, steps, parameters, ranks, memory, FLOPs and data.
///
/// If it does not fit in memory, the first line says so, and the exit code is 1. The data is prepared and cached first, because the plan
/// depends on its size; `--rows` gives the size instead. If the training data or its tokenizer is missing, or on a hub that cannot be
/// reached, the plan assumes a size and warns. Nothing is trained. `--cluster` plans for machines other than this one. Instead of a file
/// you can name a run, which is then planned again.
#[derive(Debug, Clone, Default, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command")]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub experiment: ExperimentArgs,
    /// The number of threads that the run would use [default: all cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096), conflicts_with = "cluster")]
    pub threads: Option<u16>,
    /// Plan for this cluster: `16x8xH100` (nodes, devices per node, device), or a YAML file that describes it.
    #[arg(long, value_name = "NxMxDEVICE|FILE")]
    pub cluster: Option<String>,
    /// Assume this many training rows instead of reading the data; `model.vocab_size` must be set.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub rows: Option<u64>,
    /// The price of one device for one hour; the plan then shows the price of the run.
    #[arg(long, value_name = "PRICE", value_parser = parse_non_negative)]
    pub price: Option<f64>,
    /// Show this rank in full instead of one block per stage.
    #[arg(long, value_name = "N", conflicts_with = "json")]
    pub rank: Option<usize>,
    /// Print the plan as JSON, in the format of `plan.json` in a run directory.
    #[arg(long)]
    pub json: bool,
    /// Show the instructions of a step, folded where they repeat.
    #[arg(long, conflicts_with = "json")]
    pub instructions: bool,
    /// Show every line of the memory table.
    #[arg(long, conflicts_with = "json")]
    pub memory: bool,
    /// Draw the learning rate over the steps, and what stages change.
    #[arg(long, conflicts_with = "json")]
    pub plot: bool,
    #[command(flatten)]
    pub search: SearchArgs,
}

/// Plans the experiment for this machine or for `--cluster`. Progress goes to standard error, because the plan is the output.
///
/// # Errors
/// Mistakes of the experiment; data that cannot be prepared; a `PlanError`; a wrong `--cluster` or `RUNNER_PEAK_FLOPS`.
pub(crate) fn run(args: &PlanArgs) -> Result<Exit> {
    let cluster = match &args.cluster {
        Some(cluster) => read_cluster(cluster)?,
        None => local_devices(&host_without_runs(ThreadArgs { threads: args.threads })?),
    };
    let mut options = LoadOptions { allows_absent_files: true, ..args.experiment.options()? };
    let mut arguments = args.experiment.clone();
    if let Some(resolved) = resolved_file_of_run(&arguments.file) {
        // A run has all of its settings in its folder.
        (arguments.file, options.env) = (resolved, Vec::new());
    }
    let group = group_size(&arguments.file, &mut options)?;
    let mut loaded = arguments.load_with(&options)?;
    let run = arguments.file.parent().filter(|_| arguments.file.ends_with(RESOLVED));
    if let Some(path) = &args.search.write {
        check_replaceable(path, args.search.force)?;
    }
    let data = plan_data(args, &loaded, run)?;
    let settled = settle_micro_batch(&mut loaded, &data.facts, &cluster);
    let experiment = &loaded.experiment;
    let note = settled?;
    if args.search.search {
        return plan_search::run(args, &loaded, &data, &cluster);
    }
    // Steps that another run did are not this run's.
    let manifest = run.and_then(|run| run_dir::read_manifest(run).ok());
    let inherited = manifest.map_or(0, |manifest| manifest.inherited_steps());
    let mut plan = compile_continuation(experiment, &data.facts, &cluster, inherited)
        .map_err(|error| advise_cluster(error.into(), args, experiment, &cluster))?;
    plan.notes.splice(0..0, note);
    if inherited > 0 {
        plan.notes.push(format!(
            "another run did the first {}: what is shown for them are this run's settings, and that run may have had others",
            counted(inherited, "step")
        ));
    }
    plan.notes.extend(group.map(|runs| describe_group(&plan, runs)));
    plan.notes.extend(data.note);
    plan.warnings.extend(data.warning);
    print_plan(&plan, args)
}

/// `error`, with the flag that plans for another machine if the experiment asks for GPUs and this machine has none.
fn advise_cluster(
    error: CommandError,
    args: &PlanArgs,
    experiment: &Experiment,
    cluster: &ClusterFacts,
) -> CommandError {
    let has_gpu = cluster.devices.iter().any(|facts| facts.device != Device::Cpu);
    if args.cluster.is_some() || has_gpu || experiment.device != DeviceChoice::Cuda {
        return error;
    }
    let Parallel { replicas, pipeline, .. } = &experiment.parallel;
    let ranks = replicas.saturating_mul(pipeline.as_ref().map_or(1, |pipeline| pipeline.stages));
    error.hint(format!("add `--cluster 1x{ranks}xH100` to plan for a machine with GPUs"))
}

/// The number of runs in the group that `file` makes, of which `options` then load one; `None` for one run.
///
/// # Errors
/// A file that cannot be read; mistakes in its `seeds`.
fn group_size(file: &Path, options: &mut LoadOptions<'_>) -> Result<Option<usize>> {
    if !file.is_file() {
        return Ok(None);
    }
    let file = ExperimentFile::read(file)?;
    if !runner_sweep::makes_group(&file) {
        return Ok(None);
    }
    options.sets.push(runner_sweep::ONE_RUN.to_owned());
    Ok(Some(runner_sweep::group_size(&file)?))
}

/// A note on the `runs` runs of a group, each of which has the plan `plan` with its seed.
fn describe_group(plan: &Plan, runs: usize) -> String {
    let runs_text = counted(runs as u64, "run");
    let total = plan.forecast.as_ref().map_or_else(String::new, |forecast| {
        let (time, hours) = (seconds(forecast.run_seconds * runs as f64), forecast.device_hours * runs as f64);
        format!(", together {time} one after another and {hours:.2} device hours")
    });
    format!("seeds: the file makes a group of {runs_text} with this plan, apart from the seed{total}")
}

/// The facts of the data that a plan is made for, and the plan's note or warning about them.
pub(crate) struct PlanData {
    pub(crate) facts: DataFacts,
    pub(crate) note: Option<String>,
    pub(crate) warning: Option<String>,
}

/// The data of the experiment `loaded`, which may be that of the directory `run`: read, or assumed if `args` ask for that or if it cannot
/// be read.
///
/// # Errors
/// If the data is there and cannot be prepared, or cannot be assumed.
fn plan_data(args: &PlanArgs, loaded: &Loaded, run: Option<&Path>) -> Result<PlanData> {
    let experiment = &loaded.experiment;
    if let Some(rows) = args.rows {
        let note = Some(format!("data: assumed {rows} training rows (--rows); nothing was read"));
        return Ok(PlanData { facts: assumed_data(experiment, rows)?, note, warning: None });
    }
    let absent = &loaded.absent_files;
    let names_training_data =
        |file: &Diagnostic| file.key.starts_with("data.train") || file.key.starts_with("data.tokenizer");
    if run.is_none() && !absent.is_empty() && !absent.iter().any(names_training_data) {
        // The rows of the training data are known only by reading it, and reading needs the other files too.
        return Err(ConfigError::new(absent.clone()).into());
    }
    warn_of_absent_files(loaded);
    let reason = if let Some(file) = absent.first() {
        file.message.clone()
    } else {
        // `--threads` describes the planned run; the data is prepared with all threads of this machine.
        let host = host_without_runs(ThreadArgs { threads: None })?;
        let mut screen = Screen::on_standard_error();
        match prepare_inputs(experiment, &host.pool()?, &host, &mut PreparationObserver::new(&mut screen)) {
            Ok(prepared) => return Ok(PlanData { facts: prepared.facts, note: None, warning: None }),
            Err(error) if error.cause::<HubError>().is_some_and(HubError::is_unreachable) => {
                print_to_stderr(&format!("warning: {error}\n"));
                "the hub cannot be reached".to_owned()
            }
            Err(error) => return Err(error),
        }
    };
    if let Some(run) = run {
        let warning = Some(format!("data: {reason}; the plan uses the sizes that the run recorded"));
        return Ok(PlanData { facts: stored_plan::data_facts(run)?, note: None, warning });
    }
    let rows = sufficient_rows(&[experiment]);
    let (assumed, epoch_rows) = (count(rows), experiment.data.epoch_rows.filter(|epoch| *epoch <= rows));
    let follows = match epoch_rows {
        Some(epoch) => format!("of which an epoch reads {}", count(epoch)),
        None if experiment.train.epochs.is_some() => "which determine the number of steps".to_owned(),
        None => "which determine the number of epochs".to_owned(),
    };
    let warning =
        format!("data: {reason}; assumed {assumed} training rows, {follows}; use `--rows N` to set their number");
    Ok(PlanData { facts: assumed_data(experiment, rows)?, note: None, warning: Some(warning) })
}

/// The settings of the run that `wanted` names as other commands name runs; `None` if it names a file, or no run.
fn resolved_file_of_run(wanted: &Path) -> Option<PathBuf> {
    let name = wanted.to_str().filter(|_| !wanted.is_file())?;
    let run = catalog::resolve(&RunsFolderArgs { runs: None }.root(), name).ok()?;
    run_dir::resolved_file(&run).ok()
}

/// Facts of data that was not read: `rows` training rows, and sizes from the experiment for the rest.
fn assumed_data(experiment: &Experiment, rows: u64) -> Result<DataFacts> {
    let known = known_vocabulary(&experiment.data.tokenizer);
    let Some(vocab) = experiment.model.vocab_size.or(known) else {
        refuse!(
            "the size of the vocabulary is unknown, because the tokenizer is not read; set `model.vocab_size`, for \
             example with `--set model.vocab_size=65` for the characters of Tiny Shakespeare"
        );
    };
    let data = assume_data_hashed(experiment, rows, |_| ASSUMED_HASH.to_owned());
    // The model's vocabulary counts, unless the tokenizer is known to have more tokens, which the planner refuses.
    Ok(DataFacts { tokenizer_vocab: known.map_or(vocab, |known| known.max(vocab)), ..data })
}

/// # Errors
/// A request if `--rank` names no rank of the plan.
fn print_plan(plan: &Plan, args: &PlanArgs) -> Result<Exit> {
    if let Some(rank) = args.rank.filter(|&rank| rank >= plan.ranks.len()) {
        refuse!("--rank must be 0 to {}, the last rank of the plan, got {rank}", plan.ranks.len().saturating_sub(1));
    }
    let done = print_result(args.json, plan, || {
        let page = render(
            plan,
            &RenderOptions {
                instructions: args.instructions,
                memory: args.memory,
                rank: args.rank,
                price: args.price,
                plot: args.plot,
            },
        );
        match page.split_once('\n') {
            Some((shortage, rest)) if plan.shortage.is_some() => {
                format!("{}\n{rest}", console::style(shortage).red().bold())
            }
            _ => page,
        }
    })?;
    Ok(if plan.shortage.is_some() { Exit::Failed } else { done })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::terminal::exit::ErrorKind;
    use runner_plan::testing::{compiled, experiment};
    use runner_spec::experiment::Tokenizer;

    #[test]
    fn a_missing_rank_is_a_wrong_request() {
        let wrong = PlanArgs { rank: Some(1), ..PlanArgs::default() };
        let error = print_plan(&compiled(&experiment()), &wrong).expect_err("one rank");
        assert_eq!(error.kind(), ErrorKind::Request);
    }

    #[test]
    fn assumed_rows_need_a_vocabulary() {
        let mut with = experiment();
        assert_eq!(assumed_data(&with, 10).expect("bytes").tokenizer_vocab, 257);
        with.data.tokenizer = Tokenizer::Chars {};
        let error = assumed_data(&with, 10).expect_err("the text is not read");
        assert!(error.to_string().contains("`model.vocab_size`"), "{error}");
        with.model.vocab_size = Some(1000);
        let data = assumed_data(&with, 640).expect("facts");
        assert_eq!((data.tokenizer_vocab, data.train.rows, data.train.tokens), (1000, 640, 640 * 8));
        // A tenth is for validation.
        assert_eq!(data.validation.expect("configured").rows, 64);
        let cluster = runner_machine::local_cluster::local_cluster(1);
        compile_continuation(&with, &assumed_data(&with, 640).expect("facts"), &cluster, 0).expect("a plan");
    }
}
