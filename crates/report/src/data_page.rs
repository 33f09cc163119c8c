//! The page that `runner data inspect` prints about files of tokens.

use std::fmt::Write as _;

use super::table::{Align, table};
use runner_data::{InspectedFile, InspectionReport};
use runner_spec::format::{bytes, count, percent, printable};

/// Characters of a text that are shown at most.
const MAX_TEXT_CHARACTERS: usize = 300;
/// Ids of a text that are shown at most, if no tokenizer can decode them.
const MAX_TEXT_IDS: usize = 40;
/// Files that are listed at most.
const MAX_FILES: usize = 20;

/// Everything that was found in the files.
pub fn data_page(found: &InspectionReport) -> String {
    let mut out = file_table(found);
    out.push('\n');
    let mut line = |name: &str, text: String| _ = writeln!(out, "{name:<12} {text}");
    line("tokens", count(found.tokens));
    if let Some(end) = found.end_of_text {
        let from = match found.end_of_text_from {
            Some("tokenizer") => "from the tokenizer",
            Some("card") => "from dataset.json",
            Some("guessed") => "a guess from the first or last token",
            _ => "from --end-of-text",
        };
        line("end of text", format!("{end} ({from})"));
    } else {
        line("end of text", "unknown: name the token between documents with --tokenizer or --end-of-text".to_owned());
    }

    let documents = &found.documents;
    let mean = found.tokens / documents.count.max(1);
    let with = if found.end_of_text.is_some() { ", with the token between documents" } else { "" };
    line("documents", format!("{}, {} tokens on average{with}", count(documents.count), count(mean)));
    for (name, which) in [("longest", documents.longest), ("shortest", documents.shortest)] {
        if let Some((index, length)) = which.filter(|_| documents.count > 1) {
            line(name, format!("{} tokens (document {})", count(length), count(index)));
        }
    }
    let vocabulary = &found.vocabulary;
    let size = vocabulary.size.map_or(String::new(), |size| format!(" of {}", count(size)));
    line("vocabulary", format!("{}{size} ids used, the highest is {}", count(vocabulary.used), vocabulary.highest));
    if let Some(size) = vocabulary.size.filter(|&size| u64::from(vocabulary.highest) >= size) {
        line("", format!("some ids are outside the tokenizer's {} ids, so it may be the wrong tokenizer", count(size)));
    }
    if vocabulary.impossible_ids > 0 {
        line("", format!("{} tokens have ids that are too large for any vocabulary", count(vocabulary.impossible_ids)));
    }
    out.push_str(&frequent_table(found));
    for (index, sample) in found.texts.iter().enumerate() {
        let _ = writeln!(out, "\ndocument {index}, {} tokens", count(sample.length));
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
    let columns = [
        ("FILE", Align::Left),
        ("FORMAT", Align::Left),
        ("SIZE", Align::Right),
        ("BITS", Align::Right),
        ("TOKENS", Align::Right),
    ];
    let row = |file: &InspectedFile| {
        let path = printable(&file.path.display().to_string());
        vec![path, file.format.to_owned(), bytes(file.bytes), file.bits.to_string(), count(file.tokens)]
    };
    let mut out = table(&columns, &found.files.iter().take(MAX_FILES).map(row).collect::<Vec<_>>());
    if found.files.len() > MAX_FILES {
        let _ = writeln!(out, "… {} files in all, {}", found.files.len(), bytes(found.bytes));
    }
    out
}

fn frequent_table(found: &InspectionReport) -> String {
    if found.vocabulary.frequent.is_empty() {
        return String::new();
    }
    let all = found.tokens.max(1);
    let lines: Vec<_> = found
        .vocabulary
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
