//! The layouts that a search compares: how an experiment's work can be divided, with the micro-batch and the recomputation.

use serde::Serialize;

use crate::schedule::{ScheduledPass, schedule};
use runner_spec::experiment::ShardedState;
use runner_spec::experiment::{AutoOr, Experiment, Parallel, ParallelMode, Pipeline, PipelineSchedule, Recompute};
use runner_spec::format::{choice_name, counted};

/// The settings of an experiment that a search changes. They change how numbers are added, and no other arithmetic.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Layout {
    pub parallel: Parallel,
    pub micro_batch: usize,
    pub recompute: Recompute,
}

impl Layout {
    /// The layout of `experiment`.
    pub fn of(experiment: &Experiment) -> Self {
        Self {
            parallel: experiment.parallel.clone(),
            micro_batch: experiment.batch.micro_batch,
            recompute: experiment.train.recompute,
        }
    }

    /// `experiment` with this layout. A validation loss that counts micro-batches reads as many rows as before.
    #[must_use]
    pub fn apply(&self, experiment: &Experiment) -> Experiment {
        let mut changed = experiment.clone();
        changed.eval.loss = experiment.eval.loss.map(|loss| loss.in_rows(experiment.batch.micro_batch));
        changed.parallel = self.parallel.clone();
        changed.batch.micro_batch = self.micro_batch;
        changed.train.recompute = self.recompute;
        changed
    }

    /// The layout in the words of the file, such as `ddp, 4 replicas, shard optimizer`, without micro-batch and recomputation.
    pub fn describe(&self) -> String {
        let Parallel { mode, replicas, shard, pipeline, .. } = &self.parallel;
        let mut words = vec![choice_name(mode)];
        if let Some(Pipeline { stages, schedule, chunks, partition, .. }) = pipeline {
            words.push(counted(*stages as u64, "stage"));
            words.push(match chunks {
                1 => choice_name(schedule),
                _ => format!("{} of {chunks} chunks", choice_name(schedule)),
            });
            if let AutoOr::Given(counts) = partition {
                words.push(format!("partition {counts:?}"));
            }
        }
        if *replicas > 1 {
            words.push(counted(*replicas as u64, "replica"));
        }
        words.extend(shard.map(|state| format!("shard {}", choice_name(&state))));
        words.join(", ")
    }
}

/// The part of a layout that decides the order of passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PipelineShape {
    pub stages: usize,
    pub schedule: PipelineSchedule,
    pub chunks: usize,
}

impl PipelineShape {
    /// One stage, and every pipeline of at most `max_stages` stages for `layers` layers.
    pub(super) fn all(max_stages: usize, layers: usize) -> Vec<Self> {
        let whole = Self { stages: 1, schedule: PipelineSchedule::OneFOneB, chunks: 1 };
        let mut shapes = vec![whole];
        for stages in 2..=max_stages.min(layers) {
            for schedule in [PipelineSchedule::OneFOneB, PipelineSchedule::Gpipe, PipelineSchedule::ZeroBubble] {
                shapes.push(Self { stages, schedule, chunks: 1 });
            }
            let schedule = PipelineSchedule::Interleaved;
            shapes.extend((2..=layers / stages).map(|chunks| Self { stages, schedule, chunks }));
        }
        shapes
    }

    /// The passes of each stage under `layout`, which has this shape.
    pub(super) fn passes(self, layout: &Layout, sequences: usize) -> Vec<Vec<ScheduledPass>> {
        let micro_batches = (sequences / layout.parallel.replicas).div_ceil(layout.micro_batch);
        schedule(self.schedule, self.stages, self.chunks, micro_batches)
    }

    pub(super) fn splits_backwards(self) -> bool {
        self.schedule == PipelineSchedule::ZeroBubble
    }

    /// The ways in which `replicas` of this shape can share the work: modes and sharded state. On several machines there is no dp, whose
    /// replicas are threads of one process.
    pub(super) fn modes(self, replicas: usize, one_machine: bool) -> Vec<(ParallelMode, Option<ShardedState>)> {
        let optimizer = Some(ShardedState::Optimizer);
        match (self.stages, replicas) {
            (1, 1) => vec![(ParallelMode::Single, None)],
            (1, _) => {
                let sharded = [None, optimizer, Some(ShardedState::Gradients), Some(ShardedState::Parameters)];
                let dp = one_machine.then_some((ParallelMode::Dp, None));
                dp.into_iter().chain(sharded.map(|shard| (ParallelMode::Ddp, shard))).collect()
            }
            (_, 1) => vec![(ParallelMode::Pipeline, None)],
            _ => vec![(ParallelMode::Pipeline, None), (ParallelMode::Pipeline, optimizer)],
        }
    }

    /// The section `pipeline` of the file; `None` for one stage.
    pub(super) fn pipeline(self, microbatches: usize, partition: AutoOr<Vec<usize>>) -> Option<Pipeline> {
        let Self { stages, schedule, chunks } = self;
        (stages > 1).then_some(Pipeline { stages, partition, schedule, chunks, microbatches })
    }
}
