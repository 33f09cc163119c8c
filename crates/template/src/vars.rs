//! `--var NAME=VALUE` and `--vars FILE`: the variables of a template, read as YAML.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::Inputs;
use runner_spec::diagnostic::{ConfigError, Diagnostic, short};
use runner_yaml::source::{Place, Source, read};
use runner_yaml::tree::{Node, ParsedYaml, Yaml, parse};

/// Reads the variables of a template: `files`, mappings each of which wins over the one before, and over them `vars`, each
/// `NAME=VALUE`. The result names no environment variables and no folder.
///
/// # Errors
/// All mistakes in them, each at its place.
pub fn variables(vars: &[String], files: &[PathBuf]) -> Result<Inputs, ConfigError> {
    let mut out = Inputs::default();
    let mut mistakes = Vec::new();
    for file in files {
        read_file(file, &mut out.vars, &mut mistakes);
    }
    for text in vars {
        if let Some((name, value)) = read_flag(text, &mut mistakes) {
            if !out.named.contains(&name) {
                out.named.push(name.clone());
            }
            out.vars.insert(name, value);
        }
    }
    if mistakes.is_empty() { Ok(out) } else { Err(ConfigError::new(mistakes)) }
}

fn read_file(path: &Path, out: &mut Map<String, Value>, mistakes: &mut Vec<Diagnostic>) {
    let text = match read(path, "name a file of variables, such as vars.yaml") {
        Ok(text) => text,
        Err(error) => return mistakes.extend(error.diagnostics),
    };
    let ParsedYaml { source, root: tree, mistakes: found } = parse(Source::file(path, text));
    if !found.is_empty() {
        return mistakes.extend(found);
    }
    let Some(tree) = tree.filter(|tree| !tree.is_null()) else { return };
    let Yaml::Map(entries) = &tree.value else {
        let help = "write one per line, such as `lr: 3e-4`".to_owned();
        return mistakes.push(source.diagnostic(tree.place, "", "the variables must be a mapping".to_owned(), help));
    };
    for entry in entries.iter() {
        if !is_name(&entry.key) {
            mistakes.push(illegal_name(&source, entry.place, &entry.key));
        } else if let Some(value) = json(&source, &entry.value, mistakes) {
            out.insert(entry.key.clone(), value);
        }
    }
}

fn read_flag(text: &str, mistakes: &mut Vec<Diagnostic>) -> Option<(String, Value)> {
    let (given, value) = text.split_once('=').unwrap_or((text, ""));
    let source = Source::flag("--var", text, text.len() - value.len());
    let name = given.trim();
    let place = Place { line: 1, column: 1, length: given.chars().count().max(1) };
    if given.len() == text.len() {
        let help = format!("write `--var {}=VALUE`", short(name));
        mistakes.push(source.diagnostic(place, "", format!("`{}` has no value", short(name)), help));
        return None;
    }
    if !is_name(name) {
        mistakes.push(illegal_name(&source, place, name));
        return None;
    }
    let ParsedYaml { source, root: tree, mistakes: found } = parse(source);
    if !found.is_empty() {
        mistakes.extend(found);
        return None;
    }
    let value = match tree {
        Some(tree) => json(&source, &tree, mistakes)?,
        None => Value::Null,
    };
    Some((name.to_owned(), value))
}

fn is_name(name: &str) -> bool {
    let part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    name.chars().all(part) && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}

fn illegal_name(source: &Source, place: Place, name: &str) -> Diagnostic {
    let message = format!("invalid variable name `{}`", short(name));
    source.diagnostic(place, "", message, "use letters, digits and `_`, and do not start with a digit".to_owned())
}

/// A value as templates see it.
fn json(source: &Source, node: &Node, mistakes: &mut Vec<Diagnostic>) -> Option<Value> {
    node.to_json(&mut |number| {
        let message = format!("a variable must be finite, got {}", number.describe());
        mistakes.push(source.diagnostic(number.place, "", message, String::new()));
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(vars: &[&str]) -> Result<Inputs, String> {
        let vars: Vec<String> = vars.iter().map(|&v| v.to_owned()).collect();
        variables(&vars, &[]).map_err(|e| e.to_string())
    }

    #[test]
    fn values_are_yaml() {
        for (text, json) in [
            ("3e-4", "0.0003"),
            ("1e6", "1000000"),
            ("5_000", "5000"),
            ("3.0", "3.0"),
            ("-0.0", "-0.0"),
            ("1e-10", "1e-10"),
            ("18446744073709551615", "18446744073709551615"),
            ("true", "true"),
            ("null", "null"),
            ("", "null"),
            ("cosine", "\"cosine\""),
            ("'7'", "\"7\""),
            ("[1, 2.5, a]", "[1,2.5,\"a\"]"),
            ("{a: {b: 1}}", "{\"a\":{\"b\":1}}"),
            ("a=b", "\"a=b\""),
        ] {
            let found = given(&[&format!("x={text}")]).unwrap();
            assert_eq!(serde_json::to_string(&found.vars["x"]).unwrap(), json, "{text}");
        }
        let found = given(&["x=1", "y=2", "x=3"]).unwrap();
        assert_eq!((found.vars["x"].as_i64(), found.named), (Some(3), vec!["x".to_owned(), "y".to_owned()]));
    }

    #[test]
    fn mistakes_in_flags_are_named() {
        let said = given(&["lr", "3x=1", "a-b=2", "=4", "y={a: [", "z=.inf"]).unwrap_err();
        insta::assert_snapshot!(said, @r#"
    error: `lr` has no value
     --> --var:1:1
      |
    1 | lr
      | ^^
      = help: write `--var lr=VALUE`

    error: invalid variable name `3x`
     --> --var:1:1
      |
    1 | 3x=1
      | ^^
      = help: use letters, digits and `_`, and do not start with a digit

    error: invalid variable name `a-b`
     --> --var:1:1
      |
    1 | a-b=2
      | ^^^
      = help: use letters, digits and `_`, and do not start with a digit

    error: invalid variable name ``
     --> --var:1:1
      |
    1 | =4
      | ^
      = help: use letters, digits and `_`, and do not start with a digit

    error: a variable must be finite, got `.inf`
     --> --var:1:3
      |
    1 | z=.inf
      |   ^^^^

    error: this `[` is not closed
     --> --var:1:7
      |
    1 | y={a: [
      |       ^
      = help: add the `]`

    6 mistakes; nothing was started
    "#);
    }

    #[test]
    fn later_files_win_and_flags_win_over_files() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let files =
            [file("a.yaml", "x: 1\ny: 1\nz: 1\n"), file("b.yaml", "y: 2\nz: 2\n"), file("c.yaml", "# nothing\n")];
        let found = variables(&["z=3".to_owned()], &files).unwrap();
        assert_eq!(serde_json::to_string(&found.vars).unwrap(), r#"{"x":1,"y":2,"z":3}"#);
        assert_eq!(found.named, ["z"]);
        let bad = [file("d.yaml", "- 1\n"), file("e.yaml", "x: 1\na b: 2\nx: 3\n"), folder.path().join("nowhere.yaml")];
        let said = variables(&[], &bad).unwrap_err().to_string();
        insta::assert_snapshot!(said.replace(folder.path().to_str().unwrap(), "DIR"), @r#"
    error: the variables must be a mapping
     --> DIR/d.yaml:1:1
      |
    1 | - 1
      | ^
      = help: write one per line, such as `lr: 3e-4`

    error: `x` is given twice
     --> DIR/e.yaml:3:1
      |
    3 | x: 3
      | ^
      = help: it is already on line 1; delete one of the two

    error: there is no such file
     --> DIR/nowhere.yaml
      = help: name a file of variables, such as vars.yaml

    3 mistakes; nothing was started
    "#);
    }
}
