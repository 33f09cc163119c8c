//! Multiple-choice items in HellaSwag's JSON lines.

use std::path::Path;

use rayon::prelude::*;
use serde_json::{Map, Value};

use super::error::{DataError, Result};
use super::source::{JsonFormat, RecordPosition, for_each_record};
use super::tokenizer::TextTokenizer;
use runner_spec::data::{ChoiceFacts, ChoiceItem};

/// An item before it is encoded.
struct RawItem {
    position: RecordPosition,
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
        for_each_record(path, JsonFormat::Lines, &mut |position, object| {
            written.push(parse(position, &object).map_err(|message| position.error(path, message))?);
            Ok(limit.is_none_or(|limit| written.len() < limit))
        })?;
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

fn parse(position: RecordPosition, object: &Map<String, Value>) -> Result<RawItem, String> {
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
    Ok(RawItem { position, context, endings, label })
}

fn encode(item: &RawItem, path: &Path, tokenizer: &TextTokenizer) -> Result<ChoiceItem> {
    let encode = |text: &str| {
        let place = || format!("{}, line {}", path.display(), item.position.line);
        tokenizer.encode_document(text).map_err(|error| error.within(&place()))
    };
    let endings = item.endings.iter().map(|ending| encode(&format!(" {ending}"))).collect::<Result<_>>()?;
    Ok(ChoiceItem { context: encode(&item.context)?, endings, label: item.label })
}

#[cfg(test)]
mod tests {
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
