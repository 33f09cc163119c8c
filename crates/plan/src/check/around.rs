//! What must hold around a step: the program's shape, and what comes before the steps and after them.

use super::error::CheckError;
use runner_spec::program::{Instruction, Mode, Program};

pub(super) fn fault(program: &Program, place: &str, why: String) -> CheckError {
    CheckError { rank: program.rank, place: place.to_owned(), why }
}

/// `7 rows`, or `7 rows, every 2nd`.
fn every(count: usize, stride: usize) -> String {
    if stride == 1 { format!("{count} rows") } else { format!("{count} rows, {stride} apart,") }
}

/// What must hold before the first instruction.
pub(super) fn shape(program: &Program) -> Result<(), CheckError> {
    let batch = &program.batch;
    if batch.micro_batch == 0 || batch.slice.1 == 0 {
        let why = format!("{} rows in micro-batches of {}", batch.slice.1, batch.micro_batch);
        return Err(fault(program, "batch", why));
    }
    let (start, count) = batch.slice;
    let last = (count - 1).checked_mul(batch.stride).and_then(|after| after.checked_add(start));
    if batch.stride == 0 || last.is_none_or(|last| last >= batch.sequences) {
        let why = format!("its slice, {} from row {start}, leaves the global batch", every(count, batch.stride));
        return Err(fault(program, "batch", format!("{why} of {} rows", batch.sequences)));
    }
    if program.rank >= program.mesh.world_size() {
        return Err(fault(program, "mesh", format!("the mesh has {} ranks", program.mesh.world_size())));
    }
    let (stages, replicas) = (program.mesh.stages, program.mesh.replicas);
    let fits = match program.mesh.mode {
        Mode::Single => stages == 1 && replicas == 1,
        Mode::Dp | Mode::Ddp => stages == 1,
        Mode::Pipeline => true,
    };
    if !fits {
        let why = format!("{stages} stages and {replicas} replicas are none of mode {:?}", program.mesh.mode);
        return Err(fault(program, "mesh", why));
    }
    if program.chunks.is_empty() || program.chunks.iter().any(|c| c.is_empty()) {
        return Err(fault(program, "chunks", "it holds no blocks, or an empty chunk".to_owned()));
    }
    if program.mesh.replicas < 2 {
        return Ok(());
    }
    for block in program.chunks.iter().flat_map(|c| c.range()) {
        let count = program.buckets.iter().filter(|b| b.contains(block)).count();
        if count != 1 {
            let why =
                format!("block {block} is in {count} buckets: its gradients would be summed {count} times, not once");
            return Err(fault(program, "buckets", why));
        }
    }
    Ok(())
}

/// The periodic list holds what is not part of a step, each once, and a checkpoint after the evaluation it records.
pub(super) fn periodic(program: &Program) -> Result<(), CheckError> {
    let dp = program.mesh.mode == Mode::Dp;
    let outside = |i: &Instruction| *i == Instruction::Evaluate || (dp && *i == Instruction::BroadcastWeights);
    if let Some(index) = program.start.iter().position(|i| !outside(i)) {
        let place = format!("start[{index}] {}", program.start[index]);
        return Err(CheckError { rank: program.rank, place, why: "only an evaluation comes before the steps".into() });
    }
    if dp && program.start.first().is_some_and(|i| *i != Instruction::BroadcastWeights) {
        let place = format!("start[0] {}", program.start[0]);
        let why = "BroadcastWeights does not come before it: the replicas have their own weights".to_owned();
        return Err(CheckError { rank: program.rank, place, why });
    }
    let mut seen: Vec<Instruction> = Vec::new();
    let mut broadcast = None;
    for (index, periodic) in program.periodic.iter().enumerate() {
        let instruction = periodic.instruction;
        let fail = |why: &str| {
            let place = format!("periodic[{index}] {instruction}");
            Err(CheckError { rank: program.rank, place, why: why.to_owned() })
        };
        if periodic.every == 0 {
            return fail("it is due every 0 steps, which is never");
        }
        let known = matches!(instruction, Instruction::Evaluate | Instruction::Sample | Instruction::Checkpoint);
        if !(known || (dp && instruction == Instruction::BroadcastWeights)) {
            return fail("it belongs to the step");
        }
        if seen.contains(&instruction) {
            return fail("it is there twice");
        }
        if instruction == Instruction::Evaluate && seen.contains(&Instruction::Checkpoint) {
            return fail("it comes after Checkpoint, which is to know its result");
        }
        if instruction == Instruction::BroadcastWeights {
            broadcast = Some(periodic.every);
        }
        let reads = matches!(instruction, Instruction::Evaluate | Instruction::Sample);
        if reads && dp && broadcast != Some(periodic.every) {
            return fail(
                "BroadcastWeights does not come before it each time: the replicas have the last step's weights",
            );
        }
        seen.push(instruction);
    }
    Ok(())
}
