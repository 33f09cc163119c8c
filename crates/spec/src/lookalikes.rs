//! Characters that are invisible or look like ASCII characters: they come with text from web pages, word processors and other keyboards.

use super::safe_text::is_unsafe;

/// Letters of other scripts, each followed by the Latin letter that it looks like.
const LETTERS: &str = "аaеeоoрpсcуyхxіiјjѕsԁdһhԛqԝwАAВBЕEКKМMНHОOРPСCТTУYХXІIЈJЅSαaνvοoρpΑAΒBΕEΖZΗHΙIΚKΜMΝNΟOΡPΤTΥYΧX";

/// The ASCII text that was meant by a character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meant {
    Nothing,
    Character(char),
}

/// True for a character that shows nothing, or a space that is not the ASCII one, and that a reader therefore cannot see.
#[must_use]
pub fn is_unseen(c: char) -> bool {
    is_unsafe(c) || !c.is_ascii() && c.is_whitespace()
}

/// The name of `c` in messages, such as `U+00A0`.
#[must_use]
pub fn code_point(c: char) -> String {
    format!("U+{:04X}", c as u32)
}

/// One line of advice for each character of `text`, at most three, that is not what it looks like.
pub fn lookalike_advice(text: &str) -> Vec<String> {
    let mut found: Vec<char> = Vec::new();
    let mut advice = Vec::new();
    // The usual case, at no cost.
    if text.is_ascii() {
        return advice;
    }
    for (c, meant) in lookalikes(text) {
        if found.contains(&c) || found.len() == 3 {
            continue;
        }
        found.push(c);
        let name = code_point(c);
        advice.push(match meant {
            Meant::Nothing => format!("it contains the invisible character {name}: delete it"),
            Meant::Character(' ') => format!("it contains {name}, which is not a plain space: replace it with one"),
            Meant::Character(ascii) => {
                format!("it contains {name}, which looks like `{ascii}`: replace it with `{ascii}`")
            }
        });
    }
    advice
}

fn lookalikes(text: &str) -> impl Iterator<Item = (char, Meant)> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let words = text.split_inclusive(move |c| !is_part(c));
    words.flat_map(move |word| {
        // A letter of another script is a mistake in a Latin word, and in a word that would read the same in Latin letters.
        let is_meant_as_latin = |c: char| c.is_ascii() || latin(c).is_some();
        let is_latin = word.chars().filter(|c| is_part(*c)).all(is_meant_as_latin)
            || word.contains(|c: char| c.is_ascii_alphanumeric());
        word.chars().filter_map(move |c| Some((c, latin(c).filter(|_| is_latin).or_else(|| sign(c))?)))
    })
}

/// The Latin letter that the letter `c` looks like.
fn latin(c: char) -> Option<Meant> {
    let at = LETTERS.chars().step_by(2).position(|letter| letter == c)?;
    LETTERS.chars().nth(2 * at + 1).map(Meant::Character)
}

/// The ASCII character that `c`, which is not a letter, looks like.
fn sign(c: char) -> Option<Meant> {
    let ascii = match c {
        '\u{FF01}'..='\u{FF5E}' => char::from_u32(c as u32 - 0xFEE0)?,
        '‘' | '’' | '‚' | '‛' | '′' | '´' => '\'',
        '“' | '”' | '„' | '‟' | '″' | '«' | '»' => '"',
        '‐' | '‑' | '‒' | '–' | '—' | '―' | '−' | '﹣' => '-',
        '∶' | '﹕' | '꞉' => ':',
        '\t' | '\n' => return None,
        c if is_unsafe(c) => return Some(Meant::Nothing),
        c if is_unseen(c) => ' ',
        _ => return None,
    };
    Some(Meant::Character(ascii))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_are_not_what_they_look_like_are_named() {
        let advice = |text: &str| lookalike_advice(text).join("; ");
        assert_eq!(
            advice("steps:\u{A0}10\u{A0}"),
            "it contains U+00A0, which is not a plain space: replace it with one"
        );
        assert_eq!(advice("tr\u{430}in"), "it contains U+0430, which looks like `a`: replace it with `a`");
        assert_eq!(advice("\u{430}"), "it contains U+0430, which looks like `a`: replace it with `a`");
        assert_eq!(advice("ste\u{200B}ps"), "it contains the invisible character U+200B: delete it");
        let signs = "it contains U+201C, which looks like `\"`: replace it with `\"`; \
                     it contains U+2212, which looks like `-`: replace it with `-`; \
                     it contains U+FF11, which looks like `1`: replace it with `1`";
        assert_eq!(advice("“−１２３”"), signs);
        for plain in ["steps: 10", "имя", "μ-P", "naïve café", "日本語", "a\tb", ""] {
            assert_eq!(advice(plain), "", "{plain}");
        }
    }

    #[test]
    fn each_letter_has_an_ascii_letter() {
        let letters: Vec<char> = LETTERS.chars().collect();
        assert!(letters.chunks(2).all(|pair| !pair[0].is_ascii() && pair[1].is_ascii_alphabetic()));
    }
}
