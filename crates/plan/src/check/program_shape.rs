//! Checks what must hold around a step: the shape of the program, the instructions before the first step and the periodic ones.

use super::error::{CheckError, Result};
use runner_spec::program::{Instruction, ParallelMode, Program};

/// Checks batch, mesh, chunks and buckets, before the first instruction.
pub(super) fn check_shape(program: &Program) -> Result<()> {
    let fail = |part: &str, why: String| Err(CheckError::in_part(program, part, why));
    let (batch, mesh) = (&program.batch, program.mesh);
    let (start, count) = batch.slice;
    if batch.micro_batch == 0 || count == 0 {
        return fail("batch", format!("{count} rows in micro-batches of {}", batch.micro_batch));
    }
    let last = (count - 1).checked_mul(batch.stride).and_then(|after| after.checked_add(start));
    if batch.stride == 0 || last.is_none_or(|last| last >= batch.sequences) {
        let apart = if batch.stride == 1 { String::new() } else { format!(", {} apart,", batch.stride) };
        let rows = batch.sequences;
        let why = format!("its slice, {count} rows{apart} from row {start}, leaves the global batch of {rows} rows");
        return fail("batch", why);
    }
    if program.rank >= mesh.world_size() {
        return fail("mesh", format!("the mesh has {} ranks", mesh.world_size()));
    }
    let (stages, replicas) = (mesh.stages, mesh.replicas);
    let fits = match mesh.mode {
        ParallelMode::Single => stages == 1 && replicas == 1,
        ParallelMode::Dp | ParallelMode::Ddp => stages == 1,
        ParallelMode::Pipeline => true,
    };
    if !fits {
        return fail("mesh", format!("{stages} stages and {replicas} replicas do not fit mode {:?}", mesh.mode));
    }
    if program.chunks.is_empty() || program.chunks.iter().any(|c| c.is_empty()) {
        return fail("chunks", "it holds no blocks, or an empty chunk".to_owned());
    }
    if replicas < 2 {
        return Ok(());
    }
    for block in program.chunks.iter().flat_map(|c| c.range()) {
        let count = program.buckets.iter().filter(|b| b.contains(block)).count();
        if count != 1 {
            let why =
                format!("block {block} is in {count} buckets: its gradients would be summed {count} times, not once");
            return fail("buckets", why);
        }
    }
    Ok(())
}

/// Checks the instructions before the first step and the periodic ones: none belongs to the step, each is there once, and a
/// checkpoint comes after the evaluation that it records.
pub(super) fn check_periodic(program: &Program) -> Result<()> {
    let dp = program.mesh.mode == ParallelMode::Dp;
    let is_start = |i: &Instruction| *i == Instruction::Evaluate || (dp && *i == Instruction::BroadcastWeights);
    if let Some(index) = program.start.iter().position(|i| !is_start(i)) {
        let part = format!("start[{index}] {}", program.start[index]);
        return Err(CheckError::in_part(program, part, "only an evaluation comes before the steps"));
    }
    if dp && program.start.first().is_some_and(|i| *i != Instruction::BroadcastWeights) {
        let why = "BroadcastWeights does not come before it: the replicas have their own weights";
        return Err(CheckError::in_part(program, format!("start[0] {}", program.start[0]), why));
    }
    let mut seen: Vec<Instruction> = Vec::new();
    let mut broadcast = None;
    for (index, periodic) in program.periodic.iter().enumerate() {
        let instruction = periodic.instruction;
        let fail = |why: &str| Err(CheckError::in_part(program, format!("periodic[{index}] {instruction}"), why));
        if periodic.every == 0 {
            return fail("it is due every 0 steps, which is never");
        }
        let reads = matches!(instruction, Instruction::Evaluate | Instruction::Sample);
        let broadcasts = dp && instruction == Instruction::BroadcastWeights;
        if !(reads || broadcasts || instruction == Instruction::Checkpoint) {
            return fail("it belongs to the step");
        }
        if seen.contains(&instruction) {
            return fail("it is there twice");
        }
        if instruction == Instruction::Evaluate && seen.contains(&Instruction::Checkpoint) {
            return fail("it comes after Checkpoint, which needs its result");
        }
        if broadcasts {
            broadcast = Some(periodic.every);
        }
        if reads && dp && broadcast != Some(periodic.every) {
            return fail(
                "BroadcastWeights does not come before it each time: the replicas have the last step's weights",
            );
        }
        seen.push(instruction);
    }
    Ok(())
}
