//! Templates that would not end, print too much or reach other files are errors, and none crashes the program.

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
    std::fs::write(folder.join("large.j2"), "x".repeat((128 << 10) + 1)).unwrap();
    std::fs::write(folder.join("bytes.j2"), b"\xff\xfe").unwrap();
    std::os::unix::fs::symlink("/dev/zero", folder.join("zero.j2")).unwrap();
    let inputs = Inputs { folder: Some(root.path().join("templates")), ..Inputs::default() };
    let render_text =
        |text: &str| render(text, &folder.join("exp.yaml.j2"), &inputs).map(|r| r.text).map_err(|e| e.to_string());
    for (name, text) in [("sub/in.j2", "inner"), ("both.j2", "own"), ("only.j2", "shared")] {
        assert_eq!(render_text(&format!("{{% include '{name}' %}}")).as_deref(), Ok(text));
    }
    let absolute = secret.to_str().unwrap();
    for (name, why) in [
        (absolute, "is not the name of a file in the folder"),
        ("../secret.j2", "is not the name of a file in the folder"),
        ("sub/../../secret.j2", "is not the name of a file in the folder"),
        ("./both.j2", "is not the name of a file in the folder"),
        ("zero.j2", "cannot be read"),
        ("large.j2", "a template must be at most 128 kB"),
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
            assert!(said.contains(why) && (said.contains("exp.yaml.j2:2:") || name == "large.j2"), "{text}: {said}");
        }
    }
}

#[test]
fn loops_come_to_an_end() {
    assert!(refused("{% for i in range(10**12) %}{% endfor %}").contains("too many elements"));
    let nested = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}";
    assert!(refused(nested).contains("was stopped after"));
    assert!(refused("{% for i in [1,2]*10**9 %}{% endfor %}").contains("was stopped after"));
    assert!(refused("{% for i in range(100000) %}{{ 'x' * 100 }}{% endfor %}").contains("prints too much"));
    assert!(
        refused(&format!("{{% for i in range(100000) %}}{}{{% endfor %}}", "y".repeat(1000)))
            .contains("prints too much")
    );
    assert!(refused("{{ [1, 2] * 10**9 }}").contains("prints more than 4 MB"));
    assert!(refused("{{ 'x' * 10**9 }}").contains("too large"));
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
fn deep_values_do_not_overflow_the_stack() {
    for text in [
        format!("{{{{ {}1{} }}}}", "(".repeat(20_000), ")".repeat(20_000)),
        format!("{{{{ {}1{} }}}}", "[".repeat(900), "]".repeat(900)),
        format!("{{{{ x{} }}}}", "|f".repeat(60_000)),
        format!("{{{{ x{} }}}}", ".f".repeat(60_000)),
        "{% if true %}".repeat(9_000),
        format!("{}{}", "{% if true %}".repeat(3_000), "{% endif %}".repeat(3_000)),
        format!("{{% if x %}}{}{{% endif %}}", "{% elif x %}".repeat(9_000)),
    ] {
        refused(&text);
    }
    // As deep as a file can be.
    let sum = format!("{{{{ 1{} }}}}", "+1".repeat(60_000));
    assert_eq!(rendered(&sum, &json!({})).unwrap().text, "60001");
    let not = format!("{{{{ {}x }}}}", "not ".repeat(30_000));
    let _ = rendered(&not, &json!({"x": 1})).map(|rendered| rendered.text);
    let elifs = format!("{{% if false %}}{}b{{% endif %}}", "{% elif false %}".repeat(7_000));
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
