//! Templates that mean harm: none may reach other files, hang, crash or take the memory.

use std::path::Path;

use serde_json::json;

use super::rendering::rendered;
use crate::{Inputs, render};

fn refused(text: &str) -> String {
    let error = rendered(text, &json!({})).map(|r| r.text.len()).expect_err(&text[..text.len().min(80)]).to_string();
    error.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn nothing_outside_the_two_folders_can_be_read() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("own");
    std::fs::create_dir_all(folder.join("sub")).unwrap();
    std::fs::create_dir(root.path().join("templates")).unwrap();
    let secret = root.path().join("secret.j2");
    std::fs::write(&secret, "secret").unwrap();
    std::fs::write(folder.join("sub/in.j2"), "inner").unwrap();
    std::fs::write(folder.join("both.j2"), "own").unwrap();
    std::fs::write(root.path().join("templates/both.j2"), "shared").unwrap();
    std::fs::write(root.path().join("templates/only.j2"), "shared").unwrap();
    std::fs::write(folder.join("large.j2"), "x".repeat((1 << 20) + 1)).unwrap();
    std::fs::write(folder.join("bytes.j2"), b"\xff\xfe").unwrap();
    std::os::unix::fs::symlink(&secret, folder.join("link.j2")).unwrap();
    std::os::unix::fs::symlink(root.path(), folder.join("up")).unwrap();
    std::os::unix::fs::symlink(folder.join("sub/in.j2"), folder.join("inner.j2")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", folder.join("zero.j2")).unwrap();
    let inputs = Inputs { folder: Some(root.path().join("templates")), ..Inputs::default() };
    let render_text =
        |text: &str| render(text, &folder.join("exp.yaml.j2"), &inputs).map(|r| r.text).map_err(|e| e.to_string());
    for (name, text) in [("sub/in.j2", "inner"), ("both.j2", "own"), ("only.j2", "shared"), ("inner.j2", "inner")] {
        assert_eq!(render_text(&format!("{{% include '{name}' %}}")).as_deref(), Ok(text));
    }
    let absolute = secret.to_str().unwrap();
    for (name, why) in [
        (absolute, "is an absolute path"),
        ("../secret.j2", "is outside the folder"),
        ("sub/../../secret.j2", "is outside the folder"),
        ("sub/../both.j2", "is outside the folder"),
        ("./both.j2", "is not the name of a file"),
        ("sub//in.j2", "is not the name of a file"),
        ("link.j2", "is a link to a file outside the folder"),
        ("up/secret.j2", "is a link to a file outside the folder"),
        ("zero.j2", "is a link to a file outside the folder"),
        ("large.j2", "is larger than 1 MB"),
        ("bytes.j2", "is not UTF-8"),
        ("sub", "this is a folder, not a file"),
        ("nowhere.j2", "there is no file `nowhere.j2`"),
        ("", "is not the name of a file"),
    ] {
        for text in [
            format!("a\n{{% include '{name}' %}}"),
            format!("a\n{{% import '{name}' as x %}}"),
            format!("a\n{{% extends '{name}' %}}"),
            format!("a\n{{% include '{name}' ignore missing %}}"),
        ] {
            if text.contains("missing") && name == "nowhere.j2" {
                continue;
            }
            let said = render_text(&text).unwrap_err();
            assert!(said.contains(why) && said.contains("exp.yaml.j2:2:"), "{text}: {said}");
        }
    }
}

#[test]
fn loops_come_to_an_end() {
    assert!(refused("{% for i in range(10**12) %}{% endfor %}").contains("too many elements"));
    let nested = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}";
    assert!(refused(nested).contains("was stopped after"));
    assert!(refused("{% for i in [1,2]*10**9 %}{% endfor %}").contains("was stopped after"));
}

#[test]
fn a_filter_does_not_search_a_long_list_for_each_item_of_another() {
    for text in [
        "{{ range(20000)|list|select('in', range(20000)|list)|list|length }}",
        "{% set l = range(15000)|list %}{{ l|reject('in', l)|list|length }}",
        "{{ range(100000)|list|select('in', range(100000)|list)|list|length }}",
        "{{ range(20000)|map('replace', 'b' * 900000, '')|list|length }}",
    ] {
        let said = refused(text);
        assert!(said.contains("would search a long list") || said.contains("items"), "{text}: {said}");
    }
    let few = "{{ range(1000)|list|select('in', range(1000)|list)|list|length }}";
    assert_eq!(rendered(few, &json!({})).unwrap().text, "1000");
}

#[test]
fn recursion_comes_to_an_end() {
    assert!(refused("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}").contains("endlessly"));
    assert!(refused("{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}").contains("endlessly"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("exp.yaml.j2");
    let text = "{% include 'exp.yaml.j2' %}";
    let said = render(text, &file, &Inputs::default()).unwrap_err().to_string();
    assert!(said.contains("endlessly"), "{said}");
    std::fs::write(folder.path().join("a.j2"), "{% import 'b.j2' as b %}").unwrap();
    std::fs::write(folder.path().join("b.j2"), "{% import 'a.j2' as a %}").unwrap();
    assert!(render("{% import 'a.j2' as a %}", &file, &Inputs::default()).is_err());
    std::fs::write(folder.path().join("c.j2"), "{% extends 'c.j2' %}").unwrap();
    assert!(render("{% extends 'c.j2' %}", &file, &Inputs::default()).is_err());
}

#[test]
fn values_do_not_outgrow_the_memory() {
    for text in [
        "{{ 'x' * 10**9 }}".to_owned(),
        "{{ 'x' * 10**7 }}".to_owned(),
        format!("{{% set a = 'xxxxxxxxxx' %}}{}", "{% set a = a ~ a %}".repeat(60)),
        format!("{{% set a = 'xxxxxxxxxx' %}}{}", "{% set a = a + a %}".repeat(60)),
        format!("{{% set a = [1, 2] %}}{}{{{{ a | length }}}}", "{% set a = a + a %}".repeat(60)),
        format!("{{% set a = [1, 2] %}}{}{{{{ a | length }}}}", "{% set a = [a, a] %}".repeat(60)),
        format!("{{% set a = {{'k': 1}} %}}{}{{{{ a }}}}", "{% set a = {'k': a, 'l': a} %}".repeat(60)),
        "{% set n = namespace(a='x') %}{% for i in range(99) %}{% set n.a = n.a ~ n.a %}{% endfor %}".to_owned(),
        "{% set n = namespace(a=[]) %}{% for i in range(9999) %}{% set n.a = [n.a] %}{% endfor %}".to_owned(),
        "{% set n = namespace() %}{% set n.n = n %}{{ n }}".to_owned(),
        "{% macro m(a) %}{{ m(a ~ a) }}{% endmacro %}{{ m('xxxxxxxxxx') }}".to_owned(),
        "{% macro m(a) %}{{ a }}{{ a }}{% endmacro %}{% set a = 'xxxxxxxxxx' %}".to_owned()
            + &"{% set a = m(a) %}".repeat(60),
        "{% set a = 'xxxxxxxxxx' %}".to_owned() + &"{% set a %}{{ a }}{{ a }}{% endset %}".repeat(60),
        "{% set a = 'xxxxxxxxxx' %}".to_owned() + &"{% set a = a | replace('x', 'xxxxxxxxxx') %}".repeat(60),
        "{{ (range(100000) | list) | join('x' * 100000) }}".to_owned(),
        "{{ ([1, 2] * 10**9) | list }}".to_owned(),
        "{{ ([1, 2] * 10**9) | length | string }}{{ ([1, 2] * 10**9) | sort }}".to_owned(),
        "{{ ([1, 2] * 10**9) }}".to_owned(),
        "{{ [1] | batch(10**9, 0) | list }}".to_owned(),
        "{{ [1] | slice(10**9) | list }}".to_owned(),
        "{{ {'a': 1} | tojson(indent=10**9) }}".to_owned(),
        "{{ 'a\nb' | indent(10**9) }}".to_owned(),
        "{{ '%1000000000d' | format(1) }}".to_owned(),
        "{{ '%*d' | format(10**9, 1) }}".to_owned(),
        format!("{{% for i in range(100000) %}}{}{{% endfor %}}", "y".repeat(100_000)),
        format!("{{% set a %}}{{% for i in range(100000) %}}{}{{% endfor %}}{{% endset %}}", "y".repeat(100_000)),
        "{% for a in ['xxxxxxxxxx'] %}".to_owned() + &"{% for a in [a ~ a] %}".repeat(60) + &"{% endfor %}".repeat(61),
        format!("{{{{ {} }}}}", vec!["'x' * 10**7"; 20].join(" ~ ")),
        // minijinja computes constants before anything runs, and keeps them.
        "{{ 'x' * 10**7 }}".repeat(5000),
        "x".repeat((1 << 20) + 1),
    ] {
        refused(&text);
    }
}

#[test]
fn deep_values_do_not_overflow_the_stack() {
    for text in [
        format!("{{{{ {}1{} }}}}", "(".repeat(20_000), ")".repeat(20_000)),
        format!("{{{{ {}1{} }}}}", "[".repeat(900), "]".repeat(900)),
        format!("{{{{ {}1 }}}}", "-".repeat(1001)),
        format!("{{{{ {}1 }}}}", "not ".repeat(1001)),
        format!("{{{{ x{} }}}}", "|f".repeat(30_000)),
        "{% if true %}".repeat(9_000),
        format!("{}{}", "{% if true %}".repeat(3_000), "{% endif %}".repeat(3_000)),
        format!("{{% if x %}}{}{{% endif %}}", "{% elif x %}".repeat(9_000)),
    ] {
        refused(&text);
    }
    // As deep as is allowed.
    let sum = format!("{{{{ 1{} }}}}", " + 1".repeat(900));
    assert_eq!(rendered(&sum, &json!({})).unwrap().text, "901");
    let chain = format!("{{{{ 'a'{} }}}}", "|string".repeat(900));
    assert_eq!(rendered(&chain, &json!({})).unwrap().text, "a");
    let elifs = format!("{{% if false %}}{}b{{% endif %}}", "{% elif false %}".repeat(9_000));
    assert_eq!(rendered(&elifs, &json!({})).map(|r| r.text).unwrap_or_default(), "");
}

#[test]
fn broken_texts_are_errors_or_text() {
    let pieces = [
        "{{",
        "}}",
        "{%",
        "%}",
        "{#",
        "#}",
        "'",
        "\"",
        " x ",
        "-",
        "set x = ",
        "raw",
        "endraw",
        "é",
        "\n",
        "(",
        "]",
        "1e",
        "\u{F0000}",
    ];
    // A fixed walk through many combinations.
    let mut state = 7_u64;
    for _ in 0..3000 {
        let mut text = String::new();
        for _ in 0..8 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            text.push_str(pieces[(state >> 33) as usize % pieces.len()]);
        }
        if let Err(error) = rendered(&text, &json!({"x": 1})) {
            let _ = error.to_string();
        }
    }
    assert!(render("{{ _runner_guard_(1) }}", Path::new("a.j2"), &Inputs::default()).is_err());
}

/// minijinja 2 panics at some of these. A panic is an error of the file like any other.
#[test]
fn values_at_which_the_engine_panics_are_errors() {
    for text in [
        "{{ [1, 2] | batch(9223372036854775808) }}",
        "{{ [1, 2] | batch(18446744073709551615, 0) }}",
        "{{ [1, 2] | slice(18446744073709551615) }}",
        "{{ 'a' | indent(18446744073709551615) }}",
        "{{ [1, 2][18446744073709551615:] }}",
        "{{ 'ab'[::18446744073709551615] }}",
        "{{ range(18446744073709551615) }}",
        "{% import 'a.j2' as 3 %}",
        "{% from 'a.j2' import 3 %}",
    ] {
        // An error, or a value: but no panic.
        if let Err(error) = rendered(text, &json!({})) {
            assert!(!error.to_string().is_empty(), "{text}");
        }
    }
}
