//! Sealed runs: what is in them, and what a verification finds.

use std::fs;
use std::path::{Path, PathBuf};

use runner_files::sealed_json::seal;
use serde_json::Value;

use crate::sandbox::{Sandbox, read_json};

const EXPERIMENT: &str = "version: 1\nname: lab\n\
    model: {family: gpt2, layers: 2, heads: 2, d_model: 16, context_length: 16, dropout: 0.1}\n\
    data: {tokenizer: {chars: {}}, train: {text: {files: [input.txt]}}, validation: {fraction: 0.1}}\n\
    batch: {sequences: 4, micro_batch: 2}\ntrain: {steps: 12}\n\
    eval: {every: 4, loss: {batches: 2}}\ncheckpoint: {every: 4, keep: 9}\n";

/// A sandbox with a run that is done.
fn trained() -> Sandbox {
    let sandbox = Sandbox::new().with_numbers(2000).with("exp.yaml", EXPERIMENT);
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
    sandbox
}

fn sealed() -> Sandbox {
    let sandbox = trained();
    sandbox.expect(0, "seal lab sealed");
    sandbox
}

/// Writes `value`, an object, to the file `path` with the hash of its content.
fn write_sealed(path: &Path, mut value: Value) {
    value.as_object_mut().unwrap().remove("content_hash");
    fs::write(path, seal(&value).unwrap()).unwrap();
}

/// Changes a file of the sealed run, and gives the manifest the hashes that fit it, as a forger would.
fn forge(sandbox: &Sandbox, name: &str, change: impl FnOnce(&Path)) {
    change(&sandbox.path("sealed").join(name));
    list_again(sandbox, name);
}

/// Gives the manifest the hashes of the file `name` of the sealed run, which it may not list yet.
fn list_again(sandbox: &Sandbox, name: &str) {
    let bytes = fs::read(sandbox.path("sealed").join(name)).unwrap();
    let hash = |bytes: &[u8]| Value::from(blake3::hash(bytes).to_hex().to_string());
    let mut file = serde_json::json!({"path": name, "bytes": bytes.len(), "hash": hash(&bytes)});
    if name.ends_with(".safetensors")
        && let Some((header, numbers)) = read_safetensors(&bytes)
    {
        let mut tensors: Vec<_> =
            header.as_object().unwrap().iter().filter(|(key, _)| *key != "__metadata__").collect();
        let place = |info: &Value| [0, 1].map(|end| info["data_offsets"][end].as_u64().unwrap() as usize);
        tensors.sort_by_key(|(_, info)| place(info));
        let listed = tensors.into_iter().map(|(name, info)| {
            let [begin, end] = place(info);
            serde_json::json!({"name": name, "hash": hash(&numbers[begin..end])})
        });
        file["tensors"] = listed.collect();
    }
    let manifest = sandbox.path("sealed/manifest.json");
    let mut value = read_json(&manifest);
    let files = value["files"].as_array_mut().unwrap();
    files.retain(|file| file["path"] != name);
    files.push(file);
    write_sealed(&manifest, value);
}

/// Makes the sealed run one of another build, which may write files in another form.
fn seal_with_another_build(sandbox: &Sandbox) {
    let path = sandbox.path("sealed/manifest.json");
    let mut manifest = read_json(&path);
    manifest["version"] = "0.0.1".into();
    write_sealed(&path, manifest);
}

/// The header of a safetensors file, and the bytes after it; `None` if it is no such file.
fn read_safetensors(bytes: &[u8]) -> Option<(Value, &[u8])> {
    let length = u64::from_le_bytes(bytes.get(..8)?.try_into().unwrap()) as usize;
    let header = serde_json::from_slice(bytes.get(8..8 + length)?).unwrap();
    Some((header, &bytes[8 + length..]))
}

/// Flips a bit of the byte at `at`, counted from the end.
fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    let place = bytes.len() - at;
    bytes[place] ^= 1;
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_sealed_run_is_verified_bit_for_bit() {
    let sandbox = trained();
    let made = sandbox.json_of("seal lab sealed --json");
    assert_eq!((made["step"].as_u64(), made["state_step"].as_u64()), (Some(12), Some(8)));
    assert_eq!(made["steps"], serde_json::json!([9, 12]));
    assert_eq!(
        sandbox.names_in("sealed"),
        [
            "README.md",
            "config.json",
            "manifest.json",
            "model.safetensors",
            "run",
            "tokenizer.json",
            "tokenizer_config.json"
        ]
    );
    let readme = sandbox.read("sealed/README.md");
    assert!(readme.contains("after step 12 of 12") && readme.contains("runner verify . --steps 9..12"), "{readme}");
    // The folder is whole: it does not need the run, and the training data is found by its hash.
    fs::remove_dir_all(sandbox.path("runs")).unwrap();
    let printed = sandbox.expect(0, "verify sealed --threads 1");
    for line in [
        "bitwise: ",
        "4 steps, 1 evaluation and the weights after step 12",
        "those after step 12 are the sealed ones, bit for bit",
        "steps 1 to 8 and earlier measurements: the state after step 8 was taken from the sealed run as it is",
    ] {
        assert!(printed.contains(line), "{line}: {printed}");
    }
    assert!(printed.contains(made["hash"].as_str().unwrap()), "{printed}");
    // From the start, and within the run.
    let printed = sandbox.expect(0, "verify sealed --threads 1 --steps 1..12");
    assert!(printed.contains("12 steps, 3 evaluations") && printed.matches("not verified").count() == 2, "{printed}");
    assert!(
        printed.contains("times, speeds, memory, machines, versions, paths; layouts, flags, variables, templates and errors of sessions"),
        "{printed}"
    );
    // No number depends on it.
    assert!(printed.contains("not verified what is in run/experiment.yaml: only the bytes"), "{printed}");
    assert!(!printed.contains("config.json") && !printed.contains("metrics.jsonl"), "{printed}");
    let printed = sandbox.expect(0, "verify sealed --threads 1 --steps 2..5");
    assert!(printed.contains("bitwise, weights not compared"), "{printed}");
    assert!(
        printed.contains("steps 6 to 12") && printed.contains("the weights, which are those after step 12"),
        "{printed}"
    );
    let printed = sandbox.expect(2, "verify sealed --threads 1 --steps 9..13");
    assert!(printed.contains("--steps must be within 1..12"), "{printed}");
    let printed = sandbox.expect(0, "verify sealed --only-files");
    assert!(printed.contains("intact: ") && printed.contains("every step: none was trained again"), "{printed}");
    let printed = sandbox.expect(2, "seal sealed/run sealed");
    assert!(printed.contains("sealed exists"), "{printed}");
    let printed = sandbox.expect(2, "verify runs");
    assert!(printed.contains("is not a sealed run"), "{printed}");
}

#[test]
fn a_verification_without_data_or_state_does_not_claim_steps() {
    let sandbox = sealed();
    fs::create_dir(sandbox.path("elsewhere")).unwrap();
    fs::rename(sandbox.path("input.txt"), sandbox.path("elsewhere/numbers.txt")).unwrap();
    let printed = sandbox.expect(3, "verify sealed --threads 1");
    assert!(
        printed.contains("incomplete: no step of lab-") && printed.contains("every byte matches the manifest"),
        "{printed}"
    );
    assert!(printed.contains("`--data OLD=NEW`") && printed.contains("input.txt (training data, "), "{printed}");
    let old = sandbox.path("input.txt").display().to_string();
    let data = format!("{old}=elsewhere/numbers.txt");
    let printed = sandbox.expect(0, &["verify", "sealed", "--threads", "1", "--quiet", "--data", &data]);
    assert!(printed.contains("bitwise: "), "{printed}");
    // One changed byte of data.
    flip(&sandbox.path("elsewhere/numbers.txt"), 1);
    let printed = sandbox.expect(2, &["verify", "sealed", "--threads", "1", "--data", &data]);
    assert!(
        printed.contains("elsewhere/numbers.txt is not the file that the run read: its BLAKE3 hash is "),
        "{printed}"
    );
    // Without a state there is nothing to start from but the start.
    let sandbox = trained();
    let printed = sandbox.expect(0, "seal lab sealed --no-state");
    assert!(printed.contains("trains from the start of the run"), "{printed}");
    let printed = sandbox.expect(3, "verify sealed --threads 1");
    assert!(printed.contains("`--steps 1..12` trains from the start"), "{printed}");
    assert!(sandbox.expect(0, "verify sealed --threads 1 --steps 1..12").contains("bitwise: "));
}

#[test]
fn weights_that_were_not_trained_again_are_not_verified() {
    let sandbox = trained();
    // There is no checkpoint before them.
    sandbox.expect(0, "seal lab sealed --step 4");
    let printed = sandbox.expect(0, "verify sealed --threads 1");
    assert!(printed.contains("those after step 4 are those of the sealed state"), "{printed}");
    assert!(
        printed.contains("the weights: they are those of the sealed state, and were not trained again"),
        "{printed}"
    );
    forge(&sandbox, "model.safetensors", |path| flip(path, 2));
    for command in ["verify sealed --threads 1", "verify sealed --only-files"] {
        let printed = sandbox.expect(3, command);
        assert!(printed.contains("the weights are not those of the sealed state"), "{printed}");
    }
}

#[test]
fn every_changed_byte_is_named() {
    let sandbox = sealed();
    let files: Vec<PathBuf> =
        ["model.safetensors", "run/metrics.jsonl", "README.md", "run/checkpoints/step-00000008/optimizer.safetensors"]
            .map(PathBuf::from)
            .to_vec();
    for file in files {
        let path = sandbox.path("sealed").join(&file);
        let before = fs::read(&path).unwrap();
        flip(&path, 2);
        let printed = sandbox.expect(3, "verify sealed");
        assert!(
            printed.contains("changed: ") && printed.contains(&format!("{} is changed", file.display())),
            "{printed}"
        );
        if file.extension().is_some_and(|end| end == "safetensors") {
            assert!(printed.contains("is changed, first in the tensor "), "{printed}");
        }
        assert!(printed.contains("nothing is trained from a sealed run that has changed"), "{printed}");
        fs::write(path, before).unwrap();
    }
    sandbox.write("sealed/run/notes.txt", "x");
    assert!(sandbox.expect(3, "verify sealed").contains("run/notes.txt is not in the manifest"));
    fs::rename(sandbox.path("sealed/run/notes.txt"), sandbox.path("notes.txt")).unwrap();
    // What cannot be read is a finding, too.
    std::os::unix::fs::symlink("/dev/null", sandbox.path("sealed/run/link")).unwrap();
    assert!(sandbox.expect(3, "verify sealed").contains("run/link is not in the manifest, and cannot be read"));
    fs::rename(sandbox.path("sealed/run/link"), sandbox.path("link")).unwrap();
    fs::rename(sandbox.path("sealed/run/metrics.jsonl"), sandbox.path("metrics.jsonl")).unwrap();
    std::os::unix::fs::symlink(sandbox.path("metrics.jsonl"), sandbox.path("sealed/run/metrics.jsonl")).unwrap();
    assert!(sandbox.expect(3, "verify sealed").contains("run/metrics.jsonl is there, and cannot be read: BLAKE3 was "));
    fs::remove_file(sandbox.path("sealed/run/samples.jsonl")).ok();
    fs::remove_file(sandbox.path("sealed/run/plan.json")).unwrap();
    assert!(sandbox.expect(3, "verify sealed").contains("run/plan.json is missing"));
    let sandbox = sealed();
    sandbox.edit("sealed/manifest.json", "\"weights_step\": 12", "\"weights_step\": 13");
    assert!(sandbox.expect(3, "verify sealed").contains("manifest.json is changed: its content does not match"));
}

#[test]
fn a_manifest_whose_claims_its_files_contradict_is_found() {
    type Forgery = fn(&mut Value);
    let claims: [(&str, Forgery); 3] = [
        ("differ in the id of the run", |manifest| manifest["run"] = "better".into()),
        ("README.md is not as runner writes it", |manifest| manifest["weights_step"] = 8.into()),
        ("lists run/plan.json twice", |manifest| {
            let files = manifest["files"].as_array_mut().unwrap();
            files.push(files.iter().find(|file| file["path"] == "run/plan.json").unwrap().clone());
        }),
    ];
    for (what, claim) in claims {
        let sandbox = sealed();
        let path = sandbox.path("sealed/manifest.json");
        let mut manifest = read_json(&path);
        claim(&mut manifest);
        write_sealed(&path, manifest);
        let printed = sandbox.expect(3, "verify sealed --threads 1");
        assert!(printed.contains("contradictory: the files of ") && printed.contains(what), "{what}: {printed}");
        assert!(!printed.contains("changed: "), "{printed}");
    }
    let sandbox = sealed();
    let path = sandbox.path("sealed/manifest.json");
    let mut manifest = read_json(&path);
    manifest["mmlu"] = 92.1.into();
    write_sealed(&path, manifest);
    assert!(sandbox.expect(1, "verify sealed").contains("unknown field `mmlu`"));
}

#[test]
fn a_forgery_with_the_right_hashes_is_found_by_training_again() {
    // A better loss of a step. The summary, too, is made to fit.
    let sandbox = sealed();
    forge(&sandbox, "run/summary.json", |path| {
        let mut summary = read_json(path);
        summary.as_object_mut().unwrap().remove("metrics");
        write_sealed(path, summary);
    });
    forge(&sandbox, "run/metrics.jsonl", |path| {
        let text = fs::read_to_string(path).unwrap();
        let forged = text.lines().map(|line| {
            let mut value: Value = serde_json::from_str(line).unwrap();
            if value["kind"] == "train" && value["step"] == 10 {
                value["loss"] = (value["loss"].as_f64().unwrap() * 0.9).into();
            }
            value.to_string() + "\n"
        });
        fs::write(path, forged.collect::<String>()).unwrap();
    });
    seal_with_another_build(&sandbox);
    let printed = sandbox.expect(3, "verify sealed --threads 1");
    assert!(printed.contains("diverged at step 10: loss "), "{printed}");
    // Other weights.
    let sandbox = sealed();
    forge(&sandbox, "model.safetensors", |path| flip(path, 2));
    let printed = sandbox.expect(3, "verify sealed --threads 1");
    assert!(printed.contains("diverged: the sealed weights are not those that these steps lead to"), "{printed}");
    assert!(printed.contains("those after step 12 differ, first in "), "{printed}");
    // A model with the same weights that computes something else.
    for (name, from, to) in [("config.json", "\"n_head\": 2", "\"n_head\": 1"), ("tokenizer.json", "\"1\"", "\"x\"")] {
        let sandbox = sealed();
        forge(&sandbox, name, |path| {
            let text = fs::read_to_string(path).unwrap();
            assert!(text.contains(from), "{name}: {text}");
            fs::write(path, text.replacen(from, to, 1)).unwrap();
        });
        let printed = sandbox.expect(3, "verify sealed --threads 1");
        assert!(printed.contains("contradictory: ") && printed.contains("these weights gives"), "{name}: {printed}");
    }
    // A README that promises more.
    let sandbox = sealed();
    forge(&sandbox, "README.md", |path| {
        let text = fs::read_to_string(path).unwrap();
        fs::write(path, text + "MMLU: 92.1\n").unwrap();
    });
    assert!(sandbox.expect(3, "verify sealed").contains("README.md is not as runner writes it"));
}

/// Puts a file into the sealed run, with its entry in the manifest.
fn add(sandbox: &Sandbox, name: &str, bytes: &[u8]) {
    let path = sandbox.path("sealed").join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
    list_again(sandbox, name);
}

/// Changes lines of the metrics, and the same lines in the summary.
fn forge_lines(sandbox: &Sandbox, change: fn(&mut Value)) {
    forge(sandbox, "run/metrics.jsonl", |path| {
        let text = fs::read_to_string(path).unwrap();
        let forged = text.lines().map(|line| {
            let mut value: Value = serde_json::from_str(line).unwrap();
            change(&mut value);
            value.to_string() + "\n"
        });
        fs::write(path, forged.collect::<String>()).unwrap();
    });
    forge(sandbox, "run/summary.json", |path| {
        let mut summary = read_json(path);
        summary.as_object_mut().unwrap().remove("metrics");
        for name in ["last_eval", "best_eval"] {
            summary[name]["kind"] = "eval".into();
            change(&mut summary[name]);
            summary[name].as_object_mut().unwrap().remove("kind");
        }
        write_sealed(path, summary);
    });
}

/// Changes the header of a safetensors file.
fn forge_header(sandbox: &Sandbox, name: &str, change: fn(&mut Value)) {
    forge(sandbox, name, |path| {
        let bytes = fs::read(path).unwrap();
        let (mut header, numbers) = read_safetensors(&bytes).unwrap();
        change(&mut header);
        let mut header = header.to_string();
        header += &" ".repeat(header.len().next_multiple_of(8) - header.len());
        fs::write(path, [&(header.len() as u64).to_le_bytes(), header.as_bytes(), numbers].concat()).unwrap();
    });
}

/// All hashes of a forgery fit. Another program sealed the run, so that what it may have written in another form is named.
#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn no_forgery_with_fitting_hashes_is_accepted() {
    type Forgery = fn(&Sandbox);
    let forgeries: [(&str, &str, Forgery); 17] = [
        ("not verified run/resolved.yaml is not as runner writes it", "--only-files", |sandbox| {
            forge(sandbox, "run/resolved.yaml", |path| {
                let text = fs::read_to_string(path).unwrap();
                fs::write(path, format!("# MMLU 92.1\n{text}")).unwrap();
            });
            let text = fs::read(sandbox.path("sealed/run/resolved.yaml")).unwrap();
            forge(sandbox, "run/manifest.json", |path| {
                let mut manifest = read_json(path);
                manifest["resolved_hash"] = blake3::hash(&text).to_hex().to_string().into();
                write_sealed(path, manifest);
            });
        }),
        ("summary.json does not follow from", "--only-files", |sandbox| {
            forge(sandbox, "run/summary.json", |path| {
                let mut summary = read_json(path);
                (summary["status"], summary["tokens"]) = ("interrupted".into(), 3_000_000_000_u64.into());
                write_sealed(path, summary);
            });
        }),
        ("diverged at step 12: val_bits_per_byte ", "--threads 1", |sandbox| {
            forge_lines(sandbox, |line| {
                if line["kind"] == "eval" && line["step"] == 12 {
                    line["val_bits_per_byte"] = 0.5.into();
                }
            });
        }),
        ("diverged at step 12: val_rows ", "--threads 1", |sandbox| {
            forge_lines(sandbox, |line| {
                if line["kind"] == "eval" && line["step"] == 12 {
                    line["val_rows"] = 400.into();
                }
            });
        }),
        ("diverged at step 12: val_perplexity ", "--threads 1", |sandbox| {
            forge_lines(sandbox, |line| {
                if line["kind"] == "eval" && line["step"] == 12 {
                    line["val_perplexity"] = 1.5.into();
                }
            });
        }),
        ("diverged at step 10: lr ", "--threads 1", |sandbox| {
            forge_lines(sandbox, |line| {
                if line["kind"] == "train" && line["step"] == 10 {
                    line["lr"] = 0.5.into();
                }
            });
        }),
        ("summary.json does not follow from", "--only-files", |sandbox| {
            forge(sandbox, "run/summary.json", |path| {
                let mut summary = read_json(path);
                summary["tokens"] = 1_000_000.into();
                write_sealed(path, summary);
            });
        }),
        ("summary.json does not follow from", "--only-files", |sandbox| {
            forge(sandbox, "run/summary.json", |path| {
                let mut summary = read_json(path);
                summary["medians"]["tokens_per_second"] = 1e9.into();
                write_sealed(path, summary);
            });
        }),
        ("not verified `totals` in run/plan.json differs", "--threads 1", |sandbox| {
            forge(sandbox, "run/plan.json", |path| {
                let mut plan = read_json(path);
                plan["totals"]["parameters"] = 7_000_000_000_u64.into();
                fs::write(path, plan.to_string()).unwrap();
            });
            let plan = fs::read(sandbox.path("sealed/run/plan.json")).unwrap();
            forge(sandbox, "run/manifest.json", |path| {
                let mut manifest = read_json(path);
                manifest["plan_file_hash"] = blake3::hash(&plan).to_hex().to_string().into();
                write_sealed(path, manifest);
            });
        }),
        ("config.json is not in the manifest", "--only-files", |sandbox| {
            fs::write(sandbox.path("sealed/config.json "), "{}").unwrap();
        }),
        ("a sealed run does not contain modeling_x.py", "--only-files", |sandbox| {
            add(sandbox, "modeling_x.py", b"import os");
        }),
        ("a sealed run does not contain added_tokens.json", "--threads 1", |sandbox| {
            add(sandbox, "added_tokens.json", b"{}");
        }),
        ("a sealed run does not contain run/checkpoints/step-00000004/model.safetensors", "--only-files", |sandbox| {
            add(sandbox, "run/checkpoints/step-00000004/model.safetensors", b"x");
        }),
        ("differ, first in ", "--threads 1", |sandbox| {
            forge_header(sandbox, "model.safetensors", |header| {
                let [a, b] =
                    ["transformer.h.0.ln_1.weight", "transformer.h.1.ln_2.bias"].map(|name| header[name].clone());
                (header["transformer.h.0.ln_1.weight"], header["transformer.h.1.ln_2.bias"]) = (b, a);
            });
        }),
        ("not verified model.safetensors is not the file that an export", "--threads 1", |sandbox| {
            forge_header(sandbox, "model.safetensors", |header| {
                header["__metadata__"] = serde_json::json!({"author": "somebody else"});
            });
        }),
        ("not verified run/checkpoints/step-00000008 is not as runner writes it", "--threads 1", |sandbox| {
            let folder = "run/checkpoints/step-00000008";
            let name = &format!("{folder}/model.safetensors");
            forge_header(sandbox, name, |header| header["__metadata__"]["mmlu"] = "92.1".into());
            let bytes = fs::read(sandbox.path("sealed").join(name)).unwrap();
            forge(sandbox, &format!("{folder}/state.json"), |path| {
                let mut state = read_json(path);
                let hash = blake3::hash(&bytes).to_hex().to_string();
                state["files"]["model.safetensors"] = serde_json::json!({"bytes": bytes.len(), "blake3": hash});
                write_sealed(path, state);
            });
        }),
        ("manifest.json lists another size or other tensors of model.safetensors", "--only-files", |sandbox| {
            let path = sandbox.path("sealed/manifest.json");
            let mut manifest = read_json(&path);
            let files = manifest["files"].as_array_mut().unwrap();
            let weights = files.iter_mut().find(|file| file["path"] == "model.safetensors").unwrap();
            weights["tensors"][0]["hash"] = "0".repeat(64).into();
            write_sealed(&path, manifest);
        }),
    ];
    let sandbox = sealed();
    fs::rename(sandbox.path("sealed"), sandbox.path("whole")).unwrap();
    for (expected, flags, forgery) in forgeries {
        let mut copy = std::process::Command::new("cp");
        assert!(copy.arg("-r").arg(sandbox.path("whole")).arg(sandbox.path("sealed")).status().unwrap().success());
        seal_with_another_build(&sandbox);
        forgery(&sandbox);
        let verified = sandbox.run(format!("verify sealed {flags} --quiet").as_str());
        let printed = verified.text();
        // What another version of the program may have written is named.
        let code = if expected.starts_with("not verified") { 0 } else { 3 };
        assert!(verified.code == code && printed.contains(expected), "{expected}: {printed}");
        fs::remove_dir_all(sandbox.path("sealed")).unwrap();
    }
}

/// The sealed state comes from another run, and all hashes fit. The steps are trained from the start, and not from it.
#[test]
fn a_state_that_the_steps_do_not_lead_to_is_found() {
    let sandbox = sealed();
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet --set optimizer.adamw.lr=0.01 --runs others");
    let folder = "run/checkpoints/step-00000008";
    let other = sandbox.only_run_in("others").checkpoint(8);
    let own = read_json(&sandbox.path("sealed").join(folder).join("state.json"));
    let mut state = read_json(&other.join("state.json"));
    state["plan_hash"] = own["plan_hash"].clone();
    for name in ["model.safetensors", "optimizer.safetensors"] {
        add(&sandbox, &format!("{folder}/{name}"), &fs::read(other.join(name)).unwrap());
    }
    for name in ["best", "val_loss"] {
        state[name] = own[name].clone();
    }
    write_sealed(&sandbox.path("state.json"), state);
    add(&sandbox, &format!("{folder}/state.json"), &fs::read(sandbox.path("state.json")).unwrap());
    seal_with_another_build(&sandbox);
    let printed = sandbox.expect(3, "verify sealed --threads 1 --quiet --steps 1..12");
    assert!(printed.contains("the sealed state of step 8 differs from the state that training reached"), "{printed}");
}

/// The README says `runner verify .`, and the sealed run must not change.
#[test]
fn a_verification_within_the_sealed_run_changes_nothing_there() {
    let sandbox = sealed();
    for _ in 0..2 {
        let mut command = sandbox.command("verify . --threads 1 --quiet");
        command.current_dir(sandbox.path("sealed")).env_remove("RUNNER_RUNS");
        let verified = crate::sandbox::Finished::of(&mut command);
        assert_eq!(verified.code, 0, "{}", verified.text());
        assert!(!sandbox.path("sealed/runs").exists());
    }
}

#[test]
fn the_record_of_another_machine_is_verified_within_the_tolerance() {
    let sandbox = Sandbox::new().with_numbers(2000).with("exp.yaml", EXPERIMENT);
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet --until-step 8");
    // Two replicas add in a different order.
    let layout = "{mode: dp, replicas: 2}";
    sandbox.expect(0, &["resume", "lab", "--threads", "1", "--quiet", "--parallel", layout]);
    sandbox.expect(0, "seal lab sealed");
    forge(&sandbox, "run/manifest.json", |path| {
        let mut manifest = read_json(path);
        for session in manifest["sessions"].as_array_mut().unwrap() {
            session["machine"]["cpu"] = "Other CPU".into();
        }
        write_sealed(path, manifest);
    });
    seal_with_another_build(&sandbox);
    let printed = sandbox.expect(0, "verify sealed --threads 1");
    for line in ["within tolerance: ", "processor: ", "was Other CPU", "no tolerance is defined for that"] {
        assert!(printed.contains(line), "{line}: {printed}");
    }
}

#[test]
fn what_must_not_be_published_is_not_sealed() {
    let sandbox = trained();
    let resolved = sandbox.only_run().path("resolved.yaml");
    fs::set_permissions(&resolved, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let printed = sandbox.expect(2, "seal lab sealed");
    assert!(printed.contains("is private") && !sandbox.path("sealed").exists(), "{printed}");
    // The environment of the author's machine stays there.
    let sandbox = Sandbox::new().with_numbers(2000).with("exp.yaml", EXPERIMENT);
    let mut command = sandbox.command("apply exp.yaml --threads 1 --quiet");
    command.env("SLURM_SUBMIT_HOST", "login-node-7").env("NVIDIA_X", "kept");
    assert!(command.status().unwrap().success());
    sandbox.expect(0, "seal lab sealed");
    let manifest = sandbox.read("sealed/run/manifest.json");
    assert!(!manifest.contains("login-node-7") && manifest.contains("NVIDIA_X"), "{manifest}");
    assert_eq!(read_json(&sandbox.path("sealed/run/manifest.json"))["experiment_file"], "exp.yaml");
}

/// The places of the values in `value`, as JSON pointers. Of the items of a list the first is enough. A place of an object is followed by
/// one of a key that it does not have.
fn places(value: &Value) -> Vec<String> {
    fn visit(value: &Value, at: &str, out: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                out.push(format!("{at}/added"));
                for (key, value) in map {
                    visit(value, &format!("{at}/{}", key.replace('~', "~0").replace('/', "~1")), out);
                }
            }
            Value::Array(items) if items.is_empty() => out.push(format!("{at}/0")),
            Value::Array(items) => visit(&items[0], &format!("{at}/0"), out),
            _ => out.push(at.to_owned()),
        }
    }
    let mut out = Vec::new();
    visit(value, "", &mut out);
    out
}

/// Puts something else at `place` of `value`, or something where there was nothing.
fn change_at(value: &mut Value, place: &str) {
    let Some(old) = value.pointer_mut(place) else {
        let (parent, key) = place.rsplit_once('/').unwrap();
        match value.pointer_mut(parent).unwrap() {
            Value::Object(map) => drop(map.insert(key.to_owned(), 92.1.into())),
            Value::Array(items) => items.push(1.into()),
            _ => panic!("{place} has a parent"),
        }
        return;
    };
    *old = match &*old {
        Value::Bool(is) => (!is).into(),
        Value::Number(number) => match number.as_u64() {
            Some(count) => (count + 1).into(),
            None => (number.as_f64().unwrap() * 0.5).into(),
        },
        // Hashes stay hexadecimal.
        Value::String(text) if text.starts_with('a') => format!("b{}", &text[1..]).into(),
        Value::String(text) => format!("a{}", text.get(1..).unwrap_or_default()).into(),
        Value::Null => 0.5.into(),
        Value::Array(_) | Value::Object(_) => unreachable!("a place is a value"),
    };
}

/// True if a verification says that it does not cover the value at `place` of the file `name`.
fn is_named_as_unverified(name: &str, place: &str) -> bool {
    let keys: Vec<&str> = place.split('/').skip(1).collect();
    let is_below = |names: &[&str]| keys.iter().any(|key| names.contains(key));
    match name {
        "run/manifest.json" => {
            is_below(&[
                "started",
                "ended",
                "version",
                "git",
                "machine",
                "layout",
                "devices",
                "threads",
                "experiment_file",
                "overrides",
                "environment",
                "sessions",
                "status",
                "error",
            ]) || place == "/id"
        }
        "run/summary.json" => is_below(&[
            "wall_seconds",
            "own_wall_seconds",
            "peak_rss_bytes",
            "planned_memory_bytes",
            "predicted_step_ms",
            "medians",
        ]),
        "run/metrics.jsonl" => {
            keys.last().is_some_and(|key| key.ends_with("_ms") || ["tokens_per_second", "mfu"].contains(key))
        }
        "run/data.json" => is_below(&["path"]),
        _ => false,
    }
}

/// Changes each value of the record in turn, and makes all hashes fit. A value must be found to be wrong, or a verification must say that it
/// does not cover it. Another program sealed the run.
#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn each_value_of_a_sealed_run_is_verified_or_named() {
    let more = "eval:\n  every: 4\n  loss: {batches: 2}\n  test: {text: {files: [test.txt]}}\n  \
                samples: {every: 6, prompts: [\"1\"], max_tokens: 4}\n";
    let experiment = EXPERIMENT.replace("eval: {every: 4, loss: {batches: 2}}\n", more);
    let sandbox =
        Sandbox::new().with_numbers(2000).with("exp.yaml", &experiment).with("test.txt", "9 8 7 6 5 ".repeat(60));
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
    sandbox.expect(0, "seal lab whole");
    let path = sandbox.path("whole/manifest.json");
    let mut manifest = read_json(&path);
    manifest["version"] = "0.0.1".into();
    write_sealed(&path, manifest);
    let copy = || {
        let mut copy = std::process::Command::new("cp");
        assert!(copy.arg("-r").arg(sandbox.path("whole")).arg(sandbox.path("sealed")).status().unwrap().success());
    };
    let verified = || {
        let verified = sandbox.run("verify sealed --threads 1 --quiet --json --steps 1..12");
        let line = verified.text().lines().find(|line| line.contains("\"verification\"")).map(str::to_owned);
        let found: Value = line.map_or(Value::Null, |line| serde_json::from_str(&line).unwrap());
        fs::remove_dir_all(sandbox.path("sealed")).unwrap();
        fs::remove_dir_all(sandbox.path("runs")).ok();
        (verified.code, found["verification"]["not_verified"].clone(), verified.text())
    };
    copy();
    let (code, named, text) = verified();
    assert_eq!(code, 0, "{text}");
    let mut forgeries: Vec<(&str, usize, String)> = Vec::new();
    for name in [
        "run/manifest.json",
        "run/summary.json",
        "run/plan.json",
        "run/data.json",
        "run/checkpoints/step-00000008/state.json",
        "config.json",
        "tokenizer_config.json",
    ] {
        forgeries
            .extend(places(&read_json(&sandbox.path("whole").join(name))).into_iter().map(|place| (name, 0, place)));
    }
    for name in ["run/metrics.jsonl", "run/samples.jsonl"] {
        let text = sandbox.read(format!("whole/{name}"));
        let lines = text.lines().enumerate().filter(|(at, _)| [3, 4].contains(at) || name.contains("samples"));
        for (at, line) in lines {
            let places = places(&serde_json::from_str(line).unwrap());
            let places = places.into_iter().chain(["/content_hash".to_owned()]);
            forgeries.extend(places.map(|place| (name, at, place)));
        }
    }
    let all = std::env::var("RUNNER_TORTURE").is_ok_and(|which| which == "all");
    let mut accepted = Vec::new();
    for (name, at, place) in forgeries.iter().step_by(if all { 1 } else { 4 }) {
        if is_named_as_unverified(name, place) {
            continue;
        }
        copy();
        forge(&sandbox, name, |path| {
            let text = fs::read_to_string(path).unwrap();
            if ["run/metrics.jsonl", "run/samples.jsonl"].contains(name) {
                let forged = text.lines().enumerate().map(|(line, text)| {
                    let mut value: Value = serde_json::from_str(text).unwrap();
                    if line == *at {
                        change_at(&mut value, place);
                    }
                    value.to_string() + "\n"
                });
                fs::write(path, forged.collect::<String>()).unwrap();
                return;
            }
            let mut value: Value = serde_json::from_str(&text).unwrap();
            let has_hash = value.get("content_hash").is_some();
            change_at(&mut value, place);
            if has_hash { write_sealed(path, value) } else { fs::write(path, value.to_string()).unwrap() }
        });
        let hash_of =
            |name: &str| blake3::hash(&fs::read(sandbox.path("sealed").join(name)).unwrap()).to_hex().to_string();
        if name.ends_with("plan.json") {
            let hash = hash_of(name);
            forge(&sandbox, "run/manifest.json", |path| {
                let mut manifest = read_json(path);
                manifest["plan_file_hash"] = hash.into();
                write_sealed(path, manifest);
            });
        }
        if name.ends_with("metrics.jsonl") {
            forge(&sandbox, "run/summary.json", |path| {
                let mut summary = read_json(path);
                summary.as_object_mut().unwrap().remove("metrics");
                write_sealed(path, summary);
            });
        }
        let (code, found, text) = verified();
        // Only what a different build may have written otherwise is named and not refused.
        let is_form = ["/added", "/content_hash"].iter().any(|end| place.ends_with(end))
            || ["run/plan.json", "config.json", "tokenizer_config.json"].contains(name);
        if code == 0 && (found == named || !is_form) {
            accepted.push(format!("{name} {at} {place}"));
        }
        assert!(!text.contains("panicked"), "{text}");
    }
    assert!(accepted.is_empty(), "accepted without a word: {accepted:#?}");
}

/// Whatever a run has been through, its sealed copy is verified.
#[test]
fn runs_of_every_kind_are_verified() {
    let shard = "resume lab --quiet --threads 2 --parallel {mode:~ddp,~replicas:~2,~shard:~optimizer}";
    let ddp = "apply exp.yaml --quiet --threads 2 --set parallel={mode:~ddp,~replicas:~2}";
    let single = "apply exp.yaml --quiet --threads 1";
    let text = str::to_owned;
    let fork = "fork lab --from 4 --name other --threads 1 --quiet --set optimizer.adamw.lr=0.01";
    let kinds: [(&str, Vec<String>, &str, [&str; 2]); 5] = [
        ("moved to shards", vec![format!("{ddp} --until-step 8"), text(shard)], "lab sealed", ["", "--steps 1..12"]),
        // The first evaluation is the best, and the checkpoint that is tested comes before the sealed state.
        ("overfitted", vec![format!("{single} --set optimizer.adamw.lr=3")], "lab sealed", ["", "--steps 1..12"]),
        ("interrupted", vec![format!("{single} --until-step 9")], "lab sealed", ["", "--steps 1..9"]),
        ("a fork", vec![text(single), text(fork)], "other sealed", ["", "--only-files"]),
        ("traced", vec![format!("{single} --trace")], "lab sealed --step 8", ["", "--steps 1..12"]),
    ];
    let more = "eval: {every: 4, at_start: true, loss: {batches: 2}, test: {text: {files: [test.txt]}}, \
                samples: {every: 6, prompts: [\"1\"], max_tokens: 4}}\n";
    let experiment = EXPERIMENT.replace("eval: {every: 4, loss: {batches: 2}}\n", more);
    let words = |command: &str| command.split(' ').map(|word| word.replace('~', " ")).collect::<Vec<_>>();
    for (kind, commands, seal, verifications) in kinds {
        let sandbox = Sandbox::new().with_numbers(2000).with("exp.yaml", &experiment);
        let sandbox = sandbox.with("test.txt", "9 8 7 6 5 ".repeat(60));
        for command in commands.into_iter().chain([format!("seal {seal}")]) {
            let words = words(&command);
            sandbox.expect(0, &words.iter().map(String::as_str).collect::<Vec<_>>());
        }
        for steps in verifications {
            let printed = sandbox.expect(0, format!("verify sealed --quiet --threads 2 {steps}").trim_end());
            assert!(!printed.contains("a different build"), "{kind} {steps}: {printed}");
        }
    }
}
