//! The page that `runner data inspect` prints about files of tokens or text.

use std::fmt::Write as _;

use super::table::{Align, table};
use runner_data::InspectionReport;
use runner_spec::format::{bytes, count, percent, printable};

/// Characters of a text that are shown at most.
const MAX_TEXT_CHARACTERS: usize = 300;
/// Ids of a text that are shown at most, if no tokenizer can decode them.
const MAX_TEXT_IDS: usize = 40;
/// Files that are listed at most.
const MAX_FILES: usize = 20;
/// Columns of a table of text that are listed at most.
const MAX_COLUMNS: usize = 50;

/// Everything that was found in the files.
pub fn data_page(found: &InspectionReport) -> String {
    let mut out = file_table(found);
    out.push('\n');
    let mut line = |name: &str, text: String| _ = writeln!(out, "{name:<12} {text}");
    if let Some(tokens) = found.tokens {
        line("tokens", count(tokens));
    }
    if let Some(text) = &found.text {
        line("text", format!("{}, {} characters", bytes(text.text_bytes), count(text.characters)));
        if let (Some(tokens), true) = (found.tokens, text.text_bytes > 0) {
            line("", format!("{:.2} bytes per token", text.text_bytes as f64 / tokens.max(1) as f64));
        }
        if let Some(column) = &text.column {
            line("text column", printable(column));
        }
    }
    if let Some(end) = found.end_of_text {
        let from = match found.end_of_text_from {
            Some("tokenizer") => "from the tokenizer",
            Some("card") => "from dataset.json",
            Some("guessed") => "a guess from the first or last token",
            _ => "from --end-of-text",
        };
        line("end of text", format!("{end} ({from})"));
    } else if found.text.is_none() {
        line("end of text", "unknown: name the token between documents with --tokenizer or --end-of-text".to_owned());
    }
    let unit = if found.tokens.is_some() { "tokens" } else { "bytes" };
    let documents = &found.documents;
    let mean = found.tokens.or(found.text.as_ref().map(|text| text.text_bytes)).unwrap_or(0) / documents.count.max(1);
    line("documents", format!("{}, {} {unit} on average", count(documents.count), count(mean)));
    for (name, which) in [("longest", documents.longest), ("shortest", documents.shortest)] {
        if let Some((index, length)) = which.filter(|_| documents.count > 1) {
            line(name, format!("{} {unit} (document {})", count(length), count(index)));
        }
    }
    if let Some(vocabulary) = &found.vocabulary {
        let size = vocabulary.size.map_or(String::new(), |size| format!(" of {}", count(size)));
        line("vocabulary", format!("{}{size} ids used, the highest is {}", count(vocabulary.used), vocabulary.highest));
        if let Some(size) = vocabulary.size.filter(|&size| u64::from(vocabulary.highest) >= size) {
            line("", format!("some ids are beyond the tokenizer's {}: it may be the wrong tokenizer", count(size)));
        }
        if vocabulary.impossible_ids > 0 {
            line(
                "",
                format!("{} tokens have ids that are too large for any vocabulary", count(vocabulary.impossible_ids)),
            );
        }
    }
    out.push_str(&column_table(found));
    out.push_str(&frequent_table(found));
    for (index, sample) in found.texts.iter().enumerate() {
        let length = sample.length.map_or(String::new(), |length| format!(", {} {unit}", count(length)));
        let _ = writeln!(out, "\ndocument {index}{length}");
        let (text, is_cut) = match (&sample.text, &sample.ids) {
            (Some(text), _) => shorten(text),
            (None, Some(ids)) => {
                let shown: Vec<_> = ids.iter().take(MAX_TEXT_IDS).map(ToString::to_string).collect();
                (shown.join(" "), ids.len() > MAX_TEXT_IDS)
            }
            (None, None) => continue,
        };
        let _ = writeln!(out, "  {}{}", text.trim_end().replace('\n', "\n  "), if is_cut { " …" } else { "" });
    }
    out
}

/// The beginning of `text`, and whether something was cut off.
fn shorten(text: &str) -> (String, bool) {
    let shown: String = text.chars().take(MAX_TEXT_CHARACTERS).collect();
    let is_cut = shown.len() < text.len();
    (printable(&shown), is_cut)
}

fn file_table(found: &InspectionReport) -> String {
    let tokens = found.files.iter().any(|file| file.tokens.is_some());
    let rows = found.files.iter().any(|file| file.rows.is_some());
    let mut columns = vec![("FILE", Align::Left), ("FORMAT", Align::Left), ("SIZE", Align::Right)];
    if tokens {
        columns.extend([("BITS", Align::Right), ("TOKENS", Align::Right)]);
    }
    if rows {
        columns.push(("ROWS", Align::Right));
    }
    let number = |n: Option<u64>| n.map_or(String::new(), count);
    let mut lines: Vec<Vec<String>> = Vec::new();
    for file in found.files.iter().take(MAX_FILES) {
        let mut line = vec![printable(&file.path.display().to_string()), file.format.to_owned(), bytes(file.bytes)];
        if tokens {
            line.extend([number(file.bits.map(u64::from)), number(file.tokens)]);
        }
        if rows {
            line.push(number(file.rows));
        }
        lines.push(line);
    }
    let mut out = table(&columns, &lines);
    if found.files.len() > MAX_FILES {
        let _ = writeln!(out, "… {} files in all, {}", found.files.len(), bytes(found.bytes));
    }
    out
}

fn column_table(found: &InspectionReport) -> String {
    let Some(text) = found.text.as_ref().filter(|text| !text.columns.is_empty()) else { return String::new() };
    let line = |column: &runner_data::Column| {
        let size = if column.bytes > 0 { bytes(column.bytes) } else { String::new() };
        vec![printable(&column.name), column.kind.clone(), size]
    };
    let lines: Vec<_> = text.columns.iter().take(MAX_COLUMNS).map(line).collect();
    format!("\n{}", table(&[("COLUMN", Align::Left), ("TYPE", Align::Left), ("SIZE", Align::Right)], &lines))
}

fn frequent_table(found: &InspectionReport) -> String {
    let Some(vocabulary) = found.vocabulary.as_ref().filter(|v| !v.frequent.is_empty()) else { return String::new() };
    let all = found.tokens.unwrap_or(0).max(1);
    let lines: Vec<_> = vocabulary
        .frequent
        .iter()
        .map(|token| {
            let text = token.text.as_ref().map_or(String::new(), |text| format!("{:?}", printable(text)));
            vec![token.id.to_string(), count(token.count), percent(token.count as f64 / all as f64), text]
        })
        .collect();
    let heads = [("ID", Align::Right), ("COUNT", Align::Right), ("SHARE", Align::Right), ("TEXT", Align::Left)];
    format!("\n{}", table(&heads, &lines))
}
