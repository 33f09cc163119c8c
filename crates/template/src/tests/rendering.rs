//! Templates and the texts that they render to.

use std::path::Path;

use serde_json::{Value as Json, json};

use crate::{Inputs, Rendered, render};
use runner_spec::diagnostic::ConfigError;
use runner_yaml::source::TemplateLines as _;

pub(super) fn rendered(text: &str, vars: &Json) -> Result<Rendered, ConfigError> {
    let inputs = Inputs { vars: vars.as_object().unwrap().clone(), ..Inputs::default() };
    render(text, Path::new("exp.yaml.j2"), &inputs)
}

fn text(text: &str, vars: &Json) -> String {
    rendered(text, vars).unwrap_or_else(|e| panic!("{text}: {e}")).text
}

#[test]
fn printed_numbers_read_back_unchanged() {
    for (given, printed) in [
        (json!(1e-10), "1e-10"),
        (json!(1e16), "1.0e16"),
        (json!(1e22), "1.0e22"),
        (json!(-0.0), "-0.0"),
        (json!(0.1), "0.1"),
        (json!(3e-4), "0.0003"),
        (json!(1.0), "1.0"),
        (json!(5), "5"),
        (json!(u64::MAX), "18446744073709551615"),
        (json!(i64::MIN), "-9223372036854775808"),
        (json!(f64::MIN_POSITIVE), "2.2250738585072014e-308"),
        (json!(true), "true"),
        (json!(null), "null"),
        (json!([1, 2.5, "a b", "yes"]), "[1, 2.5, \"a b\", yes]"),
        (json!({"a": {"b": [1e-7]}}), "{a: {b: [1e-7]}}"),
    ] {
        let found = text("{{ x }}", &json!({ "x": given }));
        assert_eq!(found, printed);
        // As our own reader takes it, and as any YAML reader does.
        let variables = crate::variables(&[format!("x={found}")], &[]).unwrap();
        assert_eq!(variables.vars["x"], given, "{printed}");
        assert_eq!(serde_json::to_value(serde_yaml::from_str::<serde_yaml::Value>(&found).unwrap()).unwrap(), given);
    }
    let sum = text("{{ 10 ** 3 }} {{ 3e-4 * 10 }} {{ 7 // 2 }} {{ 7 / 2 }} {{ 2 * 3 }} {{ 1e-4 ~ '' }}", &json!({}));
    assert_eq!(sum, "1000 0.0029999999999999996 3 3.5 6 0.0001");
}

#[test]
fn text_can_be_quoted_for_yaml() {
    for given in [
        "",
        "a b",
        "5",
        "1e3",
        "true",
        "null",
        "~",
        "a: b",
        "- a",
        "a #b",
        "'",
        "\"",
        "é\n\t\u{1b}",
        "a,b",
        "0x1F",
        "=",
        "2001-01-01",
        "*",
        "no",
        "-1",
        "plain/path.txt",
        ".5",
        ".inf",
        "...",
    ] {
        let found = text("- {{ x | yaml }}\n- [{{ x | yaml }}]\n", &json!({ "x": given }));
        let read: Vec<serde_yaml::Value> = serde_yaml::from_str(&found).unwrap_or_else(|e| panic!("{found}: {e}"));
        assert_eq!((read[0].as_str(), read[1][0].as_str()), (Some(given), Some(given)), "{found}");
        let variables =
            crate::variables(&[format!("x={}", text("{{ x | yaml }}", &json!({ "x": given })))], &[]).unwrap();
        assert_eq!(variables.vars["x"], json!(given));
    }
    assert_eq!(
        text("{{ x | yaml }} {{ x | tojson }}", &json!({"x": {"a": ["b c", 1e-9]}})),
        "{a: [\"b c\", 1e-9]} {\"a\":[\"b c\",1e-9]}"
    );
}

#[test]
fn functions_and_filters_are_rendered() {
    for (source, printed) in [
        ("pow10(-3)", "0.001"),
        ("pow10(4)", "10000"),
        ("pow10(-10)", "1e-10"),
        ("logspace(1e-4, 1e-2, 3)", "[0.0001, 0.001, 0.01]"),
        ("linspace(0, 1, 3)", "[0.0, 0.5, 1.0]"),
        ("'10B' | tokens", "10000000000"),
        ("tokens('1.5M')", "1500000"),
        ("tokens(5000)", "5000"),
        ("124439808 | tokens_short", "124439.808k"),
        ("2500000 | tokens_short", "2.5M"),
        ("x | default(3)", "3"),
        ("x is defined", "false"),
        ("'%.2e' | format(0.00012)", "1.20e-04"),
        ("[3, 1, 2] | sort | join('-')", "1-2-3"),
        ("range(3) | map('string') | list", "[\"0\", \"1\", \"2\"]"),
        ("'a' if y is undefined else 'b'", "a"),
        ("(20 * 0.05) | round | int", "1"),
        ("dict(a=1)", "{a: 1}"),
    ] {
        assert_eq!(text(&format!("{{{{ {source} }}}}"), &json!({})), printed, "{source}");
    }
}

#[test]
fn what_is_read_of_the_environment_is_known() {
    let inputs = Inputs {
        environment: [("DATA".to_owned(), "/d".to_owned()), ("HOME".to_owned(), "/h".to_owned())].into(),
        ..Inputs::default()
    };
    let found = |text: &str| render(text, Path::new("exp.yaml.j2"), &inputs);
    let good = found("{{ env('DATA') }} {{ env('NONE', 3) }}").unwrap();
    assert_eq!(good.text, "/d 3");
    assert_eq!(good.env_read, [("DATA".to_owned(), "/d".to_owned())]);
    assert!(found("{{ env('NONE') }}").is_err());
}

#[test]
fn marks_change_no_whitespace() {
    let sources = [
        "a\n  {% if x %}\n  b: {{ x }}\n  {% else %}\n  c\n  {% endif %}\nd\n",
        "a {{- x -}} b {{+ x +}} c\n",
        "{%- for i in [1, 2] -%}\n  {{ i }},\n{%- endfor +%}\nx",
        "  {%+ if x %} y {% endif %}  \n{# c #}\n  {# d -#}\n  e",
        "{% raw %}\n {{ x }} {% if %}\n{% endraw %}\n\nz",
        "{% raw -%}  a  {%- endraw -%}  b",
        "{% set t %}\n  q {{ x }}\n{% endset %}{{ t }}|{% filter upper %}\n a{{ x }}\n{% endfilter %}",
        "{% macro m(a) -%}\n  <{{ a }}\n{% endmacro %}{{ m(1) }}{{ m(x) }}\n{% macro c() %} [{{ caller(3) }}]{% endmacro %}{% call(y) c() %}\n  {{ y }} {% endcall %}",
        "a\r\n  {% if x %}\r\n b\r\n{% endif %}\r\nc",
        "{{ x }}{{ x }}\n\n\n{{- x }}\t{{ x }}  ",
        "{% if x %}{{ x }}{% elif y is defined %}1{% else %}2{% endif %}\n",
        "{% for i in [] %}a{% else %}\n  b\n{% endfor %}",
        "{% with a = 1, b = x %}\n  {{ a ~ b }}\n{% endwith %}\n{% block t %} {{ x }} {% endblock %}",
        "{{ {'a': {'b': 1}}.a.b }} {{ '}}' }}{{ '{{' }}",
        "",
        "\n",
        "é {{ x }} ü\n",
    ];
    for source in sources {
        let found = rendered(source, &json!({"x": "X"})).unwrap();
        assert!(found.line_map.is_some(), "{source:?}: marks change nothing");
    }
}

#[test]
fn lines_know_where_they_are_from() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    std::fs::create_dir(folder.path().join("templates")).unwrap();
    write("part.j2", "p: 1\n\nq: {{ lr }}\n");
    write("templates/m.j2", "{% macro two() %}\nm: 1\nn: 2\n{% endmacro %}\n");
    let main = "{% from 'm.j2' import two %}\na: 1\n{% for i in range(2) %}\nb{{ i }}: 1\n{% endfor %}\n{% include 'part.j2' %}\n{{- two() -}}\nz: {{ lr }}\n";
    let inputs = Inputs {
        vars: json!({"lr": 1}).as_object().unwrap().clone(),
        folder: Some(folder.path().join("templates")),
        ..Inputs::default()
    };
    let found = render(main, &folder.path().join("exp.yaml.j2"), &inputs).unwrap();
    let lines: Vec<String> = found
        .text
        .lines()
        .enumerate()
        .map(|(i, line)| {
            let indent = line.len() - line.trim_start().len();
            let place = found.line_map.as_ref().unwrap().locate(i + 1, indent + 1, 1).unwrap();
            format!("{}:{} {line}", place.file.file_name().unwrap().display(), place.line)
        })
        .collect();
    assert_eq!(
        lines,
        [
            "exp.yaml.j2:2 a: 1",
            "exp.yaml.j2:4 b0: 1",
            "exp.yaml.j2:4 b1: 1",
            "part.j2:1 p: 1",
            "part.j2:1 ",
            "part.j2:3 q: 1",
            "m.j2:2 m: 1",
            "m.j2:3 n: 2",
            "exp.yaml.j2:8 z: 1"
        ]
    );
    let files: Vec<_> = found.files.iter().map(|f| f.path.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(files, ["exp.yaml.j2", "m.j2", "part.j2"]);
}

/// A folder with the files `(name, text)`, and what the template `main` in it renders to with `vars`, all given by name.
fn rendered_in_folder(files: &[(&str, &str)], main: &str, vars: &Json) -> Result<Rendered, String> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let vars = vars.as_object().unwrap().clone();
    let inputs = Inputs { named: vars.keys().cloned().collect(), vars, ..Inputs::default() };
    let rendered = render(main, &folder.path().join("exp.yaml.j2"), &inputs);
    rendered.map_err(|error| error.to_string().replace(folder.path().to_str().unwrap(), "DIR"))
}

#[test]
fn expressions_name_included_files() {
    let files = [
        ("conf/gpt2.yaml", "model: {preset: gpt2-micro}\n"),
        ("conf/llama.yaml", "model: {preset: llama-micro}\n"),
        ("m.j2", "{% macro one() %}1{% endmacro %}"),
        ("base.j2", "a: {% block a %}{% endblock %}"),
    ];
    let include = "{% include \"conf/\" ~ arch ~ \".yaml\" %}\nseed: 1\n";
    let found = rendered_in_folder(&files, include, &json!({"arch": "llama"})).unwrap();
    assert_eq!(found.text, "model: {preset: llama-micro}\nseed: 1\n");
    let names: Vec<_> = found.files.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["exp.yaml.j2", "conf/llama.yaml"]);
    assert!(found.line_map.unwrap().locate(1, 1, 1).unwrap().file.ends_with("conf/llama.yaml"));
    for (main, vars, text) in [
        ("{% import file ~ '.j2' as m %}{{ m.one() }}", json!({"file": "m"}), "1"),
        ("{% from file ~ '.j2' import one as two %}{{ two() }}", json!({"file": "m"}), "1"),
        ("{% extends file %}{% block a %}2{% endblock %}", json!({"file": "base.j2"}), "a: 2"),
        ("{% include [first, 'base.j2'] %}", json!({"first": "none.j2"}), "a: "),
        ("{% include file ~ '.j2' if file else 'base.j2' ignore missing %}", json!({"file": "m"}), ""),
        ("{% filter replace(old, 'b') %}a a{% endfilter %}", json!({"old": "a"}), "b b"),
    ] {
        assert_eq!(rendered_in_folder(&files, main, &vars).map(|found| found.text).as_deref(), Ok(text), "{main}");
    }
    // Names that a template gives a value are not its variables.
    for main in [
        "{% for x in ['m.j2'] %}{% include x %}{% endfor %}",
        "{% import 'm.j2' as x %}",
        "{% from 'm.j2' import x %}",
        "{% filter upper %}a{% endfilter %}",
        "{% set x = 1 %}{% set x = x + 1 %}",
    ] {
        let error = rendered_in_folder(&files, main, &json!({"x": 1})).unwrap_err();
        assert!(error.contains("the template has no variable `x`") && error.contains("it has no variables"), "{error}");
    }
    let error = |vars| rendered_in_folder(&files, include, &vars).unwrap_err();
    insta::assert_snapshot!(error(json!({"arch": "gpt"})));
    insta::assert_snapshot!(error(json!({})));
    insta::assert_snapshot!(error(json!({"arch": ["gpt2"]})));
}

#[test]
fn raise_stops_a_template_with_its_message() {
    let error_with = |text: &str, stage: Json| rendered(text, &json!({ "stage": stage })).unwrap_err().to_string();
    let error = |text: &str| error_with(text, json!(12));
    let main = "a: 1\n{% if stage not in range(1, 12) %}\n  {{ raise(\"unknown stage \" ~ stage ~ \"\nuse 1 to 11\") }}\n{% endif %}\n";
    insta::assert_snapshot!(error(main));
    assert_eq!(rendered(main, &json!({"stage": 11})).unwrap().text, "a: 1\n");
    // The message is the user's, whatever words it has and whatever the template lacks.
    for text in ["stage is undefined", "recursion limit", "x is unknown"] {
        let raised = error(&format!("{{% do raise('{text}' if missing is undefined else '') %}}"));
        assert!(raised.starts_with(&format!("error: {text}\n")), "{raised}");
    }
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/build-nanogpt.yaml.j2");
    let shipped = std::fs::read_to_string(shipped).unwrap();
    for stage in [json!(0), json!(12), json!("8"), json!(1.5)] {
        let message = error_with(&shipped, stage.clone());
        assert!(message.starts_with("error: `stage` must be a whole number from 1 to 11, got "), "{stage}: {message}");
    }
    assert!(error("{{ raise('') }}").starts_with("error: the template calls `raise`\n"));
    assert!(error("{{ raise(nothing) }}").starts_with("error: `nothing` is not defined\n"));
    assert!(!error("{{ é }}").contains("in a template:") && !error("a\n{% if %}").contains("in a template:"));
    assert!(error("{{ 'undefined' | tokens }}{{ missing }}").starts_with("error: invalid count `undefined`"));
}
