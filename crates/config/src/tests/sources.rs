//! Sources with templates, and sources of the hub.

use std::path::Path;

use super::diagnostics::render_mistakes;
use crate::{LoadOptions, explain, from_str, to_yaml};
use runner_spec::experiment::{HubModel, Source, Tokenizer, Validation};

fn with(data: &str) -> String {
    format!("model: {{preset: gpt2-micro}}\ndata:\n{data}")
}

#[test]
fn the_page_of_sources_has_examples_that_load() {
    let page = include_str!("../../../../docs/sources.md");
    let examples: Vec<&str> = page.split("```yaml").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(examples.len(), 2);
    let options = LoadOptions { allows_absent_files: true, ..LoadOptions::default() };
    let load = |text: &str| from_str(text, Path::new("/x/exp.yaml"), &options).unwrap();
    let first = load(examples[0]).experiment;
    let Source::Json(json) = &first.data.train else { panic!() };
    assert_eq!(json.field, None);
    let template = runner_template::RecordTemplate::new(json.template.as_ref().unwrap()).unwrap();
    let render = |input: &str| {
        let record = serde_json::json!({"instruction": "Add.", "input": input, "output": "3"});
        template.render(record.as_object().unwrap()).unwrap()
    };
    let tail = "### Instruction:\nAdd.\n\n### Input:\n1 2\n\n### Response:\n3\n";
    assert!(
        render("1 2").starts_with("Below is an instruction that describes a task, paired")
            && render("1 2").ends_with(tail)
    );
    assert!(render("").ends_with("completes the request.\n\n### Instruction:\nAdd.\n\n### Response:\n3\n"));

    let second = load(examples[1]);
    let Source::Hub(hub) = &second.experiment.data.train else { panic!() };
    assert_eq!((hub.config.as_deref(), hub.column.as_deref()), (Some("sample-10BT"), Some("text")));
    let long = examples[1].replace("{hub: gpt2}", "{hub: {name: gpt2}}");
    assert_eq!(load(&long).experiment, second.experiment);
    assert_eq!(
        second.experiment.data.tokenizer,
        Tokenizer::Hub(HubModel { name: "gpt2".into(), revision: "main".into() })
    );
    for example in &examples {
        let experiment = load(example).experiment;
        let yaml = to_yaml(&experiment);
        assert_eq!(load(&yaml).experiment, experiment, "{yaml}");
    }
    let shown = explain(&second.origins);
    assert!(shown.contains("data.tokenizer.hub.name") && shown.contains("data.train.hub.revision"), "{shown}");
}

#[test]
fn a_flag_replaces_a_column_by_a_template() {
    let text = with("  train: {hub: {dataset: a/b, column: body}}\n  validation: {hub: {dataset: a/b, split: test}}\n");
    let sets = ["data.train.hub.template='{{ x }}'".to_owned()].to_vec();
    let options = LoadOptions { sets, ..LoadOptions::default() };
    let data = from_str(&text, Path::new("/x/exp.yaml"), &options).unwrap().experiment.data;
    let Source::Hub(hub) = &data.train else { panic!() };
    assert_eq!((hub.column.as_deref(), hub.template.as_deref(), hub.split.as_str()), (None, Some("{{ x }}"), "train"));
    assert!(
        matches!(data.validation, Some(Validation::Source(Source::Hub(hub))) if hub.split == "test" && hub.column.as_deref() == Some("text"))
    );
}

#[test]
fn mistakes_in_sources_are_located() {
    let of = |data: &str| render_mistakes(&with(data), &[], &[]);
    let both = of("  train:\n    jsonl:\n      files: [input.txt]\n      field: a\n      template: '{{ b }}'\n");
    assert!(
        both.contains("`data.train.jsonl` has both `field` and `template`") && both.contains("exp.yaml:7"),
        "{both}"
    );
    let syntax = of("  train: {json: {files: [input.txt], template: '{% if a %}{{ b }}'}}\n");
    assert!(syntax.contains("invalid template: ") && syntax.contains("exp.yaml:3"), "{syntax}");
    let none = of("  train: {parquet: {files: [input.txt], template: plain}}\n");
    assert!(none.contains("the template uses no field"), "{none}");
    for (hub, expected) in [
        ("dataset: ../x", "must be the name of a repository"),
        ("dataset: a/b/c", "has more than one `/`"),
        ("dataset: a/b, revision: ../../x", "must be a branch, a tag or a commit"),
        ("dataset: a/b, config: ../x", "hub.config` contains the character `/`"),
        ("dataset: a/b, split: ''", "hub.split` is empty"),
        ("dataset: a/b, sprit: train", "did you mean `split`?"),
    ] {
        let message = of(&format!("  train: {{hub: {{{hub}}}}}\n"));
        assert!(message.contains(expected) && message.contains("exp.yaml:3"), "{hub}: {message}");
    }
    let list = of("  tokenizer: {hub: [gpt2]}\n  train: {text: {files: [input.txt]}}\n");
    assert!(list.contains("`data.tokenizer.hub`"), "{list}");
    let count = of("  tokenizer: {words: {min_count: 0}}\n  train: {text: {files: [input.txt]}}\n");
    assert!(count.contains("must be at least 1"), "{count}");
}
