//! Templates: `render`, `validate`, `plan` and `apply` with variables, and what a run records of its template.

use std::fs;

use crate::sandbox::{Finished, Sandbox, repository_path};

const TEMPLATE: &str = "\
{% import 'sizes.j2' as sizes %}
name: tiny
seed: {{ env('EXAMPLE_SEED', 1) }}
model: {{ sizes.model(layers | default(1)) }}
data: {tokenizer: {chars: {}}, train: {text: {files: [text.txt]}}}
batch: {sequences: 4}
train: {steps: {{ steps }}}
optimizer: {adamw: {lr: {{ lr }}}}
";
const SIZES: &str = "{% macro model(layers) %}{family: gpt2, layers: {{ layers }}, heads: 2, d_model: 16, context_length: 16}{% endmacro %}\n";

/// A sandbox with a template of a tiny experiment, its macros, and its data.
fn new_sandbox() -> Sandbox {
    Sandbox::new()
        .with("exp.yaml.j2", TEMPLATE)
        .with("templates/sizes.j2", SIZES)
        .with("text.txt", "the cat sat on a mat and saw another dog ".repeat(100))
}

#[test]
fn render_prints_what_the_template_says() {
    let sandbox = new_sandbox();
    sandbox.write("vars.yaml", "steps: 5\nlr: 1\nunused: 7\n");
    let text = sandbox.stdout_of("render exp.yaml.j2 --vars vars.yaml --var lr=3e-4");
    assert!(text.contains("train: {steps: 5}\noptimizer: {adamw: {lr: 0.0003}}\n"), "{text}");
    // Any template, no experiment.
    sandbox.write("job.sh.j2", "#!/bin/sh\n{% for i in range(n) %}\nrun {{ i }}\n{% endfor %}\n");
    assert_eq!(sandbox.stdout_of("render job.sh.j2 --var n=2"), "#!/bin/sh\nrun 0\nrun 1\n");
    assert!(sandbox.expect(2, "render templates/sizes.yaml").contains("is not a template"));
    assert!(sandbox.expect(2, "render nowhere.j2").contains("there is no such file"));
}

/// The templates that come with the program render to valid experiments, with any of their variables.
#[test]
fn shipped_templates_are_experiments() {
    let sandbox = new_sandbox();
    let template = repository_path("experiments/stories-lr.yaml.j2");
    for vars in [
        "--var lr=1e-3",
        "--var lr=1e-3 --var layers=4 --var d_model=128 --var heads=8 --var warmup=20 --var decay=linear --var steps=100",
    ] {
        sandbox.expect(0, &format!("validate {} {vars}", template.display()));
    }
}

#[test]
fn mistakes_are_wrong_requests_at_their_place() {
    let sandbox = new_sandbox();
    let printed = sandbox.expect(2, "validate exp.yaml.j2 --var lr=1e-3 --var layers=2");
    assert!(printed.contains("`steps` is not defined") && printed.contains("exp.yaml.j2:7:19"), "{printed}");
    let printed = sandbox.expect(2, "apply exp.yaml.j2 --var lr=1e-3 --var steps=0");
    assert!(
        printed.contains("exp.yaml.j2:7:16") && printed.contains("rendered") && printed.contains("train: {steps: 0}"),
        "{printed}"
    );
    let printed = sandbox.expect(2, "plan exp.yaml.j2 --var lr=1e-3 --var steps=5 --var layer=2");
    assert!(printed.contains("did you mean `layers`?"), "{printed}");
    let printed = sandbox.expect(2, "validate exp.yaml.j2 --var lr=1e-3 --var steps=5 --vars nowhere.yaml");
    assert!(printed.contains("nowhere.yaml"), "{printed}");
    sandbox.write("plain.yaml", "model: {preset: gpt2-nano}\n");
    assert!(sandbox.expect(2, "apply plain.yaml --var lr=1e-3").contains("is not a template"));
    assert!(!sandbox.path("runs").exists(), "nothing was started");
}

#[test]
fn a_run_records_its_template_and_does_not_depend_on_it() {
    let sandbox = new_sandbox();
    let line = "apply exp.yaml.j2 --var lr=1e-3 --var steps=4 --threads 1 --quiet";
    sandbox.stdout_of(line);
    let run = sandbox.only_run();
    assert_eq!(run.read("experiment.yaml"), sandbox.stdout_of("render exp.yaml.j2 --var lr=1e-3 --var steps=4"));
    assert_eq!(run.read("template.yaml.j2"), TEMPLATE);
    assert_eq!(
        run.manifest()["template"],
        serde_json::json!({"file": "exp.yaml.j2", "vars": {"lr": 0.001, "steps": 4}})
    );
    // The same variables, the same run; what they rendered to is the same run, too.
    assert!(sandbox.stdout_of(line).contains("up to date"));
    sandbox.write("rendered.yaml", run.read("experiment.yaml"));
    assert!(sandbox.stdout_of("apply rendered.yaml --threads 1 --quiet").contains("up to date"));
    // Without the template it is a run like any other.
    fs::remove_file(sandbox.path("exp.yaml.j2")).unwrap();
    sandbox.stdout_of("eval tiny --rows 8");
}

#[test]
fn a_neighbour_is_included_wherever_the_command_is_called() {
    let sandbox = new_sandbox();
    sandbox.write("sub/part.j2", "part");
    sandbox.write("sub/a.j2", "{% include 'part.j2' %} {% import 'sizes.j2' as sizes %}{{ sizes.model(1) }}");
    let expected = "part {family: gpt2, layers: 1, heads: 2, d_model: 16, context_length: 16}";
    assert_eq!(sandbox.stdout_of("render sub/a.j2").trim_end(), expected);
    // By its bare name, from its own folder: templates/ then lies beside that.
    let rendered = Finished::of(sandbox.command("render a.j2").current_dir(sandbox.path("sub"))).expect_code(0);
    assert_eq!(rendered.stdout.trim_end(), expected);
}

#[test]
fn secrets_from_the_environment_are_readable_by_their_owner_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let sandbox = new_sandbox();
    let apply = "apply exp.yaml.j2 --var steps=2 --var lr=1e-3 --quiet --new";
    Finished::of(sandbox.command(apply).env("EXAMPLE_SEED", "7")).expect_code(0);
    let private = sandbox.only_run();
    sandbox.expect(0, apply);
    let open = sandbox.runs().into_values().find(|run| run.0 != private.0).unwrap();
    let mode = |path: std::path::PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for name in ["experiment.yaml", "resolved.yaml", "template.yaml.j2", "manifest.json"] {
        assert_eq!((mode(private.path(name)), mode(open.path(name)) & 0o444), (0o600, 0o444), "{name}");
    }
    // A run that is made from a private one is private, too.
    sandbox.expect(0, &["fork", &private.id(), "--from", "start", "--set", "train.steps=3", "--quiet"]);
    let fork = sandbox.runs().into_values().find(|run| ![&private.0, &open.0].contains(&&run.0)).unwrap();
    assert_eq!(mode(fork.path("resolved.yaml")), 0o600);
    // So are files that have its settings.
    let [private, open] = [private.id(), open.id()];
    sandbox.expect(0, &["report", &open, &private, "-o", "both.html"]);
    sandbox.expect(0, &["report", &open, "-o", "open.html"]);
    assert_eq!((mode(sandbox.path("both.html")), mode(sandbox.path("open.html")) & 0o444), (0o600, 0o444));
}
