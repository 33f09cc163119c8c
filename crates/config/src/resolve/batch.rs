//! The `batch` section: sequences that divide into replicas, and the micro-batches of a replica, of which the last one may be smaller.

use crate::raw::RawBatch;
use crate::raw::parallel::{MAX_MICROBATCHES, RawPipeline};
use crate::resolve::model::{divisors, divisors_near, join_or, multiples_near, neighbours};
use crate::resolve::parallel::{MICROBATCHES, REPLICAS, RawMesh, STAGES};
use crate::resolve::resolver::Resolver;
use runner_spec::experiment::{AutoOr, Batch};
use runner_spec::format::division;

const DEFAULT_SEQUENCES: usize = 32;
const DEFAULT_MICRO_BATCH: usize = 8;

pub(crate) const MICRO_BATCH: &str = "batch.micro_batch";
const SEQUENCES: &str = "batch.sequences";
const TOKENS: &str = "batch.tokens";

/// More sequences, or more tokens, are not legal in a step.
const MAX_SEQUENCES: usize = 1_000_000_000;
const MAX_TOKENS: usize = 1_000_000_000_000;

/// A replica's part of the global batch.
struct Slice {
    sequences: usize,
    replicas: usize,
    /// The key that gives `sequences`.
    name: &'static str,
    /// Inputs per row, if the batch is given in tokens.
    row_length: Option<usize>,
}

impl Slice {
    /// Sequences of one replica.
    fn each(&self) -> usize {
        self.sequences / self.replicas
    }

    /// Batches that give each replica one of these numbers of sequences, in the file's unit: `sequences 12 or 18`. Empty if
    /// none is legal.
    fn batches(&self, each: &[usize]) -> String {
        let (unit, factor, most) = match self.row_length {
            Some(length) => ("tokens", length, MAX_TOKENS),
            None => ("sequences", 1, MAX_SEQUENCES),
        };
        let whole = each.iter().map(|n| n.saturating_mul(self.replicas).saturating_mul(factor));
        let whole: Vec<usize> = whole.filter(|&n| n <= most).collect();
        if whole.is_empty() { String::new() } else { format!("{unit} {}", join_or(&whole)) }
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
        let row_length = length.filter(|_| raw.tokens.is_some());
        let replicas = grid.map_or(1, |g| g.replicas);
        self.divide_among(replicas, &Slice { sequences, replicas: 1, name, row_length })?;
        let slice = Slice { sequences, replicas, name, row_length };
        let micro_batch = match grid.and_then(|g| g.pipeline) {
            Some(pipeline) => self.pipelined(raw, &slice, pipeline)?,
            None => self.accumulated(raw, &slice)?,
        };
        Some(Batch { sequences, micro_batch })
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
        // The numbers of equal micro-batches.
        let mut legal = divisors(each);
        legal.retain(|&n| n <= MAX_MICROBATCHES && (!interleaved || n % stages == 0));
        let by_replicas = if slice.replicas > 1 { "batch.sequences / replicas" } else { SEQUENCES };
        let rounding = |divisor: usize| if each.is_multiple_of(divisor) { "" } else { ", rounded up" };
        let size = match (pipeline.microbatches, micro_batch) {
            (Some(microbatches), given) => {
                self.check_at_most(MICROBATCHES, microbatches, slice)?;
                let size = each.div_ceil(microbatches);
                match given {
                    Some(given) if given != size && each.div_ceil(given) != microbatches => {
                        return self.disagreeing(slice, microbatches, given);
                    }
                    Some(given) => given,
                    None => {
                        let note = format!("{by_replicas} / microbatches{}", rounding(microbatches));
                        self.note(MICRO_BATCH, note);
                        size
                    }
                }
            }
            (None, Some(micro_batch)) => {
                self.check_at_most(MICRO_BATCH, micro_batch, slice)?;
                let note = format!("{by_replicas} / micro_batch{}", rounding(micro_batch));
                self.note(MICROBATCHES, note);
                micro_batch
            }
            (None, None) => {
                let Some(&largest) = legal.last() else {
                    return self.refuse(
                        &[STAGES, "parallel.pipeline.schedule", SEQUENCES, TOKENS, REPLICAS, MICROBATCHES, MICRO_BATCH],
                        format!(
                            "`interleaved_1f1b` needs micro-batches in groups of `stages`, but {stages} does not divide {} = {each}",
                            slice.quotient()
                        ),
                        nearest_values(&[slice.batches(&multiples_near(each, stages))]),
                    );
                };
                let enough = legal.iter().copied().find(|&n| n >= 2 * stages);
                let kind = if interleaved { "multiple of stages that divides" } else { "divisor of" };
                let note = match enough {
                    Some(_) => format!("default (smallest {kind} {by_replicas}, from 2·stages on)"),
                    None => format!("default (largest {kind} {by_replicas})"),
                };
                self.note(MICROBATCHES, note);
                let chosen = enough.unwrap_or(largest);
                self.note(MICRO_BATCH, format!("{by_replicas} / microbatches"));
                each / chosen
            }
        };
        let microbatches = each.div_ceil(size);
        if microbatches > MAX_MICROBATCHES {
            let fewest = legal.last().map_or(each, |n| each / n);
            return self.refuse(
                &[MICRO_BATCH, SEQUENCES, TOKENS, MICROBATCHES],
                format!(
                    "too many micro-batches: {} / {size} = {microbatches}; at most {MAX_MICROBATCHES} are possible",
                    slice.quotient()
                ),
                format!("nearest: micro_batch {fewest}"),
            );
        }
        if interleaved && microbatches % stages != 0 {
            return self.ungrouped(micro_batch, size, slice, pipeline, &legal);
        }
        Some(size)
    }

    /// Reports that the number of micro-batches of `size` is not a multiple of the stages; `legal` are those that divide the slice.
    fn ungrouped(
        &mut self,
        micro_batch: Option<usize>,
        size: usize,
        slice: &Slice,
        pipeline: &RawPipeline,
        legal: &[usize],
    ) -> Option<usize> {
        let (each, stages) = (slice.each(), pipeline.stages);
        let microbatches = each.div_ceil(size);
        let near = neighbours(legal, microbatches);
        let sizes: Vec<usize> = near.iter().rev().map(|n| each / n).collect();
        let help = match (near.is_empty(), pipeline.microbatches, micro_batch) {
            (false, Some(_), None) => vec![format!("microbatches {}", join_or(&near))],
            (false, None, _) => vec![format!("micro_batch {}", join_or(&sizes))],
            (false, Some(_), Some(_)) => {
                near.iter().map(|n| format!("microbatches {n} with micro_batch {}", each / n)).collect()
            }
            // A slice of this size has no legal number of micro-batches.
            (true, None, _) => vec![slice.batches(&multiples_near(each, size * stages))],
            (true, Some(_), size) => {
                let grouped = multiples_near(microbatches, stages)[0];
                let batches = match size {
                    Some(size) => slice.batches(&[grouped * size]),
                    None => slice.batches(&multiples_near(each, grouped)),
                };
                if batches.is_empty() { vec![] } else { vec![format!("microbatches {grouped} with {batches}")] }
            }
        };
        self.refuse(
            &[MICROBATCHES, MICRO_BATCH, STAGES],
            format!("`interleaved_1f1b` needs micro-batches in groups of `stages`: {}", division(microbatches, stages)),
            nearest_values(&help),
        )
    }

    /// Reports replicas that cannot have equal parts of `batch`.
    fn divide_among(&mut self, replicas: usize, batch: &Slice) -> Option<()> {
        self.check_at_most(REPLICAS, replicas, batch)?;
        let (sequences, name) = (batch.sequences, batch.name);
        if sequences.is_multiple_of(replicas) {
            return Some(());
        }
        self.refuse(
            &[REPLICAS, SEQUENCES, TOKENS],
            format!("`{REPLICAS}` does not divide {name}: {}", division(sequences, replicas)),
            nearest_values(&[
                format!("replicas {}", join_or(&divisors_near(sequences, replicas))),
                batch.batches(&multiples_near(sequences, replicas)),
            ]),
        )
    }

    /// Reports a `number`, the value of `key`, that is larger than a replica's sequences.
    fn check_at_most(&mut self, key: &'static str, number: usize, slice: &Slice) -> Option<()> {
        let Slice { replicas, name, .. } = *slice;
        let each = slice.each();
        if number <= each {
            return Some(());
        }
        let last = key.rsplit('.').next().unwrap_or(key);
        let mut keys = vec![key, SEQUENCES, TOKENS];
        if replicas > 1 {
            keys.push(REPLICAS);
        }
        let (what, lead) = match replicas {
            1 => (name, String::new()),
            _ => ("the sequences of a replica", format!("{} = {each} per replica; ", slice.quotient())),
        };
        self.refuse(
            &keys,
            format!("`{key}` is larger than {what}: {lead}{number} > {each}"),
            match slice.batches(&[number]).split_once(' ') {
                Some((unit, least)) => format!("make {last} at most {each}, or {unit} at least {least}"),
                None => format!("make {last} at most {each}"),
            },
        )
    }

    /// Reports that the size and the number of micro-batches do not make the slice.
    fn disagreeing(&mut self, slice: &Slice, microbatches: usize, micro_batch: usize) -> Option<usize> {
        let each = slice.each();
        let (size, count) = (each.div_ceil(microbatches), each.div_ceil(micro_batch));
        let help = nearest_values(&[
            format!("micro_batch {size}"),
            if micro_batch <= each && count <= MAX_MICROBATCHES {
                format!("microbatches {count}")
            } else {
                String::new()
            },
            slice.batches(&[microbatches * micro_batch]),
        ]);
        self.refuse(
            &[MICRO_BATCH, MICROBATCHES, SEQUENCES, TOKENS, REPLICAS],
            format!(
                "{} / {microbatches} micro-batches = {size}{}, but `batch.micro_batch` is {micro_batch}",
                slice.quotient(),
                if each.is_multiple_of(microbatches) { "" } else { " (rounded up)" }
            ),
            format!("{help}; or delete one of the two"),
        )
    }
}

/// The nearest legal values, one key at a time.
fn nearest_values(values: &[String]) -> String {
    let values: Vec<&str> = values.iter().map(String::as_str).filter(|v| !v.is_empty()).collect();
    if values.is_empty() { String::new() } else { format!("nearest: {}", values.join("; ")) }
}
