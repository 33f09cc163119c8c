//! Messages about mistakes in templates and in what they render to, word for word.

use std::path::Path;

use serde_json::json;

use crate::{LoadOptions, load};
use runner_template::Inputs;

const MACROS: &str = "{% macro schedule(decay) %}\n{% set x = 1 %}\nwarmup: {steps: 10}\ndecay: { {{- decay }}: {}}\n{% endmacro %}\n\
    {% macro broken(a) %}\n{{ a + b }}\n{% endmacro %}\n{% macro free() %}{{ lr }}{% endmacro %}\n";
const DATA: &str = "data:\n  train: {builtin: {corpus: stories}}\n";

/// The messages about `text` as `exp.yaml.j2`, beside `macros.j2` and `part.j2`.
fn render_mistakes(text: &str, part: &str, vars: &serde_json::Value) -> String {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("macros.j2", MACROS);
    write("part.j2", part);
    write("exp.yaml.j2", text);
    let vars = vars.as_object().unwrap().clone();
    let named = vars.keys().cloned().collect();
    let template = Inputs { vars, named, folder: Some(folder.path().join("templates")), ..Inputs::default() };
    let options = LoadOptions { template, ..LoadOptions::default() };
    let error = load(&folder.path().join("exp.yaml.j2"), &options).unwrap_err().to_string();
    error.replace(folder.path().to_str().unwrap(), "DIR")
}

fn with(text: &str) -> String {
    format!("{DATA}model: {{preset: gpt2-nano}}\n{text}")
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn an_undefined_variable_is_named() {
    let text = "# a comment\nmodel: {preset: gpt2-nano}\noptimizer: {adamw: {lr: {{ base * lr }}}}\n";
    insta::assert_snapshot!(render_mistakes(text, "", &json!({"lrr": 1, "base": 2})), @r#"
    error: `lr` is not defined
     --> DIR/exp.yaml.j2:3:35
      |
    3 | optimizer: {adamw: {lr: {{ base * lr }}}}
      |                                   ^^
      = help: did you mean `lrr`?
              give it with `--var lr=VALUE`, or a default: `lr | default(…)`

    1 mistake; nothing was started
    "#);
    let text = "{% import 'macros.j2' as m %}\n{{ m.broken(1) }}\n";
    insta::assert_snapshot!(render_mistakes(text, "", &json!({})), @r#"
    error: `b` is not defined
     --> DIR/macros.j2:7:8
      |
    7 | {{ a + b }}
      |        ^
      = help: give it with `--var b=VALUE`, or a default: `b | default(…)`

    1 mistake; nothing was started
    "#);
    let text = "{% import 'macros.j2' as m %}\n{{ m.free() }}\n";
    insta::assert_snapshot!(render_mistakes(text, "", &json!({"lr": 1})), @r#"
    error: an experiment must be a mapping of keys to values, got `1`
     --> DIR/macros.j2:9:19
      |
    9 | {% macro free() %}{{ lr }}{% endmacro %}
      |                   ^^^^^^^^
      = rendered:
    1 | 1
      | ^
      = help: its keys are `batch`, `checkpoint`, `data`, `device`, `eval`, `extends`, `log`, `master_weights`, `model`, `name`, `optimizer`, `parallel`, `precision`, `schedule`, `seed`, `seeds`, `train` and `version`

    1 mistake; nothing was started
    "#);
    let text = "a: 1\n{% include 'part.j2' %}\n";
    insta::assert_snapshot!(render_mistakes(text, "x: 1\ny: é {{ lr | round(2) }}\n", &json!({})), @r#"
    error: `lr` is not defined
     --> DIR/part.j2:2:9
      |
    2 | y: é {{ lr | round(2) }}
      |         ^^
      = help: give it with `--var lr=VALUE`, or a default: `lr | default(…)`
              included at DIR/exp.yaml.j2:2:4

    1 mistake; nothing was started
    "#);
    let text = "{% for x in sizes %}{{ x }}{% endfor %}";
    insta::assert_snapshot!(render_mistakes(text, "", &json!({"size": [1]})), @r#"
    error: `sizes` is not defined
     --> DIR/exp.yaml.j2:1:13
      |
    1 | {% for x in sizes %}{{ x }}{% endfor %}
      |             ^^^^^
      = help: did you mean `size`?
              give it with `--var sizes=VALUE`, or a default: `sizes | default(…)`

    1 mistake; nothing was started
    "#);
    let text = "a: {{ cfg.lrr }}\n{{ cfg.lr }}";
    insta::assert_snapshot!(render_mistakes(text, "", &json!({"cfg": {"lr": 1}})), @r#"
    error: `cfg.lrr` is not defined
     --> DIR/exp.yaml.j2:1:7
      |
    1 | a: {{ cfg.lrr }}
      |       ^^^^^^^
      = help: test it with `is defined`, or give a value with `| default(…)`

    1 mistake; nothing was started
    "#);
    let text = "a: {{ pow10(n) }}\n";
    insta::assert_snapshot!(render_mistakes(text, "", &json!({})), @r#"
    error: `n` is not defined
     --> DIR/exp.yaml.j2:1:13
      |
    1 | a: {{ pow10(n) }}
      |             ^
      = help: give it with `--var n=VALUE`, or a default: `n | default(…)`

    1 mistake; nothing was started
    "#);
    let text = "a: {% if deep %}1{% endif %}\n";
    insta::assert_snapshot!(render_mistakes(text, "", &json!({})), @r#"
    error: `deep` is not defined
     --> DIR/exp.yaml.j2:1:10
      |
    1 | a: {% if deep %}1{% endif %}
      |          ^^^^
      = help: give it with `--var deep=VALUE`, or a default: `deep | default(…)`

    1 mistake; nothing was started
    "#);
}

#[test]
fn mistakes_of_syntax_are_located() {
    insta::assert_snapshot!(render_mistakes("a: 1\nb: {{ 1 + }}\n", "", &json!({})), @r#"
    error: invalid template: unexpected end of variable block
     --> DIR/exp.yaml.j2:2:11
      |
    2 | b: {{ 1 + }}
      |           ^^
      = help: a `{{`, `{%` or `{#` is not closed, or an `{% end… %}` is missing

    1 mistake; nothing was started
    "#);
    insta::assert_snapshot!(render_mistakes("a: 1\nb: {{ lr\n\n", "", &json!({})), @r#"
    error: invalid template: unexpected end of input, expected end of variable block
     --> DIR/exp.yaml.j2:2:7
      |
    2 | b: {{ lr
      |       ^^
      = help: a `{{`, `{%` or `{#` is not closed, or an `{% end… %}` is missing

    1 mistake; nothing was started
    "#);
    insta::assert_snapshot!(render_mistakes("{% if a %}\nb: 1\n", "", &json!({})), @r#"
    error: invalid template: unexpected end of input, expected end of block
     --> DIR/exp.yaml.j2:2:1
      |
    2 | b: 1
      | ^^^^
      = help: a `{{`, `{%` or `{#` is not closed, or an `{% end… %}` is missing

    1 mistake; nothing was started
    "#);
    insta::assert_snapshot!(render_mistakes("{% fro a in b %}{% endfor %}\n", "", &json!({})), @r#"
    error: invalid template: unknown statement fro
     --> DIR/exp.yaml.j2:1:4
      |
    1 | {% fro a in b %}{% endfor %}
      |    ^^^
      = help: statements are if, for, set, macro, include, import, from, call, with, filter, raw and their ends

    1 mistake; nothing was started
    "#);
    insta::assert_snapshot!(render_mistakes("a: 1\n{% include 'part.j2' %}\n", "x: 1\n{% endif %}\n", &json!({})), @r#"
    error: invalid template: unknown statement endif
     --> DIR/part.j2:2:4
      |
    2 | {% endif %}
      |    ^^^^^
      = help: statements are if, for, set, macro, include, import, from, call, with, filter, raw and their ends
              included at DIR/exp.yaml.j2:2:4

    1 mistake; nothing was started
    "#);
}

#[test]
fn unknown_filters_functions_and_files_are_named() {
    insta::assert_snapshot!(render_mistakes("a: {{ 'x' | uper }}\n", "", &json!({})), @r#"
    error: unknown filter `uper`
     --> DIR/exp.yaml.j2:1:13
      |
    1 | a: {{ 'x' | uper }}
      |             ^^^^
      = help: did you mean `upper`?

    1 mistake; nothing was started
    "#);
    insta::assert_snapshot!(render_mistakes("a: {{ pow(3) }}\n", "", &json!({})), @r#"
    error: unknown function or macro `pow`
     --> DIR/exp.yaml.j2:1:7
      |
    1 | a: {{ pow(3) }}
      |       ^^^
      = help: available: `dict`, `env`, `linspace`, `logspace`, `namespace`, `pow10`, `raise`, `range` and `tokens`

    1 mistake; nothing was started
    "#);
    insta::assert_snapshot!(render_mistakes("a: {{ 1 is evne }}\n", "", &json!({})), @r#"
    error: unknown test `evne`
     --> DIR/exp.yaml.j2:1:12
      |
    1 | a: {{ 1 is evne }}
      |            ^^^^
      = help: did you mean `even`?

    1 mistake; nothing was started
    "#);
    insta::assert_snapshot!(render_mistakes("a: {{ '10Q' | tokens }}\n", "", &json!({})), @r#"
    error: invalid count `10Q`; write it like 10B, 1.5M or 250k
     --> DIR/exp.yaml.j2:1:15
      |
    1 | a: {{ '10Q' | tokens }}
      |               ^^^^^^

    1 mistake; nothing was started
    "#);
    insta::assert_snapshot!(render_mistakes("a: 1\n{% include 'parts.j2' %}\n", "", &json!({})), @r#"
    error: there is no file `parts.j2`
     --> DIR/exp.yaml.j2:2:4
      |
    2 | {% include 'parts.j2' %}
      |    ^^^^^^^^^^^^^^^^^^
      = help: did you mean `part.j2`?
              files must be in the template's folder or in templates/

    1 mistake; nothing was started
    "#);
    insta::assert_snapshot!(render_mistakes("a: {{ 1 // 0 }}\n", "", &json!({})), @r#"
    error: unable to calculate 1 // 0
     --> DIR/exp.yaml.j2:1:7
      |
    1 | a: {{ 1 // 0 }}
      |       ^^^^^^

    1 mistake; nothing was started
    "#);
    insta::assert_snapshot!(render_mistakes("a: {{ logspace(0, 1, 3) }}\n", "", &json!({})), @r#"
    error: logspace needs two positive numbers, got 0 and 1
     --> DIR/exp.yaml.j2:1:7
      |
    1 | a: {{ logspace(0, 1, 3) }}
      |       ^^^^^^^^^^^^^^^^^

    1 mistake; nothing was started
    "#);
    insta::assert_snapshot!(render_mistakes("a: {{ env('DATA_DIR') }}\n", "", &json!({})), @r#"
    error: the environment variable `DATA_DIR` is not set
     --> DIR/exp.yaml.j2:1:7
      |
    1 | a: {{ env('DATA_DIR') }}
      |       ^^^^^^^^^^^^^^^
      = help: set it, or give a default: env("DATA_DIR", "…")

    1 mistake; nothing was started
    "#);
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn mistakes_in_rendered_text_are_located_in_the_template() {
    // A key as it stands in the template, and a value.
    let text = with("{# twice #}\nbatch:\n  sequences: {{ n }}\n  micro_bach: {{ n }}\ntrain: {steps: {{ -n }}}\n");
    insta::assert_snapshot!(render_mistakes(&text, "", &json!({"n": 10})), @r#"
    error: unknown key `micro_bach` in `batch`
     --> DIR/exp.yaml.j2:7:3
      |
    7 |   micro_bach: {{ n }}
      |   ^^^^^^^^^^
      = rendered:
    6 |   micro_bach: 10
      |   ^^^^^^^^^^
      = help: did you mean `micro_batch`?

    error: `train.steps` must be at least 1, got -10
     --> DIR/exp.yaml.j2:8:16
      |
    8 | train: {steps: {{ -n }}}
      |                ^^^^^^^^
      = rendered:
    7 | train: {steps: -10}
      |                ^^^
      = help: Optimizer steps. Default: 1000, unless the length is given in another way.

    2 mistakes; nothing was started
    "#);
    // In an include, in a loop's body, in a macro.
    let text = with("{% include 'part.j2' %}\n");
    insta::assert_snapshot!(render_mistakes(&text, "\noptimizer:\n  adamw: {{ '{' }}lrr: 1}\n", &json!({})), @r#"
    error: unknown key `lrr` in `optimizer.adamw`
     --> DIR/part.j2:3:19
      |
    3 |   adamw: {{ '{' }}lrr: 1}
      |                   ^^^
      = rendered:
    6 |   adamw: {lrr: 1}
      |           ^^^
      = help: did you mean `lr`?

    1 mistake; nothing was started
    "#);
    let text = with("eval:\n{% for key in ['every', 'evrey'] %}\n  {{ key }}: 10\n{% endfor %}\n");
    insta::assert_snapshot!(render_mistakes(&text, "", &json!({})), @r#"
    error: unknown key `evrey` in `eval`
     --> DIR/exp.yaml.j2:6:3
      |
    6 |   {{ key }}: 10
      |   ^^^^^^^^^
      = rendered:
    6 |   evrey: 10
      |   ^^^^^
      = help: did you mean `every`?

    1 mistake; nothing was started
    "#);
    let text = with("{% from 'macros.j2' import schedule %}\nschedule:\n  {{ schedule('cosin') | indent(2) }}\n");
    insta::assert_snapshot!(render_mistakes(&text, "", &json!({})), @r#"
    error: unknown choice `cosin` in `schedule.decay`
     --> DIR/macros.j2:4:10
      |
    4 | decay: { {{- decay }}: {}}
      |          ^^^^^^^^^^^^
      = rendered:
    6 |   decay: {cosin: {}}
      |           ^^^^^
      = help: did you mean `cosine`?

    1 mistake; nothing was started
    "#);
    // The place of a value of several lines; and of text that is not YAML.
    let text = with("eval:\n  {{ lines }}\n");
    insta::assert_snapshot!(render_mistakes(&text, "", &json!({"lines": "every: 10\n  evrey: 3"})), @r#"
    error: unknown key `evrey` in `eval`
     --> DIR/exp.yaml.j2:5:3
      |
    5 |   {{ lines }}
      |   ^^^^^^^^^^^
      = rendered:
    6 |   evrey: 3
      |   ^^^^^
      = help: did you mean `every`?

    1 mistake; nothing was started
    "#);
    insta::assert_snapshot!(render_mistakes(&with("batch: {sequences: {{ n }}\n"), "", &json!({"n": 8})), @r#"
    error: this `{` is not closed
     --> DIR/exp.yaml.j2:4:8
      |
    4 | batch: {sequences: {{ n }}
      |        ^
      = rendered:
    4 | batch: {sequences: 8
      |        ^
      = help: add the `}`

    1 mistake; nothing was started
    "#);
}

#[test]
fn names_the_template_line_where_marks_show_only_the_rendered_line() {
    let text = with("{% set block %}\nbatch: {sequences: 0}\n{% endset %}\n{{ block if block|length < 23 else '' }}\n");
    insta::assert_snapshot!(render_mistakes(&text, "", &json!({})), @r#"
    error: `batch.sequences` must be at least 1, got 0
     --> DIR/exp.yaml.j2 (rendered):4:20
      |
    4 | batch: {sequences: 0}
      |                    ^
      = help: Sequences per optimizer step. Default: 32. Or `tokens`.

    1 mistake; nothing was started
    "#);
}

#[test]
fn mistakes_of_the_layers_above_stay_theirs() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("exp.yaml.j2");
    std::fs::write(&file, with("")).unwrap();
    let options = LoadOptions { sets: vec!["batch.sequences=0".into()], ..LoadOptions::default() };
    let error = load(&file, &options).unwrap_err();
    assert_eq!((error.diagnostics[0].source.as_str(), &error.diagnostics[0].template), ("--set", &None), "{error}");
}

#[test]
fn variables_that_nothing_uses_are_refused() {
    insta::assert_snapshot!(render_mistakes(&with("{% set n = n | default(1) %}\nseed: {{ n + seed }}\n"), "", &json!({"sede": 1, "n": 1, "seed": 2})), @r#"
    error: the template has no variable `sede`
     --> --var:1:1
      |
    1 | sede=1
      | ^^^^
      = help: its variables are `n` and `seed`

    1 mistake; nothing was started
    "#);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("exp.yaml");
    std::fs::write(&file, with("")).unwrap();
    let vars = json!({"lr": 0.1}).as_object().unwrap().clone();
    let template = Inputs { vars, ..Inputs::default() };
    let error = load(&file, &LoadOptions { template, ..LoadOptions::default() }).unwrap_err();
    assert!(error.to_string().contains("is not a template"), "{error}");
    assert!(load(Path::new("nowhere.yaml.j2"), &LoadOptions::default()).is_err());
}

#[test]
fn a_template_loads_as_the_file_that_it_renders_to() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let body = "model: {preset: gpt2-nano}\ndata: {train: {builtin: {corpus: stories}}}\n";
    write("a.yaml.j2", &format!("{{% if true %}}\n{body}{{% endif %}}\nseed: {{{{ seed }}}}\n"));
    write("a.yaml", &format!("{body}seed: 7\n"));
    let vars = json!({"seed": 7}).as_object().unwrap().clone();
    let sets = vec!["train.steps=3".into()];
    let template = Inputs { vars: vars.clone(), ..Inputs::default() };
    let options = LoadOptions { sets, template, ..LoadOptions::default() };
    let template = load(&folder.path().join("a.yaml.j2"), &options).unwrap();
    let plain = load(&folder.path().join("a.yaml"), &LoadOptions { template: Inputs::default(), ..options }).unwrap();
    assert_eq!(template.experiment, plain.experiment);
    assert_eq!((template.experiment.name.as_str(), &template.text), ("a", &plain.text));
    let origin = |key: &str| template.origins.iter().find(|o| o.key == key).unwrap().source.clone();
    assert!(origin("seed").ends_with("a.yaml.j2:5:1"), "{}", origin("seed"));
    let rendered = template.template.unwrap();
    assert_eq!((rendered.vars, rendered.files.len()), (vars, 1));
}
