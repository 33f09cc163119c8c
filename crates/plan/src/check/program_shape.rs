//! Checks what must hold around a step: the shape of the program, the instructions before the first step and the periodic ones.

use std::ops::Range;

use super::error::{CheckError, Result};
use runner_spec::model::layout::common_range;
use runner_spec::program::{Instruction, ParallelMode, Periodic, Program};

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
    check_shards(program)?;
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

/// Checks that each parameter is in the shard of one replica, which therefore updates it once with the gradients of all.
fn check_shards(program: &Program) -> Result<()> {
    let fail = |why: String| Err(CheckError::in_part(program, "shards", why));
    let (shards, replicas) = (&program.shards, program.mesh.replicas);
    // The other replicas have the same shards, which is checked too.
    if shards.is_empty() || program.replica() > 0 {
        return Ok(());
    }
    if shards.len() != replicas || program.mesh.mode == ParallelMode::Dp {
        return fail(format!("there are {} for {replicas} replicas in mode {:?}", shards.len(), program.mesh.mode));
    }
    for entry in &program.parameter_layout().entries {
        let (range, name) = (entry.range(), &entry.spec.name);
        let holds = |shard: &Range<usize>| shard.start <= range.start && range.end <= shard.end;
        let holders: Vec<usize> = (0..replicas).filter(|replica| holds(&shards[*replica])).collect();
        let overlapping = shards.iter().filter(|shard| common_range(shard, &range).is_some()).count();
        match holders.as_slice() {
            [_] if overlapping == 1 => {}
            [] => return fail(format!("no replica holds all of {name}: it would never be updated as a whole")),
            _ => return fail(format!("{overlapping} replicas hold elements of {name}: it would be updated twice")),
        }
    }
    Ok(())
}

/// Checks the instructions before the first step and the periodic ones: none belongs to the step, each is there once, and a
/// checkpoint comes after the evaluation that it records.
pub(super) fn check_periodic(program: &Program) -> Result<()> {
    let (exchange, release) = (program.weight_exchange(), program.weight_release());
    let is_start = |i: &Instruction| *i == Instruction::Evaluate || exchange.contains(i) || release.contains(i);
    if let Some(index) = program.start.iter().position(|i| !is_start(i)) {
        let part = format!("start[{index}] {}", program.start[index]);
        return Err(CheckError::in_part(program, part, "only an evaluation comes before the steps"));
    }
    let not_released = |missing: &Instruction| {
        format!("{missing} does not come after it: the steps would read weights from before their updates")
    };
    if let Some(index) = program.start.iter().position(|i| *i == Instruction::Evaluate) {
        let fail =
            |why: String| Err(CheckError::in_part(program, format!("start[{index}] {}", program.start[index]), why));
        if let Some(missing) = exchange.iter().find(|i| !program.start[..index].contains(i)) {
            return fail(format!("{missing} does not come before it: the replicas have their own weights"));
        }
        if let Some(missing) = release.iter().find(|i| !program.start[index..].contains(i)) {
            return fail(not_released(missing));
        }
    }
    let mut seen: Vec<Instruction> = Vec::new();
    for (index, periodic) in program.periodic.iter().enumerate() {
        let instruction = periodic.instruction;
        let fail = |why: &str| Err(CheckError::in_part(program, format!("periodic[{index}] {instruction}"), why));
        if periodic.intervals().any(|every| every == 0) {
            return fail("it is due every 0 steps, which is never");
        }
        let reads = matches!(instruction, Instruction::Evaluate | Instruction::Sample);
        let moves_weights = exchange.contains(&instruction) || release.contains(&instruction);
        if !(reads || moves_weights || instruction == Instruction::Checkpoint) {
            return fail("it belongs to the step");
        }
        if seen.contains(&instruction) {
            return fail("it is there twice");
        }
        if instruction == Instruction::Evaluate && seen.contains(&Instruction::Checkpoint) {
            return fail("it comes after Checkpoint, which needs its result");
        }
        let is_due_with_it =
            |other: &Periodic, wanted: &Instruction| other.instruction == *wanted && other.is_due_with(periodic);
        let precedes = |wanted: &Instruction| program.periodic[..index].iter().any(|p| is_due_with_it(p, wanted));
        if let Some(missing) = exchange.iter().find(|wanted| reads && !precedes(wanted)) {
            return fail(&format!(
                "{missing} does not come before it each time: the replicas have the last step's weights"
            ));
        }
        let follows = |wanted: &Instruction| program.periodic[index..].iter().any(|p| is_due_with_it(p, wanted));
        if let Some(missing) = release.iter().find(|wanted| reads && !follows(wanted)) {
            return fail(&not_released(missing));
        }
        seen.push(instruction);
    }
    Ok(())
}
