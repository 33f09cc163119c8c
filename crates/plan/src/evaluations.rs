//! What a run evaluates, samples and saves, and when.

use crate::error::{Result, refuse};
use runner_spec::data::DataFacts;
use runner_spec::experiment::{EvalLoss, Experiment, Samples, task_key};
use runner_spec::program::{EvalSpec, Instruction, Periodic, ScoredTask};

/// The evaluations that the prepared data allows. A validation loss without a validation split is left out, with a note:
/// it is on by default, so most files that lack the split never asked for it.
pub(crate) fn eval_spec(
    experiment: &Experiment,
    data: &DataFacts,
    micro_batch: usize,
    notes: &mut Vec<String>,
) -> Result<EvalSpec> {
    let eval = &experiment.eval;
    let loss = match (&eval.loss, &data.validation) {
        (Some(_), None) => {
            notes.push("no validation loss: data.validation is not given, so eval.loss is left out".to_owned());
            None
        }
        (Some(_), Some(split)) if split.rows == 0 => {
            refuse!(
                "data.validation",
                "its {} tokens do not fill a row of the layout's length; give it more",
                split.tokens
            );
        }
        (None, _) => None,
        (Some(loss), Some(_)) => {
            if let EvalLoss::Batches(batches) = loss {
                let rows = loss.rows(micro_batch);
                notes.push(format!(
                    "eval.loss.batches: {batches} micro-batches of {micro_batch} are {rows} rows, and a different batch.micro_batch reads \
                     different rows; write eval.loss: {{rows: {rows}}}, which gives the same plan"
                ));
            }
            Some(loss.canonical(micro_batch))
        }
    };
    let mut tasks = Vec::new();
    for (name, task) in eval.tasks() {
        let Some(facts) = data.task(name) else { refuse!(task_key(name), "its items were not prepared") };
        tasks.push(ScoredTask { name: name.to_owned(), items: facts.items, every: Some(eval.task_every(task)) });
    }
    // The periodic instruction has the interval.
    let samples = eval.samples.clone().filter(|s| !s.prompts.is_empty() && s.count > 0);
    let samples = samples.map(|samples| Samples { every: None, ..samples });
    let test_rows = data.test.as_ref().and(eval.test_rows);
    let mut intervals = loss.iter().map(|_| eval.every).chain(tasks.iter().filter_map(|task| task.every));
    let first = intervals.next();
    if intervals.all(|every| Some(every) == first) {
        for task in &mut tasks {
            task.every = None;
        }
    }
    let loss_every = loss.filter(|_| tasks.iter().any(|task| task.every.is_some())).map(|_| eval.every);
    let spec = EvalSpec { loss, loss_every, samples, test_rows, ..EvalSpec::default() };
    Ok(spec.with_tasks(tasks))
}

/// Evaluate before Checkpoint, so that the checkpoint knows whether it is the best.
pub(crate) fn periodic(experiment: &Experiment, eval: &EvalSpec) -> Result<Vec<Periodic>> {
    let (settings, saved) = (&experiment.eval, experiment.checkpoint.every);
    let of_tasks = settings.tasks().map(|(name, task)| (task_key(name) + ".every", settings.task_every(task)));
    for (key, every) in [
        ("eval.every".into(), settings.every),
        ("eval.samples.every".into(), settings.samples_every()),
        ("checkpoint.every".into(), saved),
    ]
    .into_iter()
    .chain(of_tasks)
    {
        if every == 0 {
            refuse!(key, "must be at least 1, got 0");
        }
    }
    let losses = eval.loss.iter().map(|_| settings.every);
    let evaluations = losses.chain(settings.tasks().map(|(_, task)| settings.task_every(task)));
    let evaluate = Periodic::at_any(evaluations.collect(), Instruction::Evaluate);
    let sample = eval.samples.as_ref().map(|_| Periodic::new(settings.samples_every(), Instruction::Sample));
    Ok([evaluate, sample, Some(Periodic::new(saved, Instruction::Checkpoint))].into_iter().flatten().collect())
}

/// The instructions before the first step: an evaluation, where the file asks for it and there is something to evaluate.
pub(crate) fn start(experiment: &Experiment, periodic: &[Periodic]) -> Vec<Instruction> {
    let evaluates = periodic.iter().any(|p| p.instruction == Instruction::Evaluate);
    (experiment.eval.at_start && evaluates).then_some(Instruction::Evaluate).into_iter().collect()
}
