//! Multiple-choice items in HellaSwag's format: JSON lines, or the rows of a parquet file.

use std::path::Path;

use rayon::prelude::*;
use serde_json::{Map, Value};

use super::error::{DataError, Result};
use super::source::{JsonFormat, for_each_record, for_each_row, is_parquet};
use super::tokenizer::TextTokenizer;
use runner_spec::data::{ChoiceFacts, ChoiceItem};

/// The fields of an item that are read.
const FIELDS: [&str; 3] = ["ctx", "label", "endings"];

/// An item before it is encoded.
struct RawItem {
    /// Its line or row.
    place: String,
    context: String,
    endings: Vec<String>,
    label: usize,
}

/// Loads and encodes the first `limit` items of `path`. Endings are encoded with a blank in front.
pub(super) fn load_items(
    path: &Path,
    limit: Option<usize>,
    tokenizer: &TextTokenizer,
) -> Result<(Vec<ChoiceItem>, ChoiceFacts)> {
    let mut written = Vec::new();
    if limit != Some(0) {
        let mut add = |item: RawItem| {
            written.push(item);
            limit.is_none_or(|limit| written.len() < limit)
        };
        if is_parquet(path)? {
            for_each_row(path, &FIELDS, &mut |row, object| {
                let place = format!("row {row}");
                let wrong = |message: String| DataError::file(path, format!("row {row}: {message}"));
                Ok(add(parse(place, &object).map_err(wrong)?))
            })?;
        } else {
            for_each_record(path, JsonFormat::Lines, &mut |position, object| {
                let place = format!("line {}", position.line);
                Ok(add(parse(place, &object).map_err(|message| position.error(path, message))?))
            })?;
        }
    }
    if written.is_empty() {
        return Err(DataError::setting("eval.hellaswag", format!("{} gives no items", path.display())));
    }
    let items: Vec<_> = written.par_iter().map(|item| encode(item, path, tokenizer)).collect::<Result<_, _>>()?;
    let mut hasher = blake3::Hasher::new();
    let mut add = |tokens: &[u32]| {
        hasher.update(&(tokens.len() as u64).to_le_bytes());
        for token in tokens {
            hasher.update(&token.to_le_bytes());
        }
    };
    for item in &items {
        add(&item.context);
        item.endings.iter().for_each(|ending| add(ending));
        add(&[item.label as u32]);
    }
    let facts = ChoiceFacts { items: items.len(), hash: hasher.finalize().to_hex().to_string() };
    Ok((items, facts))
}

fn parse(place: String, object: &Map<String, Value>) -> Result<RawItem, String> {
    let wanted =
        |name: &str| object.get(name).ok_or_else(|| format!("no field `{name}`; an item has ctx, label and endings"));
    let context = wanted("ctx")?.as_str().ok_or("`ctx` is not a string")?.to_owned();
    if context.is_empty() {
        return Err("`ctx` is empty".into());
    }
    let endings = wanted("endings")?.as_array().ok_or("`endings` is not an array")?;
    let endings = endings.iter().map(|ending| ending.as_str().map(str::to_owned));
    let endings: Vec<_> = endings.collect::<Option<_>>().ok_or("`endings` are not all strings")?;
    if endings.len() < 2 {
        return Err(format!("{} endings; a choice is of two or more", endings.len()));
    }
    // The parquet release has labels as strings, which JSON made from it keeps.
    let label = match wanted("label")? {
        Value::String(text) if text.is_empty() => return Err("`label` is empty, as in HellaSwag's test set".into()),
        Value::String(text) => text.parse().ok(),
        other => other.as_u64().map(|label| label as usize),
    };
    let label = label.filter(|&label| label < endings.len());
    let label = label.ok_or_else(|| format!("`label` does not number one of the {} endings, from 0", endings.len()))?;
    Ok(RawItem { place, context, endings, label })
}

fn encode(item: &RawItem, path: &Path, tokenizer: &TextTokenizer) -> Result<ChoiceItem> {
    let encode = |text: &str| {
        let place = || format!("{}, {}", path.display(), item.place);
        tokenizer.encode_document(text).map_err(|error| error.within(&place()))
    };
    let endings = item.endings.iter().map(|ending| encode(&format!(" {ending}"))).collect::<Result<_>>()?;
    Ok(ChoiceItem { context: encode(&item.context)?, endings, label: item.label })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parquet::data_type::{ByteArray, ByteArrayType, Int32Type};
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;

    use super::*;

    fn items(content: &str, limit: Option<usize>) -> Result<Vec<ChoiceItem>, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        std::fs::write(&path, content).unwrap();
        let loaded = load_items(&path, limit, &TextTokenizer::bytes());
        loaded.map(|(items, _)| items).map_err(|error| error.to_string().rsplit_once("a.jsonl").unwrap().1.to_owned())
    }

    #[test]
    fn items_are_encoded() {
        let content = r#"{"ctx": "ab", "label": "1", "endings": ["c", "d"], "ind": 3}
{"ctx": "x", "label": 0, "endings": ["y", "z", "q", "r"]}"#;
        let loaded = items(content, None).unwrap();
        let first = ChoiceItem { context: vec![97, 98], endings: vec![vec![32, 99], vec![32, 100]], label: 1 };
        assert_eq!((loaded.len(), &loaded[0]), (2, &first));
        assert_eq!(items(content, Some(1)).unwrap(), [first]);
    }

    /// The schema of Rowan/hellaswag on the hub, without the columns that are not read.
    const SCHEMA: &str = "message schema {
        OPTIONAL INT32 ind; OPTIONAL BYTE_ARRAY ctx (STRING);
        OPTIONAL GROUP endings (LIST) { REPEATED GROUP list { OPTIONAL BYTE_ARRAY element (STRING); } }
        OPTIONAL BYTE_ARRAY label (STRING); }";

    /// A number, a context, two endings and a label.
    type Row<'a> = (i32, &'a str, [&'a str; 2], &'a str);

    fn write_rows(path: &Path, rows: &[Row<'_>]) {
        let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
        let file = std::fs::File::create(path).unwrap();
        let mut writer = SerializedFileWriter::new(file, schema, Arc::default()).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let present = vec![1; rows.len()];
        let mut column = group.next_column().unwrap().unwrap();
        let numbers: Vec<i32> = rows.iter().map(|row| row.0).collect();
        column.typed::<Int32Type>().write_batch(&numbers, Some(&present), None).unwrap();
        column.close().unwrap();
        let texts = |select: fn(&Row<'_>) -> String| -> Vec<ByteArray> {
            rows.iter().map(|row| ByteArray::from(select(row).into_bytes())).collect()
        };
        let mut column = group.next_column().unwrap().unwrap();
        let contexts = texts(|row| row.1.to_owned());
        column.typed::<ByteArrayType>().write_batch(&contexts, Some(&present), None).unwrap();
        column.close().unwrap();
        let endings: Vec<ByteArray> =
            rows.iter().flat_map(|row| row.2).map(|text| ByteArray::from(text.as_bytes().to_vec())).collect();
        let definitions = vec![3; endings.len()];
        let repetitions: Vec<i16> = rows.iter().flat_map(|_| [0, 1]).collect();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&endings, Some(&definitions), Some(&repetitions)).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let labels = texts(|row| row.3.to_owned());
        column.typed::<ByteArrayType>().write_batch(&labels, Some(&present), None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
        writer.close().unwrap();
    }

    #[test]
    fn rows_of_parquet_are_the_items_of_their_lines() {
        let dir = tempfile::tempdir().unwrap();
        let (rows, lines) = (dir.path().join("validation.parquet"), dir.path().join("validation.jsonl"));
        write_rows(&rows, &[(3, "ab", ["c", "d"], "1"), (4, "x", ["yé", "z"], "0")]);
        let objects = [
            serde_json::json!({"ctx": "ab", "label": 1, "endings": ["c", "d"]}),
            serde_json::json!({"ctx": "x", "label": 0, "endings": ["yé", "z"]}),
        ];
        std::fs::write(&lines, objects.map(|object| object.to_string()).join("\n")).unwrap();
        let load = |path: &Path, limit| load_items(path, limit, &TextTokenizer::bytes());
        assert_eq!(load(&rows, None).unwrap(), load(&lines, None).unwrap());
        assert_eq!(load(&rows, Some(1)).unwrap().0.len(), 1);
        write_rows(&rows, &[(3, "ab", ["c", "d"], "1"), (4, "x", ["y", "z"], "")]);
        let error = load(&rows, None).unwrap_err().to_string();
        assert!(error.contains("row 1: `label` is empty, as in HellaSwag's test set"), "{error}");
        crate::stories::write_parquet(&rows, &["a text".to_owned()]).unwrap();
        let error = load(&rows, None).unwrap_err().to_string();
        assert!(error.contains("no column `ctx`; the columns are `text`"), "{error}");
    }

    #[test]
    fn mistakes_name_the_line() {
        let error = |line: &str| items(&format!("\n{line}"), None).unwrap_err();
        assert_eq!(error(r#"{"ctx": "a"}"#), ", line 2: no field `endings`; an item has ctx, label and endings");
        assert!(error(r#"{"ctx": "a", "label": 4, "endings": ["a", "b"]}"#).contains("one of the 2 endings"));
        assert!(error(r#"{"ctx": "a", "label": "", "endings": ["a", "b"]}"#).contains("test set"));
        assert!(error(r#"{"ctx": 1, "label": "", "endings": ["a", "b"]}"#).contains("`ctx` is not a string"));
        assert!(error(r#"{"ctx": "a", "label": 0, "endings": ["a", 3]}"#).contains("not all strings"));
        assert!(error("{").contains("line 2: not JSON"));
        assert!(error("").contains("no items"));
    }
}
