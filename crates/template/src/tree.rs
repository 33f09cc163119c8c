//! YAML text to a tree whose every value knows its place, within limits that hostile files run into.

use std::collections::HashMap;
use std::rc::Rc;

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span};

use super::source::{Place, Source, lines};
use runner_spec::diagnostic::{Diagnostic, MAX_DIAGNOSTICS, short};

/// Lists and mappings within one another.
pub const MAX_DEPTH: usize = 64;
/// Values in all, counting what an alias stands for each time it is used.
const MAX_VALUES: usize = 100_000;

/// A value and where it stands. Cheap to clone: an alias shares what it stands for.
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
        text: Rc<str>,
        plain: bool,
    },
    Seq(Rc<[Node]>),
    Map(Rc<[Entry]>),
}

#[derive(Debug)]
pub struct Entry {
    pub key: String,
    pub place: Place,
    pub value: Node,
}

impl Node {
    /// Nothing at all.
    pub fn null(place: Place) -> Self {
        Self { place, size: 1, depth: 0, value: Yaml::Scalar { text: Rc::from(""), plain: true } }
    }

    /// A mapping with one key, standing where its value stands.
    pub fn wrap(key: String, place: Place, value: Self) -> Self {
        let (size, depth) = (value.size + 1, value.depth + 1);
        Self { place, size, depth, value: Yaml::Map(Rc::from([Entry { key, place, value }])) }
    }

    /// The value of `key`; of a list, the item with that number.
    pub fn get(&self, key: &str) -> Option<(Place, &Self)> {
        match &self.value {
            Yaml::Map(entries) => entries.iter().find(|e| e.key == key).map(|e| (e.place, &e.value)),
            Yaml::Seq(items) => items.get(key.parse::<usize>().ok()?).map(|n| (n.place, n)),
            Yaml::Scalar { .. } => None,
        }
    }

    /// A plain scalar that spells nothing.
    pub fn is_null(&self) -> bool {
        matches!(&self.value, Yaml::Scalar { text, plain: true } if super::scalar::is_null(text))
    }
}

/// Reads one document. Returns as much as could be read, and what is wrong with it.
pub fn parse(source: &Source) -> (Option<Node>, Vec<Diagnostic>) {
    if let Some(found) = unreadable_character(source) {
        return (None, vec![found]);
    }
    let mut builder = Builder {
        source,
        diagnostics: Vec::new(),
        stack: Vec::new(),
        anchors: HashMap::new(),
        total: 0,
        root: None,
        text_lines: Vec::new(),
    };
    let outcome = builder.run();
    let mut tabs = tabs(source, &builder.text_lines);
    let Builder { mut diagnostics, root, .. } = builder;
    match outcome {
        Ok(()) if tabs.is_empty() => (root, diagnostics),
        // The parser stumbles over a tab in its own words; the tab itself says it better.
        Ok(()) => {
            tabs.append(&mut diagnostics);
            (None, tabs)
        }
        Err(stop) => {
            if tabs.is_empty() {
                diagnostics.push(*stop);
            }
            tabs.append(&mut diagnostics);
            (None, tabs)
        }
    }
}

/// YAML forbids control characters, and the parser takes NUL for the end of the file.
fn unreadable_character(source: &Source) -> Option<Diagnostic> {
    let bad = |c: char| (c.is_control() && !matches!(c, '\t' | '\n' | '\r' | '\u{85}')) || c == '\u{FEFF}';
    let (number, line) = lines(source.yaml()).enumerate().find(|(_, line)| line.contains(bad))?;
    let (column, c) = line.chars().enumerate().find(|&(_, c)| bad(c))?;
    Some(source.diagnostic(
        source.place(number + 1, column + 1, 1),
        "",
        format!("the character U+{:04X} cannot stand in a YAML file", c as u32),
        "delete it; inside double quotes it can be written as an escape such as \"\\x1B\"".into(),
    ))
}

/// Tabs in indentation, outside of texts that may hold them.
fn tabs(source: &Source, text_lines: &[(usize, usize)]) -> Vec<Diagnostic> {
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
                    "a tab in the indentation".into(),
                    "YAML indents with spaces; replace each tab by two".into(),
                )
            })
        })
        .take(MAX_DIAGNOSTICS)
        .collect()
}

/// A list or mapping that is still open.
struct Frame {
    place: Place,
    anchor: usize,
    kind: FrameKind,
    size: usize,
    depth: usize,
}

enum FrameKind {
    Seq(Vec<Node>),
    Map { entries: Vec<Entry>, key: Option<(String, Place)>, seen: HashMap<String, usize> },
}

struct Builder<'s> {
    source: &'s Source,
    diagnostics: Vec<Diagnostic>,
    stack: Vec<Frame>,
    anchors: HashMap<usize, Node>,
    total: usize,
    root: Option<Node>,
    /// First and last lines of quoted and block texts.
    text_lines: Vec<(usize, usize)>,
}

type Step<T = ()> = Result<T, Box<Diagnostic>>;

impl Builder<'_> {
    fn run(&mut self) -> Step {
        let source = self.source;
        let mut parser = Parser::new_from_str(source.yaml());
        let mut documents = 0;
        while let Some(event) = parser.next_event() {
            let (event, span) = event.map_err(|e| self.syntax(&e))?;
            let place = place_of(source, &span);
            match event {
                Event::DocumentStart(_) => {
                    documents += 1;
                    if documents > 1 {
                        return Err(self.stop(
                            place,
                            "a second document begins here",
                            "an experiment is one document; put it into a file of its own",
                        ));
                    }
                }
                Event::Alias(anchor) => {
                    let Some(node) = self.anchors.get(&anchor).cloned() else {
                        return Err(self.stop(
                            place,
                            "this alias stands inside of what it stands for",
                            "write the value out",
                        ));
                    };
                    self.value(node)?;
                }
                Event::Scalar(text, style, anchor, tag) => {
                    if !matches!(style, ScalarStyle::Plain) && span.end.line() > span.start.line() {
                        self.text_lines.push((span.start.line(), span.end.line()));
                    }
                    let plain = matches!(style, ScalarStyle::Plain) && !self.tag(tag.as_deref(), place)?;
                    let value = Yaml::Scalar { text: Rc::from(text.as_ref()), plain };
                    let node = Node { place, value, size: 1, depth: 0 };
                    if anchor != 0 {
                        self.anchors.insert(anchor, node.clone());
                    }
                    self.value(node)?;
                }
                Event::SequenceStart(anchor, tag) => {
                    self.tag(tag.as_deref(), place)?;
                    self.open(place, anchor, FrameKind::Seq(Vec::new()))?;
                }
                Event::MappingStart(anchor, tag) => {
                    self.tag(tag.as_deref(), place)?;
                    let kind = FrameKind::Map { entries: Vec::new(), key: None, seen: HashMap::new() };
                    self.open(place, anchor, kind)?;
                }
                Event::SequenceEnd | Event::MappingEnd => self.close()?,
                Event::StreamEnd => break,
                Event::Nothing | Event::StreamStart | Event::DocumentEnd => {}
            }
        }
        Ok(())
    }

    fn stop(&self, place: Place, message: &str, help: &str) -> Box<Diagnostic> {
        Box::new(self.source.diagnostic(place, "", message.to_owned(), help.to_owned()))
    }

    fn syntax(&self, error: &ScanError) -> Box<Diagnostic> {
        let at = error.marker();
        let mut place = self.source.place(at.line(), at.col() + 1, 1);
        // What is missing at the end is looked for behind the last thing that is there.
        let last = lines(self.source.yaml()).enumerate().filter(|(_, line)| !line.trim().is_empty()).last();
        if let Some((i, line)) = last
            && at.line() > i + 1
        {
            place = self.source.place(i + 1, line.trim_end().chars().count() + 1, 1);
        }
        let info = error.info();
        let help = if info.contains("mapping values are not allowed") {
            "a key begins at the same column as its neighbours; a value with `: ` in it needs quotes"
        } else if info.contains("tab") {
            "YAML indents with spaces; replace each tab by two"
        } else if info.contains("unknown anchor") {
            "a `*name` needs an `&name` before it; a text that begins with `*` needs quotes"
        } else if info.contains("simple key") || info.contains("expected ':'") || info.contains("did not find expected")
        {
            "look at the indentation here and above, and for a missing `:`, bracket or quote"
        } else {
            ""
        };
        self.stop(place, &format!("not valid YAML: {}", short(info)), help)
    }

    /// True if the tag makes a plain scalar a text.
    fn tag(&self, tag: Option<&saphyr_parser::Tag>, place: Place) -> Step<bool> {
        match tag {
            None => Ok(false),
            Some(tag) if tag.is_yaml_core_schema() => Ok(tag.suffix == "str"),
            Some(tag) => Err(self.stop(
                place,
                &format!("the tag `{}` has no meaning here", short(&tag.to_string())),
                "delete it; a choice such as an optimizer is written `adamw: {lr: 6e-4}`",
            )),
        }
    }

    fn open(&mut self, place: Place, anchor: usize, kind: FrameKind) -> Step {
        if self.stack.len() >= MAX_DEPTH {
            return Err(self.stop(
                place,
                &format!("nested more than {MAX_DEPTH} deep"),
                "an experiment needs five levels",
            ));
        }
        self.stack.push(Frame { place, anchor, kind, size: 1, depth: 0 });
        Ok(())
    }

    fn close(&mut self) -> Step {
        let Some(Frame { place, anchor, kind, size, depth }) = self.stack.pop() else { return Ok(()) };
        // Its contents are counted already.
        self.total = self.total.saturating_sub(size - 1);
        let value = match kind {
            FrameKind::Seq(items) => Yaml::Seq(items.into()),
            FrameKind::Map { entries, .. } => Yaml::Map(entries.into()),
        };
        let node = Node { place, value, size, depth: depth + 1 };
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        self.value(node)
    }

    /// Puts a finished value where it belongs.
    fn value(&mut self, node: Node) -> Step {
        self.total = self.total.saturating_add(node.size);
        let place = node.place;
        if self.total > MAX_VALUES {
            let message = format!("more than {MAX_VALUES} values, counting what the anchors stand for");
            return Err(self.stop(place, &message, "an experiment needs about a hundred"));
        }
        if self.stack.len() + node.depth > MAX_DEPTH {
            return Err(self.stop(
                place,
                &format!("nested more than {MAX_DEPTH} deep through anchors"),
                "write the value out",
            ));
        }
        let source = self.source;
        let Some(frame) = self.stack.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        frame.size += node.size;
        frame.depth = frame.depth.max(node.depth);
        match &mut frame.kind {
            FrameKind::Seq(items) => items.push(node),
            FrameKind::Map { entries, key, seen } => match (key.take(), node.value) {
                (None, Yaml::Scalar { text, .. }) => {
                    let text = text.to_string();
                    if let Some(line) = seen.insert(text.clone(), place.line)
                        && self.diagnostics.len() < MAX_DIAGNOSTICS
                    {
                        let message = format!("`{}` is given twice", short(&text));
                        let help = format!("it stands on line {line} already; delete one of the two");
                        self.diagnostics.push(source.diagnostic(place, &text, message, help));
                    }
                    *key = Some((text, place));
                }
                (None, _) => {
                    return Err(self.stop(
                        place,
                        "a list or mapping cannot be a key",
                        "quote it if it is meant as text",
                    ));
                }
                (Some((key, at)), value) => entries.push(Entry { key, place: at, value: Node { value, ..node } }),
            },
        }
        Ok(())
    }
}

fn place_of(source: &Source, span: &Span) -> Place {
    let (line, start) = (span.start.line(), span.start.col());
    let length = if span.end.line() == line { span.end.col().saturating_sub(start) } else { 1 };
    source.place(line, start + 1, length)
}
