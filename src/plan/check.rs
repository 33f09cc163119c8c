//! Proves a plan right by walking its programs, before anything runs.
//!
//! Two things are shown. On each rank: every micro-batch is loaded, forwarded once and backwarded once, in an order in
//! which each instruction has what it needs, all before the gradients are clipped and used. Over all ranks: the gradients
//! are the sum in which every row of the global batch has the coefficient 1, each of its tokens weighted 1 / valid tokens.
//! The sum is symbolic: rows are intervals, and coefficients are counted, not computed in floats.

use crate::plan::program::{Instruction, Program};

/// The first thing that is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("rank {rank}, {place}: {why}")]
pub struct CheckError {
    pub rank: usize,
    /// The instruction with its position in its list, or another part of the program.
    pub place: String,
    pub why: String,
}

/// What walking one program showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Walk {
    /// What reached the gradients, in order.
    pub contributions: Vec<Contribution>,
    /// Micro-batches that are forwarded and not yet backwarded, at most.
    pub in_flight: usize,
}

/// Rows `start` … `start + count - 1` of the global batch, added once into a rank's gradients by `step[index]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contribution {
    pub start: usize,
    pub count: usize,
    pub rank: usize,
    pub index: usize,
    pub mb: usize,
}

impl Contribution {
    fn name(&self) -> String {
        format!("rank {}, step[{}] Backward {}", self.rank, self.index, self.mb)
    }
}

/// Proves `programs`, one per rank, which all work on the same global batch.
///
/// # Errors
/// The first violation, naming its instruction.
pub fn check(programs: &[&Program]) -> Result<Vec<Walk>, CheckError> {
    let walks = programs.iter().map(|p| walk(p)).collect::<Result<Vec<_>, _>>()?;
    let mut sum: Vec<Contribution> = walks.iter().flat_map(|w| w.contributions.iter().copied()).collect();
    if let Some(first) = programs.first() {
        for other in programs {
            if other.batch.sequences != first.batch.sequences || other.batch.length != first.batch.length {
                let why = format!(
                    "its global batch is {}x{}, rank {}'s is {}x{}",
                    other.batch.sequences, other.batch.length, first.rank, first.batch.sequences, first.batch.length
                );
                return Err(CheckError { rank: other.rank, place: "batch".to_owned(), why });
            }
        }
        coefficients_are_one(&mut sum, first.batch.sequences)?;
    }
    Ok(walks)
}

/// Every row of 0 … `sequences` - 1 must be in exactly one contribution.
fn coefficients_are_one(sum: &mut [Contribution], sequences: usize) -> Result<(), CheckError> {
    sum.sort_unstable_by_key(|c| (c.start, c.rank, c.index));
    let mut covered = 0;
    let mut last: Option<&Contribution> = None;
    let missing = |from: usize, to: usize| CheckError {
        rank: last_rank(sum),
        place: "gradients".to_owned(),
        why: format!("no Backward adds {} of the global batch", rows(from, to - from)),
    };
    for now in sum.iter() {
        if now.start > covered {
            return Err(missing(covered, now.start));
        }
        if let Some(last) = last
            && now.start < covered
        {
            let why = format!(
                "row {} of the global batch reaches the gradients twice, first by {}: its coefficient is 2, not 1",
                now.start,
                last.name()
            );
            return Err(CheckError {
                rank: now.rank,
                place: place(now.index, &Instruction::Backward { mb: now.mb }),
                why,
            });
        }
        covered = now.start + now.count;
        last = Some(now);
    }
    if covered < sequences {
        return Err(missing(covered, sequences));
    }
    Ok(())
}

fn last_rank(sum: &[Contribution]) -> usize {
    sum.last().map_or(0, |c| c.rank)
}

fn rows(start: usize, count: usize) -> String {
    if count == 1 { format!("row {start}") } else { format!("rows {start} … {}", start + count - 1) }
}

fn place(index: usize, instruction: &Instruction) -> String {
    format!("step[{index}] {instruction}")
}

/// Where one micro-batch is on its way, by the position of the instruction that took it there.
#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    load: Option<usize>,
    forward: Option<usize>,
    backward: Option<usize>,
}

/// Walks one program.
///
/// # Errors
/// The first violation, naming its instruction.
pub fn walk(program: &Program) -> Result<Walk, CheckError> {
    let rank = program.rank;
    let batch = &program.batch;
    let wrong = |place: &str, why: String| Err(CheckError { rank, place: place.to_owned(), why });
    if batch.micro_batch == 0 || batch.slice.1 == 0 {
        return wrong("batch", format!("{} rows in micro-batches of {}", batch.slice.1, batch.micro_batch));
    }
    if batch.slice.0.checked_add(batch.slice.1).is_none_or(|end| end > batch.sequences) {
        let why = format!("its slice, {} rows from row {}, leaves the global batch", batch.slice.1, batch.slice.0);
        return wrong("batch", format!("{why} of {} rows", batch.sequences));
    }
    let mut state = vec![Progress::default(); batch.micro_batches()];
    let (mut clipped, mut stepped) = (None, None);
    let mut contributions = Vec::new();
    let (mut loaded, mut live, mut in_flight) = (0_usize, 0_usize, 0);

    for (index, instruction) in program.step.iter().enumerate() {
        let fail = |why: String| Err(CheckError { rank, place: place(index, instruction), why });
        if let (_, Some(mb)) = instruction.parts()
            && mb >= state.len()
        {
            return fail(format!(
                "there is no micro-batch {mb}: the rank's {} rows make {}",
                batch.slice.1,
                state.len()
            ));
        }
        if let Some(stepped) = stepped {
            return fail(format!("it comes after step[{stepped}] OptimizerStep, which ends the step"));
        }
        if let Some(clipped) = clipped
            && *instruction != Instruction::OptimizerStep
        {
            return fail(format!("it comes after step[{clipped}] ClipNorm, after which only OptimizerStep may follow"));
        }
        let unfinished = || state.iter().position(|p| p.backward.is_none());
        match *instruction {
            Instruction::Load { mb } => {
                if let Some(earlier) = state[mb].load {
                    return fail(format!("step[{earlier}] has already loaded it: its tokens would be counted twice"));
                }
                state[mb].load = Some(index);
                loaded += 1;
            }
            Instruction::Forward { mb } => {
                if state[mb].load.is_none() {
                    return fail(format!("Load {mb} has not run"));
                }
                if let Some(earlier) = state[mb].forward {
                    return fail(format!("step[{earlier}] has already run it"));
                }
                // The head scales its gradient in the forward.
                if loaded < state.len() {
                    let late = state.iter().position(|p| p.load.is_none()).unwrap_or(mb);
                    let why = "the valid tokens of the global batch, which it divides by, are not known";
                    return fail(format!("Load {late} has not run: {why}"));
                }
                state[mb].forward = Some(index);
                live += 1;
                in_flight = in_flight.max(live);
            }
            Instruction::Backward { mb } => {
                if state[mb].forward.is_none() {
                    return fail(format!("Forward {mb} has not run"));
                }
                if let Some(earlier) = state[mb].backward {
                    let (start, count) = batch.rows(mb);
                    let rows = rows(start, count);
                    return fail(format!("step[{earlier}] has already run it: {rows} would reach the gradients twice"));
                }
                state[mb].backward = Some(index);
                live -= 1;
                let (start, count) = batch.rows(mb);
                contributions.push(Contribution { start, count, rank, index, mb });
            }
            Instruction::ClipNorm { max } => {
                if let Some(mb) = unfinished() {
                    return fail(missing_backward(program, mb));
                }
                if max.is_some_and(|max| max.is_nan() || max <= 0.0) {
                    return fail("the norm must be positive".to_owned());
                }
                clipped = Some(index);
            }
            Instruction::OptimizerStep => {
                if let Some(mb) = unfinished() {
                    return fail(missing_backward(program, mb));
                }
                if clipped.is_none() {
                    return fail("ClipNorm has not run: the gradients are neither measured nor clipped".to_owned());
                }
                stepped = Some(index);
            }
            Instruction::Evaluate | Instruction::Sample | Instruction::Checkpoint => {
                return fail("it is periodic, and no part of a step".to_owned());
            }
        }
    }
    if stepped.is_none() {
        return wrong("step", "there is no OptimizerStep: the weights never change".to_owned());
    }
    periodic(program)?;
    Ok(Walk { contributions, in_flight })
}

fn missing_backward(program: &Program, mb: usize) -> String {
    let (start, count) = program.batch.rows(mb);
    format!("Backward {mb} has not run: {} would be missing from the gradients", rows(start, count))
}

/// The periodic list holds what is not part of a step, each once, and a checkpoint after the evaluation it records.
fn periodic(program: &Program) -> Result<(), CheckError> {
    if let Some(index) = program.start.iter().position(|i| *i != Instruction::Evaluate) {
        let place = format!("start[{index}] {}", program.start[index]);
        return Err(CheckError { rank: program.rank, place, why: "only an evaluation comes before the steps".into() });
    }
    let mut seen: Vec<Instruction> = Vec::new();
    for (index, periodic) in program.periodic.iter().enumerate() {
        let instruction = periodic.instruction;
        let fail = |why: &str| {
            let place = format!("periodic[{index}] {instruction}");
            Err(CheckError { rank: program.rank, place, why: why.to_owned() })
        };
        if periodic.every == 0 {
            return fail("it is due every 0 steps, which is never");
        }
        if !matches!(instruction, Instruction::Evaluate | Instruction::Sample | Instruction::Checkpoint) {
            return fail("it belongs to the step");
        }
        if seen.contains(&instruction) {
            return fail("it is there twice");
        }
        if instruction == Instruction::Evaluate && seen.contains(&Instruction::Checkpoint) {
            return fail("it comes after Checkpoint, which is to know its result");
        }
        seen.push(instruction);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::{compiled, experiment};

    /// 4 micro-batches of 2, 2, 2 and 1 rows; step: Load 0 … 3, Forward and Backward 0 … 3, ClipNorm, OptimizerStep.
    fn program() -> Program {
        let mut experiment = experiment();
        experiment.batch.sequences = 7;
        compiled(&experiment).ranks[0].program.clone()
    }

    fn rejected(mutate: impl FnOnce(&mut Program)) -> String {
        let mut program = program();
        mutate(&mut program);
        check(&[&program]).expect_err("the mutation must be rejected").to_string()
    }

    #[test]
    fn a_right_program_covers_each_row_once() {
        let walks = check(&[&program()]).expect("right");
        let rows: Vec<(usize, usize)> = walks[0].contributions.iter().map(|c| (c.start, c.count)).collect();
        assert_eq!(rows, [(0, 2), (2, 2), (4, 2), (6, 1)]);
        assert_eq!(walks[0].in_flight, 1);
    }

    #[test]
    fn mutations_are_rejected_by_name() {
        use Instruction::{Backward, Evaluate, Forward, Load, OptimizerStep};
        let dropped = rejected(|p| p.step.retain(|i| *i != Backward { mb: 2 }));
        insta::assert_snapshot!(dropped, @"rank 0, step[11] ClipNorm 1: Backward 2 has not run: rows 4 … 5 would be missing from the gradients");
        let twice = rejected(|p| p.step.insert(6, Backward { mb: 0 }));
        insta::assert_snapshot!(twice, @"rank 0, step[6] Backward 0: step[5] has already run it: rows 0 … 1 would reach the gradients twice");
        let early = rejected(|p| {
            p.step.pop();
            p.step.insert(0, OptimizerStep);
        });
        insta::assert_snapshot!(early, @"rank 0, step[0] OptimizerStep: Backward 0 has not run: rows 0 … 1 would be missing from the gradients");
        let swapped = rejected(|p| p.step.swap(4, 5));
        insta::assert_snapshot!(swapped, @"rank 0, step[4] Backward 0: Forward 0 has not run");
        let late_load = rejected(|p| {
            p.step.remove(3);
            p.step.insert(5, Load { mb: 3 });
        });
        insta::assert_snapshot!(late_load, @"rank 0, step[3] Forward 0: Load 3 has not run: the valid tokens of the global batch, which it divides by, are not known");
        let unloaded = rejected(|p| p.step.retain(|i| *i != Load { mb: 0 }));
        insta::assert_snapshot!(unloaded, @"rank 0, step[3] Forward 0: Load 0 has not run");
        let loaded_twice = rejected(|p| p.step.insert(1, Load { mb: 0 }));
        insta::assert_snapshot!(loaded_twice, @"rank 0, step[1] Load 0: step[0] has already loaded it: its tokens would be counted twice");
        let forwarded_twice = rejected(|p| p.step.insert(5, Forward { mb: 0 }));
        insta::assert_snapshot!(forwarded_twice, @"rank 0, step[5] Forward 0: step[4] has already run it");
        let foreign = rejected(|p| p.step.insert(4, Load { mb: 4 }));
        insta::assert_snapshot!(foreign, @"rank 0, step[4] Load 4: there is no micro-batch 4: the rank's 7 rows make 4");
        let unclipped = rejected(|p| {
            p.step.remove(12);
        });
        insta::assert_snapshot!(unclipped, @"rank 0, step[12] OptimizerStep: ClipNorm has not run: the gradients are neither measured nor clipped");
        let unused = rejected(|p| {
            p.step.pop();
        });
        insta::assert_snapshot!(unused, @"rank 0, step: there is no OptimizerStep: the weights never change");
        let after = rejected(|p| p.step.push(OptimizerStep));
        insta::assert_snapshot!(after, @"rank 0, step[14] OptimizerStep: it comes after step[13] OptimizerStep, which ends the step");
        let misplaced = rejected(|p| p.step.insert(0, Evaluate));
        insta::assert_snapshot!(misplaced, @"rank 0, step[0] Evaluate: it is periodic, and no part of a step");
    }

    #[test]
    fn slices_must_tile_the_global_batch() {
        let short = rejected(|p| {
            p.batch.slice = (0, 6);
            p.step.retain(|i| i.parts().1 != Some(3));
        });
        insta::assert_snapshot!(short, @"rank 0, gradients: no Backward adds row 6 of the global batch");
        let outside = rejected(|p| p.batch.slice = (1, 7));
        insta::assert_snapshot!(outside, @"rank 0, batch: its slice, 7 rows from row 1, leaves the global batch of 7 rows");
        let empty = rejected(|p| p.batch.micro_batch = 0);
        insta::assert_snapshot!(empty, @"rank 0, batch: 7 rows in micro-batches of 0");

        let ranks = |slices: [(usize, usize); 2]| -> Vec<Program> {
            let cut = |(rank, slice): (usize, (usize, usize))| {
                let mut p = program();
                (p.rank, p.batch.slice) = (rank, slice);
                let count = p.batch.micro_batches();
                p.step.retain(|i| i.parts().1.is_none_or(|mb| mb < count));
                p
            };
            slices.into_iter().enumerate().map(cut).collect()
        };
        let tiled = ranks([(0, 4), (4, 3)]);
        assert!(check(&tiled.iter().collect::<Vec<_>>()).is_ok());
        let overlapping = ranks([(0, 4), (3, 4)]);
        let error = check(&overlapping.iter().collect::<Vec<_>>()).expect_err("row 3 twice");
        insta::assert_snapshot!(error, @"rank 1, step[3] Backward 0: row 3 of the global batch reaches the gradients twice, first by rank 0, step[5] Backward 1: its coefficient is 2, not 1");
    }

    #[test]
    fn a_checkpoint_knows_the_evaluation_before_it() {
        let late = rejected(|p| p.periodic.reverse());
        insta::assert_snapshot!(late, @"rank 0, periodic[2] Evaluate: it comes after Checkpoint, which is to know its result");
        let never = rejected(|p| p.periodic[0].every = 0);
        insta::assert_snapshot!(never, @"rank 0, periodic[0] Evaluate: it is due every 0 steps, which is never");
    }
}
