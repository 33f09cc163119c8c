//! Whole preparations on small sources.

mod evaluated_text;
mod token_types;
mod warnings;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::*;
use runner_spec::data::{IGNORED_TARGET, Rows};
use runner_spec::experiment::{
    ColumnSeparator, CsvSource, HELLASWAG, JsonSource, PaddingMask, ParquetSource, Separator, Source, Task, Tokenizer,
};

const STORY: &str = "the cat sat on the mat and the dog sat on the log, while the bird sang in the tree. ";

/// A folder of sources, and the cache next to them.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, content).unwrap();
        path
    }

    fn prepare(&self, data: &Data) -> Result<Prepared, DataError> {
        self.prepare_within(data, None).map(|(prepared, _)| prepared)
    }

    /// Also says whether every split was in the cache.
    fn prepare_within(&self, data: &Data, vocab_size: Option<usize>) -> Result<(Prepared, bool), DataError> {
        let made = Mutex::new(false);
        let cache_dir = self.0.path().join("cache");
        let request =
            DataRequest { data, tasks: &[], test: None, cache_dir: &cache_dir, vocab_size, recorded_tokenizer: None };
        let prepared = prepare(&request, &|progress| {
            *made.lock().unwrap() |= matches!(progress, Progress::Done { .. });
        })?;
        let hit = !*made.lock().unwrap();
        Ok((prepared, hit))
    }
}

fn text(files: &[&Path]) -> Source {
    Source::Text { files: files.iter().map(|path| path.to_path_buf()).collect() }
}

fn jsonl(file: PathBuf, field: &str) -> Source {
    Source::Jsonl(JsonSource { files: vec![file], field: Some(field.to_owned()), template: None })
}

fn packed(tokenizer: Tokenizer, train: Source, validation: Option<Validation>, length: usize) -> Data {
    Data {
        tokenizer,
        train,
        validation,
        layout: Layout::packed(length),
        shuffle: true,
        drop_last: false,
        epoch_rows: None,
        position: None,
    }
}

fn bpe(vocab_size: usize) -> Tokenizer {
    Tokenizer::Bpe { vocab_size, special_tokens: ["[BOT]", "[EOT]", "[PAD]"].map(str::to_owned).to_vec() }
}

fn error(result: Result<Prepared, DataError>) -> String {
    result.map(|prepared| prepared.facts).unwrap_err().to_string()
}

#[test]
fn a_fraction_is_held_out_from_the_end() {
    let folder = Folder::new();
    let file = folder.write("a.txt", STORY.repeat(20));
    let data = packed(Tokenizer::Chars {}, text(&[&file]), Some(Validation::Fraction(0.1)), 8);
    let prepared = folder.prepare(&data).unwrap();
    let (train, validation) = (&prepared.facts.train, prepared.facts.validation.as_ref().unwrap());
    let total = (STORY.len() * 20) as u64;
    assert_eq!((train.tokens, validation.tokens), (total * 9 / 10, total - total * 9 / 10));
    assert_eq!(train.rows, (train.tokens - 1) / 8);
    let mut rows = Rows::default();
    prepared.dataset.validation.as_ref().unwrap().fill([0], &mut rows).unwrap();
    let all = STORY.repeat(20);
    assert_eq!(prepared.tokenizer.text.decode(&rows.inputs), all[train.tokens as usize..][..8]);
    // The last training row ends where validation starts, or before.
    prepared.dataset.train.fill([train.rows - 1], &mut rows).unwrap();
    let end = train.rows as usize * 8 + 1;
    assert!(end as u64 <= train.tokens);
    assert_eq!(prepared.tokenizer.text.decode(&rows.targets), all[end - 8..end]);
}

/// PyTorch's tutorials tokenize the lines of WikiText one by one, and concatenate them.
#[test]
fn documents_without_separators_are_their_tokens_in_a_row() {
    let folder = Folder::new();
    let lines: Vec<String> = (0..60).map(|i| format!("line {i} of {}é", "some text ".repeat(i % 4))).collect();
    let records: String = lines.iter().map(|line| serde_json::json!({"text": line}).to_string() + "\n").collect();
    let file = folder.write("lines.jsonl", records);
    let encode = |line: &String| line.bytes().map(u32::from).collect::<Vec<u32>>();
    let end = 256;
    let joined: Vec<u32> = lines.iter().flat_map(encode).collect();
    let separated: Vec<u32> = lines.iter().flat_map(|line| [vec![end], encode(line)].concat()).collect();
    let hashes = [Separator::EndOfText, Separator::None, Separator::EndOfText].map(|separator| {
        let data = Data {
            layout: Layout::Packed { length: 8, separator },
            ..packed(Tokenizer::Bytes {}, jsonl(file.clone(), "text"), Some(Validation::Fraction(0.2)), 8)
        };
        let prepared = folder.prepare(&data).unwrap();
        let whole = if separator == Separator::None { &joined } else { &separated };
        let border = (whole.len() as f64 * 0.8) as usize;
        let (train, validation) = (&prepared.dataset.train, prepared.dataset.validation.as_ref().unwrap());
        for (split, tokens, is_evaluated) in [(train, &whole[..border], false), (validation, &whole[border..], true)] {
            let mut rows = Rows::default();
            split.fill(0..split.rows(), &mut rows).unwrap();
            let predicted = (tokens.len() - 1) / 8 * 8;
            assert_eq!((&rows.inputs[..], &rows.targets[..]), (&tokens[..predicted], &tokens[1..=predicted]));
            let bytes = tokens[1..=predicted].iter().filter(|&&token| token != end).count() as u64;
            assert_eq!(split.text_bytes(&rows), is_evaluated.then_some(bytes), "each token of the text is a byte");
        }
        assert_eq!(prepared.facts.train.documents + prepared.facts.validation.as_ref().unwrap().documents, 60);
        assert!(!prepared.facts.joins_documents);
        prepared.facts.train.hash
    });
    assert_eq!(hashes[0], hashes[2], "the cache holds both kinds of tokens");
    assert_ne!(hashes[0], hashes[1]);
}

/// Characters have no end of text: then both settings give the same rows, and only one of them warns.
#[test]
fn a_tokenizer_without_an_end_of_text_separates_nothing() {
    let folder = Folder::new();
    let file = folder.write("lines.jsonl", format!("{{\"text\": \"{STORY}\"}}\n").repeat(9));
    let [separated, joined] = [Separator::EndOfText, Separator::None].map(|separator| {
        let data = packed(Tokenizer::Chars {}, jsonl(file.clone(), "text"), None, 8);
        folder.prepare(&Data { layout: Layout::Packed { length: 8, separator }, ..data }).unwrap().facts
    });
    assert_eq!(separated.train, joined.train);
    assert_eq!((separated.joins_documents, joined.joins_documents), (true, false));
}

#[test]
fn the_second_time_is_a_hit_until_something_changes() {
    let folder = Folder::new();
    let file = folder.write("a.txt", STORY.repeat(20));
    let data = packed(bpe(300), text(&[&file]), None, 16);
    let (first, hit) = folder.prepare_within(&data, None).unwrap();
    assert!(!hit);
    let (second, hit) = folder.prepare_within(&data, None).unwrap();
    assert!(hit);
    assert_eq!(first.facts, second.facts);
    // Another length cuts the same tokens otherwise.
    let (longer, hit) = folder.prepare_within(&packed(bpe(300), text(&[&file]), None, 32), None).unwrap();
    assert!(hit && longer.facts.train.hash != first.facts.train.hash);
    // The same content under another name is the same source.
    let copy = folder.write("b.txt", STORY.repeat(20));
    let (other, hit) = folder.prepare_within(&packed(bpe(300), text(&[&copy]), None, 16), None).unwrap();
    assert!(hit && other.facts == first.facts);
    let changed = folder.write("c.txt", STORY.repeat(21));
    assert!(!folder.prepare_within(&packed(bpe(300), text(&[&changed]), None, 16), None).unwrap().1);
}

#[test]
fn a_truncated_cache_is_made_again() {
    let folder = Folder::new();
    let file = folder.write("a.txt", STORY.repeat(20));
    let data = packed(Tokenizer::Bytes {}, text(&[&file]), None, 16);
    let first = folder.prepare(&data).unwrap().facts;
    let entries = fs::read_dir(folder.0.path().join("cache/tokens")).unwrap();
    for entry in entries {
        let path = entry.unwrap().path().join("tokens.bin");
        let length = fs::metadata(&path).unwrap().len();
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(length - 3).unwrap();
    }
    let (second, hit) = folder.prepare_within(&data, None).unwrap();
    assert_eq!((second.facts, hit), (first, false));
}

#[test]
fn trained_merges_do_not_depend_on_threads() {
    let run = |threads| {
        let folder = Folder::new();
        let file = folder.write("a.txt", STORY.repeat(200));
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let data = packed(bpe(320), text(&[&file]), Some(Validation::Fraction(0.5)), 16);
        pool.install(|| folder.prepare(&data).unwrap().facts)
    };
    let facts = run(1);
    assert_eq!(facts, run(3));
    assert!((270..=320).contains(&facts.tokenizer_vocab), "{}", facts.tokenizer_vocab);
}

#[test]
fn a_trained_tokenizer_can_be_used_as_a_file() {
    let folder = Folder::new();
    let file = folder.write("a.txt", STORY.repeat(20));
    let trained = folder.prepare(&packed(bpe(300), text(&[&file]), None, 16)).unwrap();
    let entry = fs::read_dir(folder.0.path().join("cache/tokenizers")).unwrap().next().unwrap().unwrap();
    let tokenizer = Tokenizer::File(entry.path().join("tokenizer.json"));
    let (loaded, hit) = folder.prepare_within(&packed(tokenizer, text(&[&file]), None, 16), None).unwrap();
    assert!(hit);
    assert_eq!(loaded.facts, trained.facts);
    assert_eq!(loaded.tokenizer.text.end_of_text(), Some(1));
    assert_eq!(loaded.tokenizer.text.decode(&loaded.tokenizer.encode_prompt("[BOT]the cat").unwrap()), "[BOT]the cat");
    assert_eq!(loaded.tokenizer.encode_prompt("[BOT]").unwrap(), [0]);
}

#[test]
fn several_documents_are_separated() {
    let folder = Folder::new();
    let (a, b) = (folder.write("a.txt", "ab"), folder.write("b.txt", "c"));
    let tokens = |source| {
        let prepared = folder.prepare(&packed(Tokenizer::Bytes {}, source, None, 1)).unwrap();
        let mut rows = Rows::default();
        prepared.dataset.train.fill(0..prepared.facts.train.rows, &mut rows).unwrap();
        (prepared.facts.train.documents, rows.inputs[0], rows.targets)
    };
    assert_eq!(tokens(text(&[&a, &b])), (2, 256, vec![97, 98, 256, 99]));
    assert_eq!(tokens(text(&[&a])), (1, 97, vec![98]));
    let lines = folder.write("a.jsonl", "{\"t\": \"x\"}\n{\"t\": \"<|endoftext|>\"}\n");
    let (documents, first, targets) = tokens(jsonl(lines, "t"));
    // Text that looks like the separator is text.
    assert_eq!((documents, first, targets.len()), (2, 256, 2 + 13));
}

#[test]
fn padded_rows_hold_documents() {
    let folder = Folder::new();
    let lines: Vec<_> = (0..10).map(|i| format!("{{\"t\": \"the cat {i}\"}}")).collect();
    let file = folder.write("a.jsonl", lines.join("\n"));
    let layout = |bos: &str| Layout::Padded {
        length: 24,
        bos: bos.into(),
        eos: "[EOT]".into(),
        pad: "[PAD]".into(),
        mask: PaddingMask::Causal,
    };
    let source = jsonl(file, "t");
    let mut data = Data {
        tokenizer: bpe(280),
        train: source,
        validation: Some(Validation::Fraction(0.2)),
        layout: layout("[BOT]"),
        shuffle: true,
        drop_last: false,
        epoch_rows: None,
        position: None,
    };
    let prepared = folder.prepare(&data).unwrap();
    let validation = prepared.facts.validation.as_ref().unwrap();
    assert_eq!((prepared.facts.train.rows, validation.rows, validation.documents), (8, 2, 2));
    let mut rows = Rows::default();
    prepared.dataset.validation.as_ref().unwrap().fill([0], &mut rows).unwrap();
    let row = prepared.tokenizer.text.decode(&rows.inputs);
    assert!(row.starts_with("[BOT]the cat 8[EOT][PAD][PAD]"), "{row}");
    assert_eq!(rows.targets.iter().filter(|&&t| t == IGNORED_TARGET).count() as u64, 24 - rows.valid());
    assert_eq!(
        rows.filled,
        [24 - rows.inputs.iter().filter(|&&id| id == prepared.tokenizer.text.token_id("[PAD]").unwrap()).count()]
    );
    // The hash that rows have had since before there was a mask, which does not change them.
    assert_eq!(
        row_settings(&data.layout, false),
        "Padded { length: 24, bos: \"[BOT]\", eos: \"[EOT]\", pad: \"[PAD]\" }"
    );
    let Layout::Padded { mask, .. } = &mut data.layout else { panic!("it is padded") };
    *mask = PaddingMask::CausalAndPadding;
    assert_eq!(folder.prepare(&data).unwrap().facts, prepared.facts);
    data.layout = layout("[BOS]");
    let message = error(folder.prepare(&data));
    assert!(
        message
            .starts_with("data.layout.padded.bos: the tokenizer has no token \"[BOS]\"; its special tokens are [BOT]"),
        "{message}"
    );
}

#[test]
fn token_shards_are_used_in_place() {
    let folder = Folder::new();
    let bytes = |last: u16| -> Vec<u8> { [256, 1, 2, 256, 3, 4, last].iter().flat_map(|t| t.to_le_bytes()).collect() };
    let (a, b) = (folder.write("a.bin", bytes(5)), folder.write("b.bin", bytes(6)));
    let source = Source::Tokens { files: vec![a, b], dtype: None };
    let data = packed(Tokenizer::Bytes {}, source, Some(Validation::Fraction(0.3)), 2);
    let prepared = folder.prepare(&data).unwrap();
    let facts = &prepared.facts;
    assert_eq!((facts.train.tokens, facts.train.documents), (9, 3));
    assert_eq!(facts.validation.as_ref().unwrap().tokens, 5);
    let mut rows = Rows::default();
    prepared.dataset.train.fill([3, 2], &mut rows).unwrap();
    // The training part is 256 1 2 256 3 4 5 256 1: the last row crosses into the second shard.
    assert_eq!((rows.inputs, rows.targets), (vec![5, 256, 3, 4], vec![256, 1, 4, 5]));
    let padded =
        Layout::Padded { length: 2, bos: "a".into(), eos: "a".into(), pad: "a".into(), mask: PaddingMask::Causal };
    assert!(folder.prepare(&Data { layout: padded, ..data }).is_err());
}

#[test]
fn tokens_beyond_the_vocabulary_are_located() {
    let folder = Folder::new();
    let bytes: Vec<u8> = [1_u16, 2, 300, 3].iter().flat_map(|t| t.to_le_bytes()).collect();
    let (good, bad) = (folder.write("a.bin", [1, 0, 2, 0]), folder.write("b.bin", bytes));
    let data = packed(Tokenizer::Bytes {}, Source::Tokens { files: vec![good, bad], dtype: None }, None, 2);
    let message = error(folder.prepare(&data));
    assert!(
        message.ends_with("b.bin: token 300 at position 2 is beyond the vocabulary of 257 (data.tokenizer)"),
        "{message}"
    );
    let file = folder.write("a.txt", "aaaaz");
    let data = packed(Tokenizer::Bytes {}, text(&[&file]), None, 2);
    let message = folder.prepare_within(&data, Some(100)).map(|_| ()).unwrap_err().to_string();
    assert_eq!(message, "data.train: token 122 at position 4 is beyond the vocabulary of 100 (model.vocab_size)");
}

#[test]
fn sources_that_do_not_do() {
    let folder = Folder::new();
    let chars = |train: Source, validation| packed(Tokenizer::Chars {}, train, validation, 64);
    let (empty, short) = (folder.write("empty.txt", ""), folder.write("short.txt", "hello there"));
    let message = error(folder.prepare(&chars(text(&[&empty]), None)));
    assert_eq!(message, "data.train: the source is empty: there is no text in it");
    let message = error(folder.prepare(&chars(text(&[&short]), None)));
    assert_eq!(message, "data.train: 11 tokens are too few: one row of length 64 needs 65");
    let tokens = folder.write("tokens.bin", [104, 0, 105, 0]);
    let message = error(folder.prepare(&chars(text(&[&tokens]), None)));
    assert!(message.contains("a zero byte at offset 1; give files of tokens as `tokens: "), "{message}");
    let long = folder.write("long.txt", STORY.repeat(3));
    let message = error(folder.prepare(&chars(text(&[&long]), Some(Validation::Fraction(0.1)))));
    assert_eq!(
        message,
        "data.validation.fraction: 26 tokens, of 252 in the source, are too few: one row of length 64 needs 65"
    );
    let twice = chars(text(&[&long, &long]), Some(Validation::Fraction(0.1)));
    assert!(
        error(folder.prepare(&twice))
            .contains("long.txt is listed more than once, so held-out text would be trained on")
    );
    let same = Validation::Source(Source::Text { files: vec![folder.write("copy.txt", STORY.repeat(3))] });
    assert!(error(folder.prepare(&chars(text(&[&long]), Some(same)))).contains("copy.txt is also in data.train"));
    let other = Validation::Source(Source::Text { files: vec![folder.write("other.txt", STORY.to_uppercase())] });
    let message = error(folder.prepare(&chars(text(&[&long]), Some(other))));
    assert_eq!(
        message,
        format!(
            "data.validation: 'T' (U+0054), character 1 of this text, is not among the 19 characters of the training source: remove it, or \
             choose a tokenizer that knows all characters, such as bytes"
        )
    );
    let rows = format!("{{\"text\": {:?}}}\n{{\"text\": \"the dog\\u00e9\"}}\n", STORY.repeat(3));
    let files = vec![folder.write("rows.jsonl", rows)];
    let rows = Source::Jsonl(JsonSource { files, field: Some("text".to_owned()), template: None });
    let message = error(folder.prepare(&chars(text(&[&long]), Some(Validation::Source(rows)))));
    assert!(message.starts_with("data.validation: 'é' (U+00E9), character 8 of this text, is not"), "{message}");
    let missing = error(folder.prepare(&chars(text(&[&folder.0.path().join("no.txt")]), None)));
    assert!(missing.starts_with("data.train: no file matches "), "{missing}");
    let shards = Source::Tokens { files: vec![folder.write("a.bin", [0, 0])], dtype: None };
    assert!(error(folder.prepare(&chars(shards, None))).contains("data.tokenizer.chars"));
}

#[test]
fn the_builtin_corpus_is_ready() {
    let folder = Folder::new();
    let builtin = Source::Builtin { corpus: Corpus::Stories };
    let data = packed(bpe(512), builtin, Some(Validation::Source(Source::Builtin { corpus: Corpus::Stories })), 64);
    let cache_dir = folder.0.path().join("cache");
    let set = [(HELLASWAG.to_owned(), Task { builtin: Some(Corpus::Stories), limit: Some(100), ..Task::default() })];
    let request = DataRequest {
        data: &data,
        tasks: &set,
        test: None,
        cache_dir: &cache_dir,
        vocab_size: None,
        recorded_tokenizer: None,
    };
    let prepared = prepare(&request, &|_| ()).unwrap();
    assert_eq!(prepared.tasks[0].1.len(), 100);
    assert_eq!(prepared.facts.choice.unwrap().items, 100);
    assert!(prepared.facts.train.documents > 10_000);
    assert!(prepared.facts.validation.unwrap().documents > 500);
}

const PROMPT: &str = "Task: {{ instruction }}\n{% if input %}\nGiven: {{ input }}\n{% endif %}\nAnswer: {{ output }}\n";

/// Columns of strings, as a parquet file; `None` is null.
fn parquet(path: &Path, columns: &[(&str, &[Option<&str>])]) {
    use std::sync::Arc;

    use ::parquet::data_type::{ByteArray, ByteArrayType};
    use ::parquet::file::properties::WriterProperties;
    use ::parquet::file::writer::SerializedFileWriter;

    let fields: Vec<String> = columns.iter().map(|(name, _)| format!("optional binary {name} (UTF8);")).collect();
    let schema =
        ::parquet::schema::parser::parse_message_type(&format!("message m {{ {} }}", fields.concat())).unwrap();
    let file = File::create(path).unwrap();
    let properties = Arc::new(WriterProperties::builder().set_data_page_row_count_limit(7).build());
    let mut writer = SerializedFileWriter::new(file, Arc::new(schema), properties).unwrap();
    let mut group = writer.next_row_group().unwrap();
    for (_, values) in columns {
        let mut column = group.next_column().unwrap().unwrap();
        let there: Vec<ByteArray> = values.iter().flatten().map(|v| ByteArray::from(*v)).collect();
        let levels: Vec<i16> = values.iter().map(|v| i16::from(v.is_some())).collect();
        column.typed::<ByteArrayType>().write_batch(&there, Some(&levels), None).unwrap();
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
}

/// The same records as JSON lines, a JSON array, parquet and CSV give the same tokens; the template is a part of what the data is.
#[test]
fn a_template_makes_documents_of_records_in_every_format() {
    let folder = Folder::new();
    let (mut lines, mut instructions, mut inputs, mut outputs) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut expected = String::new();
    for i in 0..150 {
        let input = if i % 3 == 0 { String::new() } else { format!("number {i}") };
        let (instruction, output) = (format!("do \"{i}\""), format!("done {i}\n"));
        lines.push(
            serde_json::json!({"instruction": instruction, "input": input, "output": output, "id": i}).to_string(),
        );
        let given = if input.is_empty() { String::new() } else { format!("Given: {input}\n") };
        expected.extend(["<|endoftext|>Task: ", &instruction, "\n", &given, "Answer: ", &output]);
        instructions.push(instruction);
        inputs.push(input);
        outputs.push(output);
    }
    let path = folder.0.path().join("a.parquet");
    let [a, b, c] =
        [&instructions, &inputs, &outputs].map(|all| all.iter().map(|s| Some(s.as_str())).collect::<Vec<_>>());
    parquet(&path, &[("input", &b), ("other", &c), ("instruction", &a), ("output", &c)]);
    let template = Some(PROMPT.to_owned());
    let json = |files: PathBuf| JsonSource { files: vec![files], field: None, template: template.clone() };
    let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    let csv = |name: &str, separator: ColumnSeparator, between: &str| {
        let rows = (0..150).map(|i| [&instructions[i], &i.to_string(), &outputs[i], &inputs[i]].map(|s| quoted(s)));
        let rows: Vec<String> = rows.map(|row| row.join(between) + "\r\n").collect();
        let header = ["instruction", "id", "output", "input"].join(between);
        let files = vec![folder.write(name, format!("\u{feff}{header}\r\n{}", rows.concat()))];
        Source::Csv(CsvSource { files, column: None, template: template.clone(), separator })
    };
    let sources = [
        Source::Jsonl(json(folder.write("a.jsonl", lines.join("\n")))),
        Source::Json(json(folder.write("a.json", format!("[{}]", lines.join(","))))),
        Source::Parquet(ParquetSource { files: vec![path.clone()], column: None, template: template.clone() }),
        csv("a.csv", ColumnSeparator::Comma, ","),
        csv("a.tsv", ColumnSeparator::Tab, "\t"),
    ];
    let (mut hashes, mut tokens) = (Vec::new(), Vec::new());
    for source in sources {
        let prepared = folder.prepare(&packed(Tokenizer::Bytes {}, source, None, 64)).unwrap();
        let facts = &prepared.facts.train;
        assert_eq!((facts.documents, facts.rows), (150, (facts.tokens - 1) / 64));
        let mut rows = Rows::default();
        prepared.dataset.train.fill(0..facts.rows, &mut rows).unwrap();
        let text = prepared.tokenizer.text.decode(&rows.inputs);
        assert!(expected.starts_with(&text) && text.len() + 200 > expected.len(), "{text}");
        hashes.push(facts.hash.clone());
        tokens.push(rows.inputs);
    }
    assert!(tokens.iter().all(|other| *other == tokens[0]));
    let other =
        ParquetSource { files: vec![path.clone()], column: None, template: Some(PROMPT.replace("Task", "Job")) };
    let other = folder.prepare(&packed(Tokenizer::Bytes {}, Source::Parquet(other), None, 64)).unwrap();
    hashes.push(other.facts.train.hash);
    hashes.sort();
    hashes.dedup();
    assert_eq!(hashes.len(), 6);

    let wrong = ParquetSource {
        files: vec![path],
        column: None,
        template: Some(PROMPT.replace("instruction", "instructions")),
    };
    let message = error(folder.prepare(&packed(Tokenizer::Bytes {}, Source::Parquet(wrong), None, 64)));
    assert!(
        message.contains("no column `instructions`: did you mean `instruction`? the columns are `input`"),
        "{message}"
    );
}

#[test]
fn skips_null_columns() {
    let folder = Folder::new();
    let path = folder.0.path().join("a.parquet");
    parquet(
        &path,
        &[
            ("text", &[Some("abcdefgh"), None, Some(""), Some("ijklmnop")]),
            ("more", &[None, Some("x"), None, Some("y")]),
        ],
    );
    let source = |column: Option<&str>, template: Option<&str>| {
        let (column, template) = (column.map(str::to_owned), template.map(str::to_owned));
        let source = Source::Parquet(ParquetSource { files: vec![path.clone()], column, template });
        folder.prepare(&packed(Tokenizer::Bytes {}, source, None, 4))
    };
    assert_eq!(source(Some("text"), None).unwrap().facts.train.documents, 2);
    let either = "{% if text %}{{ text }}{% endif %}{% if more %}{{ more }}{% endif %}";
    let prepared = source(None, Some(either)).unwrap();
    assert_eq!((prepared.facts.train.documents, prepared.facts.train.tokens), (3, 3 + 8 + 1 + 9));
    let message = error(source(None, Some("{{ text }}{{ more }}")));
    assert!(message.contains("row 0: null has no text") && message.contains("`more` is null here"), "{message}");
}

#[test]
fn words_come_from_the_training_part_and_others_are_unknown() {
    let folder = Folder::new();
    let text_file = format!("{}{}", "The cat, the dog. ".repeat(30), "zebra ".repeat(10));
    let file = folder.write("a.txt", &text_file);
    let words = |min_count| Tokenizer::Words { lowercase: true, min_count, special_tokens: Vec::new() };
    let data = packed(words(1), text(&[&file]), Some(Validation::Fraction(0.1)), 4);
    let prepared = folder.prepare(&data).unwrap();
    // Five words and signs are equally frequent; `the` is twice as frequent.
    assert_eq!(prepared.tokenizer.text.decode(&(0..20).collect::<Vec<_>>()), "<unk> the , . cat dog");
    assert_eq!((prepared.tokenizer.text.end_of_text(), prepared.facts.tokenizer_vocab), (None, 6));
    let validation = prepared.facts.validation.as_ref().unwrap();
    assert_eq!(prepared.facts.train.tokens + validation.tokens, 30 * 6 + 10);
    let mut rows = Rows::default();
    prepared.dataset.validation.as_ref().unwrap().fill([validation.rows - 1], &mut rows).unwrap();
    assert_eq!(rows.targets, [0; 4]);
    assert_eq!(folder.prepare(&data).unwrap().facts, prepared.facts);
    let path = folder.write("tokenizer.json", prepared.tokenizer.text.to_file().unwrap());
    assert_eq!(TextTokenizer::read(&path).unwrap().hash(), prepared.tokenizer.text.hash());
    let rare = packed(words(40), text(&[&file]), None, 4);
    assert_eq!(folder.prepare(&rare).unwrap().facts.tokenizer_vocab, 2);
}

/// A file of some blocks, whose cuts hit everything, has the tokens of its text encoded as a whole.
#[test]
fn words_of_a_large_file_are_those_of_its_text() {
    let folder = Folder::new();
    let file = folder.write("a.txt", "It's <br /> \"so\" <br\" />; ΑΣ. <BR />x  y\u{a0}z\n".repeat(30_000));
    let tokenizer = Tokenizer::Words { lowercase: true, min_count: 1, special_tokens: Vec::new() };
    let prepared = folder.prepare(&packed(tokenizer, text(&[&file]), None, 16)).unwrap();
    assert_eq!(prepared.facts.train.tokens, 30_000 * 9);
    assert_eq!(prepared.facts.tokenizer_vocab, 10);
}
