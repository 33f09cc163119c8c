//! Programs as text: one instruction, and whole lists with their repetitions folded.

use std::fmt;

use crate::program::{Instruction, Periodic};

impl Instruction {
    /// The instruction without its micro-batch: its name, peer stage, chunk if that is not the first, and blocks.
    pub fn label(&self) -> String {
        let debug = format!("{self:?}");
        let name = debug.split_once(' ').map_or(debug.as_str(), |(name, _)| name);
        let chunk =
            self.chunk().filter(|&chunk| chunk > 0).map_or_else(String::new, |chunk| format!("(chunk {chunk})"));
        let detail = match *self {
            Self::CountTokens { numerator } if numerator != 1 => format!(" (each weighs {numerator})"),
            Self::Forward { blocks: Some(b), .. }
            | Self::Backward { blocks: Some(b), .. }
            | Self::BackwardWeight { blocks: Some(b), .. } => {
                if b.end == b.start + 1 {
                    format!("[block {}]", b.start)
                } else {
                    format!("[blocks {} … {}]", b.start, b.end - 1)
                }
            }
            Self::SendActivation { to, .. } | Self::SendGradient { to, .. } => format!("→{to}"),
            Self::RecvActivation { from, .. } | Self::RecvGradient { from, .. } => format!("←{from}"),
            Self::ClipNorm { max: Some(max) } => format!(" {max}"),
            Self::ClipNorm { max: None } => " (only measured)".to_owned(),
            _ => self.bucket().map_or_else(String::new, |bucket| format!(" bucket {bucket}")),
        };
        format!("{name}{chunk}{detail}")
    }

    /// The micro-batch it is about.
    pub fn mb(&self) -> Option<usize> {
        let mut copy = *self;
        copy.micro_batch_and_chunk().0.copied()
    }

    /// The chunk it is about.
    pub fn chunk(&self) -> Option<usize> {
        let mut copy = *self;
        copy.micro_batch_and_chunk().1
    }

    /// The bucket it is about.
    pub fn bucket(&self) -> Option<usize> {
        match *self {
            Self::AllReduce { bucket }
            | Self::ReduceScatter { bucket }
            | Self::ReduceToRoot { bucket }
            | Self::PrefetchParameters { bucket }
            | Self::GatherParameters { bucket }
            | Self::ReleaseParameters { bucket } => Some(bucket),
            _ => None,
        }
    }

    /// The micro-batch and the chunk that the instruction is about.
    fn micro_batch_and_chunk(&mut self) -> (Option<&mut usize>, Option<usize>) {
        match self {
            Self::Load { mb } => (Some(mb), None),
            Self::Forward { mb, chunk, .. }
            | Self::Backward { mb, chunk, .. }
            | Self::BackwardInput { mb, chunk }
            | Self::BackwardWeight { mb, chunk, .. }
            | Self::SendActivation { mb, chunk, .. }
            | Self::RecvActivation { mb, chunk, .. }
            | Self::SendGradient { mb, chunk, .. }
            | Self::RecvGradient { mb, chunk, .. } => (Some(mb), Some(*chunk)),
            _ => (None, None),
        }
    }

    /// The same instruction for a micro-batch `by` later; `None` if it has no micro-batch.
    fn shifted(mut self, by: usize) -> Option<Self> {
        *self.micro_batch_and_chunk().0? += by;
        Some(self)
    }
}

impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mb() {
            Some(mb) => write!(f, "{} {mb}", self.label()),
            None => f.write_str(&self.label()),
        }
    }
}

impl fmt::Display for Periodic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let intervals: Vec<String> = self.intervals().map(|every| every.to_string()).collect();
        match self.every {
            1 => write!(f, "{} after every step", self.instruction),
            _ => write!(
                f,
                "{} after every {} steps, and after the last",
                self.instruction,
                intervals.join(" and every ")
            ),
        }
    }
}

/// The longest pattern that is looked for: a schedule's steady state alternates a few instructions.
const LONGEST_PATTERN: usize = 8;

/// One line per instruction, or per pattern that repeats with its micro-batches counting up: `Load 0 … 3`,
/// `Forward, Backward 0 … 3, in turn`, `Forward 1 … 4, Backward 0 … 3, in turn`.
pub fn fold(instructions: &[Instruction]) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rest = instructions;
    while let Some(first) = rest.first() {
        let best = (1..=LONGEST_PATTERN.min(rest.len() / 2)).map(|p| (p, repetitions(rest, p))).find(|&(_, n)| n > 1);
        if let Some((period, times)) = best {
            lines.push(folded(&rest[..period], times));
            rest = &rest[period * times..];
        } else {
            lines.push(first.to_string());
            rest = &rest[1..];
        }
    }
    lines
}

/// The number of times that the first `period` instructions follow one another, with every micro-batch one higher each time.
fn repetitions(rest: &[Instruction], period: usize) -> usize {
    let (pattern, mut times) = (&rest[..period], 1);
    for chunk in rest.chunks_exact(period).skip(1) {
        let follows = pattern.iter().zip(chunk).all(|(first, now)| first.shifted(times) == Some(*now));
        if !follows {
            break;
        }
        times += 1;
    }
    times
}

fn folded(pattern: &[Instruction], times: usize) -> String {
    let parts: Vec<(String, usize)> = pattern.iter().filter_map(|i| Some((i.label(), i.mb()?))).collect();
    let range = |mb: usize| format!("{mb} … {}", mb + times - 1);
    match parts.as_slice() {
        [first, rest @ ..] if rest.iter().all(|p| p.1 == first.1) => {
            let names: Vec<&str> = parts.iter().map(|p| p.0.as_str()).collect();
            let turns = if rest.is_empty() { "" } else { ", in turn" };
            format!("{} {}{turns}", names.join(", "), range(first.1))
        }
        _ => {
            parts.iter().map(|(name, mb)| format!("{name} {}", range(*mb))).collect::<Vec<_>>().join(", ") + ", in turn"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Instruction::{ClipNorm, Load, OptimizerStep};

    fn forward(mb: usize) -> Instruction {
        Instruction::Forward { mb, chunk: 0, blocks: None }
    }

    fn backward(mb: usize) -> Instruction {
        Instruction::Backward { mb, chunk: 0, blocks: None }
    }

    #[test]
    fn folds_runs_and_alternations() {
        let mut step: Vec<Instruction> = (0..4).map(|mb| Load { mb }).collect();
        step.extend((0..4).flat_map(|mb| [forward(mb), backward(mb)]));
        step.extend([ClipNorm { max: Some(1.0) }, OptimizerStep]);
        assert_eq!(fold(&step), ["Load 0 … 3", "Forward, Backward 0 … 3, in turn", "ClipNorm 1", "OptimizerStep"]);
    }

    #[test]
    fn folds_a_steady_state_whose_micro_batches_differ() {
        let mut step = vec![forward(0)];
        step.extend((0..3).flat_map(|mb| [forward(mb + 1), backward(mb)]));
        step.push(backward(3));
        // The first two forwards already are a run, so the alternation starts with a backward.
        assert_eq!(fold(&step), ["Forward 0 … 1", "Backward 0 … 1, Forward 2 … 3, in turn", "Backward 2 … 3"]);
    }

    #[test]
    fn single_instructions_stay_as_they_are() {
        assert_eq!(
            fold(&[Load { mb: 0 }, forward(0), ClipNorm { max: None }]),
            ["Load 0", "Forward 0", "ClipNorm (only measured)"]
        );
        assert!(fold(&[]).is_empty());
    }
}
