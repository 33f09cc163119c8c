//! `meta.pkl`, from which nanoGPT reads the characters of a character-level data set: a pickled dict of `vocab_size`, `itos` and
//! `stoi`. This program only writes it: a pickle can run code.

/// The name of the file.
pub(super) const META: &str = "meta.pkl";

/// The pickle, of protocol 2, for `characters`, whose indices are their ids.
pub(super) fn meta(characters: &[char]) -> Vec<u8> {
    let mut out = b"\x80\x02}(".to_vec();
    text(&mut out, "vocab_size");
    int(&mut out, characters.len() as i32);
    for (name, to_text) in [("itos", true), ("stoi", false)] {
        text(&mut out, name);
        out.extend(b"}(");
        for (id, &character) in (0..).zip(characters) {
            let character = character.to_string();
            if to_text {
                int(&mut out, id);
                text(&mut out, &character);
            } else {
                text(&mut out, &character);
                int(&mut out, id);
            }
        }
        out.push(b'u');
    }
    out.extend(b"u.");
    out
}

/// BINUNICODE.
fn text(out: &mut Vec<u8>, value: &str) {
    out.push(b'X');
    out.extend((value.len() as u32).to_le_bytes());
    out.extend(value.as_bytes());
}

/// BININT.
fn int(out: &mut Vec<u8>, value: i32) {
    out.push(b'J');
    out.extend(value.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `pickle.loads` of these bytes gives {'vocab_size': 1, 'itos': {0: 'é'}, 'stoi': {'é': 0}}.
    #[test]
    fn python_loads_the_dict() {
        let expected = b"\x80\x02}(X\n\0\0\0vocab_sizeJ\x01\0\0\0X\x04\0\0\0itos}(J\0\0\0\0X\x02\0\0\0\xc3\xa9u\
                         X\x04\0\0\0stoi}(X\x02\0\0\0\xc3\xa9J\0\0\0\0uu.";
        assert_eq!(meta(&['é']), expected);
    }
}
