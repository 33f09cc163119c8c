//! Metrics as CSV, with a row for each line of the record. Numbers are written with the digits that read back to the same bits.

use std::path::Path;

use super::new_file::{unwritable, write_new_file};
use runner_record::timed_metrics::{Column, TimedLine, TimedRecord, columns};
use runner_spec::error::CommandError;

/// Writes `runs` to the new file `path`. Returns the rows and the bytes of the file.
///
/// # Errors
/// If the file exists, unless `force`; if a run cannot be read or the file cannot be written. Then there is no new file.
pub fn export_csv(runs: &[TimedRecord], path: &Path, force: bool) -> Result<(u64, u64), CommandError> {
    write_new_file(path, force, |out| {
        let mut writer = csv::Writer::from_writer(out);
        let failed = |error: csv::Error| unwritable(path)(std::io::Error::other(error));
        let columns = columns(&runs.iter().flat_map(|run| run.tasks.clone()).collect());
        let metrics = columns.iter().map(|column| &*column.name);
        writer.write_record(["run", "kind", "step", "wall_time"].into_iter().chain(metrics)).map_err(failed)?;
        let mut rows = 0;
        for run in runs {
            rows += run.for_each_line(&mut |TimedLine { step, wall_time, values }| {
                let float = |x: f64| format!("{x:?}");
                let mut fields = vec![run.id.clone(), values.kind().to_owned(), step.to_string(), float(wall_time)];
                let field = |column: &Column| {
                    let integer = || values.integer(column).map(|n| n.to_string());
                    if column.is_integer { integer() } else { values.float(column).map(float) }
                };
                fields.extend(columns.iter().map(|column| field(column).unwrap_or_default()));
                writer.write_record(&fields).map_err(failed)
            })?;
        }
        writer.flush().map_err(unwritable(path))?;
        Ok(rows)
    })
}

#[cfg(test)]
mod tests {
    use runner_plan::testing::{compiled, experiment};
    use runner_record::testing::{eval, timed_run, train};

    use runner_spec::error::ErrorKind;

    use super::*;

    #[test]
    fn numbers_read_back_exactly_and_what_is_not_finite_is_empty() {
        let dir = tempfile::tempdir().unwrap();
        let hard = 0.1 + 0.2;
        let lines = [train(1, &format!("{hard:?}")), train(2, "null"), eval(2, "5e-324")].concat();
        let path = timed_run(dir.path(), &compiled(&experiment()), &[(0, "2026-01-01T00:00:00.000Z")], &lines);
        let (record, file) = (TimedRecord::open(&path).unwrap(), dir.path().join("a.csv"));
        assert_eq!(export_csv(&[record.clone(), record.clone()], &file, false).unwrap().0, 6);
        assert_eq!(export_csv(&[record], &file, false).unwrap_err().kind(), ErrorKind::Request);
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
