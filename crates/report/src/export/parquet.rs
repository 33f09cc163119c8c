//! Metrics as Parquet, one row a line of the record, in row groups of some ten thousand rows.

use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, ZstdLevel};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::csv::{Cells, NUMBERS, WHOLE, cells};
use super::error::ExportError;
use super::place::{self, Draft};
use super::record::{Record, Row};

const ROW_GROUP: usize = 1 << 15;

type Rows = Vec<(usize, u64, f64, Cells)>;

/// Writes `runs` to the new file `path`; rows and bytes of it.
///
/// # Errors
/// As `csv`.
pub fn parquet(runs: &[Record], path: &Path, force: bool) -> Result<(u64, u64), ExportError> {
    let mut draft = place::begin(path, force)?;
    let wrong = |source: ParquetError| match source {
        ParquetError::External(source) => ExportError::io(path)(std::io::Error::other(source)),
        source => ExportError::Parquet { path: path.to_owned(), source },
    };
    let mut count = 0;
    {
        let mut writer = writer(&mut draft).map_err(wrong)?;
        let mut rows: Rows = Vec::with_capacity(ROW_GROUP);
        for (index, run) in runs.iter().enumerate() {
            count += run.rows(&mut |Row { step, wall_time, line }| {
                rows.push((index, step, wall_time, cells(&line)));
                if rows.len() == ROW_GROUP {
                    group(&mut writer, runs, &rows).map_err(wrong)?;
                    rows.clear();
                }
                Ok::<(), ExportError>(())
            })?;
        }
        if !rows.is_empty() {
            group(&mut writer, runs, &rows).map_err(wrong)?;
        }
        writer.close().map_err(wrong)?;
    }
    place::flush(&mut draft, path)?;
    let bytes = place::finish(draft, path, force)?;
    Ok((count, bytes))
}

fn writer(draft: &mut Draft) -> ParquetResult<SerializedFileWriter<&mut Draft>> {
    let mut schema = "message metrics {\n    required binary run (utf8);\n    required binary kind (utf8);\n    \
                      required int64 step;\n    required double wall_time;\n"
        .to_owned();
    for (kind, names) in [("int64", WHOLE.as_slice()), ("double", &NUMBERS)] {
        schema.extend(names.iter().map(|name| format!("    optional {kind} {name};\n")));
    }
    schema.push('}');
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(3)?))
        .set_created_by(concat!("runner version ", env!("CARGO_PKG_VERSION")).to_owned())
        .build();
    SerializedFileWriter::new(draft, Arc::new(parse_message_type(&schema)?), Arc::new(properties))
}

fn group(writer: &mut SerializedFileWriter<&mut Draft>, runs: &[Record], rows: &Rows) -> ParquetResult<()> {
    let mut group = writer.next_row_group()?;
    let mut index = 0;
    while let Some(mut column) = group.next_column()? {
        match column.untyped() {
            ColumnWriter::ByteArrayColumnWriter(column) => {
                let text = |(run, _, _, cells): &(usize, u64, f64, Cells)| {
                    ByteArray::from(if index == 0 { runs[*run].id.as_str() } else { cells.kind })
                };
                column.write_batch(&rows.iter().map(text).collect::<Vec<_>>(), None, None)?;
            }
            ColumnWriter::Int64ColumnWriter(column) if index == 2 => {
                column.write_batch(&rows.iter().map(|row| row.1 as i64).collect::<Vec<_>>(), None, None)?;
            }
            ColumnWriter::DoubleColumnWriter(column) if index == 3 => {
                column.write_batch(&rows.iter().map(|row| row.2).collect::<Vec<_>>(), None, None)?;
            }
            ColumnWriter::Int64ColumnWriter(column) => {
                let at = |row: &(usize, u64, f64, Cells)| row.3.whole[index - 4].map(|n| n as i64);
                let (values, levels) = split(rows.iter().map(at));
                column.write_batch(&values, Some(&levels), None)?;
            }
            ColumnWriter::DoubleColumnWriter(column) => {
                let at =
                    |row: &(usize, u64, f64, Cells)| row.3.numbers[index - 4 - WHOLE.len()].filter(|x| x.is_finite());
                let (values, levels) = split(rows.iter().map(at));
                column.write_batch(&values, Some(&levels), None)?;
            }
            _ => return Err(ParquetError::General("a column that the schema does not have".into())),
        }
        column.close()?;
        index += 1;
    }
    group.close()?;
    Ok(())
}

/// The values that are there, and for each row whether one is.
fn split<T>(values: impl Iterator<Item = Option<T>>) -> (Vec<T>, Vec<i16>) {
    let (mut there, mut levels) = (Vec::new(), Vec::new());
    for value in values {
        levels.push(i16::from(value.is_some()));
        there.extend(value);
    }
    (there, levels)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use parquet::file::reader::{FileReader as _, SerializedFileReader};
    use parquet::record::RowAccessor as _;

    use super::super::record::tests::{eval, run, train};
    use super::*;

    #[test]
    fn rows_read_back_over_several_groups() {
        let dir = tempfile::tempdir().unwrap();
        let many = ROW_GROUP as u64 + 10;
        let loss = |step: u64| 1.0 / step as f64;
        let mut lines: String = (1..=many).map(|step| train(step, &format!("{:?}", loss(step)))).collect();
        lines += &(train(many + 1, "null") + &eval(many + 1, "0.1"));
        let path = run(dir.path(), &[(0, "2026-01-01T00:00:00.000Z")], &lines, "");
        let record = Record::open(&path).unwrap();
        let file = dir.path().join("a.parquet");
        assert_eq!(parquet(std::slice::from_ref(&record), &file, false).unwrap().0, many + 2);
        assert!(matches!(parquet(&[], &file, false), Err(ExportError::Exists { .. })));
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
