//! Multiple-choice items, the records of a file, in HellaSwag's format or with the fields that a task names.

mod lm_eval_text;

use std::collections::BTreeSet;
use std::path::Path;

use rayon::prelude::*;
use serde_json::{Map, Value};

use super::error::{DataError, Result};
use super::model_tokenizer::ModelTokenizer;
use super::source::{for_each_record, is_parquet};
pub(crate) use lm_eval_text::is_python_space;
use runner_spec::data::{ChoiceFacts, ChoiceItem};
use runner_spec::diagnostic::{list, short};
use runner_spec::experiment::{ChoiceText, RecordFormat, Task};
use runner_template::RecordTemplate;

/// An item before it is encoded.
struct RawItem {
    /// Its line or row.
    place: String,
    context: String,
    endings: Vec<String>,
    label: usize,
}

/// Loads and encodes the items of `task` in the file `path`. `key` names the task in messages.
pub(super) fn load_items(
    path: &Path,
    key: &str,
    task: &Task,
    tokenizer: &ModelTokenizer,
) -> Result<(Vec<ChoiceItem>, ChoiceFacts)> {
    let setting = |message: String| DataError::setting(format!("{key}.context"), message);
    let reader = ItemReader::new(task).map_err(setting)?;
    let mut written = Vec::new();
    if task.limit != Some(0) {
        let mut add = |item: RawItem| {
            written.push(item);
            task.limit.is_none_or(|limit| written.len() < limit)
        };
        let columns = reader.columns();
        let names = columns.iter().map(String::as_str).collect();
        let format = if is_parquet(path)? { RecordFormat::Parquet } else { RecordFormat::Jsonl };
        for_each_record(path, format, &names, &mut |position, object| {
            let item = reader.parse(position.describe(), &object);
            Ok(add(item.map_err(|message| position.error(path, message))?))
        })?;
    }
    if written.is_empty() {
        return Err(DataError::setting(key.to_owned(), format!("{} has no items", path.display())));
    }
    let encoded: Vec<_> = written.par_iter().map(|item| encode(item, path, tokenizer)).collect();
    // The first mistake in the file's order.
    let items = encoded.into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut hasher = blake3::Hasher::new();
    let mut add = |tokens: &[u32]| {
        hasher.update(&(tokens.len() as u64).to_le_bytes());
        for token in tokens {
            hasher.update(&token.to_le_bytes());
        }
    };
    // Not over the prefix: it follows from the layout of the rows, which has its own place in a plan.
    for item in &items {
        add(&item.context);
        item.endings.iter().for_each(|ending| add(ending));
        add(&[item.label as u32]);
    }
    let facts = ChoiceFacts { items: items.len(), hash: hasher.finalize().to_hex().to_string() };
    Ok((items, facts))
}

/// Reads the text and the answer of items from the fields that a task names.
struct ItemReader<'a> {
    context: Context<'a>,
    choices: Vec<&'a str>,
    answer: &'a str,
    labels: &'a [String],
}

/// What makes the context of an item.
enum Context<'a> {
    Field(&'a str),
    Template(Box<RecordTemplate>),
    /// lm-eval's text of HellaSwag.
    LmEval,
}

impl<'a> ItemReader<'a> {
    /// # Errors
    /// If the template of the context is wrong.
    fn new(task: &'a Task) -> Result<Self, String> {
        let context = match task.context.as_deref() {
            _ if task.text == ChoiceText::LmEval => Context::LmEval,
            Some(text) if is_template(text) => {
                Context::Template(Box::new(RecordTemplate::new(text).map_err(|error| error.to_string())?))
            }
            field => Context::Field(field.unwrap_or("ctx")),
        };
        let choices = task.choices.as_ref().map(|fields| fields.iter().map(String::as_str).collect());
        Ok(Self {
            context,
            choices: choices.unwrap_or_else(|| vec!["endings"]),
            answer: task.answer.as_deref().unwrap_or("label"),
            labels: task.labels.as_deref().unwrap_or_default(),
        })
    }

    /// The fields that are read.
    fn fields(&self) -> Vec<String> {
        let mut fields: Vec<String> = match &self.context {
            Context::Field(name) => vec![(*name).to_owned()],
            Context::Template(template) => template.fields().map(str::to_owned).collect(),
            Context::LmEval => ["activity_label", "ctx_a", "ctx_b"].map(str::to_owned).to_vec(),
        };
        fields.push(self.answer.to_owned());
        fields.extend(self.choices.iter().map(|&field| field.to_owned()));
        if let [field] = self.labels {
            fields.push(field.clone());
        }
        fields
    }

    /// The columns that hold these fields.
    fn columns(&self) -> BTreeSet<String> {
        let column = |field: String| field.split('.').next().unwrap_or_default().to_owned();
        self.fields().into_iter().map(column).collect()
    }

    fn parse(&self, place: String, object: &Map<String, Value>) -> Result<RawItem, String> {
        let wanted = |name: &str| {
            value_at(object, name)
                .ok_or_else(|| format!("no field `{name}`; an item must have {}", list(&self.fields(), "and")))
        };
        let string = |name: &str| wanted(name)?.as_str().ok_or_else(|| format!("`{name}` is not a string"));
        let strings = |name: &str| -> Result<Vec<String>, String> {
            let values = wanted(name)?.as_array().ok_or_else(|| format!("`{name}` is not an array"))?;
            let texts: Option<Vec<String>> = values.iter().map(|value| value.as_str().map(str::to_owned)).collect();
            texts.ok_or_else(|| format!("`{name}` are not all strings"))
        };
        let context = match &self.context {
            Context::Field(name) => string(name)?.to_owned(),
            Context::Template(template) => template.render(object).map_err(|error| error.to_string())?,
            Context::LmEval => lm_eval_text::context(string("activity_label")?, string("ctx_a")?, string("ctx_b")?),
        };
        if context.trim_end_matches(is_python_space).is_empty() {
            let name = if let Context::Field(name) = &self.context { name } else { "context" };
            return Err(format!("`{name}` is empty"));
        }
        let mut endings = match self.choices.as_slice() {
            [list] => strings(list)?,
            fields => fields.iter().map(|field| string(field).map(str::to_owned)).collect::<Result<_, _>>()?,
        };
        if matches!(self.context, Context::LmEval) {
            endings = endings.iter().map(|ending| lm_eval_text::clean(ending)).collect();
        }
        if endings.len() < 2 {
            return Err(format!("an item must have at least 2 endings, got {}", endings.len()));
        }
        let answer = wanted(self.answer)?;
        let label = match self.labels {
            [] => answer_number(self.answer, answer, endings.len())?,
            [field] => answer_label(self.answer, answer, &strings(field)?, endings.len())?,
            labels => answer_label(self.answer, answer, labels, endings.len())?,
        };
        Ok(RawItem { place, context, endings, label })
    }
}

/// True if `text`, the `context` of a task, is a template and no name of a field.
fn is_template(text: &str) -> bool {
    text.contains("{{")
}

/// The value of the field `path`, which may lead into fields by points.
fn value_at<'v>(object: &'v Map<String, Value>, path: &str) -> Option<&'v Value> {
    if let Some(value) = object.get(path) {
        return Some(value);
    }
    let (first, rest) = path.split_once('.')?;
    value_at(object.get(first)?.as_object()?, rest)
}

/// The number of the right one of `count` endings. HellaSwag's release on the hub has numbers as strings, which JSON made from it keeps.
fn answer_number(name: &str, value: &Value, count: usize) -> Result<usize, String> {
    let number = match value {
        Value::String(text) if text.is_empty() => return Err(format!("`{name}` is empty, as in HellaSwag's test set")),
        Value::String(text) => text.parse().ok(),
        other => other.as_u64().map(|number| number as usize),
    };
    number
        .filter(|&number| number < count)
        .ok_or_else(|| format!("`{name}` must be the number of one of the {count} endings, counted from 0"))
}

/// The number of the ending that has the label `value`.
fn answer_label(name: &str, value: &Value, labels: &[String], count: usize) -> Result<usize, String> {
    if labels.len() != count {
        return Err(format!("{count} endings have {} labels", labels.len()));
    }
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    labels
        .iter()
        .position(|label| *label == text)
        .ok_or_else(|| format!("`{name}` must be one of the labels {}, got {}", labels.join(", "), short(&text)))
}

/// Encodes `item` by the rule of lm-eval (`_encode_pair`). Blanks at the end of the context go to the ending. Context and ending are encoded
/// together, because the tokens of an ending may depend on what precedes it, and the ending has the tokens after as many as the context has
/// alone. So where a token spans the border, the model reads the context's own tokens, and the ending loses that token.
fn encode(item: &RawItem, path: &Path, tokenizer: &ModelTokenizer) -> Result<ChoiceItem> {
    let encode = |text: &str| {
        let place = || format!("{}, {}", path.display(), item.place);
        tokenizer.text.encode_document(text).map_err(|error| error.within(&place()))
    };
    let context = encode(item.context.trim_end_matches(is_python_space))?;
    let mut endings = Vec::with_capacity(item.endings.len());
    for (index, ending) in item.endings.iter().enumerate() {
        let whole = encode(&format!("{} {ending}", item.context))?;
        let tokens = whole.get(context.len()..).unwrap_or_default().to_vec();
        if tokens.is_empty() {
            let message = format!("{}: ending {index} adds no tokens after the context", item.place);
            return Err(DataError::file(path, message));
        }
        endings.push(tokens);
    }
    let characters = item.endings.iter().map(|ending| ending.chars().count()).collect();
    Ok(ChoiceItem { prefix: tokenizer.prefix().to_vec(), context, endings, characters, label: item.label })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parquet::data_type::{ByteArray, ByteArrayType, Int32Type};
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;

    use super::*;
    use crate::tokenizer::{TextTokenizer, load_tokenizer};
    use runner_spec::experiment::{Layout, Tokenizer};

    fn bytes() -> ModelTokenizer {
        ModelTokenizer::of_weights(TextTokenizer::bytes())
    }

    fn items(content: &str, limit: Option<usize>) -> Result<Vec<ChoiceItem>, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        std::fs::write(&path, content).unwrap();
        let loaded = load_items(&path, "eval.hellaswag", &Task { limit, ..Task::default() }, &bytes());
        loaded.map(|(items, _)| items).map_err(|error| error.to_string().rsplit_once("a.jsonl").unwrap().1.to_owned())
    }

    #[test]
    fn items_are_encoded() {
        let content = r#"{"ctx": "ab", "label": "1", "endings": ["c", "d"], "ind": 3}
{"ctx": "x", "label": 0, "endings": ["y", "z", "q", "r"]}"#;
        let loaded = items(content, None).unwrap();
        let (endings, characters) = (vec![vec![32, 99], vec![32, 100]], vec![1, 1]);
        let first = ChoiceItem { prefix: Vec::new(), context: vec![97, 98], endings, characters, label: 1 };
        assert_eq!((loaded.len(), &loaded[0]), (2, &first));
        assert_eq!(items(content, Some(1)).unwrap(), [first]);
    }

    /// Against lm-eval's rule with Python's `tokenizers`: see `tests/golden/choice_tokens.py`.
    #[test]
    fn endings_have_the_tokens_that_lm_eval_gives_them() {
        let cases: Vec<Value> = serde_json::from_str(include_str!("../../../tests/golden/choice_tokens.json")).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (file, tokenizer) = (dir.path().join("a.jsonl"), dir.path().join("tokenizer.json"));
        let ids = |value: &Value| -> Vec<u32> { serde_json::from_value(value.clone()).unwrap() };
        let mut names = Vec::new();
        for case in &cases {
            names.push(case["name"].as_str().unwrap());
            std::fs::write(&tokenizer, case["tokenizer"].to_string()).unwrap();
            let tokenizer = load_tokenizer(&Tokenizer::File(tokenizer.clone())).unwrap();
            let tokenizer = ModelTokenizer::of_weights(tokenizer);
            let written = case["items"].as_array().unwrap();
            let line = |item: &Value| {
                let endings: Vec<&String> = item["endings"].as_object().unwrap().keys().collect();
                serde_json::json!({"ctx": item["ctx"], "endings": endings, "label": 0}).to_string()
            };
            std::fs::write(&file, written.iter().map(line).collect::<Vec<_>>().join("\n")).unwrap();
            let (items, _) = load_items(&file, "eval.hellaswag", &Task::default(), &tokenizer).unwrap();
            for (item, expected) in items.iter().zip(written) {
                let what = format!("{}, {}", case["name"], expected["ctx"]);
                assert_eq!(item.prefix, ids(&case["front"]), "{what}");
                assert_eq!(item.context, ids(&expected["context"]), "{what}");
                for ((ending, expected), (tokens, characters)) in
                    expected["endings"].as_object().unwrap().iter().zip(item.endings.iter().zip(&item.characters))
                {
                    assert_eq!(*tokens, ids(expected), "{what}, {ending:?}");
                    assert_eq!(*characters, ending.chars().count(), "{what}, {ending:?}");
                }
            }
            assert_eq!(items.len(), written.len());
        }
        assert_eq!(names.len(), 9, "{names:?}");
    }

    #[test]
    fn an_ending_without_tokens_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (file, tokenizer) = (dir.path().join("a.jsonl"), dir.path().join("words.json"));
        let words = r#"{"model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"},
            "pre_tokenizer": {"type": "WhitespaceSplit"}, "version": "1.0"}"#;
        std::fs::write(&tokenizer, words).unwrap();
        std::fs::write(&file, r#"{"ctx": "a", "label": 0, "endings": ["b", " "]}"#).unwrap();
        let tokenizer = ModelTokenizer::of_weights(load_tokenizer(&Tokenizer::File(tokenizer)).unwrap());
        let error = load_items(&file, "eval.hellaswag", &Task::default(), &tokenizer).unwrap_err().to_string();
        assert!(error.ends_with("line 1: ending 1 adds no tokens after the context"), "{error}");
    }

    #[test]
    fn lm_evals_text_is_made_of_its_own_fields() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.jsonl");
        let lm_eval = Task { text: ChoiceText::LmEval, ..Task::default() };
        let load = |content: &str| {
            std::fs::write(&file, content).unwrap();
            load_items(&file, "eval.hellaswag", &lm_eval, &bytes()).map(|(items, _)| items)
        };
        let content = r#"{"activity_label": "Baking", "ctx_a": "[header] How [title] Mix.", "ctx_b": "the MAN", "ctx": "unread",
            "label": "0", "endings": ["[step] stirs  it.", " eats "]}"#;
        let items = load(&content.replace('\n', "")).unwrap();
        let text = |tokens: &[u32]| String::from_utf8(tokens.iter().map(|&byte| byte as u8).collect()).unwrap();
        assert_eq!(text(&items[0].context), "Baking: How. Mix. The man");
        assert_eq!(items[0].endings.iter().map(|ending| text(ending)).collect::<Vec<_>>(), ["  stirs it.", " eats"]);
        assert_eq!(items[0].characters, [" stirs it.".len(), 4]);
        let error = load(r#"{"ctx": "a", "label": 0, "endings": ["b", "c"]}"#).unwrap_err().to_string();
        let fields = "an item must have `activity_label`, `ctx_a`, `ctx_b`, `label` and `endings`";
        assert!(error.ends_with(&format!("line 1: no field `activity_label`; {fields}")), "{error}");
    }

    #[test]
    fn a_prefix_is_in_no_hash() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.jsonl");
        std::fs::write(&file, r#"{"ctx": "a", "label": 0, "endings": ["b", "c"]}"#).unwrap();
        let end = "<|endoftext|>".to_owned();
        let padded = Layout::Padded {
            length: 8,
            bos: end.clone(),
            eos: end.clone(),
            pad: end,
            mask: runner_spec::experiment::PaddingMask::Causal,
        };
        let padded = ModelTokenizer::of_rows(TextTokenizer::bytes(), &padded);
        let (with, facts) = load_items(&file, "eval.hellaswag", &Task::default(), &padded).unwrap();
        let (without, other) = load_items(&file, "eval.hellaswag", &Task::default(), &bytes()).unwrap();
        assert_eq!((&with[0].prefix[..], &without[0].prefix[..]), (&[256][..], &[][..]));
        assert_eq!(facts, other);
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
        let load =
            |path: &Path, limit| load_items(path, "eval.hellaswag", &Task { limit, ..Task::default() }, &bytes());
        assert_eq!(load(&rows, None).unwrap(), load(&lines, None).unwrap());
        assert_eq!(load(&rows, Some(1)).unwrap().0.len(), 1);
        write_rows(&rows, &[(3, "ab", ["c", "d"], "1"), (4, "x", ["y", "z"], "")]);
        let error = load(&rows, None).unwrap_err().to_string();
        assert!(error.contains("row 1: `label` is empty, as in HellaSwag's test set"), "{error}");
        crate::stories::write_rows(&rows, &["a text".to_owned()]).unwrap();
        let error = load(&rows, None).unwrap_err().to_string();
        assert!(error.contains("no column `ctx`; the columns are `text`"), "{error}");
    }

    #[test]
    fn mistakes_name_the_line() {
        let error = |line: &str| items(&format!("\n{line}"), None).unwrap_err();
        assert_eq!(
            error(r#"{"ctx": "a"}"#),
            ", line 2: no field `endings`; an item must have `ctx`, `label` and `endings`"
        );
        assert!(error(r#"{"ctx": "a", "label": 4, "endings": ["a", "b"]}"#).contains("one of the 2 endings"));
        assert!(error(r#"{"ctx": "a", "label": "", "endings": ["a", "b"]}"#).contains("test set"));
        assert!(error(r#"{"ctx": 1, "label": "", "endings": ["a", "b"]}"#).contains("`ctx` is not a string"));
        assert!(error(r#"{"ctx": "a", "label": 0, "endings": ["a", 3]}"#).contains("not all strings"));
        assert!(error("{").contains("line 2: not JSON"));
        assert!(error("").contains("no items"));
    }
}
