//! Metrics as CSV, one row a line of the record. Numbers are written with the digits that read back to the same bits.

use std::path::Path;

use super::error::ExportError;
use super::place;
use super::record::{Record, Row};
use runner_store::MetricLine;
use runner_store::metrics::{EvalLine, TrainLine};

/// Columns after `run`, `kind`, `step` and `wall_time`. As in `metrics.jsonl`.
pub(super) const WHOLE: [&str; 2] = ["tokens", "hellaswag_n"];
pub(super) const NUMBERS: [&str; 15] = [
    "loss",
    "lr",
    "grad_norm",
    "tokens_per_second",
    "mfu",
    "step_ms",
    "data_ms",
    "forward_ms",
    "backward_ms",
    "optimizer_ms",
    "comm_ms",
    "val_loss",
    "val_perplexity",
    "hellaswag_acc",
    "hellaswag_acc_norm",
];

/// A row's values in the order of the columns.
pub(super) struct Cells {
    pub(super) kind: &'static str,
    pub(super) whole: [Option<u64>; WHOLE.len()],
    pub(super) numbers: [Option<f64>; NUMBERS.len()],
}

pub(super) fn cells(line: &MetricLine) -> Cells {
    let (kind, t, e) = match line {
        MetricLine::Train(t) => ("train", t.clone(), EvalLine::default()),
        MetricLine::Eval(e) => ("eval", TrainLine::default(), e.clone()),
    };
    let tokens = matches!(line, MetricLine::Train(_)).then_some(t.tokens);
    Cells {
        kind,
        whole: [tokens, e.hellaswag_n],
        numbers: [
            t.loss,
            t.lr,
            t.grad_norm,
            t.tokens_per_second,
            t.mfu,
            t.step_ms,
            t.data_ms,
            t.forward_ms,
            t.backward_ms,
            t.optimizer_ms,
            t.comm_ms,
            e.val_loss,
            e.val_perplexity,
            e.hellaswag_acc,
            e.hellaswag_acc_norm,
        ],
    }
}

/// Writes `runs` to the new file `path`; rows and bytes of it.
///
/// # Errors
/// `Exists`, unless `force`; if a run cannot be read or the file not be written. Then there is no new file.
pub fn csv(runs: &[Record], path: &Path, force: bool) -> Result<(u64, u64), ExportError> {
    let mut draft = place::begin(path, force)?;
    let mut rows = 0;
    {
        let mut writer = csv::Writer::from_writer(&mut draft);
        let wrong = |error: csv::Error| ExportError::io(path)(std::io::Error::other(error));
        let names = ["run", "kind", "step", "wall_time"].iter().chain(&WHOLE).chain(&NUMBERS);
        writer.write_record(names).map_err(wrong)?;
        let mut fields: Vec<String> = Vec::new();
        for run in runs {
            rows += run.rows(&mut |Row { step, wall_time, line }| {
                let cells = cells(&line);
                fields.clear();
                fields.extend([run.id.clone(), cells.kind.to_owned(), step.to_string(), number(Some(wall_time))]);
                fields.extend(cells.whole.iter().map(|n| n.map_or_else(String::new, |n| n.to_string())));
                fields.extend(cells.numbers.iter().map(|n| number(*n)));
                writer.write_record(&fields).map_err(wrong)
            })?;
        }
        writer.flush().map_err(ExportError::io(path))?;
    }
    let bytes = place::finish(draft, path, force)?;
    Ok((rows, bytes))
}

/// The shortest digits that read back to `x`; nothing for what is no number.
fn number(x: Option<f64>) -> String {
    x.filter(|x| x.is_finite()).map_or_else(String::new, |x| format!("{x:?}"))
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::{eval, run, train};
    use super::*;

    #[test]
    fn numbers_read_back_exactly_and_what_is_not_finite_is_empty() {
        let dir = tempfile::tempdir().unwrap();
        let hard = 0.1 + 0.2;
        let lines = [train(1, &format!("{hard:?}")), train(2, "null"), eval(2, "5e-324")].concat();
        let path = run(dir.path(), &[(0, "2026-01-01T00:00:00.000Z")], &lines, "");
        let (record, file) = (Record::open(&path).unwrap(), dir.path().join("a.csv"));
        assert_eq!(csv(&[record.clone(), record.clone()], &file, false).unwrap().0, 6);
        assert!(matches!(csv(&[record], &file, false), Err(ExportError::Exists { .. })));
        let mut reader = csv::Reader::from_path(&file).unwrap();
        let heads = reader.headers().unwrap().clone();
        let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
        let get = |row: usize, name: &str| rows[row][heads.iter().position(|h| h == name).unwrap()].to_owned();
        assert_eq!(get(0, "loss").parse::<f64>().unwrap().to_bits(), f64::to_bits(hard));
        assert_eq!((get(1, "loss").as_str(), get(1, "kind").as_str(), get(1, "tokens").as_str()), ("", "train", "8"));
        assert_eq!(get(2, "val_loss").parse::<f64>().unwrap().to_bits(), 1);
        assert_eq!((get(2, "loss").as_str(), get(2, "tokens").as_str(), get(2, "kind").as_str()), ("", "", "eval"));
        assert_eq!(get(0, "wall_time"), "1767225600.5");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "nothing temporary stays");
    }
}
