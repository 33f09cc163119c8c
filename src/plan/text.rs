//! Programs as text: one instruction, and whole lists with their repetitions folded.

use std::fmt;

use crate::plan::program::{Device, Instruction, Periodic};

impl Instruction {
    /// Its name, and the micro-batch it is about.
    #[must_use]
    pub fn parts(&self) -> (&'static str, Option<usize>) {
        match *self {
            Self::Load { mb } => ("Load", Some(mb)),
            Self::Forward { mb } => ("Forward", Some(mb)),
            Self::Backward { mb } => ("Backward", Some(mb)),
            Self::ClipNorm { .. } => ("ClipNorm", None),
            Self::OptimizerStep => ("OptimizerStep", None),
            Self::Evaluate => ("Evaluate", None),
            Self::Sample => ("Sample", None),
            Self::Checkpoint => ("Checkpoint", None),
        }
    }
}

impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.parts(), self) {
            ((name, Some(mb)), _) => write!(f, "{name} {mb}"),
            ((name, None), Self::ClipNorm { max: Some(max) }) => write!(f, "{name} {max}"),
            ((name, None), Self::ClipNorm { max: None }) => write!(f, "{name} (only measured)"),
            ((name, None), _) => f.write_str(name),
        }
    }
}

impl fmt::Display for Periodic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.every {
            1 => write!(f, "{} after every step", self.instruction),
            every => write!(f, "{} after every {every} steps, and after the last", self.instruction),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

/// The longest pattern that is looked for: a schedule's steady state alternates a few instructions.
const LONGEST_PATTERN: usize = 8;

/// One line per instruction, or per pattern that repeats with its micro-batches counting up: `Load 0 … 3`,
/// `Forward, Backward 0 … 3, in turn`, `Forward 1 … 4, Backward 0 … 3, in turn`.
#[must_use]
pub(crate) fn fold(instructions: &[Instruction]) -> Vec<String> {
    let mut lines = Vec::new();
    let mut at = 0;
    while at < instructions.len() {
        let rest = &instructions[at..];
        let best = (1..=LONGEST_PATTERN.min(rest.len() / 2)).map(|p| (p, repetitions(rest, p))).find(|&(_, n)| n > 1);
        if let Some((period, times)) = best {
            lines.push(folded(&rest[..period], times));
            at += period * times;
        } else {
            lines.push(rest[0].to_string());
            at += 1;
        }
    }
    lines
}

/// How many times the first `period` instructions follow one another, each time with every micro-batch one higher.
fn repetitions(rest: &[Instruction], period: usize) -> usize {
    let (pattern, mut times) = (&rest[..period], 1);
    for chunk in rest.chunks_exact(period).skip(1) {
        let follows = pattern.iter().zip(chunk).all(|(first, now)| match (first.parts(), now.parts()) {
            ((a, Some(x)), (b, Some(y))) => a == b && y == x + times,
            _ => false,
        });
        if !follows {
            break;
        }
        times += 1;
    }
    times
}

fn folded(pattern: &[Instruction], times: usize) -> String {
    let parts: Vec<(&str, usize)> = pattern.iter().filter_map(|i| Some((i.parts().0, i.parts().1?))).collect();
    let range = |mb: usize| format!("{mb} … {}", mb + times - 1);
    match parts.as_slice() {
        [first, rest @ ..] if rest.iter().all(|p| p.1 == first.1) => {
            let names: Vec<&str> = parts.iter().map(|p| p.0).collect();
            let turns = if rest.is_empty() { "" } else { ", in turn" };
            format!("{} {}{turns}", names.join(", "), range(first.1))
        }
        _ => {
            parts.iter().map(|&(name, mb)| format!("{name} {}", range(mb))).collect::<Vec<_>>().join(", ") + ", in turn"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Instruction::{Backward, ClipNorm, Forward, Load, OptimizerStep};

    #[test]
    fn folds_runs_and_alternations() {
        let mut step: Vec<Instruction> = (0..4).map(|mb| Load { mb }).collect();
        step.extend((0..4).flat_map(|mb| [Forward { mb }, Backward { mb }]));
        step.extend([ClipNorm { max: Some(1.0) }, OptimizerStep]);
        assert_eq!(fold(&step), ["Load 0 … 3", "Forward, Backward 0 … 3, in turn", "ClipNorm 1", "OptimizerStep"]);
    }

    #[test]
    fn folds_a_steady_state_whose_micro_batches_differ() {
        let mut step = vec![Forward { mb: 0 }];
        step.extend((0..3).flat_map(|mb| [Forward { mb: mb + 1 }, Backward { mb }]));
        step.push(Backward { mb: 3 });
        // The first two forwards already are a run, so the alternation starts with a backward.
        assert_eq!(fold(&step), ["Forward 0 … 1", "Backward 0 … 1, Forward 2 … 3, in turn", "Backward 2 … 3"]);
    }

    #[test]
    fn single_instructions_stay_as_they_are() {
        assert_eq!(
            fold(&[Load { mb: 0 }, Forward { mb: 0 }, ClipNorm { max: None }]),
            ["Load 0", "Forward 0", "ClipNorm (only measured)"]
        );
        assert!(fold(&[]).is_empty());
    }
}
