//! The results of rows and items in `rows.jsonl`.

use std::collections::BTreeMap;
use std::path::Path;

use runner_spec::event::EvaluatedRows;

use super::error::RecordError;
use super::lines::{for_each_record, keep_lines};
use super::names::ROWS;
use super::summary::Summary;

/// The rows and items of the evaluation after `step` in the run directory `run`; `None` if the run does not keep them.
#[must_use]
pub fn read_rows(run: &Path, step: u64) -> Option<EvaluatedRows> {
    let mut found = None;
    let take = &mut |rows: EvaluatedRows| found = Some(rows).filter(|rows| rows.step == step).or(found.take());
    for_each_record(&run.join(ROWS), take).ok()?;
    found
}

/// Keeps in the run directory `run` the lines of the best evaluation, and of the last evaluation of the loss and of each task.
pub(crate) fn keep_last_and_best(run: &Path, summary: &Summary) -> Result<(), RecordError> {
    let (path, mut last) = (run.join(ROWS), BTreeMap::new());
    for_each_record(&path, &mut |rows: EvaluatedRows| {
        let loss = (!rows.losses.is_empty()).then(String::new);
        last.extend(rows.items.into_keys().chain(loss).map(|part| (part, rows.step)));
    })?;
    let best = summary.best_eval.as_ref().map(|best| best.step);
    keep_lines(&path, |step| best == Some(step) || last.values().any(|last| *last == step)).map(drop)
}

#[cfg(test)]
mod tests {
    use runner_spec::event::Evaluation;

    use super::*;
    use crate::lines::LineFile;

    #[test]
    fn the_last_of_each_part_and_the_best_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = LineFile::append(&dir.path().join(ROWS)).unwrap();
        for step in 1..=6 {
            let losses = if step < 6 { vec![step as f32] } else { Vec::new() };
            let items =
                if step == 3 { BTreeMap::from([("quiz".to_owned(), "05".to_owned())]) } else { BTreeMap::new() };
            file.write(&EvaluatedRows { step, tokens: vec![4; losses.len()], losses, items }).unwrap();
        }
        let kept = || (0..8).filter(|step| read_rows(dir.path(), *step).is_some()).collect::<Vec<_>>();
        assert_eq!(kept(), [1, 2, 3, 4, 5, 6]);
        let summary = Summary { best_eval: Some(Evaluation::of_loss(2, 1.5)), ..Summary::default() };
        keep_last_and_best(dir.path(), &summary).unwrap();
        assert_eq!(kept(), [2, 3, 5]);
        assert_eq!(read_rows(dir.path(), 2).unwrap().losses, [2.0]);
        let text = std::fs::read_to_string(dir.path().join(ROWS)).unwrap();
        assert_eq!(text.lines().nth(1), Some(r#"{"step":3,"losses":[3.0],"tokens":[4],"items":{"quiz":"05"}}"#));
        let old = tempfile::tempdir().unwrap();
        keep_last_and_best(old.path(), &summary).unwrap();
        assert_eq!(read_rows(old.path(), 2), None, "a run without the file");
    }
}
