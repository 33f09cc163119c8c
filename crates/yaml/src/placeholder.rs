//! `{{ x }}` and `${X}`: what templates, shells, Hydra and OmegaConf replace, and this program does not.

use super::source::{Source, SourceKind};
use super::syntax_error::unquoted;

/// Starts of what a template replaces.
const TEMPLATE_STARTS: [&str; 3] = ["{{", "{%", "{#"];

/// Advice for each kind of placeholder in `text`, a part of `source`.
pub(super) fn placeholder_advice(source: &Source, text: &str) -> Vec<String> {
    let mut advice = Vec::new();
    // A template has replaced its own.
    if source.kind != SourceKind::Template
        && let Some(start) = TEMPLATE_STARTS.iter().find(|start| text.contains(**start))
    {
        advice.push(format!(
            "`{start}` works only in a template, an experiment file with a name like exp.yaml.j2; `--var NAME=VALUE` or a sweep sets its \
             variables"
        ));
    }
    if let Some(name) = variable(text) {
        // A default follows a comma in Hydra, and `:-` in a shell.
        let plain = name.split(',').next().and_then(|name| name.split(":-").next()).unwrap_or(name);
        let last = plain.rsplit(['.', ':']).next().unwrap_or(plain);
        let is_environment = name.contains("env:") || !last.contains(char::is_lowercase);
        let written = if is_environment { format!("env(\"{last}\")") } else { last.to_owned() };
        advice.push(match source.kind {
            SourceKind::File => format!(
                "`${{{name}}}` is not replaced; write `{{{{ {written} }}}}` in a template, an experiment file with a name like exp.yaml.j2"
            ),
            SourceKind::Template => format!("`${{{name}}}` is not replaced; write `{{{{ {written} }}}}`"),
            SourceKind::Environment | SourceKind::Set => {
                format!("`${{{name}}}` is not replaced here: write its value; a shell replaces it only outside of single quotes")
            }
        });
    }
    advice
}

/// The name of the first `${NAME}` in `text`.
fn variable(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("${")?;
    let (name, _) = rest.split_once('}')?;
    let is_part = |c: char| c.is_alphanumeric() || "_.:,-/".contains(c);
    (!name.is_empty() && name.len() <= 60 && name.chars().all(is_part)).then_some(name)
}

/// The column, from 1, of the first start of a template in a line of YAML that is not in quotes or in a comment, and this start.
pub(super) fn find_template_start(line: &str) -> Option<(usize, &'static str)> {
    let start_of = |rest: &str| TEMPLATE_STARTS.into_iter().find(|start| rest.starts_with(start));
    unquoted(line, &mut None).find_map(|(column, rest)| Some((column + 1, start_of(rest)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_of_a_template_are_found_outside_of_quotes_and_comments() {
        assert_eq!(find_template_start("é: {a: {{ x }}}"), Some((8, "{{")));
        assert_eq!(find_template_start("{% if x %}"), Some((1, "{%")));
        assert_eq!(find_template_start("a: '{{ x }}' # {{ y }}"), None);
        assert_eq!(find_template_start("a: \"\\\"{{\" "), None);
        assert_eq!(find_template_start("a: it's {{ x }}"), Some((9, "{{")));
    }

    #[test]
    fn variables_of_shells_and_hydra_are_found() {
        let names = ["a ${oc.env:DATA,/tmp} b", "${X}", "${}", "$X", "${a b}", "${X"].map(variable);
        assert_eq!(names, [Some("oc.env:DATA,/tmp"), Some("X"), None, None, None, None]);
    }
}
