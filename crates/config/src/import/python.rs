//! The assignments of a Python file, read without executing it.

mod statements;

use std::collections::BTreeMap;

use minijinja::Environment;
use serde_json::{Number, Value};

use self::statements::{Assignment, Statement, is_name, split_statements};
use super::settings::Settings;

/// Longer expressions are not evaluated.
const MAX_EXPRESSION_BYTES: usize = 200;
/// Words with which statements begin that cannot assign a setting.
const HARMLESS_WORDS: [&str; 8] = ["pass", "print", "assert", "return", "break", "continue", "raise", "global"];
/// Words with which statements begin whose bodies may be executed once, several times, or never.
const COMPOUND_WORDS: [&str; 11] =
    ["if", "elif", "else", "for", "while", "with", "try", "except", "finally", "match", "case"];

/// Reads the assignments of a config.py: `name = value`, also of several names (`a, b = 1, 2`), with an annotation (`name: int = 3`) or
/// an operator (`name += 1`). A value is a literal, or arithmetic of numbers and of names assigned before. Whatever else may assign a
/// name is kept as unread: other values, assignments in blocks, imports, and calls.
pub(super) fn read_assignments(text: &str) -> Settings {
    let mut reader = AssignmentReader::default();
    // The indentation of the `def` or `class` whose body is skipped: what it assigns are no settings.
    let mut skipped: Option<usize> = None;
    let mut is_block = false;
    for statement in split_statements(text) {
        if skipped.is_some_and(|indent| statement.indent > indent || statement.continues_line) {
            continue;
        }
        let word = statement.first_word();
        skipped = ["def", "class", "async"].contains(&word).then_some(statement.indent);
        // `if x: a = 1; b = 2` is one block.
        is_block = if statement.continues_line { is_block } else { COMPOUND_WORDS.contains(&word) };
        if skipped.is_none() {
            reader.read(&statement, statement.indent > 0 || statement.continues_line && is_block);
        }
    }
    reader.settings
}

#[derive(Default)]
struct AssignmentReader {
    settings: Settings,
    /// The values that were read, by name.
    values: BTreeMap<String, Value>,
}

impl AssignmentReader {
    /// Reads one statement. `is_conditional` is true if it stands in a block, so that it is not known whether it is executed.
    fn read(&mut self, statement: &Statement, is_conditional: bool) {
        // It reaches to the end of the file.
        if !statement.is_closed {
            return self.leave_unread(statement, Vec::new());
        }
        let word = statement.first_word();
        if COMPOUND_WORDS.contains(&word)
            && let Some((header, body)) = statement.split_once(":")
        {
            let target = match word {
                "for" => header.split_once(" in ").map(|(before, _)| before),
                "with" => header.split_once(" as ").map(|(_, after)| after),
                _ => None,
            };
            if let Some(target) = target {
                let names = target.text.trim_start_matches("for ").to_owned();
                self.leave_unread(statement, split_statements(&names).iter().flat_map(Statement::names).collect());
            }
            // Python allows no block in the line of another one.
            if COMPOUND_WORDS.contains(&body.first_word()) {
                return self.leave_unread(statement, Vec::new());
            }
            return self.read(&body, true);
        }
        if statement.is_text() || HARMLESS_WORDS.contains(&word) || statement.text.starts_with('@') {
            return;
        }
        if ["import", "from"].contains(&word) {
            return self.read_import(statement);
        }
        if let Some(assignment) = statement.assignment() {
            return self.read_assignment(statement, &assignment, is_conditional);
        }
        // `name: int` assigns nothing. Everything else may be a call, which may assign anything.
        if !statement.split_once(":").is_some_and(|(name, _)| is_name(&name.text)) {
            self.leave_unread(statement, Vec::new());
        }
    }

    /// An import assigns the names behind `import`; with `*`, any.
    fn read_import(&mut self, statement: &Statement) {
        let (_, list) = statement.text.split_once("import").unwrap_or_default();
        // `a.b as c` assigns `c`, and `a.b` alone assigns `a`.
        let name = |item: &str| Some(item.split_whitespace().next_back()?.split('.').next()?.to_owned());
        let names: Vec<String> = list.split([',', '(', ')']).filter_map(name).collect();
        self.leave_unread(statement, if list.trim() == "*" { Vec::new() } else { names });
    }

    fn read_assignment(&mut self, statement: &Statement, assignment: &Assignment, is_conditional: bool) {
        let targets: Vec<Vec<String>> = assignment.targets.iter().map(Statement::names).collect();
        let values = if is_conditional { None } else { self.evaluate_assignment(assignment) };
        let mut unread = Vec::new();
        for (names, target) in targets.into_iter().zip(&assignment.targets) {
            // `globals()["name"] = 3` may assign anything; `os.environ["NAME"] = "3"` is no setting.
            if names.is_empty() && ["globals", "locals", "vars"].contains(&target.first_word()) {
                self.leave_unread(statement, Vec::new());
            }
            match values.as_deref() {
                Some(values) if values.len() == names.len() => {
                    for (name, value) in names.into_iter().zip(values) {
                        self.settings.insert(&name, value.clone());
                        self.values.insert(name, value.clone());
                    }
                }
                _ => unread.extend(names),
            }
        }
        if !unread.is_empty() {
            self.leave_unread(statement, unread);
        }
    }

    /// The values of an assignment, one for each name of its targets; `None` if one of them is not known.
    fn evaluate_assignment(&self, assignment: &Assignment) -> Option<Vec<Value>> {
        let Assignment { targets, operator, value } = assignment;
        if !operator.is_empty() {
            let [target] = &targets[..] else { return None };
            let text = format!("{} {operator} ({})", target.text, value.text);
            return Some(vec![evaluate(&text, &self.values)?]);
        }
        // A target with `*` takes a list.
        if targets.iter().any(|target| target.text.contains('*')) {
            return None;
        }
        let is_list = targets.iter().any(|target| target.items().len() > 1);
        let values = if is_list { value.items() } else { vec![value.clone()] };
        values.iter().map(|value| evaluate(&value.text, &self.values)).collect()
    }

    /// Keeps a statement that is not read. It assigns `names`; if there are none, it may assign any.
    fn leave_unread(&mut self, statement: &Statement, names: Vec<String>) {
        self.values.retain(|name, _| !names.contains(name));
        self.settings.insert_unread(statement.line, &statement.text, names);
    }
}

/// The value of a Python expression; `None` if it is neither a literal nor arithmetic of numbers and of `names`.
fn evaluate(text: &str, names: &BTreeMap<String, Value>) -> Option<Value> {
    if text.len() > MAX_EXPRESSION_BYTES {
        return None;
    }
    if let Some(value) = names.get(text) {
        return Some(value.clone());
    }
    for quote in ['\'', '"'] {
        if let Some(inner) = text.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote)) {
            return (!inner.contains([quote, '\\'])).then(|| Value::String(inner.to_owned()));
        }
    }
    // The template engine reads no `.5` and no `1.`.
    if text.contains(['.', 'e', 'E'])
        && text.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && let Ok(number) = text.replace('_', "").parse::<f64>()
    {
        return Number::from_f64(number).map(Value::Number);
    }
    let numbers: BTreeMap<&str, &Value> =
        names.iter().filter(|(_, value)| !value.is_string()).map(|(name, value)| (name.as_str(), value)).collect();
    // Only what the template engine computes as Python does: it reads `-2 ** 2` as `(-2) ** 2`. Two powers could make numbers of any length.
    let is_known = |word: &str| {
        word.starts_with(|c: char| c.is_ascii_digit())
            || ["True", "False", "None", "int", "float"].contains(&word)
            || numbers.contains_key(word)
    };
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty());
    let is_arithmetic = text.chars().all(|c| c.is_ascii_alphanumeric() || "_+-*/(). ".contains(c));
    let powers = text.matches("**").count();
    if !is_arithmetic || powers > 1 || powers == 1 && text.contains('-') || !words.into_iter().all(is_known) {
        return None;
    }
    let mut environment = Environment::new();
    // Python truncates, as a cast does.
    environment.add_function("int", |value: f64| (value.abs() < 1e15).then_some(value as i64));
    environment.add_function("float", |value: f64| value);
    let value = environment.compile_expression(text).ok()?.eval(numbers).ok()?;
    if value.is_undefined() {
        return None;
    }
    match serde_json::to_value(&value).ok()? {
        // JSON has no number that is not finite; it writes null for one.
        Value::Null if text != "None" => None,
        value @ (Value::Number(_) | Value::Bool(_) | Value::Null) => Some(value),
        _ => None,
    }
}
