//! Files of tokens without a header, whose type the source names.

use super::*;

/// The bytes of 200 tokens below `bound` as NumPy's `tofile` writes them.
fn raw(kind: TokenType, bound: u64) -> Vec<u8> {
    let tokens = (0..200_u64).map(|i| i * 7919 % bound);
    tokens.flat_map(|token| token.to_le_bytes()[..kind.bytes()].to_vec()).collect()
}

fn data(file: PathBuf, dtype: Option<TokenType>) -> Data {
    packed(Tokenizer::Ids {}, Source::Tokens { files: vec![file], dtype }, None, 4)
}

#[test]
fn every_type_gives_the_same_rows() {
    let folder = Folder::new();
    let rows = |file: &str, dtype| {
        let prepared = folder.prepare_within(&data(folder.0.path().join(file), dtype), Some(1000)).unwrap().0;
        let mut rows = Rows::default();
        prepared.dataset.train.fill([1, 40], &mut rows).unwrap();
        assert_eq!(prepared.facts.train.tokens, 200);
        (rows.inputs, prepared.facts.train.hash)
    };
    for kind in TokenType::ALL {
        folder.write(kind.name(), raw(kind, 997));
        fs::rename(folder.0.path().join(kind.name()), folder.0.path().join(format!("{}.bin", kind.name()))).unwrap();
    }
    let (expected, hash) = rows("uint16.bin", None);
    assert_eq!(
        rows("uint16.bin", Some(TokenType::Uint16)),
        (expected.clone(), hash),
        "naming the default changes nothing"
    );
    for kind in TokenType::ALL {
        assert_eq!(rows(&format!("{}.bin", kind.name()), Some(kind)).0, expected, "{}", kind.name());
    }
}

#[test]
fn a_type_that_cannot_be_right_is_refused() {
    let folder = Folder::new();
    let refused = |file: &PathBuf, dtype, vocabulary| {
        let prepared = folder.prepare_within(&data(file.clone(), dtype), Some(vocabulary));
        prepared.map(drop).unwrap_err().to_string()
    };
    let wide = folder.write("wide.bin", raw(TokenType::Uint32, 997));
    let error = refused(&wide, None, 1000);
    assert!(error.contains("as if tokens were wider; set `dtype` to the type of its tokens"), "{error}");
    let narrow = folder.write("narrow.bin", raw(TokenType::Uint16, 997));
    let error = refused(&narrow, None, 65_537);
    assert!(error.contains("read as uint16, but the vocabulary has 65537 tokens; set `dtype`"), "{error}");
    assert!(folder.prepare_within(&data(narrow.clone(), Some(TokenType::Uint16)), Some(65_537)).is_ok());
    let error = refused(&narrow, Some(TokenType::Uint32), 1000);
    assert!(
        error.contains("narrow.bin: token ") && error.contains(" at position 0 is beyond the vocabulary"),
        "{error}"
    );
    // Values that the type allows and the vocabulary does not.
    let negative = folder.write("negative.bin", [1, -1, 2_i64].map(i64::to_le_bytes).concat());
    assert!(
        refused(&negative, Some(TokenType::Int64), 1000).ends_with("must be 0 to 4294967295, got -1 at position 1")
    );
}
