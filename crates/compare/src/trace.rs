//! `trace.jsonl` of two runs: the first tensor that differs.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use runner_record::RecordError;
use runner_record::lines::LineReader;
use runner_spec::event::{TraceLine, TracedTensor};

/// Ranks write their lines independently, so lines of a step may follow lines of up to this many later steps.
const MAX_STEPS_OUT_OF_ORDER: u64 = 2;

/// The result of comparing two traces.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TraceComparison {
    /// The number of lines that both have.
    pub common: usize,
    /// The first step that both have.
    pub begins: Option<u64>,
    /// The first common line, in the order of computation, whose hashes differ.
    pub first: Option<TraceLine>,
}

/// Compares the lines of the steps after `from` up to `until`, holding few steps at a time. A file that is not there has none.
///
/// # Errors
/// If a file cannot be read.
pub(super) fn compare(a: &Path, b: &Path, from: u64, until: u64) -> Result<TraceComparison, RecordError> {
    let mut compared = TraceComparison { common: 0, begins: None, first: None };
    let (mut left, mut right) = (TraceSteps::open(a, from, until)?, TraceSteps::open(b, from, until)?);
    let (mut p, mut q) = (left.next_step()?, right.next_step()?);
    while let (Some((step, ours)), Some((other, theirs))) = (&p, &q) {
        let order = step.cmp(other);
        if order.is_eq() {
            compared.add(*step, ours, theirs);
            if compared.first.is_some() {
                // Steps are read in order, so this is the first step with a difference.
                return Ok(compared);
            }
        }
        if order.is_le() {
            p = left.next_step()?;
        }
        if order.is_ge() {
            q = right.next_step()?;
        }
    }
    Ok(compared)
}

impl TraceComparison {
    fn add(&mut self, step: u64, ours: &[TraceLine], theirs: &[TraceLine]) {
        let key = |line: &TraceLine| (line.what, line.block, line.name.clone());
        let known: HashMap<(TracedTensor, usize, String), &str> =
            ours.iter().map(|line| (key(line), line.hash.as_str())).collect();
        for line in theirs {
            let Some(hash) = known.get(&key(line)) else { continue };
            self.common += 1;
            self.begins.get_or_insert(step);
            if *hash != line.hash && self.first.as_ref().is_none_or(|first| line.order() < first.order()) {
                self.first = Some(line.clone());
            }
        }
    }
}

/// The lines of a trace, step by step.
struct TraceSteps {
    lines: LineReader,
    from: u64,
    until: u64,
    /// The steps whose lines may not be complete yet.
    begun: BTreeMap<u64, Vec<TraceLine>>,
    ended: bool,
}

impl TraceSteps {
    fn open(path: &Path, from: u64, until: u64) -> Result<Self, RecordError> {
        Ok(Self { lines: LineReader::open(path)?, from, until, begun: BTreeMap::new(), ended: false })
    }

    /// The lines of the next step that has some.
    fn next_step(&mut self) -> Result<Option<(u64, Vec<TraceLine>)>, RecordError> {
        while !self.ended && !self.has_whole_step() {
            let Some(bytes) = self.lines.next_line()? else {
                self.ended = true;
                break;
            };
            let Ok(line) = serde_json::from_slice::<TraceLine>(bytes) else { continue };
            if line.step > self.until.saturating_add(MAX_STEPS_OUT_OF_ORDER) {
                self.ended = true;
            } else if line.step > self.from && line.step <= self.until {
                self.begun.entry(line.step).or_default().push(line);
            }
        }
        Ok(self.begun.pop_first())
    }

    fn has_whole_step(&self) -> bool {
        let ends = self.begun.first_key_value().zip(self.begun.last_key_value());
        ends.is_some_and(|((first, _), (last, _))| last - first > MAX_STEPS_OUT_OF_ORDER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_in_the_order_of_computation_counts() {
        let dir = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| dir.path().join(name));
        let line = |step: u64, kind: &str, block: usize, hash: &str| {
            format!("{{\"step\":{step},\"kind\":\"{kind}\",\"block\":{block},\"name\":\"x\",\"hash\":\"{hash}\"}}\n")
        };
        let write = |path: &Path, odd: &str| {
            // Ranks send theirs in any order.
            let lines = [
                line(2, "gradient", 0, odd),
                line(2, "gradient", 1, odd),
                line(1, "output", 0, "1"),
                line(2, "output", 0, "2"),
                line(3, "output", 0, odd),
            ];
            std::fs::write(path, lines.concat() + "torn").unwrap();
        };
        write(&a, "3");
        assert_eq!(
            compare(&a, &b, 0, 9).unwrap(),
            TraceComparison { common: 0, begins: None, first: None },
            "no such file"
        );
        write(&b, "3");
        assert_eq!(compare(&a, &b, 0, 9).unwrap(), TraceComparison { common: 5, begins: Some(1), first: None });
        write(&b, "4");
        let first = compare(&a, &b, 0, 9).unwrap().first.unwrap();
        assert_eq!((first.step, first.what, first.block), (2, TracedTensor::Gradient, 1));
        assert_eq!(compare(&a, &b, 0, 1).unwrap(), TraceComparison { common: 1, begins: Some(1), first: None });
        assert_eq!(compare(&a, &b, 2, 9).unwrap().first.unwrap().step, 3);
    }
    #[test]
    fn few_steps_are_held_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| dir.path().join(name));
        let line = |step: u64, block: usize, odd: u64| {
            let hash = u64::from(step >= odd);
            format!("{{\"step\":{step},\"kind\":\"output\",\"block\":{block},\"name\":\"x\",\"hash\":\"{hash}\"}}\n")
        };
        // Of two ranks, the second one reports each step after the first one's next. The copy was traced later.
        let write = |path: &Path, first: u64, odd: u64| {
            let lines = (first..=900).flat_map(|step| [line(step + 1, 0, odd), line(step, 1, odd)]);
            std::fs::write(path, lines.collect::<String>()).unwrap();
        };
        write(&a, 0, 700);
        write(&b, 100, 901);
        let compared = compare(&a, &b, 0, 900).unwrap();
        // Up to the step of the first difference: outputs of steps 100 (one of them) to 700.
        assert_eq!((compared.common, compared.begins), (1 + 600 * 2, Some(100)));
        let first = compared.first.unwrap();
        assert_eq!((first.step, first.block), (700, 0));
        let mut steps = TraceSteps::open(&a, 0, 900).unwrap();
        while steps.next_step().unwrap().is_some() {
            assert!(steps.begun.len() <= 3, "{:?}", steps.begun.keys());
        }
    }
}
