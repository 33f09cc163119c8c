//! Text of evaluated splits: how much of it was trained on, and how many bytes its tokens stand for.

use super::*;
use runner_spec::data::TextOverlap;

/// Numbered sentences of 53 bytes: no window of three of them occurs twice.
fn sentences(numbers: Range<u64>) -> Vec<String> {
    numbers.map(|n| format!("{:016x}{:016x} are two numbers.\n", n.wrapping_mul(0x9e37_79b9_7f4a_7c15), !n)).collect()
}

/// The windows of validation data that were found in the training data, of how many.
fn found(folder: &Folder, data: &Data) -> (u64, u64) {
    let facts = folder.prepare(data).unwrap().facts;
    // The second preparation reads the result from the cache.
    let again = folder.prepare(data).unwrap().facts;
    let overlaps = facts.validation.unwrap().overlaps;
    assert_eq!(overlaps, again.validation.unwrap().overlaps);
    let [TextOverlap { with: DataPart::Train, windows, found, .. }] = overlaps[..] else { panic!("{overlaps:?}") };
    (found, windows)
}

#[test]
fn validation_text_that_is_trained_on_is_found() {
    let folder = Folder::new();
    let train = folder.write("train.txt", sentences(0..2000).concat());
    let against = |validation: String| {
        let file = folder.write("validation.txt", validation);
        found(&folder, &packed(Tokenizer::Bytes {}, text(&[&train]), Some(Validation::Source(text(&[&file]))), 16))
    };
    let tail = sentences(1800..2000).concat();
    let (all, windows) = against(tail.clone());
    assert_eq!((all, windows), (windows, tail.len() as u64 / 160), "the end of the training file");
    let copy = against(sentences(0..2000).concat() + "x");
    assert!(copy.0 == copy.1 && copy.1 > 500, "a copy with a byte more: {copy:?}");
    assert_eq!(against(sentences(5000..5200).concat()).0, 0);
    let half = against(sentences(1900..2000).concat() + &sentences(5000..5100).concat());
    assert!((half.0 * 100 / half.1).abs_diff(50) < 4, "{half:?}");
    // A window is found wherever it is in the training text.
    assert_eq!(against(tail[7..7 + 320].to_owned()), (2, 2));
    let held_out = packed(Tokenizer::Bytes {}, text(&[&train]), Some(Validation::Fraction(0.1)), 16);
    assert_eq!(found(&folder, &held_out).0, 0);
}

/// A text that repeats has the same windows on both sides of every cut, and the warning says whose fault that is.
#[test]
fn repeated_text_is_found_in_a_fraction() {
    let folder = Folder::new();
    let file = folder.write("a.txt", STORY.repeat(60));
    let data = packed(Tokenizer::Chars {}, text(&[&file]), Some(Validation::Fraction(0.1)), 16);
    let facts = folder.prepare(&data).unwrap().facts;
    let windows = facts.validation.as_ref().unwrap().tokens / 160;
    assert_eq!(
        facts.overlap_warnings(),
        [format!(
            "validation data: {windows} of {windows} windows of 160 tokens also occur in the training data (100.0%), so a loss on it also measures memorization; the training data itself repeats 100.0% of such windows"
        )]
    );
}

/// Documents that are shorter than a window are compared as a whole, in any order, with and without a separator between them.
#[test]
fn short_documents_are_found_in_any_order() {
    let folder = Folder::new();
    let lines = |numbers: &mut dyn Iterator<Item = u64>| -> String {
        let line = |n: u64| format!("{{\"text\": \"{:041}\"}}\n", n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        numbers.map(line).collect::<Vec<_>>().concat()
    };
    let train = folder.write("train.jsonl", lines(&mut (0..1000)));
    let mixed = folder.write("mixed.jsonl", lines(&mut (0..1000).rev().step_by(3).flat_map(|n| [n, n + 5000])));
    let validation = Validation::Source(jsonl(mixed, "text"));
    let packed = packed(Tokenizer::Bytes {}, jsonl(train, "text"), Some(validation), 16);
    let end = "<|endoftext|>".to_owned();
    let layout =
        Layout::Padded { length: 64, bos: end.clone(), eos: end.clone(), pad: end, mask: PaddingMask::default() };
    let joined = Layout::Packed { length: 16, separator: Separator::None };
    for data in [packed.clone(), Data { layout: joined, ..packed.clone() }, Data { layout, ..packed }] {
        let (found, windows) = found(&folder, &data);
        assert!(windows > 50 && (found * 100 / windows).abs_diff(50) < 10, "{found} of {windows}");
    }
}

#[test]
fn tests_are_compared_with_what_trained_and_what_chose() {
    let folder = Folder::new();
    let file = |name: &str, numbers| folder.write(name, sentences(numbers).concat());
    let (train, validation) = (file("train.txt", 0..500), file("validation.txt", 1000..1100));
    let test = text(&[&file("test.txt", 1050..1150)]);
    let data = packed(Tokenizer::Bytes {}, text(&[&train]), Some(Validation::Source(text(&[&validation]))), 16);
    let cache_dir = folder.0.path().join("cache");
    let request = DataRequest {
        data: &data,
        tasks: &[],
        test: Some(&test),
        cache_dir: &cache_dir,
        vocab_size: None,
        recorded_tokenizer: None,
    };
    let facts = prepare(&request, &|_| ()).unwrap().facts;
    let warnings = facts.overlap_warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    let words = [
        "test data: ",
        "also occur in the validation data (",
        "choice of the best checkpoint; hold out different text",
    ];
    assert!(words.iter().all(|part| warnings[0].contains(part)), "{warnings:?}");
}

/// Token shards of byte-level tokens show their text, and the same text has the same hash in other tokens.
#[test]
fn token_shards_show_the_bytes_of_their_text() {
    let folder = Folder::new();
    let content = format!("é{}", STORY.repeat(20));
    let corpus = folder.write("corpus.txt", &content);
    let trained = folder.prepare(&packed(bpe(300), text(&[&corpus]), None, 8)).unwrap().tokenizer.text;
    let own = folder.write("tokenizer.json", trained.to_file().unwrap());
    let facts = |tokenizer: Tokenizer, name: &str, ids: Vec<u32>| {
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| (id as u16).to_le_bytes()).collect();
        let source = |name: &str, bytes: &[u8]| Source::Tokens { files: vec![folder.write(name, bytes)], dtype: None };
        let validation = Validation::Source(source(&format!("{name}-val.bin"), &bytes));
        let train = source(&format!("{name}-train.bin"), &bytes[..bytes.len() / 4 * 2]);
        let prepared = folder.prepare(&packed(tokenizer, train, Some(validation), 1)).unwrap();
        prepared.facts.validation.unwrap().text.unwrap()
    };
    let pairs = facts(Tokenizer::File(own), "pairs", trained.encode_document(&content).unwrap());
    let mut ids: Vec<u32> = content.bytes().map(u32::from).collect();
    // A separator stands for no text.
    ids.insert(50, 256);
    let bytes = facts(Tokenizer::Bytes {}, "bytes", ids);
    assert_eq!(bytes.bytes, content.len() as u64 - 1, "nothing predicts the first byte");
    let first = trained.decode(&trained.encode_document(&content).unwrap()[..1]);
    assert!(pairs.bytes >= content.len() as u64 - first.len().max(2) as u64, "{pairs:?}");
    assert_eq!(pairs.hash, bytes.hash);
}
