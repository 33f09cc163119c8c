//! Parses YAML into a tree whose values have their places, within limits that protect against hostile files.

use std::collections::HashMap;
use std::sync::Arc;

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput};
use serde_json::{Map, Number, Value};

use super::placeholder::{find_template_start, placeholder_advice};
use super::source::{Place, Source, SourceKind, lines};
use super::syntax_error::{describe, find_unclosed_bracket};
use super::{MAX_DEPTH, scalar};
use runner_spec::diagnostic::{Diagnostic, MAX_DIAGNOSTICS, short};
use runner_spec::lookalikes::lookalike_advice;

/// Values in all, counting what an alias stands for each time it is used.
const MAX_VALUES: usize = 100_000;

/// A value and its place. Cheap to clone: an alias shares its target.
#[derive(Debug, Clone)]
pub struct Node {
    pub place: Place,
    pub value: Yaml,
    /// Values in it, itself included.
    size: usize,
    /// Lists and mappings within one another, itself included.
    depth: usize,
}

#[derive(Debug, Clone)]
pub enum Yaml {
    /// `plain` scalars may spell numbers and truth values; quoted ones are text.
    Scalar {
        text: Arc<str>,
        plain: bool,
    },
    Seq(Arc<[Node]>),
    Map(Arc<[Entry]>),
}

#[derive(Debug, Clone)]
pub struct Entry {
    pub key: String,
    pub place: Place,
    pub value: Node,
}

impl Node {
    fn new(place: Place, value: Yaml) -> Self {
        let (size, depth) = match &value {
            Yaml::Scalar { .. } => (0, None),
            Yaml::Seq(items) => (items.iter().map(|item| item.size).sum(), items.iter().map(|item| item.depth).max()),
            Yaml::Map(entries) => {
                let values = || entries.iter().map(|entry| &entry.value);
                (values().map(|value| 1 + value.size).sum(), values().map(|value| value.depth).max())
            }
        };
        let is_nested = !matches!(value, Yaml::Scalar { .. });
        Self { place, value, size: 1 + size, depth: usize::from(is_nested) + depth.unwrap_or(0) }
    }

    /// An empty value, which reads as `null`.
    pub fn null(place: Place) -> Self {
        Self::new(place, Yaml::Scalar { text: Arc::from(""), plain: true })
    }

    /// A mapping with the one key `key`. Both are at `place`.
    pub fn wrap(key: String, place: Place, value: Self) -> Self {
        Self::new(place, Yaml::Map(Arc::from([Entry { key, place, value }])))
    }

    /// The mapping without `key`; another value as it is.
    #[must_use]
    pub fn without(&self, key: &str) -> Self {
        let Yaml::Map(entries) = &self.value else { return self.clone() };
        Self::new(self.place, Yaml::Map(entries.iter().filter(|entry| entry.key != key).cloned().collect()))
    }

    /// The value of `key`; of a list, the item with that number.
    pub fn get(&self, key: &str) -> Option<(Place, &Self)> {
        match &self.value {
            Yaml::Map(entries) => entries.iter().find(|e| e.key == key).map(|e| (e.place, &e.value)),
            Yaml::Seq(items) => items.get(key.parse::<usize>().ok()?).map(|n| (n.place, n)),
            Yaml::Scalar { .. } => None,
        }
    }

    /// True for a plain scalar that is empty or spells null.
    pub fn is_null(&self) -> bool {
        matches!(&self.value, Yaml::Scalar { text, plain: true } if scalar::is_null(text))
    }

    /// The value in words, for a message about a wanted one.
    pub fn describe(&self) -> String {
        match &self.value {
            Yaml::Map(_) => "a mapping".to_owned(),
            Yaml::Seq(_) => "a list".to_owned(),
            Yaml::Scalar { .. } if self.is_null() => "nothing".to_owned(),
            Yaml::Scalar { text, plain: false } => format!("the text \"{}\"", short(text)),
            Yaml::Scalar { text, .. } => format!("`{}`", short(text)),
        }
    }

    /// The value as JSON. A number is whole if it is written without a point, such as `1e6`. `refuse` gets each number that is not
    /// finite; there is no JSON then.
    pub fn to_json(&self, refuse: &mut dyn FnMut(&Self)) -> Option<Value> {
        match &self.value {
            Yaml::Seq(items) => {
                let values: Vec<_> = items.iter().map(|item| item.to_json(refuse)).collect();
                values.into_iter().collect::<Option<Vec<_>>>().map(Value::Array)
            }
            Yaml::Map(entries) => {
                let pair = |entry: &Entry| Some((entry.key.clone(), entry.value.to_json(refuse)?));
                let pairs: Vec<_> = entries.iter().map(pair).collect();
                pairs.into_iter().collect::<Option<Map<_, _>>>().map(Value::Object)
            }
            Yaml::Scalar { .. } if self.is_null() => Some(Value::Null),
            Yaml::Scalar { text, plain } => {
                let Some(number) = scalar::number(text).filter(|_| *plain) else {
                    let truth = scalar::boolean(text).filter(|_| *plain);
                    return Some(truth.map_or_else(|| Value::String(text.to_string()), Value::Bool));
                };
                let whole = number.integer.filter(|_| !text.contains('.')).and_then(Number::from_i128);
                let number = whole.or_else(|| Number::from_f64(number.float));
                if number.is_none() {
                    refuse(self);
                }
                number.map(Value::Number)
            }
        }
    }
}

/// A text that was read as YAML: as much of its value as could be read, and what is wrong with it.
#[derive(Debug, Clone)]
pub struct ParsedYaml {
    pub source: Source,
    pub root: Option<Node>,
    pub mistakes: Vec<Diagnostic>,
}

/// Reads one document.
pub fn parse(source: Source) -> ParsedYaml {
    let (root, mistakes) = match find_unreadable_character(&source) {
        Some(found) => (None, vec![found]),
        None => read_tree(&source),
    };
    ParsedYaml { source, root, mistakes }
}

fn read_tree(source: &Source) -> (Option<Node>, Vec<Diagnostic>) {
    let mut reader = TreeReader {
        source,
        events: Parser::new_from_str(source.yaml()),
        diagnostics: Vec::new(),
        anchors: HashMap::new(),
        total: 0,
        text_lines: Vec::new(),
        lines: lines(source.yaml()).collect(),
        flow: None,
    };
    let root = reader.read_document();
    let mut tabs = find_tabs(source, &reader.text_lines);
    match root {
        Ok(root) if tabs.is_empty() => return (root, reader.diagnostics),
        // The parser's message about a tab is less clear than that of the tab itself.
        Err(stop) if tabs.is_empty() => reader.diagnostics.push(*stop),
        _ => {}
    }
    tabs.append(&mut reader.diagnostics);
    (None, tabs)
}

/// YAML forbids control characters, and the parser takes NUL for the end of the file.
fn find_unreadable_character(source: &Source) -> Option<Diagnostic> {
    let bad = |c: char| (c.is_control() && !matches!(c, '\t' | '\n' | '\r' | '\u{85}')) || c == '\u{FEFF}';
    let (number, line) = lines(source.yaml()).enumerate().find(|(_, line)| line.contains(bad))?;
    let (column, c) = line.chars().enumerate().find(|&(_, c)| bad(c))?;
    Some(source.diagnostic(
        source.place(number + 1, column + 1, 1),
        "",
        format!("YAML does not allow the character U+{:04X}", c as u32),
        "delete it, or write it as an escape in double quotes, such as \"\\x1B\"".into(),
    ))
}

/// Tabs in indentation, outside of texts that may hold them.
fn find_tabs(source: &Source, text_lines: &[(usize, usize)]) -> Vec<Diagnostic> {
    lines(source.yaml())
        .enumerate()
        .filter_map(|(i, line)| {
            let content = line.trim_start_matches([' ', '\t']);
            let indent = &line[..line.len() - content.len()];
            let at = indent.find('\t')?;
            let before = text_lines.partition_point(|&(from, _)| from < i + 1);
            let inside = before > 0 && i < text_lines[before - 1].1;
            (!content.is_empty() && !content.starts_with('#') && !inside).then(|| {
                source.diagnostic(
                    source.place(i + 1, at + 1, indent.len() - at),
                    "",
                    "found a tab in the indentation".into(),
                    "replace each tab with two spaces".into(),
                )
            })
        })
        .take(MAX_DIAGNOSTICS)
        .collect()
}

struct TreeReader<'s> {
    source: &'s Source,
    events: Parser<'s, StrInput<'s>>,
    diagnostics: Vec<Diagnostic>,
    anchors: HashMap<usize, Node>,
    /// The number of values so far, with those that aliases stand for.
    total: usize,
    /// First and last lines of quoted and block texts.
    text_lines: Vec<(usize, usize)>,
    lines: Vec<&'s str>,
    /// Line and column, from 1, of the outermost open bracket.
    flow: Option<(usize, usize)>,
}

type ParseResult<T = ()> = Result<T, Box<Diagnostic>>;

impl<'s> TreeReader<'s> {
    /// The next event and its place; the end of the stream after the last one.
    fn next_event(&mut self) -> ParseResult<(Event<'s>, Span)> {
        match self.events.next_event() {
            Some(event) => event.map_err(|error| self.syntax_error(&error)),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    /// Reads the only document; `None` if there is none.
    fn read_document(&mut self) -> ParseResult<Option<Node>> {
        let mut root = None;
        let mut documents = 0;
        loop {
            let (event, span) = self.next_event()?;
            match event {
                Event::DocumentStart(_) => {
                    documents += 1;
                    if documents > 1 {
                        return Err(self.error(
                            place_of(self.source, &span),
                            "a second document starts here",
                            "an experiment must be one document; move this one to a separate file",
                        ));
                    }
                }
                Event::StreamEnd => return Ok(root),
                Event::Nothing | Event::StreamStart | Event::DocumentEnd => {}
                event => root = Some(self.read_value(event, &span, 0)?),
            }
        }
    }

    /// Reads the value that `event` begins, `level` lists and mappings deep.
    fn read_value(&mut self, event: Event<'s>, span: &Span, level: usize) -> ParseResult<Node> {
        let place = place_of(self.source, span);
        let is_list = matches!(event, Event::SequenceStart(..));
        let (anchor, node) = match event {
            Event::Alias(anchor) => {
                let node = self.anchors.get(&anchor).cloned().ok_or_else(|| {
                    self.error(place, "this alias refers to a value that contains it", "write the value out")
                })?;
                if level + node.depth > MAX_DEPTH {
                    let message = format!("nested more than {MAX_DEPTH} levels deep through anchors");
                    return Err(self.error(node.place, &message, "write the value out"));
                }
                self.count(node.size, node.place)?;
                return Ok(node);
            }
            Event::Scalar(text, style, anchor, tag) => {
                let is_plain = matches!(style, ScalarStyle::Plain);
                if !is_plain && span.end.line() > span.start.line() {
                    self.text_lines.push((span.start.line(), span.end.line()));
                }
                let plain = is_plain && !self.check_tag(tag.as_deref(), place)?;
                let place = match place.line.checked_sub(1).and_then(|line| self.lines.get(line)) {
                    Some(line) if span.end.line() > span.start.line() => Place {
                        length: line.trim_end().chars().count().saturating_sub(span.start.col()).max(1),
                        ..place
                    },
                    _ => place,
                };
                (anchor, Node::new(place, Yaml::Scalar { text: Arc::from(text.as_ref()), plain }))
            }
            Event::SequenceStart(anchor, tag) | Event::MappingStart(anchor, tag) => {
                self.check_start(tag.as_deref(), place, level)?;
                let is_outermost = self.begin_flow(span);
                let read = if is_list { Self::read_list } else { Self::read_mapping };
                let node = read(self, place, level)?;
                self.flow = self.flow.filter(|_| !is_outermost);
                (anchor, node)
            }
            _ => return Err(self.error(place, "a value is missing here", "")),
        };
        self.count(1, place)?;
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    /// Notes the bracket at `span` if it is an outermost one. Returns true if it is.
    fn begin_flow(&mut self, span: &Span) -> bool {
        let (line, column) = (span.start.line(), span.start.col());
        let text = line.checked_sub(1).and_then(|i| self.lines.get(i));
        let character = text.and_then(|text| text.chars().nth(column));
        let is_outermost = self.flow.is_none() && matches!(character, Some('[' | '{'));
        if is_outermost {
            self.flow = Some((line, column + 1));
        }
        is_outermost
    }

    /// Counts `size` more values.
    fn count(&mut self, size: usize, place: Place) -> ParseResult {
        self.total = self.total.saturating_add(size);
        if self.total > MAX_VALUES {
            let message = format!("more than {MAX_VALUES} values, with the aliases expanded");
            return Err(self.error(place, &message, "an experiment needs about a hundred"));
        }
        Ok(())
    }

    /// Reads the list whose start has been read.
    fn read_list(&mut self, place: Place, level: usize) -> ParseResult<Node> {
        let mut items = Vec::new();
        loop {
            let (event, span) = self.next_event()?;
            if matches!(event, Event::SequenceEnd) {
                break;
            }
            items.push(self.read_value(event, &span, level + 1)?);
        }
        Ok(Node::new(place, Yaml::Seq(items.into())))
    }

    /// Reads the mapping whose start has been read.
    fn read_mapping(&mut self, place: Place, level: usize) -> ParseResult<Node> {
        let (mut entries, mut seen): (Vec<Entry>, HashMap<String, usize>) = (Vec::new(), HashMap::new());
        loop {
            let (event, span) = self.next_event()?;
            if matches!(event, Event::MappingEnd) {
                break;
            }
            let Node { place, value: Yaml::Scalar { text, .. }, .. } = self.read_value(event, &span, level + 1)? else {
                let place = place_of(self.source, &span);
                let template = self.template_start(place.line);
                return Err(template.unwrap_or_else(|| {
                    self.error(place, "a list or mapping cannot be a key", "quote it to make it text")
                }));
            };
            let key = text.to_string();
            if let Some(line) = seen.insert(key.clone(), place.line)
                && self.diagnostics.len() < MAX_DIAGNOSTICS
            {
                let message = format!("`{}` is given twice", short(&key));
                let help = format!("it is already on line {line}; delete one of the two");
                self.diagnostics.push(self.source.diagnostic(place, &key, message, help));
            }
            let (event, span) = self.next_event()?;
            let value = self.read_value(event, &span, level + 1)?;
            entries.push(Entry { key, place, value });
        }
        Ok(Node::new(place, Yaml::Map(entries.into())))
    }

    /// Checks the start of a list or mapping.
    fn check_start(&self, tag: Option<&saphyr_parser::Tag>, place: Place, level: usize) -> ParseResult {
        self.check_tag(tag, place)?;
        if level >= MAX_DEPTH {
            let message = format!("nested more than {MAX_DEPTH} levels deep");
            return Err(self.error(place, &message, "an experiment needs five levels"));
        }
        Ok(())
    }

    fn error(&self, place: Place, message: &str, help: &str) -> Box<Diagnostic> {
        Box::new(self.source.diagnostic(place, "", message.to_owned(), help.to_owned()))
    }

    /// The mistake that there is the tag of a template where `line` is, which cannot be read because of that.
    fn template_start(&self, line: usize) -> Option<Box<Diagnostic>> {
        let is_text = |line: usize| self.text_lines.iter().any(|&(from, to)| (from + 1..=to).contains(&line));
        let first = self.flow.map_or(line, |(line, _)| line).saturating_sub(1).max(1);
        let (line, (column, start)) = (first..=line).filter(|line| !is_text(*line)).find_map(|line| {
            let found = self.lines.get(line - 1).and_then(|text| find_template_start(text))?;
            Some((line, found))
        })?;
        if self.source.kind == SourceKind::Template {
            return None;
        }
        let here = if self.source.kind == SourceKind::File { "file" } else { "value" };
        let message = format!("found `{start}` in a {here} that is not a template");
        let place = self.source.place(line, column, start.len());
        // The advice follows from the place.
        Some(self.error(place, &message, ""))
    }

    fn syntax_error(&self, error: &ScanError) -> Box<Diagnostic> {
        let at = error.marker();
        if let Some(template) = self.template_start(at.line()) {
            return template;
        }
        if let Some(bracket) =
            self.flow.and_then(|(line, column)| find_unclosed_bracket(self.source.yaml(), line, column))
        {
            let message = format!("this `{}` is not closed", bracket.character);
            let help = format!("add the `{}`", bracket.closing());
            return self.error(self.source.place(bracket.line, bracket.column, 1), &message, &help);
        }
        let mut place = self.source.place(at.line(), at.col() + 1, 1);
        // A part that is missing at the end is reported after the last character.
        let last = lines(self.source.yaml()).enumerate().filter(|(_, line)| !line.trim().is_empty()).last();
        if let Some((i, line)) = last
            && at.line() > i + 1
        {
            place = self.source.place(i + 1, line.trim_end().chars().count() + 1, 1);
        }
        let (message, help) = describe(error.info());
        // A space or a colon that is not the ASCII one changes what the lines before the mistake mean.
        let mut all = Vec::new();
        for line in at.line().saturating_sub(1).max(1)..=at.line() {
            let text = self.lines.get(line - 1).map_or("", |text| text.split(" #").next().unwrap_or(""));
            let advice = lookalike_advice(text).into_iter().chain(placeholder_advice(self.source, text));
            all.extend(advice.map(|advice| if line == at.line() { advice } else { format!("line {line}: {advice}") }));
        }
        all.extend((!help.is_empty()).then_some(help));
        self.error(place, &message, &all.join("\n"))
    }

    /// True if the tag makes a plain scalar a text.
    fn check_tag(&self, tag: Option<&saphyr_parser::Tag>, place: Place) -> ParseResult<bool> {
        match tag {
            None => Ok(false),
            Some(tag) if tag.is_yaml_core_schema() => Ok(tag.suffix == "str"),
            Some(tag) => Err(self.error(
                place,
                &format!("unsupported tag `{}`", short(&tag.to_string())),
                "delete it; a choice such as an optimizer is written `adamw: {lr: 6e-4}`",
            )),
        }
    }
}

fn place_of(source: &Source, span: &Span) -> Place {
    let (line, start) = (span.start.line(), span.start.col());
    let length = if span.end.line() == line { span.end.col().saturating_sub(start) } else { 1 };
    source.place(line, start + 1, length)
}
