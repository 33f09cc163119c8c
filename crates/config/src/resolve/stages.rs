//! The stages of the training, and the warmup of the batch, which is shorthand for stages.

use crate::resolve::resolver::Resolver;
use runner_spec::experiment::{Experiment, MAX_STAGES, TrainStage};
use runner_spec::format::division;

const WARMUP: &str = "batch.warmup";
const STAGES: &str = "train.stages";

impl Resolver<'_> {
    /// Reports stages that do not fit `experiment`.
    pub(crate) fn check_stages(&mut self, experiment: &Experiment) {
        let Some(()) = self.check_warmup(experiment) else { return };
        let (stages, section) = experiment.earlier_stages();
        if stages.len() > MAX_STAGES {
            let message = format!("`{section}` must be at most {MAX_STAGES} stages");
            self.error(&[section], message, "merge stages, or use a larger increment");
            return;
        }
        let mut done = Some(0);
        for (index, stage) in stages.iter().enumerate() {
            let of =
                |part: &str| if section == WARMUP { WARMUP.to_owned() } else { format!("{section}.{index}.{part}") };
            // Other ends are known when the data is.
            let (steps, end) = (experiment.train.steps, stage.until.known_steps(experiment.train.steps));
            let is_late = end.zip(steps).is_some_and(|(end, steps)| end >= steps);
            if let (Some(before), Some(end)) = (done, end)
                && experiment.data.position.is_none()
                && (end <= before || is_late)
            {
                let rule = match steps {
                    Some(steps) if is_late => format!("before step {steps}, the end of the run"),
                    _ => format!("after step {before}, where it starts"),
                };
                let message = format!("a stage must end {rule}, got step {end}");
                let help = "give each stage at least one step, and the last one too";
                self.error(&[&of("until"), "train.steps"], message, help);
                return;
            }
            done = end;
            if *stage == (TrainStage { until: stage.until, ..TrainStage::default() }) {
                let message = "a stage must have at least one of `sequences`, `micro_batch`, `length` and `windows`";
                self.error(&[&of("until")], message, "give what is different until then, or delete the stage");
            }
            if let Err((part, why)) = experiment.at_stage(stage) {
                let message = if section == WARMUP {
                    format!("in the warmup's stage of {} sequences, `{part}` {why}", stage.sequences.unwrap_or(0))
                } else {
                    format!("`{part}` {why}")
                };
                let help = match part {
                    "windows" => "list one for each window",
                    "micro_batch" => "make it smaller",
                    "sequences" => "choose other sequences, replicas or another `data.layout`",
                    _ => "change `length`, `sequences` or `data.layout`",
                };
                self.error(&[&of(part)], message, help);
                return;
            }
        }
    }

    /// Reports a warmup of the batch that does not reach it.
    fn check_warmup(&mut self, experiment: &Experiment) -> Option<()> {
        let batch = &experiment.batch;
        if let Some(warmup) = batch.warmup {
            if !experiment.train.stages.is_empty() {
                self.error(
                    &[WARMUP, STAGES],
                    "`batch.warmup` cannot be used with `train.stages`",
                    "give each stage its `sequences`, and delete the warmup",
                );
                return None;
            }
            let key = ["batch.warmup.from", "batch.warmup.increment", "batch.sequences", "batch.tokens"];
            if warmup.from >= batch.sequences {
                let message = format!(
                    "`batch.warmup.from` must be below the sequences of the batch, {}, got {}",
                    batch.sequences, warmup.from
                );
                self.error(&key, message, "make it smaller, or delete the warmup");
                return None;
            }
            let (missing, added) = (batch.sequences - warmup.from, warmup.added());
            if !missing.is_multiple_of(added) {
                let message = format!(
                    "a warmup from {} to {} sequences must be whole increments: {}",
                    warmup.from,
                    batch.sequences,
                    division(missing, added)
                );
                self.error(&key, message, "choose `increment` or `from` so that it divides the difference");
                return None;
            }
        }
        Some(())
    }
}
