//! Executes one rank's program symbolically: checks that each instruction has what it needs.

use super::error::{CheckError, Result, ensure, instruction_name, row_names};
use super::live_activations::{LiveMicroBatches, LivePeak};
use super::program_shape::{check_periodic, check_shape};
use runner_spec::program::{BlockRange, Instruction, ParallelMode, Program, ShardedState};

const OWN_WEIGHTS: &str = "every rank has its own weights here";
const LAST_WEIGHTS: &str = "the replicas have the last step's weights";

/// The result of one program's execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutionSummary {
    /// Per chunk, the micro-batches that have run forward and not yet backward, at the moment when they hold the most.
    pub live: Vec<LiveMicroBatches>,
    /// Per micro-batch, the index of the last instruction that adds to the gradients.
    pub(super) last_addition: Vec<usize>,
}

impl ExecutionSummary {
    /// Micro-batches in flight at the peak, in all chunks together.
    pub fn in_flight(&self) -> usize {
        self.live.iter().map(|l| l.saved + l.work).sum()
    }
}

/// The progress of one micro-batch on one chunk: the indices of the instructions that have run.
#[derive(Debug, Clone, Copy, Default)]
struct MicroBatchProgress {
    received_activation: Option<usize>,
    /// The forward of the chunk's last block.
    forward: Option<usize>,
    sent_activation: Option<usize>,
    received_gradient: Option<usize>,
    backward_input: Option<usize>,
    backward: Option<usize>,
    sent_gradient: Option<usize>,
    /// The blocks of the chunk before this one have run forward.
    forward_reached: usize,
    /// The blocks of the chunk before this one have not run backward.
    backward_reached: usize,
}

/// A bucket of weights that replicas update in part: the instructions that started to gather them, and that completed it.
#[derive(Debug, Clone, Copy, Default)]
struct GatheredBucket {
    prefetched: Option<usize>,
    gathered: Option<usize>,
}

struct Execution<'a> {
    program: &'a Program,
    /// Parts of the model: stages times chunks.
    parts: usize,
    loads: Vec<Option<usize>>,
    /// Per chunk and micro-batch.
    progress: Vec<Vec<MicroBatchProgress>>,
    counted: Option<usize>,
    /// The broadcast of the weights.
    broadcast: Option<usize>,
    /// By bucket, where replicas update parts of the weights.
    gathered: Vec<GatheredBucket>,
    reduced: Vec<Option<usize>>,
    waited: Option<usize>,
    summed_tied: Option<usize>,
    clipped: Option<usize>,
    ended: Option<usize>,
    live: LivePeak,
    last_addition: Vec<usize>,
}

/// Executes one program.
///
/// # Errors
/// The first violation, naming its instruction.
pub fn execute(program: &Program) -> Result<ExecutionSummary> {
    check_shape(program)?;
    let micro_batches = program.batch.micro_batches();
    let fresh = |chunk: &BlockRange| {
        let (forward_reached, backward_reached) = (chunk.start, chunk.end);
        vec![MicroBatchProgress { forward_reached, backward_reached, ..MicroBatchProgress::default() }; micro_batches]
    };
    let mut execution = Execution {
        program,
        parts: program.mesh.stages * program.chunks.len(),
        loads: vec![None; micro_batches],
        progress: program.chunks.iter().map(fresh).collect(),
        counted: None,
        broadcast: None,
        gathered: vec![GatheredBucket::default(); if program.shards.is_empty() { 0 } else { program.buckets.len() }],
        reduced: vec![None; program.buckets.len()],
        waited: None,
        summed_tied: None,
        clipped: None,
        ended: None,
        live: LivePeak::new(program),
        last_addition: vec![0; micro_batches],
    };
    for (index, instruction) in program.step.iter().enumerate() {
        execution.step(index, *instruction).map_err(|why| CheckError::at_instruction(program, index, why))?;
    }
    if execution.ended.is_none() {
        let why = if program.owns_optimizer() {
            "there is no OptimizerStep: the weights never change"
        } else {
            "there is no ZeroGradients: the next step would add to these gradients"
        };
        return Err(CheckError::in_part(program, "step", why));
    }
    check_periodic(program)?;
    Ok(ExecutionSummary { live: execution.live.peak, last_addition: execution.last_addition })
}

impl Execution<'_> {
    fn step(&mut self, index: usize, instruction: Instruction) -> Result<(), String> {
        self.check_bounds(instruction)?;
        let ends = matches!(instruction, Instruction::OptimizerStep | Instruction::ZeroGradients);
        if let Some(ended) = self.ended {
            return Err(format!("it comes after {}, which ends the step", self.name(ended)));
        }
        if let Some(clipped) = self.clipped.filter(|_| !ends) {
            return Err(format!(
                "it comes after {}, after which only the end of the step may follow",
                self.name(clipped)
            ));
        }
        match instruction {
            Instruction::Load { mb } => self.load(index, mb),
            Instruction::CountTokens { numerator } => self.count_tokens(index, numerator),
            Instruction::PrefetchParameters { bucket } => self.prefetch(index, bucket),
            Instruction::GatherParameters { bucket } => {
                self.check_gathers(bucket)?;
                once(self.program, &mut self.gathered[bucket].gathered, index)
            }
            Instruction::ReleaseParameters { bucket } => self.release(bucket),
            Instruction::BroadcastWeights => self.broadcast_weights(index),
            Instruction::Forward { mb, chunk, blocks } => self.forward(index, mb, chunk, blocks),
            Instruction::Backward { mb, chunk, blocks } => self.backward(index, mb, chunk, blocks, false),
            Instruction::BackwardInput { mb, chunk } => self.backward_input(index, mb, chunk),
            Instruction::BackwardWeight { mb, chunk, blocks } => self.backward(index, mb, chunk, blocks, true),
            Instruction::SendActivation { mb, chunk, to } => {
                self.check_peer(to, self.next_part(chunk)?)?;
                self.check_forward(mb, chunk)?;
                once(self.program, &mut self.progress[chunk][mb].sent_activation, index)
            }
            Instruction::RecvActivation { mb, chunk, from } => {
                self.check_peer(from, self.previous_part(chunk)?)?;
                once(self.program, &mut self.progress[chunk][mb].received_activation, index)
            }
            Instruction::RecvGradient { mb, chunk, from } => {
                self.check_peer(from, self.next_part(chunk)?)?;
                self.check_forward(mb, chunk)?;
                once(self.program, &mut self.progress[chunk][mb].received_gradient, index)
            }
            Instruction::SendGradient { mb, chunk, to } => {
                self.check_peer(to, self.previous_part(chunk)?)?;
                let start = self.program.chunks[chunk].start;
                let progress = &mut self.progress[chunk][mb];
                let is_ready = progress.backward_input.is_some() || progress.backward_reached <= start;
                ensure!(is_ready, "the backward of micro-batch {mb} has not reached block {start}");
                once(self.program, &mut progress.sent_gradient, index)
            }
            Instruction::AllReduce { bucket }
            | Instruction::ReduceScatter { bucket }
            | Instruction::ReduceToRoot { bucket } => {
                self.reduce(index, bucket, self.program.step[index] == self.program.reduction(bucket))
            }
            Instruction::WaitBuckets => {
                if let Some(bucket) = self.reduced.iter().position(Option::is_none) {
                    return Err(format!("{} has not started", self.program.reduction(bucket)));
                }
                once(self.program, &mut self.waited, index)
            }
            Instruction::SumTied => self.sum_tied(index),
            Instruction::ClipNorm { max } => {
                self.check_gradients_complete()?;
                ensure!(max.is_none_or(|max| max > 0.0), "the norm must be positive");
                self.clipped = Some(index);
                Ok(())
            }
            Instruction::OptimizerStep | Instruction::ZeroGradients => self.end_step(index, instruction),
            Instruction::Evaluate | Instruction::Sample | Instruction::Checkpoint => {
                Err("it is periodic, not part of a step".to_owned())
            }
        }
    }

    /// Follows an `OptimizerStep` or `ZeroGradients`.
    fn end_step(&mut self, index: usize, instruction: Instruction) -> Result<(), String> {
        let (updates, owns_optimizer) = (instruction == Instruction::OptimizerStep, self.program.owns_optimizer());
        ensure!(!updates || owns_optimizer, "this rank holds no optimizer state: the root updates");
        ensure!(updates || !owns_optimizer, "this rank holds the optimizer state");
        self.check_gradients_complete()?;
        ensure!(self.clipped.is_some(), "ClipNorm has not run: the gradients are neither measured nor clipped");
        if let Some(bucket) = self.gathered.iter().position(|b| b.prefetched.is_some() && b.gathered.is_none()) {
            return Err(format!("GatherParameters bucket {bucket} has not run: its weights may still be on their way"));
        }
        let held = self.gathered.iter().position(|b| b.gathered.is_some());
        if let Some(bucket) = held.filter(|_| self.releases()) {
            return Err(format!(
                "ReleaseParameters bucket {bucket} has not run: the next step would read weights from before this update"
            ));
        }
        self.ended = Some(index);
        Ok(())
    }

    fn name(&self, index: usize) -> String {
        instruction_name(index, &self.program.step[index])
    }

    fn check_bounds(&self, instruction: Instruction) -> Result<(), String> {
        let (micro_batches, rows) = (self.loads.len(), self.program.batch.slice.1);
        if let Some(mb) = instruction.mb() {
            ensure!(mb < micro_batches, "there is no micro-batch {mb}: the rank's {rows} rows make {micro_batches}");
        }
        let (chunks, buckets) = (self.progress.len(), self.reduced.len());
        if let Some(chunk) = instruction.chunk() {
            ensure!(chunk < chunks, "there is no chunk {chunk}: the rank holds {chunks}");
        }
        if let Some(bucket) = instruction.bucket() {
            ensure!(bucket < buckets, "there is no bucket {bucket}: there are {buckets}");
        }
        Ok(())
    }

    fn row_names(&self, mb: usize) -> String {
        let (start, count) = self.program.batch.rows(mb);
        row_names(start, count, self.program.batch.stride)
    }

    fn previous_part(&self, chunk: usize) -> Result<usize, String> {
        let part = self.program.virtual_stage(chunk);
        part.checked_sub(1).ok_or_else(|| "nothing comes before the embedding".to_owned())
    }

    fn next_part(&self, chunk: usize) -> Result<usize, String> {
        let part = self.program.virtual_stage(chunk) + 1;
        if part < self.parts { Ok(part) } else { Err("nothing comes after the head".to_owned()) }
    }

    /// Checks that the peer of a message is the stage that holds part `part` of the model.
    fn check_peer(&self, stage: usize, part: usize) -> Result<(), String> {
        let holder = part % self.program.mesh.stages;
        ensure!(stage == holder, "part {part} of the model is on stage {holder}, not {stage}");
        Ok(())
    }

    fn check_forward(&self, mb: usize, chunk: usize) -> Result<(), String> {
        ensure!(self.progress[chunk][mb].forward.is_some(), "Forward {mb} has not run");
        Ok(())
    }

    /// Fails if there is an instruction `earlier`, which has run already; `why` describes its effect.
    fn check_absent(&self, earlier: Option<usize>, why: &str) -> Result<(), String> {
        earlier.map_or(Ok(()), |earlier| Err(format!("{} {why}", self.name(earlier))))
    }

    fn load(&mut self, index: usize, mb: usize) -> Result<(), String> {
        self.check_absent(self.loads[mb], "has already loaded it: its tokens would be counted twice")?;
        self.check_absent(self.counted, "has counted without it")?;
        self.loads[mb] = Some(index);
        Ok(())
    }

    fn count_tokens(&mut self, index: usize, numerator: u32) -> Result<(), String> {
        if let Some(mb) = self.loads.iter().position(Option::is_none) {
            return Err(format!("Load {mb} has not run: {} would not be counted", self.row_names(mb)));
        }
        ensure!(numerator == 1, "each token would weigh {numerator} / valid tokens of the global batch, not 1");
        once(self.program, &mut self.counted, index)
    }

    fn broadcast_weights(&mut self, index: usize) -> Result<(), String> {
        ensure!(self.program.mesh.mode == ParallelMode::Dp, "{OWN_WEIGHTS}");
        let has_forwarded = self.progress.iter().flatten().any(|p| p.forward.is_some());
        ensure!(!has_forwarded, "a forward has already run with other weights");
        once(self.program, &mut self.broadcast, index)
    }

    /// True if buckets of weights come and go.
    fn releases(&self) -> bool {
        self.program.divides(ShardedState::Parameters)
    }

    fn check_gathers(&self, bucket: usize) -> Result<(), String> {
        ensure!(bucket < self.gathered.len(), "{OWN_WEIGHTS}");
        Ok(())
    }

    fn prefetch(&mut self, index: usize, bucket: usize) -> Result<(), String> {
        self.check_gathers(bucket)?;
        self.check_absent(self.gathered[bucket].gathered, "has gathered it, and nothing has released it")?;
        once(self.program, &mut self.gathered[bucket].prefetched, index)
    }

    fn release(&mut self, bucket: usize) -> Result<(), String> {
        ensure!(self.releases(), "every replica keeps all weights here");
        ensure!(self.gathered[bucket].gathered.is_some(), "GatherParameters bucket {bucket} has not run");
        self.gathered[bucket] = GatheredBucket::default();
        Ok(())
    }

    /// Checks that the weights which `blocks` read are there.
    fn check_gathered(&self, blocks: BlockRange) -> Result<(), String> {
        let mut read = self.program.buckets_read_by(blocks);
        let missing = read.find(|bucket| self.gathered.get(*bucket).is_some_and(|b| b.gathered.is_none()));
        let Some(bucket) = missing else { return Ok(()) };
        let why = if self.releases() { "its weights are not there" } else { LAST_WEIGHTS };
        Err(format!("GatherParameters bucket {bucket} has not run: {why}"))
    }

    fn forward(&mut self, index: usize, mb: usize, chunk: usize, blocks: Option<BlockRange>) -> Result<(), String> {
        ensure!(self.loads[mb].is_some(), "Load {mb} has not run");
        // The head scales its gradient in the forward.
        ensure!(self.counted.is_some(), "CountTokens has not run: the weight of a token is unknown");
        let has_weights = self.program.mesh.mode != ParallelMode::Dp || self.broadcast.is_some();
        ensure!(has_weights, "{} has not run: {LAST_WEIGHTS}", Instruction::BroadcastWeights);
        let progress = self.progress[chunk][mb];
        let has_input = self.program.virtual_stage(chunk) == 0 || progress.received_activation.is_some();
        ensure!(has_input, "RecvActivation {mb} has not run");
        self.check_absent(progress.forward, "has already run it")?;
        let whole = self.program.chunks[chunk];
        let blocks = blocks.unwrap_or(whole);
        if blocks.is_empty() || blocks.end > whole.end || blocks.start != progress.forward_reached {
            let (from, to, next) = (blocks.start, blocks.end.max(1) - 1, progress.forward_reached);
            return Err(format!("expected block {next} next, got blocks {from} … {to}"));
        }
        self.check_gathered(blocks)?;
        let progress = &mut self.progress[chunk][mb];
        progress.forward_reached = blocks.end;
        if blocks.start == whole.start {
            self.live.add_forward(chunk);
        }
        if blocks.end == whole.end {
            progress.forward = Some(index);
        }
        Ok(())
    }

    /// Checks what any backward needs first.
    fn check_before_backward(&self, mb: usize, chunk: usize) -> Result<(), String> {
        self.check_forward(mb, chunk)?;
        let has_gradient = self.next_part(chunk).is_err() || self.progress[chunk][mb].received_gradient.is_some();
        ensure!(has_gradient, "RecvGradient {mb} has not run");
        Ok(())
    }

    fn backward_input(&mut self, index: usize, mb: usize, chunk: usize) -> Result<(), String> {
        self.check_before_backward(mb, chunk)?;
        self.check_gathered(self.program.chunks[chunk])?;
        let progress = &mut self.progress[chunk][mb];
        let is_fresh = progress.backward_reached == self.program.chunks[chunk].end;
        ensure!(is_fresh || progress.backward_input.is_some(), "a whole backward of it has already started");
        once(self.program, &mut progress.backward_input, index)?;
        self.live.move_to_weight_work(chunk);
        Ok(())
    }

    fn backward(
        &mut self,
        index: usize,
        mb: usize,
        chunk: usize,
        blocks: Option<BlockRange>,
        is_split: bool,
    ) -> Result<(), String> {
        self.check_before_backward(mb, chunk)?;
        let whole = self.program.chunks[chunk];
        let blocks = blocks.unwrap_or(whole);
        let progress = self.progress[chunk][mb];
        let reached = progress.backward_reached;
        ensure!(!is_split || progress.backward_input.is_some(), "BackwardInput {mb} has not run");
        self.check_absent(progress.backward_input.filter(|_| !is_split), "has run a part of it")?;
        let rows = self.row_names(mb);
        let earlier = progress.backward.filter(|_| blocks.end > reached);
        self.check_absent(earlier, &format!("has already run it: {rows} would reach the gradients twice"))?;
        if blocks.is_empty() || blocks.start < whole.start || blocks.end != reached {
            let (from, to, next) = (blocks.start, blocks.end.max(1) - 1, reached.max(1) - 1);
            return Err(format!("expected block {next} next, got blocks {from} … {to}"));
        }
        // The work that the input's backward left needs no weights.
        if !is_split {
            self.check_gathered(blocks)?;
        }
        for (bucket, reduced) in self.reduced.iter().enumerate() {
            let earlier = reduced.filter(|_| self.program.buckets[bucket].overlaps(blocks));
            self.check_absent(earlier, &format!("has summed bucket {bucket} without {rows}"))?;
        }
        let progress = &mut self.progress[chunk][mb];
        (progress.backward_reached, progress.backward) = (blocks.start, Some(index));
        self.last_addition[mb] = self.last_addition[mb].max(index);
        if blocks.start == whole.start {
            self.live.complete_backward(chunk, is_split);
        }
        Ok(())
    }

    /// Reduces a bucket. `fits_mode` is true if the instruction is the one that this mode uses.
    fn reduce(&mut self, index: usize, bucket: usize, fits_mode: bool) -> Result<(), String> {
        ensure!(fits_mode, "this is not how gradients are summed in this mode");
        ensure!(self.program.mesh.replicas > 1, "there is one replica: nothing to sum");
        self.check_blocks_complete(self.program.buckets[bucket], &format!("bucket {bucket}"))?;
        self.check_absent(self.reduced[bucket], "has already summed it: its gradients would count twice")?;
        self.reduced[bucket] = Some(index);
        Ok(())
    }

    /// Checks that every micro-batch has reached the gradients of `blocks`, including those of a tied embedding.
    fn check_blocks_complete(&self, blocks: BlockRange, what: &str) -> Result<(), String> {
        let tied = self.program.model.tie_embeddings && blocks.contains(0);
        for (chunk, micro_batches) in self.progress.iter().enumerate() {
            let held = self.program.chunks[chunk];
            let has_tied_head = tied && held.contains(self.program.model.layers + 1);
            for (mb, progress) in micro_batches.iter().enumerate() {
                let missing = (held.overlaps(blocks) && progress.backward_reached > blocks.start.max(held.start))
                    || (has_tied_head && progress.backward.is_none());
                if missing {
                    let backward = if progress.backward_input.is_some() {
                        Instruction::BackwardWeight { mb, chunk, blocks: None }
                    } else {
                        Instruction::Backward { mb, chunk, blocks: None }
                    };
                    let rows = self.row_names(mb);
                    return Err(format!("{backward} has not run: {rows} would be missing from {what}"));
                }
            }
        }
        Ok(())
    }

    fn sum_tied(&mut self, index: usize) -> Result<(), String> {
        ensure!(self.program.shares_tied(), "this rank shares no embedding with another stage");
        let has_replicas_gradients = self.program.mesh.replicas < 2 || self.waited.is_some();
        ensure!(has_replicas_gradients, "WaitBuckets has not run: the other replicas' gradients are missing");
        for &chunk in &self.program.chunks {
            self.check_blocks_complete(chunk, "the sum over both stages")?;
        }
        once(self.program, &mut self.summed_tied, index)
    }

    /// Checks that the gradients include all micro-batches, all replicas, and both copies of a tied embedding.
    fn check_gradients_complete(&self) -> Result<(), String> {
        for &chunk in &self.program.chunks {
            self.check_blocks_complete(chunk, "the gradients")?;
        }
        let dp = self.program.mesh.mode == ParallelMode::Dp;
        if self.program.mesh.replicas > 1 {
            if let Some(bucket) = self.reduced.iter().position(Option::is_none) {
                let name = self.program.reduction(bucket);
                return Err(format!("{name} has not run: the rows of the other replicas would be missing"));
            }
            ensure!(
                dp || self.waited.is_some(),
                "WaitBuckets has not run: the sums over the replicas may not be there yet"
            );
        }
        ensure!(
            !self.program.shares_tied() || self.summed_tied.is_some(),
            "SumTied has not run: the tied embedding would change differently on its two stages"
        );
        Ok(())
    }
}

/// Notes in `slot` that instruction `index` has run; it may run only once.
fn once(program: &Program, slot: &mut Option<usize>, index: usize) -> Result<(), String> {
    if let Some(earlier) = *slot {
        return Err(format!("{} has already done it", instruction_name(earlier, &program.step[earlier])));
    }
    *slot = Some(index);
    Ok(())
}
