//! Files that mean harm, or were harmed: none may panic, hang or take the memory.

use std::fmt::Write as _;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::{LoadOptions, from_str, load};
use runner_spec::diagnostic::ConfigError;

fn error_of(text: &str) -> ConfigError {
    let start = Instant::now();
    let error = from_str(text, Path::new("exp.yaml"), &LoadOptions::default()).unwrap_err();
    let _ = error.to_string();
    // Some are near the limit of size; work that grows with its square would take hours.
    assert!(start.elapsed() < Duration::from_mins(5), "{:?} for {:.40}…", start.elapsed(), text);
    error
}

/// Message of the first mistake.
fn first(text: &str) -> String {
    error_of(text).diagnostics[0].message.clone()
}

#[test]
fn a_file_of_100_mb_is_refused_without_being_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("exp.yaml");
    let mut file = std::fs::File::create(&path).unwrap();
    file.seek(SeekFrom::Start(100_000_000 - 1)).unwrap();
    file.write_all(b"\n").unwrap();
    let start = Instant::now();
    let text = load(&path, &LoadOptions::default()).unwrap_err().to_string();
    assert!(start.elapsed() < Duration::from_millis(500));
    insta::assert_snapshot!(text.replace(folder.path().to_str().unwrap(), "DIR"));
}

#[test]
fn refuses_paths_that_are_not_files() {
    let folder = tempfile::tempdir().unwrap();
    let of = |path: &Path| load(path, &LoadOptions::default()).unwrap_err().diagnostics[0].message.clone();
    assert_eq!(of(folder.path()), "this is a folder, not a file");
    assert_eq!(of(&folder.path().join("no.yaml")), "there is no such file");
    assert_eq!(of(Path::new("/dev/zero")), "this is a device, not a file");
    let socket = folder.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    assert_eq!(of(&socket), "this is a socket, not a file");
    // Every key that names a file refuses it, too.
    for (key, value) in [
        ("data.train.text.files", "[/dev/zero]"),
        ("data.train.tokens.files", "[/dev/zero]"),
        ("data.tokenizer.file", "/dev/zero"),
        ("eval.hellaswag.file", "/dev/zero"),
    ] {
        let sets = vec!["data.train=null".to_owned(), format!("{key}={value}")];
        let options = LoadOptions { sets, ..LoadOptions::default() };
        let error = from_str(super::load::SHORT, &folder.path().join("exp.yaml"), &options).unwrap_err().to_string();
        assert!(error.contains("`/dev/zero` is a device"), "{key}: {error}");
    }
}

#[test]
fn a_file_that_is_not_utf8_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("exp.yaml");
    let of = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        load(&path, &LoadOptions::default()).unwrap_err().to_string().replace(folder.path().to_str().unwrap(), "DIR")
    };
    insta::assert_snapshot!(of(b"version: 1\nname: caf\xe9 noir\n"));
    assert!(of(b"\xff\xfev\0e\0").contains("UTF-16"));
}

#[test]
fn characters_that_yaml_forbids_are_named() {
    assert_eq!(first("version: 1\0\nmodel: 3"), "YAML does not allow the character U+0000");
    assert_eq!(first("name: \x1b[31mred"), "YAML does not allow the character U+001B");
}

#[test]
fn deep_nesting_is_refused() {
    for text in [
        "[".repeat(2_000_000),
        "{a: ".repeat(500_000),
        "- ".repeat(1_000_000),
        "? ".repeat(1_000_000),
        "&a ".repeat(1_000_000),
        "!!map ".repeat(300_000),
    ] {
        error_of(&text);
    }
    assert_eq!(first(&format!("model: {}{}", "[".repeat(70), "]".repeat(70))), "nested more than 64 levels deep");
    let mut block = String::new();
    for i in 0..2000 {
        let _ = writeln!(block, "{}a:", " ".repeat(i));
    }
    assert_eq!(first(&block), "nested more than 64 levels deep");
}

#[test]
fn anchors_that_explode_are_refused() {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for i in 1..30 {
        let alias = format!("*a{}", i - 1);
        let _ = writeln!(text, "a{i}: &a{i} [{}]", [alias.as_str(); 10].join(", "));
    }
    assert_eq!(first(&text), "more than 100000 values, with the aliases expanded");
    let mut text = String::from("a0: &a0 [x]\n");
    for i in 1..200 {
        let _ = writeln!(text, "a{i}: &a{i} [*a{}]", i - 1);
    }
    assert_eq!(first(&text), "nested more than 64 levels deep through anchors");
    assert_eq!(first("model: &m {layers: *m}\n"), "this alias refers to a value that contains it");
    assert!(first("model: *nowhere\n").contains("no `&name` precedes this"));
}

#[test]
fn many_lines_keys_and_values_are_handled() {
    let limit = runner_spec::diagnostic::MAX_DIAGNOSTICS;
    for text in [
        "x: 1\n".repeat(90_000),
        (0..40_000).fold(String::new(), |mut s, i| {
            let _ = writeln!(s, "key{i}: 1");
            s
        }),
        format!("model: [{}]", "1,".repeat(1_900_000)),
        format!("name: {}", "x".repeat(4_000_000)),
        format!("{}: 1", "x".repeat(4_000_000)),
        "\n".repeat(4_000_000),
        "\t\n".repeat(2_000_000),
        "\ta\n".repeat(1_000_000),
        "#\n".repeat(2_000_000),
        "a\n".repeat(2_000_000),
        "\"a\n\t\"".repeat(500_000),
        "- |\n \ta\n".repeat(40_000),
        "---\n".repeat(1_000_000),
        "%TAG ! a\n".repeat(400_000),
        format!("'{}", "\n".repeat(4_000_000)),
    ] {
        assert!(error_of(&text).diagnostics.len() <= 2 * limit);
    }
    let options = LoadOptions {
        sets: vec![
            format!("{}=1", "a.".repeat(1_000_000)),
            format!("model={}", "[".repeat(1_000_000)),
            "\0=\t\x1b".into(),
        ],
        env: vec![(format!("RUNNER_{}", "A__".repeat(100_000)), "[".into()), ("RUNNER_".into(), String::new())],
        ..LoadOptions::default()
    };
    let _ = from_str("seed: 1", Path::new("exp.yaml"), &options).unwrap_err().to_string();
}

/// Small deterministic numbers (a linear congruential generator).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

#[test]
fn a_file_with_any_damage_is_taken_or_refused() {
    let good = super::load::FULL;
    let folder = tempfile::tempdir().unwrap();
    super::load::fill(folder.path());
    let path = folder.path().join("exp.yaml");
    let pieces = [
        "\t",
        "\n",
        ":",
        ": ",
        "{",
        "}",
        "[",
        "]",
        "&a ",
        "*a",
        "- ",
        "'",
        "\"",
        "#",
        "!",
        "|",
        "\0",
        "é",
        "1e999",
        "-1",
        "null",
        "~",
        "  ",
        "0",
        "99999999999999999999",
        ".nan",
        "💥",
        "<<: ",
        "%",
        "@",
        "? ",
        "---\n",
        "...\n",
    ];
    let mut numbers = Numbers(7);
    let (mut taken, mut refused) = (0, 0);
    for _ in 0..6000 {
        let mut text: Vec<char> = good.chars().collect();
        for _ in 0..=numbers.below(3) {
            let at = numbers.below(text.len());
            let piece = pieces[numbers.below(pieces.len())].chars();
            match numbers.below(4) {
                0 => {
                    let to = (at + 1 + numbers.below(12)).min(text.len());
                    text.drain(at..to);
                }
                1 => {
                    text.splice(at..=at, piece);
                }
                2 => {
                    text.splice(at..at, piece);
                }
                _ => {
                    let (from, len) = (numbers.below(text.len()), numbers.below(40));
                    let copied: Vec<char> = text[from..(from + len).min(text.len())].to_vec();
                    text.splice(at..at, copied);
                }
            }
        }
        let text: String = text.into_iter().collect();
        match from_str(&text, &path, &LoadOptions::default()) {
            Ok(loaded) => {
                let again = from_str(&crate::to_yaml(&loaded.experiment), &path, &LoadOptions::default());
                let again = again.unwrap_or_else(|e| panic!("what was taken is not taken again: {e}\n{text}"));
                assert_eq!(again.experiment, loaded.experiment);
                taken += 1;
            }
            Err(e) => {
                let said = e.to_string();
                assert!(!e.diagnostics.is_empty() && !said.contains("bug of the program"), "{said}\n{text}");
                refused += 1;
            }
        }
    }
    assert!(taken > 100 && refused > 1000, "{taken} taken, {refused} refused");
}
