//! Tokenizers of the `tokenizers` crate: GPT-2's two files, or any tokenizer.json. If a tokenizer cuts text into GPT-2's words, each word is
//! encoded once, which is many times faster and gives the same tokens.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

use serde_json::Value;
use tokenizers::models::ModelWrapper;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::processors::PostProcessorWrapper;
use tokenizers::{AddedToken, Encoding, PostProcessor, Token, Tokenizer};

use super::gpt2_folder::{END_OF_TEXT, check_folder};
use super::gpt2_words::words;
use super::replacements::{check_normalized_length, check_replacements};
use super::token_bytes::library_token_texts;
use crate::cut_points::CutPoints;
use crate::error::{DataError, Result};
use runner_files::{parent_folder, read_regular, without_byte_order_mark};
use runner_spec::error::PlainError;
use runner_spec::panics::{CaughtPanic, catch_panic};

/// Words of a table, and the bytes of the longest.
const MAX_KNOWN_WORDS: usize = 1 << 16;
const MAX_KNOWN_BYTES: usize = 64;

/// Ids without a token that a small vocabulary may have.
const MAX_UNUSED_IDS: usize = 1 << 16;

/// A loaded tokenizer, with special tokens read as ordinary text.
pub(super) struct LibraryTokenizer {
    tokenizer: Tokenizer,
    /// The tokenizer with special tokens read as such, which prompts are encoded with.
    for_prompts: OnceLock<Box<Tokenizer>>,
    /// The token of text that the vocabulary lacks, if there is one.
    pub(super) unknown: Option<u32>,
    /// How many characters the normalizers make of one at most.
    growth: f64,
    pub(super) cut_points: CutPoints,
    /// Tables of the tokens of words, that no thread uses at the moment.
    word_tables: Mutex<Vec<HashMap<String, Vec<u32>>>>,
}

impl LibraryTokenizer {
    /// GPT-2's tokenizer from its two files.
    ///
    /// # Errors
    /// If the files do not describe GPT-2's tokenizer, or those next to them describe another one.
    pub(super) fn gpt2(vocab: &Path, merges: &Path) -> Result<Self> {
        let read = |path: &Path| {
            let bytes = read_regular(path).map_err(DataError::io(path))?;
            let text = std::str::from_utf8(without_byte_order_mark(&bytes));
            text.map(str::to_owned).map_err(|error| DataError::not_utf8(path, error.valid_up_to() as u64))
        };
        let tokens: HashMap<String, u32> = serde_json::from_str(&read(vocab)?)
            .map_err(|error| DataError::file(vocab, format!("not a GPT-2 vocabulary (token to id): {error}")))?;
        check_folder(parent_folder(vocab), tokens.get(END_OF_TEXT).copied())?;
        let special = tokens.contains_key(END_OF_TEXT).then(|| END_OF_TEXT.to_owned());
        let mut pairs = Vec::new();
        for (number, line) in (1..).zip(read(merges)?.lines()) {
            if line.starts_with("#version") || line.is_empty() {
                continue;
            }
            let wrong = |message: String| DataError::Line { path: merges.to_owned(), line: number, message };
            let (left, right) =
                line.split_once(' ').ok_or_else(|| wrong("expected two tokens with a blank between them".into()))?;
            for token in [left, right, &format!("{left}{right}")] {
                if !tokens.contains_key(token) {
                    return Err(wrong(format!("{token:?} is not in {}", vocab.display())));
                }
            }
            pairs.push((left.to_owned(), right.to_owned()));
        }
        if let Some(byte) = ByteLevel::alphabet().into_iter().find(|byte| !tokens.contains_key(&byte.to_string())) {
            return Err(DataError::file(vocab, format!("not a GPT-2 vocabulary: byte token {byte:?} is missing")));
        }
        let model = BPE::builder()
            .vocab_and_merges(tokens.into_iter().collect::<Vocab>(), pairs)
            .build()
            .map_err(|error| DataError::file(merges, error.to_string()))?;
        let wrong = |error: PlainError| DataError::file(vocab, error.text);
        let tokenizer = byte_level(model, special.into_iter()).map_err(wrong)?;
        Self::new(tokenizer, 1.0).map_err(wrong)
    }

    /// Loads the content of a tokenizer.json; messages name `path`.
    pub(super) fn from_json(bytes: &[u8], path: &Path) -> Result<Self> {
        let wrong = |message: String| DataError::file(path, format!("not a tokenizer.json: {message}"));
        let bytes = without_byte_order_mark(bytes);
        let mut json: Value = serde_json::from_slice(bytes).map_err(|error| wrong(error.to_string()))?;
        let growth = check_replacements(&json).map_err(|message| DataError::file(path, message))?;
        // Settings that cut, pad or vary the tokens of a text are removed: training data needs all of them, always the same.
        for key in ["truncation", "padding"] {
            if let Some(value) = json.get_mut(key) {
                *value = Value::Null;
            }
        }
        if let Some(dropout) = json.get_mut("model").and_then(|model| model.get_mut("dropout")) {
            *dropout = Value::Null;
        }
        let text = json.to_string();
        // The crate trusts these files in places, and may panic on a wrong one. Its `from_bytes` would compile the whole reader once more.
        let loaded = catch_panic(|| text.parse::<Tokenizer>());
        let tokenizer = loaded
            .map_err(|_| wrong("its parts do not fit together".into()))?
            .map_err(|error| wrong(error.to_string()))?;
        let model = &json["model"];
        let named = model["unk_token"].as_str().and_then(|name| tokenizer.token_to_id(name));
        let unknown = named.or_else(|| model["unk_id"].as_u64()?.try_into().ok());
        Ok(Self { unknown, ..Self::new(tokenizer, growth).map_err(|error| wrong(error.text))? })
    }

    /// Wraps `tokenizer`, whose normalizers make up to `growth` characters of one, and finds out where text may be cut.
    ///
    /// # Errors
    /// If an id is far beyond the number of tokens: tables and models have a row for each id.
    fn new(mut tokenizer: Tokenizer, growth: f64) -> Result<Self, PlainError> {
        let vocabulary = tokenizer.get_vocab(true);
        let limit = 2 * vocabulary.len() + MAX_UNUSED_IDS;
        if let Some((token, id)) = vocabulary.iter().filter(|(_, id)| **id as usize >= limit).max_by_key(|(_, id)| **id)
        {
            let count = vocabulary.len();
            let message = format!("the id of {token:?} is {id}, far beyond the number of tokens, {count}");
            return Err(PlainError::request(message));
        }
        tokenizer.set_encode_special_tokens(true);
        let gpt2_words = matches!(tokenizer.get_pre_tokenizer(), Some(PreTokenizerWrapper::ByteLevel(level))
            if !level.add_prefix_space && level.use_regex);
        let plain = tokenizer.get_normalizer().is_none()
            && matches!(tokenizer.get_model(), ModelWrapper::BPE(_))
            && tokenizer.get_added_tokens_decoder().values().all(|token| token.special);
        let cut_points = if gpt2_words && plain { CutPoints::Words } else { CutPoints::Never };
        let (for_prompts, word_tables) = (OnceLock::new(), Mutex::default());
        Ok(Self { tokenizer, for_prompts, unknown: None, growth, cut_points, word_tables })
    }

    /// The content of a tokenizer.json, which `from_json` reads.
    pub(super) fn to_json(&self) -> Result<String> {
        let json = self.tokenizer.to_string(false);
        json.map_err(|error| DataError::file(Path::new("tokenizer.json"), error.to_string()))
    }

    /// The content of a tokenizer.json with `post_processor`, in JSON, in place of the tokenizer's.
    pub(super) fn to_json_with(&self, post_processor: Value) -> Result<String> {
        let wrong = |message: String| DataError::file(Path::new("tokenizer.json"), message);
        let processor: Option<PostProcessorWrapper> =
            serde_json::from_value(post_processor).map_err(|error| wrong(error.to_string()))?;
        let mut tokenizer = self.tokenizer.clone();
        tokenizer.with_post_processor(processor);
        tokenizer.to_string(false).map_err(|error| wrong(error.to_string()))
    }

    /// The post-processor, in JSON.
    pub(super) fn post_processor(&self) -> serde_json::Result<Value> {
        serde_json::to_value(self.tokenizer.get_post_processor())
    }

    /// Every token and its id.
    pub(super) fn vocabulary(&self) -> HashMap<String, u32> {
        self.tokenizer.get_vocab(true)
    }

    /// The special tokens that the post-processor puts in front of a text.
    pub(super) fn leading_special_tokens(&self) -> Vec<u32> {
        const TEXT: u32 = u32::MAX;
        let Some(processor) = self.tokenizer.get_post_processor() else { return Vec::new() };
        let text = Encoding::from_tokens(vec![Token::new(TEXT, "a".to_owned(), (0, 1))], 0);
        let Ok(processed) = processor.process(text, None, true) else { return Vec::new() };
        processed.get_ids().iter().copied().take_while(|&id| id != TEXT).collect()
    }

    pub(super) fn token_id(&self, name: &str) -> Option<u32> {
        self.tokenizer.token_to_id(name)
    }

    pub(super) fn token_name(&self, id: u32) -> Option<String> {
        self.tokenizer.id_to_token(id)
    }

    /// The special tokens, by id.
    pub(super) fn special_tokens(&self) -> Vec<(String, u32)> {
        let tokens = self.tokenizer.get_added_tokens_decoder();
        let mut special: Vec<_> =
            tokens.into_iter().filter(|(_, token)| token.special).map(|(id, token)| (token.content, id)).collect();
        special.sort_by_key(|(_, id)| *id);
        special
    }

    /// Appends the tokens of `text` to `out`.
    pub(super) fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<(), PlainError> {
        if self.cut_points != CutPoints::Words {
            return self.encode_with(&self.tokenizer, text, out);
        }
        let unused = self.word_tables.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut table = unused.unwrap_or_default();
        for word in words(text) {
            if let Some(tokens) = table.get(word) {
                out.extend_from_slice(tokens);
                continue;
            }
            let before = out.len();
            self.encode_with(&self.tokenizer, word, out)?;
            if word.len() <= MAX_KNOWN_BYTES && table.len() < MAX_KNOWN_WORDS {
                table.insert(word.to_owned(), out[before..].to_vec());
            }
        }
        self.word_tables.lock().unwrap_or_else(PoisonError::into_inner).push(table);
        Ok(())
    }

    /// Frees the tables of words.
    pub(super) fn forget_words(&self) {
        self.word_tables.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The text that each id stands for; `None` if ids do not show it.
    pub(super) fn token_texts(&self, vocab_size: usize) -> Option<Vec<Vec<u8>>> {
        library_token_texts(&self.tokenizer, vocab_size)
    }

    /// The tokens of a prompt, in which the names of special tokens are these tokens, with the blanks beside them that the tokens swallow.
    pub(super) fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, PlainError> {
        let tokenizer = self.for_prompts.get_or_init(|| {
            let mut tokenizer = self.tokenizer.clone();
            tokenizer.set_encode_special_tokens(false);
            Box::new(tokenizer)
        });
        let mut out = Vec::new();
        self.encode_with(tokenizer, text, &mut out)?;
        Ok(out)
    }

    fn encode_with(&self, tokenizer: &Tokenizer, text: &str, out: &mut Vec<u32>) -> Result<(), PlainError> {
        check_normalized_length(text.len(), self.growth)?;
        // The crate panics where Oniguruma gives up on a pattern that backtracks too often.
        let encoded = catch_panic(|| tokenizer.encode_fast(text, false));
        let encoding =
            encoded.map_err(|panic| explain_panic(&panic)).and_then(|encoded| encoded.map_err(|e| e.to_string()));
        let encoding = encoding.map_err(PlainError::request)?;
        out.extend_from_slice(encoding.get_ids());
        Ok(())
    }

    /// The text of `ids`. Ids without a token are skipped.
    pub(super) fn decode(&self, ids: &[u32]) -> String {
        let decoded = catch_panic(|| self.tokenizer.decode(ids, false).ok()).ok().flatten();
        decoded.unwrap_or_else(|| char::REPLACEMENT_CHARACTER.into())
    }
}

/// The message of a panic of the crate, for a person.
fn explain_panic(CaughtPanic(message): &CaughtPanic) -> String {
    match message.strip_prefix("Onig: Regex search error: ") {
        Some(error) => format!("a pattern of its tokenizer.json fails on this text: {error}"),
        None => message.clone(),
    }
}

/// `model` between GPT-2's pre-tokenizer and its decoder, with special tokens.
pub(super) fn byte_level(model: BPE, special: impl Iterator<Item = String>) -> Result<Tokenizer, PlainError> {
    let mut tokenizer = Tokenizer::new(model);
    tokenizer.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    let special = special.map(|content| AddedToken::from(content, true));
    tokenizer.add_special_tokens(special).map_err(|error| PlainError::request(error.to_string()))?;
    Ok(tokenizer)
}

#[cfg(test)]
mod tests {
    use tokenizers::models::bpe::BpeTrainer;
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _};

    use super::*;
    use crate::cut_points;

    const TEXT: &str = "It's a dog's day.\n\nThe  dog  ran 42 miles,\tdidn't it?  \n He'll  run 3.14\n\n\n日本 語 é\u{301} \u{a0}x\u{3000}y 🙂 ok\r\nthe the the  end <|endoftext|> of";

    fn tokenizer() -> Tokenizer {
        let mut pre = PreTokenizedString::from(TEXT);
        ByteLevel::new(false, true, true).pre_tokenize(&mut pre).unwrap();
        let pieces = pre.get_splits(OffsetReferential::Original, OffsetType::Byte);
        let counts = pieces.iter().map(|(piece, ..)| ((*piece).into(), 3)).collect();
        let alphabet = ByteLevel::alphabet().into_iter().collect();
        let mut model = BPE::default();
        let trainer = BpeTrainer::builder().initial_alphabet(alphabet).vocab_size(400).show_progress(false).build();
        trainer.do_train(&counts, &mut model).unwrap();
        byte_level(model, std::iter::once(END_OF_TEXT.to_owned())).unwrap()
    }

    /// The claims of `CutPoints::Words` and `encode`, on every text made of some tricky pieces.
    #[test]
    fn words_give_the_tokens_of_the_whole() {
        let library = LibraryTokenizer::new(tokenizer(), 1.0).unwrap();
        assert!(library.cut_points == CutPoints::Words);
        let pieces = ["a", "'s", " ", "\n", "  ", "7", "!", "é", "\u{3000}", "\t", " b", "日", "\u{301}"];
        let mut texts = vec![TEXT.to_owned()];
        texts.extend([MAX_KNOWN_BYTES, MAX_KNOWN_BYTES + 3, 100_000].map(|length| "the".repeat(length / 3 + 1)));
        for i in 0..pieces.len().pow(4) {
            let digit = |place: u32| pieces[i / pieces.len().pow(place) % pieces.len()];
            texts.push((0..4).map(digit).collect());
        }
        let (mut by_words, mut whole) = (Vec::new(), Vec::new());
        for text in &texts {
            by_words.clear();
            whole.clear();
            cut_points::words(text).for_each(|word| library.encode(word, &mut by_words).unwrap());
            library.encode_with(&library.tokenizer, text, &mut whole).unwrap();
            assert_eq!(by_words, whole, "{text:?}");
            by_words.clear();
            library.encode(text, &mut by_words).unwrap();
            assert_eq!(by_words, whole, "{text:?}");
            assert_eq!(library.decode(&whole), *text);
        }
    }

    #[test]
    fn only_gpt2s_words_are_cut() {
        let json: Value = serde_json::from_str(&tokenizer().to_string(false).unwrap()).unwrap();
        let load = |json: &Value| LibraryTokenizer::from_json(&serde_json::to_vec(json).unwrap(), Path::new("t.json"));
        assert_eq!(load(&json).unwrap().cut_points, CutPoints::Words);
        let mut prefixed = json.clone();
        prefixed["pre_tokenizer"]["add_prefix_space"] = true.into();
        assert_eq!(load(&prefixed).unwrap().cut_points, CutPoints::Never);
        let mut lower = json.clone();
        lower["normalizer"] = serde_json::json!({"type": "Lowercase"});
        assert_eq!(load(&lower).unwrap().cut_points, CutPoints::Never);
        let mut cut_short = json.clone();
        cut_short["truncation"] = serde_json::json!(
            {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
        let mut tokens = Vec::new();
        let library = load(&cut_short).unwrap();
        library.encode_with(&library.tokenizer, "a b c d e f", &mut tokens).unwrap();
        assert!(tokens.len() > 2);
        let mut far = json.clone();
        far["model"]["vocab"]["he"] = u32::MAX.into();
        let error = load(&far).map(drop).unwrap_err().to_string();
        assert!(error.contains("the id of \"he\" is 4294967295, far beyond the number of tokens"), "{error}");
        let mut wrong = json;
        wrong["model"]["merges"] = serde_json::json!([["no", "such"]]);
        assert!(load(&wrong).is_err());
        assert!(LibraryTokenizer::from_json(b"{}", Path::new("t.json")).is_err());
    }

    #[test]
    fn gpt2_files_are_checked() {
        let dir = tempfile::tempdir().unwrap();
        let (vocab, merges) = (dir.path().join("vocab.json"), dir.path().join("merges.txt"));
        let mut names: Vec<_> = ByteLevel::alphabet().into_iter().map(String::from).collect();
        names.sort();
        names.extend(["he".to_owned(), END_OF_TEXT.to_owned()]);
        let tokens: HashMap<_, _> = names.iter().zip(0_u32..).collect();
        std::fs::write(&vocab, serde_json::to_string(&tokens).unwrap()).unwrap();
        std::fs::write(&merges, "#version: 0.2\nh e\n").unwrap();
        let library = LibraryTokenizer::gpt2(&vocab, &merges).unwrap();
        let mut out = Vec::new();
        library.encode("he", &mut out).unwrap();
        assert_eq!((&out, library.special_tokens()), (&vec![256], vec![(END_OF_TEXT.into(), 257)]));
        // Python's readers refuse a byte order mark in either file, so that here it can only mean the text behind it.
        let (plain_vocab, plain_merges) = (std::fs::read(&vocab).unwrap(), std::fs::read(&merges).unwrap());
        for merged in ["#version: 0.2\nh e\n", "h e\n"] {
            std::fs::write(&vocab, [b"\xef\xbb\xbf", &plain_vocab[..]].concat()).unwrap();
            std::fs::write(&merges, format!("\u{feff}{merged}")).unwrap();
            let marked = LibraryTokenizer::gpt2(&vocab, &merges).unwrap();
            assert_eq!(marked.to_json().unwrap(), library.to_json().unwrap());
        }
        std::fs::write(&vocab, &plain_vocab).unwrap();
        std::fs::write(&merges, &plain_merges).unwrap();
        let error = |text: &str| {
            std::fs::write(&merges, text).unwrap();
            LibraryTokenizer::gpt2(&vocab, &merges).map(|_| ()).unwrap_err().to_string()
        };
        assert!(error("h e\nx").contains("line 2: expected two tokens"));
        assert!(error("h x\n").contains("line 1: \"hx\" is not in"));
        std::fs::write(&vocab, "{\"a\": 0}").unwrap();
        assert!(error("").contains("byte token"));
        std::fs::write(&vocab, "[1]").unwrap();
        assert!(error("").contains("not a GPT-2 vocabulary"));
    }
}
