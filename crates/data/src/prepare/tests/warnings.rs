//! Warnings of files that are there twice, and of text that its tokenizer was not made for.

use super::*;

/// A file that is there twice is read twice, through a pattern, a link or a copy, in every kind of source.
#[test]
fn repeated_files_are_reported() {
    let folder = Folder::new();
    let warnings = |data: &Data| folder.prepare(data).unwrap().warnings;
    let root = folder.0.path().canonicalize().unwrap();
    let place = |name: &str| root.join(name).display().to_string();
    let again = ", so its documents are read again; list each file once, unless they should count more";
    let (a, other) = (folder.write("a.txt", STORY.repeat(3)), folder.write("b.txt", STORY.repeat(4)));
    let chars = |files: &[&Path]| packed(Tokenizer::Chars {}, text(files), None, 64);
    let empty = [folder.write("c.txt", ""), folder.write("d.txt", "")];
    assert!(warnings(&chars(&[&a, &other, &empty[0], &empty[1]])).is_empty(), "empty files have nothing to repeat");
    let once = folder.prepare(&chars(&[&a])).unwrap().facts.train.tokens;
    let twice = chars(&[&root.join("[a]*.txt"), &a]);
    assert_eq!(folder.prepare(&twice).unwrap().facts.train.tokens, 2 * once);
    let listed = format!("{} is listed more than once", place("a.txt"));
    assert_eq!(warnings(&twice), [format!("data.train: {listed}{again}")]);
    std::os::unix::fs::symlink(&a, root.join("e.txt")).unwrap();
    folder.write("f.txt", STORY.repeat(3));
    let all = chars(&[&root.join("*.txt")]);
    assert_eq!(warnings(&all), [format!("data.train: {listed} (and 1 more){again}")]);
    let copy = format!("data.train: {} has the same content as {}{again}", place("f.txt"), place("a.txt"));
    assert_eq!(warnings(&chars(&[&a, &root.join("f.txt")])), [copy]);

    let line = |text: &str| format!("{{\"text\": {text:?}, \"title\": {STORY:?}}}\n");
    let lines = folder.write("a.jsonl", line(&STORY.repeat(3)));
    let tokens = folder.write("a.bin", (0..400_u16).flat_map(|i| (i % 200).to_le_bytes()).collect::<Vec<u8>>());
    let rows = root.join("a.parquet");
    stories::write_rows(&rows, &[STORY.repeat(3)]).unwrap();
    let json = |files| Source::Jsonl(JsonSource { files, field: Some("text".to_owned()), template: None });
    let source = |files: Vec<PathBuf>| match files[0].extension().and_then(|extension| extension.to_str()) {
        Some("parquet") => Source::Parquet(ParquetSource { files, column: None, template: None }),
        Some("jsonl") => json(files),
        _ => Source::Tokens { files, dtype: None },
    };
    for file in [&rows, &lines, &tokens] {
        let train = source(vec![file.clone()]);
        let twice = source(vec![file.clone(), file.clone()]);
        let data = |train: &Source, validation| packed(Tokenizer::Bytes {}, train.clone(), validation, 64);
        assert!(warnings(&data(&train, None)).is_empty());
        let name = file.file_name().unwrap().to_str().unwrap();
        let expected = format!("{} is listed more than once{again}", place(name));
        assert_eq!(warnings(&data(&twice, None)), [format!("data.train: {expected}")]);
        let other = Some(Validation::Source(twice));
        assert_eq!(warnings(&data(&text(&[&a]), other.clone())), [format!("data.validation: {expected}")]);
        assert!(
            error(folder.prepare(&data(&train, other)))
                .contains(&format!("{name} is also in data.train, which is trained on"))
        );
    }
    // Another field of a file that trains may hold the same text.
    let titles = Some(Validation::Source(jsonl(lines.clone(), "title")));
    let found = warnings(&packed(Tokenizer::Bytes {}, json(vec![lines]), titles, 64));
    let expected = format!(
        "data.validation: {} is also in data.train, which reads a different part of it; make sure that the texts do not overlap",
        place("a.jsonl")
    );
    assert_eq!(found, [expected]);
}

#[test]
fn text_that_the_tokenizer_does_not_know_is_reported() {
    let folder = Folder::new();
    let words = Tokenizer::Words { lowercase: true, min_count: 1, special_tokens: Vec::new() };
    let train = folder.write("train.txt", STORY.repeat(10));
    let warnings = |other: &str| {
        let held_out = Validation::Source(text(&[&folder.write("held_out.txt", other)]));
        folder.prepare(&packed(words.clone(), text(&[&train]), Some(held_out), 8)).unwrap().warnings
    };
    // Of ten words, one is unknown; then two.
    assert_eq!(warnings("the cat sat on the mat and the dog barked"), [""; 0]);
    let advice = "which stands for text that the tokenizer does not know; use a tokenizer that was made for such text";
    let expected = format!("validation data: 20.0% of 10 tokens are `<unk>`, {advice}");
    assert_eq!(warnings("the cat sat on the mat and the fox barked"), [expected]);
}
