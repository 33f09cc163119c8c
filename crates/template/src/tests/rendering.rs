//! Templates and the texts that they render to.

use std::path::Path;

use serde_json::{Value as Json, json};

use crate::{Inputs, Rendered, render};
use runner_spec::diagnostic::ConfigError;

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
fn functions_and_filters() {
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
        ("seconds('1h30m')", "5400"),
        ("'1.5s' | seconds", "1.5"),
        ("5400 | duration", "1h30m"),
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
fn the_environment_is_read_only_where_it_is_listed() {
    let inputs = Inputs {
        environment: [("DATA".to_owned(), "/d".to_owned()), ("HOME".to_owned(), "/h".to_owned())].into(),
        ..Inputs::default()
    };
    let found = |text: &str| render(text, Path::new("exp.yaml.j2"), &inputs);
    let good = found("{# env: DATA, NONE #}\n{{ env('DATA') }} {{ env('NONE', 3) }}").unwrap();
    assert_eq!(good.text, "/d 3");
    assert_eq!(good.env_read, [("DATA".to_owned(), "/d".to_owned())]);
    assert!(found("{# env: DATA #}{{ env('HOME', 1) }}").is_err());
    assert!(found("a\n{# env: DATA #}{{ env('DATA') }}").is_err(), "not at the top");
}

#[test]
fn whitespace_is_what_a_template_without_guards_and_marks_has() {
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
        let mut env = crate::builtins::environment();
        env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        env.set_formatter(|out, _, value| Ok(out.write_str(&crate::value::printed(value)?)?));
        let plain = env.template_from_str(source).unwrap().render(minijinja::context! { x => "X" }).unwrap();
        let found = rendered(source, &json!({"x": "X"})).unwrap();
        assert_eq!(found.text, plain, "{source:?}");
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
            let (file, at) = found.origin(i + 1).unwrap();
            format!("{}:{at} {line}", file.file_name().unwrap().display())
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
            "exp.yaml.j2:7 m: 1",
            "m.j2:3 n: 2",
            "exp.yaml.j2:8 z: 1"
        ]
    );
    let files: Vec<_> = found.files.iter().map(|f| f.path.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(files, ["exp.yaml.j2", "m.j2", "part.j2"]);
}
