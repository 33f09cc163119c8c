//! YAML as Python's `yaml.safe_load` reads it: of a repeated key the last value counts, and plain scalars have the types of YAML 1.1.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, Span, StrInput, Tag};

use super::MAX_DEPTH;
use super::document::DocumentError;

/// Values in all, counting what an alias stands for each time it is used.
const MAX_VALUES: usize = 2_000_000;

/// A value, as far as its type matters.
#[derive(Debug, Clone, PartialEq)]
pub enum PythonValue {
    Null,
    Bool(bool),
    Text(String),
    /// A number or date, as spelled.
    Other(String),
    List(Vec<Self>),
    /// Each key once.
    Map(Vec<(Self, Self)>),
}

impl PythonValue {
    /// The value of the text `key` in a mapping.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Self> {
        let Self::Map(entries) = self else { return None };
        entries.iter().find(|(name, _)| name.as_text() == Some(key)).map(|(_, value)| value)
    }

    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    /// True if Python's `if` takes the value for true.
    #[must_use]
    pub fn is_truthy(&self) -> bool {
        match self {
            Self::Null => false,
            Self::Bool(value) => *value,
            Self::Text(text) => !text.is_empty(),
            Self::Other(text) => !text.trim_start_matches(['+', '-', '0', 'x', 'b', '.', '_', ':']).is_empty(),
            Self::List(items) => !items.is_empty(),
            Self::Map(entries) => !entries.is_empty(),
        }
    }

    fn size(&self) -> usize {
        1 + match self {
            Self::List(items) => items.iter().map(Self::size).sum(),
            Self::Map(entries) => entries.iter().map(|(_, value)| 1 + value.size()).sum(),
            _ => 0,
        }
    }

    fn depth(&self) -> usize {
        match self {
            Self::List(items) => 1 + items.iter().map(Self::depth).max().unwrap_or(0),
            Self::Map(entries) => 1 + entries.iter().map(|(_, value)| value.depth()).max().unwrap_or(0),
            _ => 0,
        }
    }
}

/// Parses the YAML `text`, which is one document.
///
/// # Errors
/// If it is not YAML, is nested too deep, or has what `safe_load` refuses: a second document, an unknown tag, a list as a key. Merge
/// keys (`<<`) and sets are refused, too.
pub fn from_str(text: &str) -> Result<PythonValue, DocumentError> {
    let mut loader = Loader { events: Parser::new_from_str(text), anchors: HashMap::new(), values: 0 };
    let mut root = None;
    loop {
        let (event, span) = loader.next_event()?;
        match event {
            Event::StreamEnd => return Ok(root.unwrap_or(PythonValue::Null)),
            Event::Nothing | Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd => {}
            _ if root.is_some() => return Err(refusal("a second document", &span)),
            event => root = Some(loader.value(event, &span, 0)?),
        }
    }
}

fn refusal(what: &'static str, span: &Span) -> DocumentError {
    DocumentError::Unsupported { what, line: span.start.line(), column: span.start.col() + 1 }
}

struct Loader<'s> {
    events: Parser<'s, StrInput<'s>>,
    anchors: HashMap<usize, PythonValue>,
    values: usize,
}

impl<'s> Loader<'s> {
    fn next_event(&mut self) -> Result<(Event<'s>, Span), DocumentError> {
        Ok(self.events.next_event().transpose()?.unwrap_or((Event::StreamEnd, Span::default())))
    }

    /// Counts `size` more values, `depth` levels below the top.
    fn count(&mut self, size: usize, depth: usize, span: &Span) -> Result<(), DocumentError> {
        self.values = self.values.saturating_add(size);
        if depth > MAX_DEPTH {
            return Err(DocumentError::TooDeep { line: span.start.line(), column: span.start.col() + 1 });
        }
        if self.values > MAX_VALUES {
            return Err(refusal("more values than are read", span));
        }
        Ok(())
    }

    /// Reads the value that `event` begins, `level` lists and mappings deep.
    fn value(&mut self, event: Event<'s>, span: &Span, level: usize) -> Result<PythonValue, DocumentError> {
        let is_tagged = |tag: Option<&Tag>| tag.is_some_and(|tag| !(tag.is_yaml_core_schema() && tag.suffix == "str"));
        let (anchor, value) = match event {
            Event::Alias(anchor) => {
                let target = self.anchors.get(&anchor).cloned();
                let target = target.ok_or_else(|| refusal("an alias of itself", span))?;
                self.count(target.size(), level + target.depth(), span)?;
                return Ok(target);
            }
            Event::Scalar(_, _, _, tag) if is_tagged(tag.as_deref()) => return Err(refusal("a tag", span)),
            Event::SequenceStart(_, Some(_)) | Event::MappingStart(_, Some(_)) => return Err(refusal("a tag", span)),
            Event::Scalar(text, style, anchor, tag) => {
                let is_plain = matches!(style, ScalarStyle::Plain) && tag.is_none();
                (anchor, if is_plain { plain(&text) } else { PythonValue::Text(text.into_owned()) })
            }
            Event::SequenceStart(anchor, None) => (anchor, self.list(level + 1)?),
            Event::MappingStart(anchor, None) => (anchor, self.map(level + 1)?),
            _ => return Err(refusal("a missing value", span)),
        };
        self.count(1, level + usize::from(matches!(value, PythonValue::List(_) | PythonValue::Map(_))), span)?;
        if anchor != 0 {
            self.anchors.insert(anchor, value.clone());
        }
        Ok(value)
    }

    fn list(&mut self, level: usize) -> Result<PythonValue, DocumentError> {
        let mut items = Vec::new();
        loop {
            let (event, span) = self.next_event()?;
            self.count(0, level, &span)?;
            if matches!(event, Event::SequenceEnd) {
                return Ok(PythonValue::List(items));
            }
            items.push(self.value(event, &span, level)?);
        }
    }

    fn map(&mut self, level: usize) -> Result<PythonValue, DocumentError> {
        let mut entries: Vec<(PythonValue, PythonValue)> = Vec::new();
        let mut places: HashMap<String, usize> = HashMap::new();
        loop {
            let (event, span) = self.next_event()?;
            self.count(0, level, &span)?;
            if matches!(event, Event::MappingEnd) {
                return Ok(PythonValue::Map(entries));
            }
            let key = self.value(event, &span, level)?;
            if matches!(key, PythonValue::List(_) | PythonValue::Map(_)) {
                return Err(refusal("a list or mapping as a key", &span));
            }
            if key.as_text() == Some("<<") {
                return Err(refusal("a merge key", &span));
            }
            let (event, span) = self.next_event()?;
            let value = self.value(event, &span, level)?;
            // Keys of two types may have one spelling.
            let place = *places.entry(format!("{key:?}")).or_insert(entries.len());
            match entries.get_mut(place) {
                Some(earlier) => earlier.1 = value,
                None => entries.push((key, value)),
            }
        }
    }
}

/// The value of a plain scalar.
fn plain(text: &str) -> PythonValue {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => PythonValue::Null,
        "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => PythonValue::Bool(true),
        "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => PythonValue::Bool(false),
        _ if is_number(text) || is_date(text) => PythonValue::Other(text.to_owned()),
        _ => PythonValue::Text(text.to_owned()),
    }
}

/// True for YAML 1.1's integers and floats, also those in base 60, such as `1:30`. An exponent needs a point and a sign.
fn is_number(text: &str) -> bool {
    let body = text.strip_prefix(['+', '-']).unwrap_or(text);
    let all = |text: &str, allowed: &dyn Fn(u8) -> bool| text.bytes().all(|byte| byte == b'_' || allowed(byte));
    let is_digit = |byte: u8| byte.is_ascii_digit();
    if matches!(body, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN") {
        return true;
    }
    if let Some(digits) = body.strip_prefix("0x") {
        return !digits.is_empty() && all(digits, &|byte| byte.is_ascii_hexdigit());
    }
    if let Some(digits) = body.strip_prefix("0b") {
        return !digits.is_empty() && all(digits, &|byte| matches!(byte, b'0' | b'1'));
    }
    let starts_with_digit = body.starts_with(|c: char| c.is_ascii_digit());
    if let Some((first, rest)) = body.split_once(':') {
        let (sixties, is_float) =
            rest.split_once('.').map_or((rest, false), |(sixties, fraction)| (sixties, all(fraction, &is_digit)));
        let is_sixty = |part: &str| match part.as_bytes() {
            [digit] => is_digit(*digit),
            [tens, ones] => matches!(tens, b'0'..=b'5') && is_digit(*ones),
            _ => false,
        };
        let is_whole = !first.starts_with('0') || is_float;
        return starts_with_digit
            && is_whole
            && all(first, &is_digit)
            && sixties.split(':').all(is_sixty)
            && (is_float || !rest.contains('.'));
    }
    if let Some((whole, fraction)) = body.split_once('.') {
        let (digits, exponent) = match fraction.split_once(['e', 'E']) {
            Some((digits, exponent)) => (digits, exponent.strip_prefix(['+', '-'])),
            None => (fraction, Some("0")),
        };
        let is_exponent = exponent.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(is_digit));
        let begins = if whole.is_empty() {
            body == text && digits.starts_with(|c: char| c.is_ascii_digit())
        } else {
            starts_with_digit
        };
        return begins && is_exponent && all(whole, &is_digit) && all(digits, &is_digit);
    }
    match body.as_bytes() {
        [b'0'] => true,
        [b'0', rest @ ..] => rest.iter().all(|byte| matches!(byte, b'0'..=b'7' | b'_')),
        [b'1'..=b'9', ..] => all(body, &is_digit),
        _ => false,
    }
}

/// True for a date, such as `2024-01-31`, and for a date with a time.
fn is_date(text: &str) -> bool {
    let (date, time) = text.split_at(text.find(['T', 't', ' ', '\t']).unwrap_or(text.len()));
    let parts: Vec<&str> = date.split('-').collect();
    let is_part = |part: &str, least: usize, most: usize| {
        (least..=most).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit())
    };
    let least = if time.is_empty() { 2 } else { 1 };
    let [year, month, day] = parts.as_slice() else { return false };
    let is_time = time.is_empty() || time.split(':').count() >= 3 && time.contains(|c: char| c.is_ascii_digit());
    is_part(year, 4, 4) && is_part(month, least, 2) && is_part(day, least, 2) && is_time
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> PythonValue {
        PythonValue::Text(text.to_owned())
    }

    /// The types are those that PyYAML 6 gives.
    #[test]
    fn plain_scalars_have_the_types_of_yaml_1_1() {
        for number in [
            "0",
            "12",
            "-3",
            "+7",
            "017",
            "0x1F",
            "0b10",
            "1_000",
            "1.5",
            "1.",
            ".5",
            "1.5e+3",
            "1:30",
            "12:30:45",
            "1:30.5",
            ".inf",
            "-.INF",
            ".nan",
            "2024-01-31",
            "2024-1-3 4:05:06",
            "2024-01-31T04:05:06Z",
        ] {
            assert_eq!(from_str(number).unwrap(), PythonValue::Other(number.to_owned()), "{number}");
        }
        for word in [
            "1e5", "1.5e3", "08", "0o17", "1:75", "-.5", "a", "1.2.3", "v1.0", "2024-1-3", "10BT", "12:", "+.nan", "y",
            "n", "0x", "2024-01",
        ] {
            // `12:` is a mapping.
            let expected = if word == "12:" {
                PythonValue::Map(vec![(PythonValue::Other("12".to_owned()), PythonValue::Null)])
            } else {
                text(word)
            };
            assert_eq!(from_str(word).unwrap(), expected, "{word}");
        }
        for (word, value) in [("yes", true), ("Off", false), ("TRUE", true), ("no", false)] {
            assert_eq!(from_str(word).unwrap(), PythonValue::Bool(value));
        }
        assert_eq!(from_str("~").unwrap(), PythonValue::Null);
        assert_eq!(from_str("'12'").unwrap(), text("12"));
        assert_eq!(from_str("!!str 12").unwrap(), text("12"));
        let truthy = |text: &str| from_str(text).unwrap().is_truthy();
        assert!(["1", "'false'", "on", "[0]", "{a: }", ".inf"].into_iter().all(truthy));
        assert!(!["0", "0.0", "''", "off", "[]", "{}", "~"].into_iter().any(truthy));
    }

    #[test]
    fn the_last_value_of_a_key_counts() {
        let value = from_str("a: 1\nb: &x [c]\na: *x\n'3': q\n3: r").unwrap();
        let list = PythonValue::List(vec![text("c")]);
        assert_eq!((value.get("a"), value.get("b"), value.get("3")), (Some(&list), Some(&list), Some(&text("q"))));
        assert!(matches!(&value, PythonValue::Map(entries) if entries.len() == 4));
    }

    #[test]
    fn refuses_what_it_does_not_read() {
        let error = |text: &str| from_str(text).unwrap_err().to_string();
        assert_eq!(error("a: !foo 3"), "a tag, which is not read, at line 1, column 4");
        for (text, what) in [
            ("a: 1\n---\nb: 2", "a second document"),
            ("? [a]\n: 1", "a list or mapping as a key"),
            ("a: {<<: {b: 1}}", "a merge key"),
            ("a: &a [*a]", "an alias of itself"),
        ] {
            assert!(error(text).starts_with(what), "{}", error(text));
        }
        let bomb = format!(
            "a: &a [x]\nb: &b [{}]\nc: &c [{}]\nd: [{}]",
            "*a,".repeat(1000),
            "*b,".repeat(1000),
            "*c,".repeat(1000)
        );
        assert!(error(&bomb).starts_with("more values"));
        assert!(from_str(&"[".repeat(100_000)).is_err());
        let deep = format!("a: &a {0}x{1}\nb: {0}*a{1}", "[".repeat(40), "]".repeat(40));
        assert!(error(&deep).contains("nested more than 64 levels deep"));
        assert!(from_str("a: [").is_err());
    }
}
