//! The `batch` section: sequences that divide into replicas, and the micro-batches of a replica, of which the last one may be smaller.

use crate::raw::RawBatch;
use crate::raw::parallel::{MAX_MICROBATCHES, RawPipeline};
use crate::resolve::model::{divisors, divisors_near, join_or, multiples_near};
use crate::resolve::parallel::{MICROBATCHES, REPLICAS, RawMesh, STAGES};
use crate::resolve::resolver::Resolver;
use runner_spec::experiment::{AutoOr, Batch};
use runner_spec::format::division;

const DEFAULT_SEQUENCES: usize = 32;
const DEFAULT_MICRO_BATCH: usize = 8;

pub(crate) const MICRO_BATCH: &str = "batch.micro_batch";
const SEQUENCES: &str = "batch.sequences";
const TOKENS: &str = "batch.tokens";

/// A replica's part of the global batch.
struct Slice {
    sequences: usize,
    replicas: usize,
    /// The key that gives `sequences`.
    name: &'static str,
}

impl Slice {
    /// Sequences of one replica.
    fn each(&self) -> usize {
        self.sequences / self.replicas
    }

    /// `16 sequences / 2 replicas`.
    fn quotient(&self) -> String {
        match self.replicas {
            1 => format!("{} sequences", self.sequences),
            replicas => format!("{} sequences / {replicas} replicas", self.sequences),
        }
    }
}

impl Resolver<'_> {
    /// Resolves the section. `length` is the number of inputs per row, if that is known. After a mistake in the grid, `grid` is `None`,
    /// and the batch is checked as for one replica: a micro-batch that is larger than the whole batch is larger than a replica's part.
    pub(crate) fn batch(&mut self, raw: &RawBatch, length: Option<usize>, grid: Option<RawMesh<'_>>) -> Option<Batch> {
        let sequences = self.sequences(raw, length)?;
        let name = match (raw.sequences, raw.tokens) {
            (_, Some(_)) => "the sequences of `batch.tokens`",
            (Some(_), None) => "`batch.sequences`",
            (None, None) => "the default of `batch.sequences`",
        };
        let replicas = grid.map_or(1, |g| g.replicas);
        self.divide_among(replicas, &Slice { sequences, replicas: 1, name }, length.filter(|_| raw.tokens.is_some()))?;
        let slice = Slice { sequences, replicas, name };
        let micro_batch = match grid.and_then(|g| g.pipeline) {
            Some(pipeline) => self.pipelined(raw, &slice, pipeline)?,
            None => self.accumulated(raw, &slice)?,
        };
        Some(Batch { sequences, micro_batch, warmup: raw.warmup })
    }

    fn sequences(&mut self, raw: &RawBatch, length: Option<usize>) -> Option<usize> {
        let tokens = match (raw.sequences, raw.tokens) {
            (Some(sequences), _) => return Some(sequences),
            (None, None) => return Some(DEFAULT_SEQUENCES),
            (None, Some(tokens)) => tokens,
        };
        let length = length?;
        if tokens % length != 0 {
            return self.refuse(
                &[TOKENS],
                format!("`batch.tokens` is not a whole number of rows: {}", division(tokens, length)),
                format!("nearest: {}", join_or(&multiples_near(tokens, length))),
            );
        }
        let from = self.layers.origin(TOKENS, false).unwrap_or_default();
        self.note(SEQUENCES, format!("batch.tokens / {length}, {from}"));
        Some(tokens / length)
    }

    /// Micro-batch of a rank that has the whole model; for `auto`, the largest.
    fn accumulated(&mut self, raw: &RawBatch, slice: &Slice) -> Option<usize> {
        let each = slice.each();
        let Some(given) = &raw.micro_batch else {
            let whole = if slice.replicas > 1 { "sequences / replicas" } else { "sequences" };
            self.note(MICRO_BATCH, format!("default (largest divisor of {whole} up to {DEFAULT_MICRO_BATCH})"));
            return Some((1..=DEFAULT_MICRO_BATCH).rev().find(|m| each.is_multiple_of(*m)).unwrap_or(1));
        };
        match *given {
            AutoOr::Auto => Some(each),
            AutoOr::Given(micro_batch) => self.check_at_most(MICRO_BATCH, micro_batch, slice).map(|()| micro_batch),
        }
    }

    /// Micro-batch of a pipeline. It follows from the number of micro-batches as in `torch.chunk`: rounded up, so that they may be fewer.
    fn pipelined(&mut self, raw: &RawBatch, slice: &Slice, pipeline: &RawPipeline) -> Option<usize> {
        let micro_batch = match raw.micro_batch {
            Some(AutoOr::Auto) => {
                return self.refuse(
                    &[MICRO_BATCH, "parallel.mode"],
                    "`batch.micro_batch: auto` does not go with mode `pipeline`: one large micro-batch would leave the stages idle",
                    "set `parallel.pipeline.microbatches`; `runner plan FILE --search` compares their numbers",
                );
            }
            Some(AutoOr::Given(micro_batch)) => Some(micro_batch),
            None => None,
        };
        let each = slice.each();
        let stages = pipeline.stages;
        let interleaved = pipeline.is_interleaved();
        let by_replicas = if slice.replicas > 1 { "batch.sequences / replicas" } else { SEQUENCES };
        let rounding = |divisor: usize| if each.is_multiple_of(divisor) { "" } else { ", rounded up" };
        let size = match (pipeline.microbatches, micro_batch) {
            (Some(microbatches), given) => {
                self.check_at_most(MICROBATCHES, microbatches, slice)?;
                let size = each.div_ceil(microbatches);
                if given.is_none() {
                    self.note(MICRO_BATCH, format!("{by_replicas} / microbatches{}", rounding(microbatches)));
                }
                let given = given.unwrap_or(size);
                if given != size && each.div_ceil(given) != microbatches {
                    return self.refuse(
                        &[MICRO_BATCH, MICROBATCHES, SEQUENCES, TOKENS, REPLICAS],
                        format!(
                            "{} / {microbatches} micro-batches = {size}{}, but `batch.micro_batch` is {given}",
                            slice.quotient(),
                            rounding(microbatches)
                        ),
                        "delete one of the two",
                    );
                }
                given
            }
            (None, Some(micro_batch)) => {
                self.check_at_most(MICRO_BATCH, micro_batch, slice)?;
                self.note(MICROBATCHES, format!("{by_replicas} / micro_batch{}", rounding(micro_batch)));
                micro_batch
            }
            (None, None) => {
                let mut equal = divisors(each);
                equal.retain(|&n| n <= MAX_MICROBATCHES && (!interleaved || n % stages == 0));
                let enough = equal.iter().copied().find(|&n| n >= 2 * stages);
                let kind = if interleaved { "multiple of stages that divides" } else { "divisor of" };
                let note = match enough {
                    Some(_) => format!("default (smallest {kind} {by_replicas}, from 2·stages on)"),
                    None => format!("default (largest {kind} {by_replicas})"),
                };
                self.note(MICROBATCHES, note);
                self.note(MICRO_BATCH, format!("{by_replicas} / microbatches"));
                each / enough.or(equal.last().copied()).unwrap_or(each)
            }
        };
        let microbatches = each.div_ceil(size);
        if microbatches > MAX_MICROBATCHES {
            return self.refuse(
                &[MICRO_BATCH, SEQUENCES, TOKENS, MICROBATCHES],
                format!(
                    "too many micro-batches: {} / {size} = {microbatches}; at most {MAX_MICROBATCHES} are possible",
                    slice.quotient()
                ),
                "make `batch.micro_batch` larger",
            );
        }
        if interleaved && microbatches % stages != 0 {
            return self.refuse(
                &[MICROBATCHES, MICRO_BATCH, STAGES],
                format!(
                    "`interleaved_1f1b` needs micro-batches in groups of `stages`: {}",
                    division(microbatches, stages)
                ),
                "make their number a multiple of `stages`",
            );
        }
        Some(size)
    }

    /// Reports replicas that cannot have equal parts of `batch`, whose rows have `row_length` inputs if it is given in tokens.
    fn divide_among(&mut self, replicas: usize, batch: &Slice, row_length: Option<usize>) -> Option<()> {
        self.check_at_most(REPLICAS, replicas, batch)?;
        let (sequences, name) = (batch.sequences, batch.name);
        if sequences.is_multiple_of(replicas) {
            return Some(());
        }
        let (unit, length) = row_length.map_or(("sequences", 1), |length| ("tokens", length));
        let batches: Vec<usize> =
            multiples_near(sequences, replicas).into_iter().map(|n| n.saturating_mul(length)).collect();
        self.refuse(
            &[REPLICAS, SEQUENCES, TOKENS],
            format!("`{REPLICAS}` does not divide {name}: {}", division(sequences, replicas)),
            format!("nearest: replicas {}; {unit} {}", join_or(&divisors_near(sequences, replicas)), join_or(&batches)),
        )
    }

    /// Reports a `number`, the value of `key`, that is larger than a replica's sequences.
    fn check_at_most(&mut self, key: &'static str, number: usize, slice: &Slice) -> Option<()> {
        let Slice { replicas, name, .. } = *slice;
        let each = slice.each();
        if number <= each {
            return Some(());
        }
        let (what, lead) = match replicas {
            1 => (name, String::new()),
            _ => ("the sequences of a replica", format!("{} = {each} per replica; ", slice.quotient())),
        };
        let keys = [key, SEQUENCES, TOKENS, REPLICAS];
        self.refuse(
            &keys[..if replicas > 1 { 4 } else { 3 }],
            format!("`{key}` is larger than {what}: {lead}{number} > {each}"),
            format!("make it at most {each}, or the batch larger"),
        )
    }
}
