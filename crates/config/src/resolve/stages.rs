//! The stages of the training, and the warmup of the batch, which is short for stages.

use crate::resolve::model::multiples_near;
use crate::resolve::resolver::Resolver;
use runner_spec::experiment::{Experiment, Layout, MAX_STAGES, ParallelMode, TrainStage};
use runner_spec::format::division;

const WARMUP: &str = "batch.warmup";
const STAGES: &str = "train.stages";

impl Resolver<'_> {
    /// Reports stages that do not fit `experiment`.
    pub(crate) fn check_stages(&mut self, experiment: &Experiment) {
        let Some(()) = self.check_warmup(experiment) else { return };
        let batch = &experiment.batch;
        let is_single = experiment.parallel.mode == ParallelMode::Single;
        let replicas = if is_single { 1 } else { experiment.parallel.replicas.max(1) };
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
            let sequences = stage.sequences.unwrap_or(batch.sequences);
            let message = format!(
                "`parallel.replicas` does not divide the sequences of a stage: {}",
                division(sequences, replicas)
            );
            if !sequences.is_multiple_of(replicas) {
                let nearest =
                    multiples_near(sequences, replicas).into_iter().map(|n| n.to_string()).collect::<Vec<_>>();
                let help = format!("nearest: {}", nearest.join(" or "));
                self.error(&[&of("sequences"), "parallel.replicas"], message, help);
                return;
            }
            if let Some(micro_batch) = stage.micro_batch.filter(|micro_batch| *micro_batch > sequences / replicas) {
                let each = sequences / replicas;
                let message =
                    format!("`micro_batch` must be at most the sequences of a replica, {each}, got {micro_batch}");
                self.error(&[&of("micro_batch"), &of("sequences"), "parallel.replicas"], message, "make it smaller");
            }
            let rest = TrainStage { until: stage.until, ..TrainStage::default() };
            if *stage == rest {
                let message = "a stage must have at least one of `sequences`, `micro_batch`, `length` and `windows`";
                self.error(&[&of("until")], message, "give what is different until then, or delete the stage");
            }
            let changes_rows = stage.sequences.is_some() || stage.length.is_some();
            if changes_rows && matches!(experiment.data.layout, Layout::Columns { .. }) {
                let message =
                    "the columns of `data.layout` are the sequences of a batch, so no stage can change its rows";
                self.error(
                    &[&of("sequences"), &of("length"), "data.layout"],
                    message,
                    "use `data.layout: {packed: …}`",
                );
            } else if stage.length.is_some() && matches!(experiment.data.layout, Layout::Padded { .. }) {
                let message = "`length` cannot be used with padded rows, which hold one document each";
                self.error(&[&of("length"), "data.layout"], message, "delete it, or use `data.layout: {packed: …}`");
            } else if let Err((part, why)) = experiment.at_stage(stage) {
                let help = if part == "length" { "change `length` or `sequences`" } else { "list one for each window" };
                self.error(&[&of(part)], format!("`{part}` {why}"), help);
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
