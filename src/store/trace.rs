//! `trace.jsonl` of two runs: the first tensor that differs.

use std::collections::HashMap;
use std::path::Path;

use super::error::StoreError;
use super::lines::each_line;
use crate::exec::{TraceLine, Traced};

/// What became of a comparison of two traces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compared {
    /// Lines that both have.
    pub common: usize,
    /// The first of them, in the order of computation, whose hashes differ.
    pub first: Option<TraceLine>,
}

/// Compares the lines of the steps after `from` up to `until`. A file that is not there has none.
///
/// # Errors
/// If a file cannot be read.
pub fn compare(a: &Path, b: &Path, from: u64, until: u64) -> Result<Compared, StoreError> {
    type Key = (u64, Traced, usize, String);
    let key = |line: &TraceLine| -> Key { (line.step, line.what, line.block, line.name.clone()) };
    let mut known: HashMap<Key, String> = HashMap::new();
    each_trace(a, &mut |line| {
        if (from + 1..=until).contains(&line.step) {
            known.insert(key(&line), line.hash);
        }
    })?;
    let mut compared = Compared { common: 0, first: None };
    each_trace(b, &mut |line| {
        let Some(hash) = known.get(&key(&line)) else { return };
        compared.common += 1;
        if *hash != line.hash && compared.first.as_ref().is_none_or(|first| line.order() < first.order()) {
            compared.first = Some(line);
        }
    })?;
    Ok(compared)
}

fn each_trace(path: &Path, line: &mut dyn FnMut(TraceLine)) -> Result<(), StoreError> {
    each_line(path, &mut |bytes| {
        if let Ok(traced) = serde_json::from_slice(bytes) {
            line(traced);
        }
        Ok(())
    })
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
            // Ranks tell theirs in any order.
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
        assert_eq!(compare(&a, &b, 0, 9).unwrap(), Compared { common: 0, first: None }, "no such file");
        write(&b, "3");
        assert_eq!(compare(&a, &b, 0, 9).unwrap(), Compared { common: 5, first: None });
        write(&b, "4");
        let first = compare(&a, &b, 0, 9).unwrap().first.unwrap();
        assert_eq!((first.step, first.what, first.block), (2, Traced::Gradient, 1));
        assert_eq!(compare(&a, &b, 0, 1).unwrap(), Compared { common: 1, first: None });
        assert_eq!(compare(&a, &b, 2, 9).unwrap().first.unwrap().step, 3);
    }
}
