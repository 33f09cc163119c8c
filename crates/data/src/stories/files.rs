//! The stories as files in the cache: parquet in FineWeb's schema and JSON lines in HellaSwag's.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use serde_json::json;

use super::corpus::{EDITION, Item, Stories, generate_stories};
use crate::cache::{DataCache, EntryKind};
use crate::error::{DataError, Result};
use crate::progress::{Progress, Report};
use crate::split_name::SplitName;
use runner_spec::experiment::{ParquetSource, Source};

/// The names of the files.
pub(crate) const TRAIN: &str = "train.parquet";
pub(crate) const VALIDATION: &str = "validation.parquet";
pub(crate) const CHOICE: &str = "choice.jsonl";
const ROWS_PER_GROUP: usize = 2000;
/// FineWeb's columns, in parquet's own language.
const SCHEMA: &str = include_str!("fineweb.schema");

/// The paths of the built-in corpus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CorpusFiles {
    pub train: PathBuf,
    pub validation: PathBuf,
    pub choice: PathBuf,
}

impl CorpusFiles {
    /// The source that reads the text of `split`.
    pub(crate) fn source(self, split: SplitName) -> Source {
        let file = if split == SplitName::Train { self.train } else { self.validation };
        Source::Parquet(ParquetSource { files: vec![file], column: None, template: None })
    }
}

/// Finds the built-in corpus in the cache, or writes it there.
///
/// # Errors
/// If the cache cannot be read or written.
pub(crate) fn open_or_write_corpus(cache: &DataCache, report: &Report<'_>) -> Result<CorpusFiles> {
    let open = |folder: &Path| {
        let file = |name: &str| {
            let path = folder.join(name);
            if path.is_file() { Ok(path) } else { Err(DataError::damaged(folder, format!("{name} is missing"))) }
        };
        Ok(CorpusFiles { train: file(TRAIN)?, validation: file(VALIDATION)?, choice: file(CHOICE)? })
    };
    let mut build = |folder: &Path| {
        report(Progress::Generating);
        let Stories { train, validation, items } = generate_stories();
        for (name, texts) in [(TRAIN, &train), (VALIDATION, &validation)] {
            let path = folder.join(name);
            write_rows(&path, texts).map_err(|error| match error {
                ParquetError::External(source) => DataError::Io { path, source: std::io::Error::other(source) },
                other => DataError::file(&path, other.to_string()),
            })?;
        }
        write_items(&folder.join(CHOICE), &items).map_err(DataError::io(folder))
    };
    Ok(cache.open_or_build(EntryKind::Corpora, EDITION, report, &open, &mut build)?.0)
}

/// The value of a column in a row with a text.
type ColumnValue<'a> = &'a dyn Fn(usize, &str) -> String;

/// Writes documents in FineWeb's schema.
pub(crate) fn write_rows(path: &Path, texts: &[String]) -> ParquetResult<()> {
    let schema = Arc::new(parse_message_type(SCHEMA)?);
    let zstd = Compression::ZSTD(ZstdLevel::try_new(3)?);
    // Texts are distinct, so a dictionary would only take space.
    let properties = WriterProperties::builder().set_compression(zstd).set_dictionary_enabled(false).build();
    let mut writer = SerializedFileWriter::new(File::create(path)?, schema, Arc::new(properties))?;
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    for (group, texts) in texts.chunks(ROWS_PER_GROUP).enumerate() {
        let mut row_group = writer.next_row_group()?;
        let strings: [ColumnValue<'_>; 7] = [
            &|_, text| text.to_owned(),
            &|row, _| format!("{EDITION}:{stem}:{row}"),
            &|_, _| EDITION.to_owned(),
            &|row, _| format!("about:{EDITION}/{stem}/{row}"),
            &|_, _| "2024-01-01T00:00:00Z".to_owned(),
            &|_, _| format!("{stem}.parquet"),
            &|_, _| "en".to_owned(),
        ];
        for value in strings {
            let values = (group * ROWS_PER_GROUP..).zip(texts).map(|(row, text)| value(row, text).into_bytes().into());
            write_column::<ByteArrayType>(&mut row_group, &values.collect::<Vec<_>>())?;
        }
        write_column::<DoubleType>(&mut row_group, &vec![1.0; texts.len()])?;
        // The count of words: the stories do not have a tokenizer.
        let counts = texts.iter().map(|text| text.split_whitespace().count() as i64).collect::<Vec<_>>();
        write_column::<Int64Type>(&mut row_group, &counts)?;
        row_group.close()?;
    }
    writer.close()?;
    Ok(())
}

/// Writes the next column of the schema, which has the type `T`.
fn write_column<T: DataType>(group: &mut SerializedRowGroupWriter<'_, File>, values: &[T::T]) -> ParquetResult<()> {
    let Some(mut column) = group.next_column()? else {
        return Err(ParquetError::General("the schema has fewer columns than the rows".into()));
    };
    column.typed::<T>().write_batch(values, None, None)?;
    column.close()
}

fn write_items(path: &Path, items: &[Item]) -> std::io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    for (index, Item { story, endings, label }) in items.iter().enumerate() {
        let line = json!({
            "ind": index,
            "activity_label": story.plot,
            "ctx": story.context,
            "label": label,
            "endings": endings,
        });
        writeln!(file, "{line}")?;
    }
    file.flush()
}

#[cfg(test)]
mod tests {
    use parquet::file::reader::{FileReader as _, SerializedFileReader};

    use super::*;

    #[test]
    fn the_files_are_written_once() {
        let dir = tempfile::tempdir().unwrap();
        let cache = DataCache::open(dir.path()).unwrap();
        let files = open_or_write_corpus(&cache, &|_| ()).unwrap();
        assert_eq!(open_or_write_corpus(&cache, &|_| panic!("written again")).unwrap(), files);
        let lines = std::fs::read_to_string(&files.choice).unwrap();
        let first: serde_json::Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
        assert_eq!(first["endings"].as_array().unwrap().len(), 4);
        let schema = SerializedFileReader::new(File::open(&files.train).unwrap()).unwrap();
        let schema = schema.metadata().file_metadata().schema_descr().num_columns();
        assert_eq!(schema, 9, "FineWeb's columns");
    }

    #[test]
    fn damaged_files_are_written_again_as_they_were() {
        let dir = tempfile::tempdir().unwrap();
        let files = open_or_write_corpus(&DataCache::open(dir.path()).unwrap(), &|_| ()).unwrap();
        let folder = files.train.parent().unwrap();
        let whole = |path: &Path| std::fs::read(path).unwrap();
        let expected = [&files.train, &files.validation, &files.choice].map(|path| whole(path));
        let repaired = |what: &str| {
            let reports = std::sync::Mutex::new(Vec::new());
            // A second process.
            let cache = DataCache::open(dir.path()).unwrap();
            let found = open_or_write_corpus(&cache, &|progress| reports.lock().unwrap().push(progress)).unwrap();
            assert_eq!(found, files);
            let again = [&files.train, &files.validation, &files.choice].map(|path| whole(path));
            assert!(again == expected, "{what}: other bytes");
            let reports = reports.into_inner().unwrap();
            let made_again = Progress::Repairing;
            assert_eq!(reports, [made_again("the built-in corpus"), Progress::Generating], "{what}");
        };
        // A bit of each file, among them text of the middle, as a disk flips it: sizes and times stay.
        for name in ["train.parquet", "validation.parquet", "choice.jsonl", "hashes.json"] {
            let path = folder.join(name);
            for part in [1, 2, 3] {
                let mut bytes = whole(&path);
                let (place, time) = (bytes.len() * part / 4, std::fs::metadata(&path).unwrap().modified().unwrap());
                bytes[place] ^= 1;
                std::fs::write(&path, bytes).unwrap();
                File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
                repaired(&format!("byte {place} of {name}"));
            }
            let bytes = whole(&path);
            std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
            repaired(&format!("half of {name}"));
            std::fs::remove_file(&path).unwrap();
            repaired(&format!("without {name}"));
        }
    }
}
