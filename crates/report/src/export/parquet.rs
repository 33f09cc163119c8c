//! Metrics as Parquet, with a row for each line of the record, in row groups of some ten thousand rows.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;

use super::new_file::{unwritable, write_new_file};
use runner_record::timed_metrics::{Column, TimedLine, TimedRecord, columns};
use runner_spec::error::CommandError;

const ROWS_PER_GROUP: usize = 1 << 15;

type Out<'a> = &'a mut BufWriter<File>;

/// A row: the run's id, and a line of its metrics.
type Row<'a> = (&'a str, TimedLine);

/// Writes `runs` to the new file `path`. Returns the rows and the bytes of the file.
///
/// # Errors
/// If the file exists, unless `force`; if a run cannot be read or the file cannot be written. Then there is no new file.
pub fn export_parquet(runs: &[TimedRecord], path: &Path, force: bool) -> Result<(u64, u64), CommandError> {
    let failed = |error: ParquetError| unwritable(path)(std::io::Error::other(error));
    write_new_file(path, force, false, |out| {
        let columns = columns(&runs.iter().flat_map(|run| run.tasks.clone()).collect());
        let mut writer = file_writer(out, &columns).map_err(failed)?;
        let mut rows: Vec<Row<'_>> = Vec::with_capacity(ROWS_PER_GROUP);
        let mut count = 0;
        for run in runs {
            count += run.for_each_line(&mut |line| {
                rows.push((&run.id, line));
                if rows.len() == ROWS_PER_GROUP {
                    write_group(&mut writer, &rows, &columns).map_err(failed)?;
                    rows.clear();
                }
                Ok::<(), CommandError>(())
            })?;
        }
        if !rows.is_empty() {
            write_group(&mut writer, &rows, &columns).map_err(failed)?;
        }
        writer.close().map_err(failed)?;
        Ok(count)
    })
}

fn file_writer<'a>(out: Out<'a>, columns: &[Column]) -> ParquetResult<SerializedFileWriter<Out<'a>>> {
    let mut schema = "message metrics {\n    required binary run (utf8);\n    required binary kind (utf8);\n    \
                      required int64 step;\n    required double wall_time;\n"
        .to_owned();
    let kind = |column: &Column| if column.is_integer { "int64" } else { "double" };
    schema.extend(columns.iter().map(|column| format!("    optional {} {};\n", kind(column), column.name)));
    schema.push('}');
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(3)?))
        .set_created_by(concat!("runner version ", env!("CARGO_PKG_VERSION")).to_owned())
        .build();
    SerializedFileWriter::new(out, Arc::new(parse_message_type(&schema)?), Arc::new(properties))
}

/// Writes the columns of `rows` in the order of the schema.
fn write_group(writer: &mut SerializedFileWriter<Out<'_>>, rows: &[Row<'_>], columns: &[Column]) -> ParquetResult<()> {
    let mut group = writer.next_row_group()?;
    write_required::<ByteArrayType>(&mut group, rows.iter().map(|(run, _)| ByteArray::from(*run)))?;
    write_required::<ByteArrayType>(&mut group, rows.iter().map(|(_, row)| ByteArray::from(row.values.kind())))?;
    write_required::<Int64Type>(&mut group, rows.iter().map(|(_, row)| row.step as i64))?;
    write_required::<DoubleType>(&mut group, rows.iter().map(|(_, row)| row.wall_time))?;
    for column in columns {
        if column.is_integer {
            let values = rows.iter().map(|(_, row)| row.values.integer(column).map(|n| n as i64));
            write_optional::<Int64Type>(&mut group, values)?;
        } else {
            write_optional::<DoubleType>(&mut group, rows.iter().map(|(_, row)| row.values.float(column)))?;
        }
    }
    group.close()?;
    Ok(())
}

type Group<'a, 'b> = SerializedRowGroupWriter<'a, Out<'b>>;

fn write_required<T: DataType>(group: &mut Group<'_, '_>, values: impl Iterator<Item = T::T>) -> ParquetResult<()> {
    write_column::<T>(group, &values.collect::<Vec<_>>(), None)
}

/// Writes the values that are present, and for each row whether its value is.
fn write_optional<T: DataType>(
    group: &mut Group<'_, '_>,
    values: impl Iterator<Item = Option<T::T>>,
) -> ParquetResult<()> {
    let (mut present, mut levels) = (Vec::new(), Vec::new());
    for value in values {
        levels.push(i16::from(value.is_some()));
        present.extend(value);
    }
    write_column::<T>(group, &present, Some(&levels))
}

fn write_column<T: DataType>(group: &mut Group<'_, '_>, values: &[T::T], levels: Option<&[i16]>) -> ParquetResult<()> {
    let Some(mut column) = group.next_column()? else {
        return Err(ParquetError::General("the schema has fewer columns than the rows".into()));
    };
    column.typed::<T>().write_batch(values, levels, None)?;
    column.close()
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use parquet::file::reader::{FileReader as _, SerializedFileReader};
    use parquet::record::RowAccessor as _;

    use runner_plan::testing::{compiled, experiment};
    use runner_record::testing::{eval, timed_run, train};

    use runner_spec::error::ErrorKind;

    use super::*;

    #[test]
    fn rows_read_back_over_several_groups() {
        let dir = tempfile::tempdir().unwrap();
        let many = ROWS_PER_GROUP as u64 + 10;
        let loss = |step: u64| 1.0 / step as f64;
        let mut lines: String = (1..=many).map(|step| train(step, &format!("{:?}", loss(step)))).collect();
        lines += &(train(many + 1, "null") + &eval(many + 1, "0.1"));
        let path = timed_run(dir.path(), &compiled(&experiment()), &[(0, "2026-01-01T00:00:00.000Z")], &lines, "");
        let record = TimedRecord::open(&path).unwrap();
        let file = dir.path().join("a.parquet");
        assert_eq!(export_parquet(std::slice::from_ref(&record), &file, false).unwrap().0, many + 2);
        assert_eq!(export_parquet(&[], &file, false).unwrap_err().kind(), ErrorKind::Request);
        let reader = SerializedFileReader::new(File::open(&file).unwrap()).unwrap();
        assert_eq!(reader.num_row_groups(), 2);
        let rows: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
        let column = |name: &str| rows[0].get_column_iter().position(|(n, _)| n == name).unwrap();
        for (i, row) in rows.iter().take(many as usize).enumerate() {
            let step = i as u64 + 1;
            assert_eq!(row.get_long(column("step")).unwrap(), step as i64);
            assert_eq!(row.get_double(column("loss")).unwrap().to_bits(), loss(step).to_bits());
        }
        let [.., gone, evaluated] = rows.as_slice() else { panic!("two more") };
        assert!(gone.get_double(column("loss")).is_err(), "null");
        assert_eq!(gone.get_long(column("tokens")).unwrap(), 8);
        assert_eq!(evaluated.get_string(column("kind")).unwrap(), "eval");
        assert_eq!(evaluated.get_string(column("run")).unwrap(), &record.id);
        assert_eq!(evaluated.get_double(column("val_loss")).unwrap(), 0.1);
        assert!(evaluated.get_long(column("tokens")).is_err());
    }
}
