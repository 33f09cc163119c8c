//! One rank's program: whether each instruction has what it needs.

use super::around::{fault, periodic, shape};
use super::error::{CheckError, at, place, rows};
use super::live::{Live, Peak};
use runner_spec::program::{Blocks, Instruction, Mode, Program};

/// What walking one program showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Walk {
    /// Micro-batches that are forwarded and not yet through the backward, per chunk, at the moment when they hold the most.
    pub live: Vec<Live>,
    /// Where the gradients of each micro-batch are whole: the index of the last instruction that adds to them.
    pub(super) added: Vec<usize>,
}

impl Walk {
    /// Micro-batches in flight at the peak, all chunks together.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.live.iter().map(|l| l.saved + l.work).sum()
    }
}

/// How far one micro-batch is on one chunk; positions of the instructions that took it there.
#[derive(Debug, Clone, Copy, Default)]
struct Cell {
    received: Option<usize>,
    forward: Option<usize>,
    sent: Option<usize>,
    gradient: Option<usize>,
    input: Option<usize>,
    /// Blocks before this one have not been run backwards.
    below: usize,
    backward: Option<usize>,
    returned: Option<usize>,
}

struct Walker<'a> {
    p: &'a Program,
    parts: usize,
    loads: Vec<Option<usize>>,
    counted: Option<usize>,
    broadcast: Option<usize>,
    cells: Vec<Vec<Cell>>,
    reduced: Vec<Option<usize>>,
    waited: Option<usize>,
    tied: Option<usize>,
    clipped: Option<usize>,
    ended: Option<usize>,
    peak: Peak,
    added: Vec<usize>,
}

/// Walks one program.
///
/// # Errors
/// The first violation, naming its instruction.
pub(super) fn walk(program: &Program) -> Result<Walk, CheckError> {
    shape(program)?;
    let mbs = program.batch.micro_batches();
    let fresh = |chunk: &Blocks| vec![Cell { below: chunk.end, ..Cell::default() }; mbs];
    let mut walker = Walker {
        p: program,
        parts: program.mesh.stages * program.chunks.len(),
        loads: vec![None; mbs],
        counted: None,
        broadcast: None,
        cells: program.chunks.iter().map(fresh).collect(),
        reduced: vec![None; program.buckets.len()],
        waited: None,
        tied: None,
        clipped: None,
        ended: None,
        peak: Peak::new(program),
        added: vec![0; mbs],
    };
    for (index, instruction) in program.step.iter().enumerate() {
        walker.step(index, *instruction).map_err(|why| at(program, index, why))?;
    }
    if walker.ended.is_none() {
        let (end, what) = if program.owns_optimizer() {
            ("OptimizerStep", "the weights never change")
        } else {
            ("ZeroGradients", "the next step would add to these gradients")
        };
        return Err(fault(program, "step", format!("there is no {end}: {what}")));
    }
    periodic(program)?;
    Ok(Walk { live: walker.peak.most(), added: walker.added })
}

impl Walker<'_> {
    fn step(&mut self, index: usize, instruction: Instruction) -> Result<(), String> {
        self.in_bounds(instruction)?;
        if let Some(ended) = self.ended {
            return Err(format!("it comes after {}, which ends the step", self.name(ended)));
        }
        if let Some(clipped) = self.clipped
            && !matches!(instruction, Instruction::OptimizerStep | Instruction::ZeroGradients)
        {
            return Err(format!(
                "it comes after {}, after which only the end of the step may follow",
                self.name(clipped)
            ));
        }
        match instruction {
            Instruction::Load { mb } => self.load(index, mb),
            Instruction::CountTokens { numerator } => self.count(index, numerator),
            Instruction::BroadcastWeights => self.weights(index),
            Instruction::Forward { mb, chunk } => self.forward(index, mb, chunk),
            Instruction::Backward { mb, chunk, blocks } => self.backward(index, mb, chunk, blocks, false),
            Instruction::BackwardInput { mb, chunk } => self.input(index, mb, chunk),
            Instruction::BackwardWeight { mb, chunk, blocks } => self.backward(index, mb, chunk, blocks, true),
            Instruction::SendActivation { mb, chunk, to } => self.send_activation(index, mb, chunk, to),
            Instruction::RecvActivation { mb, chunk, from } => {
                let part = self.p.virtual_stage(chunk);
                let Some(before) = part.checked_sub(1) else { return Err("nothing comes before the embedding".into()) };
                self.neighbour(from, before)?;
                once(self.p, &mut self.cells[chunk][mb].received, index)
            }
            Instruction::RecvGradient { mb, chunk, from } => {
                let part = self.p.virtual_stage(chunk) + 1;
                if part == self.parts {
                    return Err("nothing comes after the head".into());
                }
                self.neighbour(from, part)?;
                if self.cells[chunk][mb].forward.is_none() {
                    return Err(format!("Forward {mb} has not run"));
                }
                once(self.p, &mut self.cells[chunk][mb].gradient, index)
            }
            Instruction::SendGradient { mb, chunk, to } => self.send_gradient(index, mb, chunk, to),
            Instruction::AllReduce { bucket } => self.reduce(index, bucket, self.p.mesh.mode != Mode::Dp),
            Instruction::ReduceToRoot { bucket } => self.reduce(index, bucket, self.p.mesh.mode == Mode::Dp),
            Instruction::WaitBuckets => {
                if let Some(bucket) = self.reduced.iter().position(Option::is_none) {
                    return Err(format!("AllReduce bucket {bucket} has not started"));
                }
                once(self.p, &mut self.waited, index)
            }
            Instruction::SumTied => self.sum_tied(index),
            Instruction::ClipNorm { max } => {
                self.complete()?;
                if max.is_some_and(|max| max.is_nan() || max <= 0.0) {
                    return Err("the norm must be positive".to_owned());
                }
                self.clipped = Some(index);
                Ok(())
            }
            Instruction::OptimizerStep | Instruction::ZeroGradients => {
                let updates = instruction == Instruction::OptimizerStep;
                if updates != self.p.owns_optimizer() {
                    let why = if updates {
                        "holds no optimizer state: the root updates"
                    } else {
                        "holds the optimizer state"
                    };
                    return Err(format!("this rank {why}"));
                }
                self.complete()?;
                if self.clipped.is_none() {
                    return Err("ClipNorm has not run: the gradients are neither measured nor clipped".to_owned());
                }
                self.ended = Some(index);
                Ok(())
            }
            Instruction::Evaluate | Instruction::Sample | Instruction::Checkpoint => {
                Err("it is periodic, and no part of a step".to_owned())
            }
        }
    }

    fn name(&self, index: usize) -> String {
        place(index, &self.p.step[index])
    }

    fn in_bounds(&self, instruction: Instruction) -> Result<(), String> {
        if let Some(mb) = instruction.mb()
            && mb >= self.loads.len()
        {
            let (rows, count) = (self.p.batch.slice.1, self.loads.len());
            return Err(format!("there is no micro-batch {mb}: the rank's {rows} rows make {count}"));
        }
        if let Some(chunk) = instruction.chunk()
            && chunk >= self.cells.len()
        {
            return Err(format!("there is no chunk {chunk}: the rank holds {}", self.cells.len()));
        }
        if let Instruction::AllReduce { bucket } | Instruction::ReduceToRoot { bucket } = instruction
            && bucket >= self.reduced.len()
        {
            return Err(format!("there is no bucket {bucket}: there are {}", self.reduced.len()));
        }
        Ok(())
    }

    fn rows(&self, mb: usize) -> String {
        let (start, count) = self.p.batch.rows(mb);
        rows(start, count, self.p.batch.stride)
    }

    /// The peer of a message must be the stage that holds part `part` of the model.
    fn neighbour(&self, stage: usize, part: usize) -> Result<(), String> {
        let right = part % self.p.mesh.stages;
        if stage == right {
            return Ok(());
        }
        Err(format!("part {part} of the model is on stage {right}, not {stage}"))
    }

    fn load(&mut self, index: usize, mb: usize) -> Result<(), String> {
        if let Some(earlier) = self.loads[mb] {
            return Err(format!("{} has already loaded it: its tokens would be counted twice", self.name(earlier)));
        }
        if let Some(counted) = self.counted {
            return Err(format!("{} has counted without it", self.name(counted)));
        }
        self.loads[mb] = Some(index);
        Ok(())
    }

    fn count(&mut self, index: usize, numerator: u32) -> Result<(), String> {
        if let Some(mb) = self.loads.iter().position(Option::is_none) {
            return Err(format!("Load {mb} has not run: {} would not be counted", self.rows(mb)));
        }
        if numerator != 1 {
            return Err(format!("each token would weigh {numerator} / valid tokens of the global batch, not 1"));
        }
        once(self.p, &mut self.counted, index)
    }

    fn weights(&mut self, index: usize) -> Result<(), String> {
        if self.p.mesh.mode != Mode::Dp {
            return Err("every rank has its own weights here".to_owned());
        }
        if self.cells.iter().flatten().any(|c| c.forward.is_some()) {
            return Err("a forward has already run with other weights".to_owned());
        }
        once(self.p, &mut self.broadcast, index)
    }

    fn forward(&mut self, index: usize, mb: usize, chunk: usize) -> Result<(), String> {
        if self.loads[mb].is_none() {
            return Err(format!("Load {mb} has not run"));
        }
        // The head scales its gradient in the forward.
        if self.counted.is_none() {
            return Err("CountTokens has not run: what a token weighs is not known".to_owned());
        }
        if self.p.mesh.mode == Mode::Dp && self.broadcast.is_none() {
            return Err("BroadcastWeights has not run: the replicas have the last step's weights".to_owned());
        }
        let first = self.p.virtual_stage(chunk) == 0;
        let cell = &mut self.cells[chunk][mb];
        if !first && cell.received.is_none() {
            return Err(format!("RecvActivation {mb} has not run"));
        }
        if let Some(earlier) = cell.forward {
            return Err(format!("{} has already run it", self.name(earlier)));
        }
        cell.forward = Some(index);
        self.peak.forward(chunk);
        Ok(())
    }

    fn send_activation(&mut self, index: usize, mb: usize, chunk: usize, to: usize) -> Result<(), String> {
        let part = self.p.virtual_stage(chunk) + 1;
        if part == self.parts {
            return Err("nothing comes after the head".into());
        }
        self.neighbour(to, part)?;
        let cell = &mut self.cells[chunk][mb];
        if cell.forward.is_none() {
            return Err(format!("Forward {mb} has not run"));
        }
        once(self.p, &mut cell.sent, index)
    }

    fn send_gradient(&mut self, index: usize, mb: usize, chunk: usize, to: usize) -> Result<(), String> {
        let Some(before) = self.p.virtual_stage(chunk).checked_sub(1) else {
            return Err("nothing comes before the embedding".into());
        };
        self.neighbour(to, before)?;
        let start = self.p.chunks[chunk].start;
        let cell = &mut self.cells[chunk][mb];
        if cell.input.is_none() && cell.below > start {
            return Err(format!("the backward of micro-batch {mb} has not reached block {start}"));
        }
        once(self.p, &mut cell.returned, index)
    }

    /// What any backward needs first.
    fn before_backward(&self, mb: usize, chunk: usize) -> Result<(), String> {
        let cell = &self.cells[chunk][mb];
        if cell.forward.is_none() {
            return Err(format!("Forward {mb} has not run"));
        }
        if self.p.virtual_stage(chunk) + 1 < self.parts && cell.gradient.is_none() {
            return Err(format!("RecvGradient {mb} has not run"));
        }
        Ok(())
    }

    fn input(&mut self, index: usize, mb: usize, chunk: usize) -> Result<(), String> {
        self.before_backward(mb, chunk)?;
        let end = self.p.chunks[chunk].end;
        let cell = &mut self.cells[chunk][mb];
        if cell.below < end && cell.input.is_none() {
            return Err("a whole backward of it has already begun".to_owned());
        }
        once(self.p, &mut cell.input, index)?;
        self.peak.input(chunk);
        Ok(())
    }

    fn backward(
        &mut self,
        index: usize,
        mb: usize,
        chunk: usize,
        blocks: Option<Blocks>,
        split: bool,
    ) -> Result<(), String> {
        self.before_backward(mb, chunk)?;
        let whole = self.p.chunks[chunk];
        let blocks = blocks.unwrap_or(whole);
        let cell = self.cells[chunk][mb];
        match (split, cell.input) {
            (true, None) => return Err(format!("BackwardInput {mb} has not run")),
            (false, Some(earlier)) => return Err(format!("{} has run a part of it", self.name(earlier))),
            _ => {}
        }
        if let Some(earlier) = cell.backward
            && blocks.end > cell.below
        {
            let rows = self.rows(mb);
            return Err(format!("{} has already run it: {rows} would reach the gradients twice", self.name(earlier)));
        }
        if blocks.is_empty() || blocks.start < whole.start || blocks.end != cell.below {
            let (from, to) = (blocks.start, blocks.end);
            return Err(format!(
                "blocks {from} … {} are not the next ones: {} is",
                to.max(1) - 1,
                cell.below.max(1) - 1
            ));
        }
        for (bucket, reduced) in self.reduced.iter().enumerate() {
            let b = self.p.buckets[bucket];
            if let Some(earlier) = *reduced
                && b.start < blocks.end
                && blocks.start < b.end
            {
                let rows = self.rows(mb);
                return Err(format!("{} has summed bucket {bucket} without {rows}", self.name(earlier)));
            }
        }
        let cell = &mut self.cells[chunk][mb];
        (cell.below, cell.backward) = (blocks.start, Some(index));
        self.added[mb] = self.added[mb].max(index);
        if blocks.start == whole.start {
            self.peak.backward(chunk, split);
        }
        Ok(())
    }

    fn reduce(&mut self, index: usize, bucket: usize, right: bool) -> Result<(), String> {
        if !right {
            return Err("this is not how gradients are summed in this mode".to_owned());
        }
        if self.p.mesh.replicas < 2 {
            return Err("there is one replica: nothing to sum".to_owned());
        }
        let blocks = self.p.buckets[bucket];
        self.whole(blocks, &format!("bucket {bucket}"))?;
        if let Some(earlier) = self.reduced[bucket] {
            return Err(format!("{} has already summed it: its gradients would count twice", self.name(earlier)));
        }
        self.reduced[bucket] = Some(index);
        Ok(())
    }

    /// Every micro-batch has reached the gradients of `blocks`, and those of a tied embedding among them.
    fn whole(&self, blocks: Blocks, what: &str) -> Result<(), String> {
        let tied = self.p.model.tie_embeddings && blocks.contains(0);
        for (chunk, cells) in self.cells.iter().enumerate() {
            let mine = self.p.chunks[chunk];
            let head = tied && mine.contains(self.p.model.layers + 1);
            let concerns = mine.start < blocks.end && blocks.start < mine.end;
            for (mb, cell) in cells.iter().enumerate() {
                let missing =
                    (concerns && cell.below > blocks.start.max(mine.start)) || (head && cell.backward.is_none());
                if missing {
                    let name = self.backward_name(mb, chunk);
                    return Err(format!("{name} has not run: {} would be missing from {what}", self.rows(mb)));
                }
            }
        }
        Ok(())
    }

    fn backward_name(&self, mb: usize, chunk: usize) -> String {
        let cell = &self.cells[chunk][mb];
        if cell.input.is_some() {
            return Instruction::BackwardWeight { mb, chunk, blocks: None }.to_string();
        }
        Instruction::Backward { mb, chunk, blocks: None }.to_string()
    }

    fn sum_tied(&mut self, index: usize) -> Result<(), String> {
        if !self.p.shares_tied() {
            return Err("this rank shares no embedding with another stage".to_owned());
        }
        if self.p.mesh.replicas > 1 && self.waited.is_none() {
            return Err("WaitBuckets has not run: the other replicas' gradients are missing".to_owned());
        }
        for chunk in self.p.chunks.clone() {
            self.whole(chunk, "the sum over both stages")?;
        }
        once(self.p, &mut self.tied, index)
    }

    /// The gradients are whole: all micro-batches, all replicas, both copies of a tied embedding.
    fn complete(&self) -> Result<(), String> {
        for &chunk in &self.p.chunks {
            self.whole(chunk, "the gradients")?;
        }
        if self.p.mesh.replicas > 1 {
            if let Some(bucket) = self.reduced.iter().position(Option::is_none) {
                let name = if self.p.mesh.mode == Mode::Dp { "ReduceToRoot" } else { "AllReduce" };
                return Err(format!(
                    "{name} bucket {bucket} has not run: the rows of the other replicas would be missing"
                ));
            }
            if self.p.mesh.mode != Mode::Dp && self.waited.is_none() {
                return Err("WaitBuckets has not run: the sums over the replicas may not be there yet".to_owned());
            }
        }
        if self.p.shares_tied() && self.tied.is_none() {
            return Err("SumTied has not run: the tied embedding would change differently on its two stages".to_owned());
        }
        Ok(())
    }
}

fn once(program: &Program, slot: &mut Option<usize>, index: usize) -> Result<(), String> {
    if let Some(earlier) = *slot {
        return Err(format!("{} has already done it", place(earlier, &program.step[earlier])));
    }
    *slot = Some(index);
    Ok(())
}
