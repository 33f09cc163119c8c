//! Facts that sessions record about program and machine, and what other facts mean for the bits; damaged records of finished runs.

#![cfg(target_os = "linux")]

use std::fs;

use crate::sandbox::{Finished, Sandbox};

fn new_sandbox() -> Sandbox {
    let yaml = "name: lab\nmodel: {family: gpt2, layers: 1, heads: 2, d_model: 16, context_length: 16}\n\
                data: {tokenizer: {chars: {}}, train: {text: {files: [input.txt]}}, validation: {fraction: 0.1}}\n\
                batch: {sequences: 4, micro_batch: 4}\ntrain: {steps: 4}\ncheckpoint: {every: 2}\n\
                eval: {loss: {rows: 4}}\n";
    Sandbox::new().with_numbers(2000).with("exp.yaml", yaml)
}

#[test]
fn a_session_records_its_platform_and_variables_and_no_secrets() {
    let sandbox = new_sandbox();
    let mut command = sandbox.command("apply exp.yaml --threads 1 --quiet");
    command
        .env("SLURM_JOB_ID", "7")
        .env("SLURM_JWT", "hidden")
        .env("GLIBC_TUNABLES", "glibc.malloc.perturb=0")
        .env("MY_OWN", "hidden");
    Finished::of(&mut command).expect_code(0);
    let run = sandbox.only_run();
    let session = &run.manifest()["sessions"][0];
    assert_eq!(
        (&session["environment"]["SLURM_JOB_ID"], &session["environment"]["GLIBC_TUNABLES"]),
        (&"7".into(), &"glibc.malloc.perturb=0".into())
    );
    assert!(!run.read("manifest.json").contains("hidden"));
    let platform = &session["platform"];
    assert_eq!(platform["source_hash"].as_str().unwrap().len(), 64);
    assert!(platform["target"].as_str().unwrap().contains("linux"));
    assert!(platform["vector_instructions"].is_string() && platform["matmul_instructions"].is_string());
    let version = sandbox.expect(0, "--version");
    assert!(version.contains(&platform["source_hash"].as_str().unwrap()[..12]), "{version}");
}

#[test]
fn a_different_platform_is_named_with_its_meaning_by_resume_reproduce_and_diff() {
    let sandbox = new_sandbox();
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet --until-step 2");
    let run = sandbox.only_run();
    let mut manifest = run.manifest();
    let platform = &mut manifest["sessions"][0]["platform"];
    platform["source_hash"] = "0123456789abcdef".into();
    platform["target"] = "riscv64-unknown-linux-musl".into();
    manifest["sessions"][0]["environment"]["GLIBC_TUNABLES"] = "other".into();
    run.write_sealed("manifest.json", manifest.clone());
    let printed = sandbox.expect(0, "resume lab --threads 1");
    for text in [
        "was 0123456789ab: the program differs",
        "was riscv64-unknown-linux-musl: a different C library",
        "was GLIBC_TUNABLES=other",
    ] {
        assert!(printed.contains(text), "{text}: {printed}");
    }
    let printed = sandbox.expect(3, "reproduce lab --check --threads 1");
    for text in [
        "sources          changed",
        "0123456789ab (steps 1 to 2)",
        "target           changed",
        "a different C library",
        "drift  vectors          same",
    ] {
        assert!(printed.contains(text), "{text}: {printed}");
    }
    // The newest session is that of this program.
    let printed = sandbox.expect(0, "diff lab exp.yaml");
    assert!(printed.contains("target: a later session of A has ") && !printed.contains("target: A has "), "{printed}");
    let mut manifest = run.manifest();
    manifest["sessions"][1]["platform"]["target"] = "riscv64-unknown-linux-musl".into();
    run.write_sealed("manifest.json", manifest.clone());
    let printed = sandbox.expect(0, "diff lab exp.yaml");
    assert!(
        printed.contains("bits may differ") && printed.contains("target: A has riscv64-unknown-linux-musl"),
        "{printed}"
    );
    // Without these facts it is unknown whether they changed.
    for session in manifest["sessions"].as_array_mut().unwrap() {
        session.as_object_mut().unwrap().remove("platform");
    }
    run.write_sealed("manifest.json", manifest.clone());
    let printed = sandbox.expect(0, "reproduce lab --check --threads 1");
    assert!(printed.contains("processor        same"), "{printed}");
    let unknown = printed.lines().find(|line| line.contains("sources")).unwrap();
    assert!(
        unknown.starts_with("drift  sources          unknown") && unknown.ends_with("was not recorded"),
        "{unknown}"
    );
    assert!(!sandbox.expect(0, "diff lab exp.yaml").contains("bits may differ"));
}

#[test]
fn a_damaged_newest_checkpoint_of_a_finished_run_is_named() {
    let sandbox = new_sandbox();
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
    let run = sandbox.only_run();
    sandbox.show(0, "resume lab --threads 1");
    let file = run.checkpoint(4).join("model.safetensors");
    let bytes = fs::read(&file).unwrap();
    let mut flipped = bytes.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let damages = [&bytes[..bytes.len() / 2], &flipped[..]];
    for damaged in damages {
        fs::write(&file, damaged).unwrap();
        for command in ["resume lab --threads 1", "apply exp.yaml --threads 1"] {
            sandbox.show(1, command);
        }
    }
    fs::remove_file(&file).unwrap();
    sandbox.show(1, "resume lab");
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn reports_missing_metrics_and_long_decays_with_advice() {
    let sandbox = new_sandbox();
    let decay = "--set schedule.decay.cosine.steps=5000";
    sandbox.show(0, &format!("apply exp.yaml --threads 1 {decay}"));
    sandbox.show(0, "plan exp.yaml --set schedule.decay.cosine.steps=4");
    fs::remove_file(sandbox.only_run().path("metrics.jsonl")).unwrap();
    sandbox.show(1, "reproduce lab --check --threads 1");
    insta::assert_snapshot!(sandbox.screens());
}

/// What one run, sweep or folder has from another that was computed otherwise is not taken for its own.
#[test]
fn runs_that_were_computed_otherwise_are_distinguished() {
    let sandbox = new_sandbox();
    let mut elsewhere = sandbox.command("apply exp.yaml --threads 1 --quiet --runs a");
    Finished::of(elsewhere.env("GLIBC_TUNABLES", "glibc.malloc.perturb=0")).expect_code(0);
    let first = sandbox.only_run_in("a").id();
    let continued =
        ["apply", "exp.yaml", "--threads", "1", "--runs", "a", "--set", "train.steps=8", "--continue", &first];
    let printed = sandbox.expect(0, &[&continued[..], &["--continue-step", "2"]].concat()[..]);
    assert!(printed.contains("warning: variables: "), "{printed}");
    let (id, run) = sandbox.runs_in("a").into_iter().find(|(id, _)| *id != first).unwrap();
    let printed = sandbox.expect(3, &["reproduce", &id, "--runs", "a", "--threads", "1", "--check"]);
    // Cargo sets variables that count, too.
    let words = ["was GLIBC_TUNABLES=glibc.malloc.perturb=0", " (steps 1 to 2), ", " (steps 3 to 8): "];
    assert!(words.iter().all(|words| printed.contains(words)), "{printed}");

    // A checkpoint of the same run and step, but of another state, is not that with which a fork began.
    let fork =
        ["fork", &id, "--from", "4", "--set", "seed=3", "--name", "fk", "--threads", "1", "--quiet", "--runs", "a"];
    sandbox.expect(0, &fork);
    let fork = sandbox.runs_in("a").into_values().find(|run| run.id().starts_with("fk-")).unwrap();
    let mut manifest = fork.manifest();
    assert_eq!(manifest["continued_from"]["state_hash"].as_str().map(str::len), Some(64));
    sandbox.expect(0, &["reproduce", &fork.id(), "--runs", "a", "--threads", "1", "--quiet"]);
    manifest["continued_from"]["state_hash"] = "0".repeat(64).into();
    fork.write_sealed("manifest.json", manifest);
    let refused = sandbox.expect(2, &["reproduce", &fork.id(), "--runs", "a", "--threads", "1"]);
    assert!(refused.contains("which neither of them still has"), "{refused}");

    // A run that has the id of the run in another folder that it repeats is not made from itself.
    let path = run.path("").display().to_string();
    sandbox.expect(0, &["reproduce", &path, "--runs", "b", "--threads", "1", "--quiet"]);
    let shown = sandbox.expect(0, &["runs", "show", &id, "--runs", "b"]);
    let ancestor = format!("reproduction of {id} (which is not in this folder)");
    assert_eq!((shown.matches("ancestor").count(), shown.contains(&ancestor)), (1, true), "{shown}");

    let compared = sandbox.expect(0, &["compare", &path, &format!("b/{id}")]);
    assert!(compared.contains(path.trim_end_matches('/')) && compared.contains(&format!("b/{id}")), "{compared}");
}

/// The method of multiplying bf16 matrices is recorded, and can be chosen; a name that is none is refused before anything runs.
#[test]
fn products_in_bf16_can_be_chosen_and_are_recorded() {
    let sandbox = new_sandbox();
    let version = sandbox.expect(0, "--version");
    let in_f32 = version.lines().find_map(|line| line.split_once("matrix products ")).expect("the instructions").1;
    let in_f32 = in_f32.split(',').next().unwrap();
    let with_f32 = if version.contains("vectors baseline") { "baseline" } else { "FMA" };
    let of_processor =
        version.lines().find_map(|line| line.split_once(", bf16 products ")).expect("the instructions").1;
    let apply = |runs: &str, way: Option<&str>| {
        let mut command = sandbox.command("apply exp.yaml --threads 1 --quiet --set precision=bf16 --runs");
        command.arg(runs);
        Finished::of(if let Some(way) = way { command.env("RUNNER_BF16_PRODUCTS", way) } else { &mut command })
    };
    let instructions = |runs: &str| {
        let run = sandbox.only_run_in(runs);
        let platform = &run.manifest()["sessions"][0]["platform"];
        assert_eq!(platform["matmul_instructions"], in_f32);
        platform["bf16_matmul_instructions"].as_str().unwrap().to_owned()
    };
    apply("automatic", None).expect_code(0);
    assert_eq!(instructions("automatic"), of_processor);
    apply("chosen", Some("f32")).expect_code(0);
    assert_eq!(instructions("chosen"), with_f32);
    let session = sandbox.only_run_in("chosen").manifest()["sessions"][0].clone();
    assert_eq!(session["environment"]["RUNNER_BF16_PRODUCTS"], "f32");
    let losses = |runs: &str| sandbox.only_run_in(runs).train_losses();
    for (automatic, chosen) in losses("automatic").into_iter().zip(losses("chosen")) {
        assert!((automatic - chosen).abs() < 1e-3 * chosen, "{automatic} and {chosen}");
    }
    if of_processor != with_f32 {
        let mut command = sandbox.command("apply exp.yaml --threads 1 --quiet --set precision=bf16 --until-step 1");
        Finished::of(command.args(["--runs", "both"]).env("RUNNER_BF16_PRODUCTS", "f32")).expect_code(0);
        let both = sandbox.only_run_in("both").path("").display().to_string();
        sandbox.expect(0, &["resume", &both, "--threads", "1", "--quiet"]);
        let automatic = sandbox.only_run_in("automatic").path("").display().to_string();
        let printed = sandbox.expect(0, &["diff", &automatic, &both]);
        for (line, folder) in printed.lines().zip([&automatic, &both]) {
            assert!(
                line.contains("lab-") && line.trim_end_matches('/').ends_with(folder.trim_end_matches('/')),
                "{printed}"
            );
        }
        let said = format!("a later session of B has {of_processor}, the one before {with_f32}");
        assert!(printed.replace(['\n', ' '], "").contains(&said.replace(' ', "")), "{printed}");
        assert!(printed.contains("so every number should be equal, up to what `bits may differ` names"), "{printed}");
        let printed = sandbox.expect(0, &["compare", &automatic, &both]);
        let [automatic, both] = [of_processor.to_owned(), format!("{with_f32}, then {of_processor}")];
        assert!([&automatic, &both, "bf16_products"].iter().all(|word| printed.contains(*word)), "{printed}");
    }
    let mut version = sandbox.command("--version");
    let version = Finished::of(version.env("RUNNER_BF16_PRODUCTS", "f32")).expect_code(0).text();
    assert!(version.contains(&format!(", bf16 products {with_f32}")), "{version}");
    let mut version = sandbox.command("--version");
    for refused in [Finished::of(version.env("RUNNER_BF16_PRODUCTS", "amx")), apply("none", Some("amx"))] {
        let refused = refused.expect_code(2).text();
        assert!(refused.starts_with("error: RUNNER_BF16_PRODUCTS: must be one of"), "{refused}");
    }
    assert!(!sandbox.path("none").exists());
}
