//! What files hold, on a page.

use std::fmt::Write as _;

use super::table::{Align, table};
use runner_data::Inspected;
use runner_spec::format::{bytes, count, percent, printable};

/// Characters of a text that are shown.
const SHOWN: usize = 300;
/// Files that are listed one by one.
const FILES: usize = 20;
const COLUMNS: usize = 50;

/// The page of `found`.
#[must_use]
pub fn page(found: &Inspected) -> String {
    let mut out = files(found);
    out.push('\n');
    let mut line = |name: &str, text: String| _ = writeln!(out, "{name:<12} {text}");
    if let Some(tokens) = found.tokens {
        line("tokens", count(tokens));
    }
    if let Some(text) = &found.text {
        line("text", format!("{}, {} characters", bytes(text.text_bytes), count(text.characters)));
        if let (Some(tokens), true) = (found.tokens, text.text_bytes > 0) {
            line("", format!("{:.2} bytes a token", text.text_bytes as f64 / tokens.max(1) as f64));
        }
        if let Some(column) = &text.column {
            line("text column", printable(column));
        }
    }
    if let Some(end) = found.end_of_text {
        let from = match found.end_of_text_from {
            Some("tokenizer") => "the tokenizer's",
            Some("card") => "as dataset.json says",
            Some("guessed") => "a guess: the first or last token",
            _ => "as given",
        };
        line("end of text", format!("{end} ({from})"));
    } else if found.text.is_none() {
        line("end of text", "not known: --tokenizer or --end-of-text says what is between documents".to_owned());
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
        let of = vocabulary.size.map_or(String::new(), |size| format!(" of {}", count(size)));
        line("vocabulary", format!("{}{of} ids used, the highest is {}", count(vocabulary.used), vocabulary.highest));
        if let Some(size) = vocabulary.size.filter(|&size| u64::from(vocabulary.highest) >= size) {
            line("", format!("beyond the tokenizer's {}: is it the right one?", count(size)));
        }
        if vocabulary.absurd > 0 {
            line("", format!("{} tokens have ids that no vocabulary has", count(vocabulary.absurd)));
        }
    }
    out.push_str(&columns(found));
    out.push_str(&frequent(found));
    for (index, sample) in found.texts.iter().enumerate() {
        let length = sample.length.map_or(String::new(), |length| format!(", {} {unit}", count(length)));
        let _ = writeln!(out, "\ndocument {index}{length}");
        let (text, cut) = match (&sample.text, &sample.ids) {
            (Some(text), _) => shorten(text),
            (None, Some(ids)) => {
                let shown: Vec<_> = ids.iter().take(40).map(ToString::to_string).collect();
                (shown.join(" "), ids.len() > 40)
            }
            (None, None) => continue,
        };
        let _ = writeln!(out, "  {}{}", text.trim_end().replace('\n', "\n  "), if cut { " …" } else { "" });
    }
    out
}

fn shorten(text: &str) -> (String, bool) {
    let shown: String = text.chars().take(SHOWN).collect();
    let cut = shown.len() < text.len();
    (printable(&shown), cut)
}

fn files(found: &Inspected) -> String {
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
    for file in found.files.iter().take(FILES) {
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
    if found.files.len() > FILES {
        let _ = writeln!(out, "… {} files in all, {}", found.files.len(), bytes(found.bytes));
    }
    out
}

fn columns(found: &Inspected) -> String {
    let Some(text) = found.text.as_ref().filter(|text| !text.columns.is_empty()) else { return String::new() };
    let line = |column: &runner_data::Column| {
        let size = if column.bytes > 0 { bytes(column.bytes) } else { String::new() };
        vec![printable(&column.name), column.kind.clone(), size]
    };
    let lines: Vec<_> = text.columns.iter().take(COLUMNS).map(line).collect();
    format!("\n{}", table(&[("COLUMN", Align::Left), ("TYPE", Align::Left), ("SIZE", Align::Right)], &lines))
}

fn frequent(found: &Inspected) -> String {
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
