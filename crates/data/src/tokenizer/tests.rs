//! Tokenizers of every structure, compared with Python's `tokenizers`; and the files beside a tokenizer's file.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::folder_tokens::FolderTokens;
use super::gpt2_folder::END_OF_TEXT;
use super::library::LibraryTokenizer;
use super::{TextTokenizer, load_tokenizer, may_join_documents};
use runner_spec::experiment::{Data, JsonSource, Layout, PaddingMask, Source, Tokenizer};

const PACKED: Layout = Layout::packed(8);

/// A tokenizer of `tests/golden/tokenizer_structures.py`.
struct Structure {
    name: String,
    json: Value,
    /// Python's ids of each text as a document, and as a prompt.
    documents: Vec<Vec<u32>>,
    prompts: Vec<Vec<u32>>,
}

/// The texts and the tokenizers.
fn structures() -> (Vec<String>, Vec<Structure>) {
    let fixture = include_str!("../../../../tests/fixtures/tokenizer/structures.json");
    let fixture: Value = serde_json::from_str(fixture).unwrap();
    let read = |structure: &Value| Structure {
        name: structure["name"].as_str().unwrap().to_owned(),
        json: structure["tokenizer"].clone(),
        documents: serde_json::from_value(structure["documents"].clone()).unwrap(),
        prompts: serde_json::from_value(structure["prompts"].clone()).unwrap(),
    };
    let structures = fixture["structures"].as_array().unwrap().iter().map(read).collect();
    (serde_json::from_value(fixture["texts"].clone()).unwrap(), structures)
}

fn tokenizer(json: &Value) -> TextTokenizer {
    let library = LibraryTokenizer::from_json(json.to_string().as_bytes(), Path::new("tokenizer.json")).unwrap();
    TextTokenizer::library(library, FolderTokens::default(), "h".to_owned())
}

fn padded() -> Layout {
    let [bos, eos, pad] = ["<s>", "</s>", "<mask>"].map(str::to_owned);
    Layout::Padded { length: 8, bos, eos, pad, mask: PaddingMask::Causal }
}

#[test]
fn every_structure_gives_the_ids_of_python() {
    let (texts, structures) = structures();
    assert_eq!((texts.len(), structures.len()), (30, 15));
    for Structure { name, json, documents, prompts } in structures {
        let tokenizer = tokenizer(&json);
        for ((text, document), prompt) in texts.iter().zip(documents).zip(prompts) {
            assert_eq!(tokenizer.encode_document(text).unwrap(), document, "{name}: the document {text:?}");
            assert_eq!(tokenizer.encode_prompt(text).unwrap(), prompt, "{name}: the prompt {text:?}");
        }
    }
}

#[test]
fn pieces_have_the_blanks_of_their_text() {
    let (texts, structures) = structures();
    let mut compared = 0;
    for Structure { name, json, documents, .. } in structures {
        let tokenizer = tokenizer(&json);
        for (text, ids) in texts.iter().zip(documents) {
            let Some((&first, rest)) = ids.split_first() else { continue };
            let pieces = rest
                .iter()
                .map(|&id| tokenizer.piece(id))
                .fold(tokenizer.decode(&[first]), |text, piece| text + &piece);
            // Parts of a character have no text.
            if !pieces.contains(char::REPLACEMENT_CHARACTER) {
                assert_eq!(pieces, tokenizer.decode(&ids), "{name}: {text:?}");
                compared += 1;
            }
        }
    }
    assert!(compared > 200, "{compared}");
}

/// What `transformers` makes of a text by default: all special tokens that the file asks for are added.
#[test]
fn exported_tokenizers_add_what_the_rows_begin_with() {
    let (texts, structures) = structures();
    let templates = structures.iter().filter(|structure| structure.json["post_processor"].is_object()).count();
    assert!(templates >= 6, "{templates}");
    for Structure { name, json, prompts, .. } in structures {
        let tokenizer = tokenizer(&json);
        for layout in [PACKED, padded()] {
            let hf = tokenizer.to_hf(&layout, 8).unwrap();
            let exported: tokenizers::Tokenizer = hf.tokenizer.parse().unwrap();
            let first = hf.special.bos.filter(|_| layout != PACKED);
            for (text, prompt) in texts.iter().zip(&prompts) {
                let expected: Vec<u32> = first.into_iter().chain(prompt.iter().copied()).collect();
                let ids = exported.encode(text.as_str(), true).unwrap().get_ids().to_vec();
                assert_eq!(ids, expected, "{name}: {text:?}");
            }
        }
    }
    for own in [TextTokenizer::bytes(), TextTokenizer::chars(&"abc".chars().collect(), "h".to_owned())] {
        let exported: tokenizers::Tokenizer = own.to_hf(&PACKED, 8).unwrap().tokenizer.parse().unwrap();
        assert_eq!(exported.encode("abc", true).unwrap().get_ids(), own.encode_document("abc").unwrap());
    }
}

/// A tokenizer that needs no step removed is written as before, so that a file in place stays the same.
#[test]
fn tokenizers_without_added_tokens_are_written_as_the_library_writes_them() {
    for Structure { name, json, .. } in structures().1 {
        let library = LibraryTokenizer::from_json(json.to_string().as_bytes(), Path::new("t")).unwrap();
        let (written, kept) = (library.to_json().unwrap(), tokenizer(&json).to_tokenizer_json().unwrap());
        assert_eq!(written == kept, !written.contains("Processing\""), "{name}");
        assert!(tokenizer(&json).is_content(written.as_bytes()), "{name}");
    }
}

#[test]
fn empty_affixes_mean_none() {
    let structures = structures().1;
    let bytes = |name: &str| {
        let mut json = structures.iter().find(|structure| structure.name == name).unwrap().json.clone();
        // Tokens that swallow blanks leave the bytes of a text unknown.
        json["added_tokens"].as_array_mut().unwrap().retain(|token| token["special"] == true);
        tokenizer(&json).token_texts()
    };
    assert!(bytes("GPT-2").is_some());
    assert_eq!(bytes("GPT-2 with empty affixes"), bytes("GPT-2"));
}

#[test]
fn the_token_of_unknown_text_is_found() {
    let unknown = |structure: Structure| tokenizer(&structure.json).unknown().map(|(_, name)| (structure.name, name));
    let found: Vec<_> = structures().1.into_iter().filter_map(unknown).collect();
    let found: Vec<(&str, &str)> = found.iter().map(|(structure, name)| (structure.as_str(), name.as_str())).collect();
    let unigram = "Unigram, a blank in front of";
    let [all, first] = ["all", "the first"].map(|which| format!("{unigram} {which}"));
    assert_eq!(found, [("Llama 2", "<unk>"), (&all, "<unk>"), (&first, "<unk>"), ("WordPiece", "[UNK]")]);
    assert_eq!(TextTokenizer::bytes().unknown(), None);
}

/// Oniguruma counts its retries. Without that limit this pattern would take 2^200 of them.
#[test]
fn a_pattern_that_backtracks_without_end_is_an_error() {
    let split =
        json!({"type": "Split", "pattern": {"Regex": "(?:(?:a|a)+)+b"}, "behavior": "Isolated", "invert": false});
    let mut json = structures().1.swap_remove(0).json;
    json["pre_tokenizer"] = split;
    let error = tokenizer(&json).encode_document(&"a".repeat(200)).unwrap_err().to_string();
    assert!(error.contains("a pattern of its tokenizer.json fails on this text: retry-limit-in-match over"), "{error}");
}

#[test]
fn text_that_normalizers_make_too_long_is_an_error() {
    let mut json = structures().1.swap_remove(0).json;
    json["normalizer"] = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "a".repeat(90)});
    let tokenizer = tokenizer(&json);
    assert!(tokenizer.encode_document("banana").is_ok());
    let error = tokenizer.encode_document(&"b".repeat(3 << 20)).unwrap_err().to_string();
    assert!(
        error.contains("its normalizers can turn this text of 3.1 MB into 283.1 MB, and a document may have 268.4 MB"),
        "{error}"
    );
}

/// A folder with a tokenizer that has no end of text by its usual names, and files with these contents.
fn folder(files: &[(&str, Value)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut json = structures().1.swap_remove(0).json;
    for token in json["added_tokens"].as_array_mut().unwrap() {
        let name = token["content"].as_str().unwrap().to_owned();
        token["content"] = match name.as_str() {
            END_OF_TEXT => "<｜end▁of▁sentence｜>".into(),
            "</s>" => "<|eot_id|>".into(),
            _ => name.into(),
        };
    }
    fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
    for (name, content) in files {
        fs::write(dir.path().join(name), content.to_string()).unwrap();
    }
    dir
}

fn load(dir: &tempfile::TempDir) -> TextTokenizer {
    load_tokenizer(&Tokenizer::File(dir.path().join("tokenizer.json"))).unwrap()
}

/// Files beside a tokenizer, and the ids of `eos` and `bos` that they name.
type FolderCase<'a> = (&'a [(&'a str, Value)], Option<u32>, Option<u32>);

#[test]
fn the_folder_names_the_end_of_text() {
    let plain = load(&folder(&[]));
    let [end, turn, begin] = ["<｜end▁of▁sentence｜>", "<|eot_id|>", "<s>"].map(|name| plain.token_id(name).unwrap());
    assert_eq!(plain.end_of_text(), None);
    let named = json!({"eos_token": {"content": "<｜end▁of▁sentence｜>"}, "bos_token": "<s>"});
    let cases: [FolderCase<'_>; 8] = [
        (&[("tokenizer_config.json", named.clone())], Some(end), Some(begin)),
        (&[("generation_config.json", json!({"eos_token_id": [end, turn]}))], Some(end), None),
        (&[("config.json", json!({"eos_token_id": turn, "bos_token_id": begin}))], Some(turn), Some(begin)),
        (&[("tokenizer_config.json", named), ("config.json", json!({"eos_token_id": turn}))], Some(end), Some(begin)),
        (&[("dataset.json", json!({"format": 1, "tokenizer": {"end_of_text": end}}))], Some(end), None),
        // Defaults that belong to other tokenizers: ordinary tokens, and tokens that are not there.
        (&[("config.json", json!({"eos_token_id": 2, "bos_token_id": 1}))], None, None),
        (&[("tokenizer_config.json", json!({"eos_token": "<eos>", "bos_token": null}))], None, None),
        (&[("config.json", json!([1])), ("tokenizer_config.json", json!("x"))], None, None),
    ];
    for (files, eos, bos) in cases {
        let dir = folder(files);
        let tokenizer = load(&dir);
        assert_eq!(tokenizer.end_of_text(), eos, "{files:?}");
        // The same text has different tokens, so the hash must differ.
        assert_eq!(tokenizer.hash() == plain.hash(), eos.is_none(), "{files:?}");
        assert!(tokenizer.is_content(&fs::read(dir.path().join("tokenizer.json")).unwrap()));
        let (special, names) = tokenizer.special_tokens(&PACKED);
        assert_eq!((special.bos, special.eos), (bos, eos), "{files:?}");
        assert_eq!(names[1].is_some(), eos.is_some());
        // A run keeps what the folder said.
        let kept = dir.path().join("kept.json");
        fs::write(&kept, tokenizer.to_file().unwrap()).unwrap();
        let again = TextTokenizer::read(&kept).unwrap();
        assert_eq!((again.end_of_text(), again.hash()), (eos, tokenizer.hash()));
        assert_eq!(again.special_tokens(&PACKED), tokenizer.special_tokens(&PACKED));
        let text =
            fs::read_to_string(&kept).unwrap().replace("\"eos\":\"<｜end▁of▁sentence｜>\"", "\"eos\":\"<|eot_id|>\"");
        fs::write(&kept, text).unwrap();
        assert_eq!(TextTokenizer::read(&kept).is_err(), eos == Some(end));
    }
}

/// The names that the program knows come first, as in earlier versions.
#[test]
fn a_known_end_of_text_stays_whatever_the_folder_says() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokenizer.json");
    fs::write(&path, structures().1[0].json.to_string()).unwrap();
    let before = load(&dir);
    fs::write(dir.path().join("tokenizer_config.json"), json!({"eos_token": "</s>", "bos_token": "<s>"}).to_string())
        .unwrap();
    let after = load(&dir);
    assert_eq!((after.end_of_text(), after.hash()), (before.end_of_text(), before.hash()));
    assert_eq!(after.end_of_text(), after.token_id(END_OF_TEXT).ok());
    let [before, after] = [before, after].map(|tokenizer| tokenizer.special_tokens(&PACKED).1);
    assert_eq!(before, [Some(END_OF_TEXT.to_owned()), Some(END_OF_TEXT.to_owned()), None]);
    assert_eq!(after, [Some("<s>".to_owned()), Some("</s>".to_owned()), None], "an export keeps those of the folder");
}

#[test]
fn a_runs_own_tokenizer_and_byte_order_marks_are_read() {
    let dir = folder(&[("tokenizer_config.json", json!({"eos_token": "<|eot_id|>"}))]);
    let (path, tokenizer) = (dir.path().join("tokenizer.json"), load(&dir));
    let marked = [b"\xef\xbb\xbf".to_vec(), fs::read(&path).unwrap()].concat();
    fs::write(&path, marked).unwrap();
    let config = dir.path().join("tokenizer_config.json");
    fs::write(&config, [b"\xef\xbb\xbf".to_vec(), fs::read(&config).unwrap()].concat()).unwrap();
    let text = "the cat<mask> 1942";
    assert_eq!(load(&dir).encode_prompt(text).unwrap(), tokenizer.encode_prompt(text).unwrap());
    assert_eq!(load(&dir).end_of_text(), tokenizer.end_of_text());
    // The file that a run keeps has the tokenizer, the end of text and the hash.
    let content = tokenizer.to_file().unwrap();
    fs::write(&path, &content).unwrap();
    assert_eq!((load(&dir).hash(), load(&dir).end_of_text()), (tokenizer.hash(), tokenizer.end_of_text()));
    fs::write(&path, content.replace("<mask>", "<musk>")).unwrap();
    let error = load_tokenizer(&Tokenizer::File(path)).unwrap_err().to_string();
    assert!(error.contains("this tokenizer of a run is damaged"), "{error}");
}

#[test]
fn documents_without_a_separator_are_noticed_before_text_is_read() {
    let (without, with) = (folder(&[]), folder(&[("tokenizer_config.json", json!({"eos_token": "<|eot_id|>"}))]));
    let file = |dir: &tempfile::TempDir| Tokenizer::File(dir.path().join("tokenizer.json"));
    let lines = Source::Jsonl(JsonSource { files: vec!["a.jsonl".into()], field: None, template: None });
    let joins = |tokenizer: Tokenizer, train: &Source, layout: Layout| {
        let train = train.clone();
        let data = Data {
            tokenizer,
            train,
            validation: None,
            layout,
            shuffle: true,
            drop_last: false,
            epoch_rows: None,
            position: None,
        };
        may_join_documents(&data)
    };
    assert!(joins(file(&without), &lines, PACKED) && !joins(file(&with), &lines, PACKED));
    assert!(joins(Tokenizer::Chars {}, &lines, PACKED) && !joins(Tokenizer::Bytes {}, &lines, PACKED));
    assert!(!joins(file(&without), &lines, padded()), "padded rows have their own tokens");
    let words =
        |special: &str| Tokenizer::Words { lowercase: true, min_count: 1, special_tokens: vec![special.to_owned()] };
    assert!(joins(words("[BOT]"), &lines, PACKED) && !joins(words("[EOT]"), &lines, PACKED));
    let text = |pattern: &str| Source::Text { files: vec![without.path().join(pattern)] };
    fs::write(without.path().join("a.txt"), "a").unwrap();
    assert!(!joins(Tokenizer::Chars {}, &text("*.txt"), PACKED), "one text");
    fs::write(without.path().join("b.txt"), "b").unwrap();
    assert!(joins(Tokenizer::Chars {}, &text("*.txt"), PACKED));
}
