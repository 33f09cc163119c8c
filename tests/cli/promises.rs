//! Values that users may have written down and names that their programs read, which no change of the code may change: plan hashes,
//! run ids, sweep ids, the bits in which a run ends, files and fields.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::sandbox::{Finished, RunFolder, Sandbox, read_json, repository_path};

/// The path of a file in `experiments/`.
fn experiment(name: &str) -> String {
    repository_path("experiments").join(name).display().to_string()
}

fn plan_hash(sandbox: &Sandbox, arguments: &[&str]) -> String {
    let plan = sandbox.json_of(&[&["plan", "--json"], arguments].concat());
    plan["hash"].as_str().unwrap().to_owned()
}

/// Files under `folder`, relative to it, whose names end in `.yaml` or `.j2`.
fn experiment_files(folder: &Path) -> Vec<String> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(current) = folders.pop() {
        for path in fs::read_dir(current).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "yaml" || e == "j2") {
                files.push(path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    files.sort();
    files
}

/// Files that train on the built-in corpus, or on a file that is shipped with them: the plan of a run on the CPU.
const PLANS_OF_SHIPPED_DATA: &[(&str, &str)] = &[
    ("gpt2-alpaca-tiny.yaml", "635150fc9be32ca83a0bbfc00bff1277085227fab78b07c69cc69f86c4bb0c46"),
    ("gpt2-fineweb-tiny.yaml", "5b822dd3ca83573f0f735432772c9c889b8eb36605d1207eb0a74bf6f015a83e"),
    ("gpu/parity-gpt2.yaml", "738229d8b7c63ef1a5537812f8d6627773d89e3bd44495f7202bb5dec3f370a7"),
    ("gpu/parity-llama.yaml", "6ed2446acbbefae80a064a4a1b8000e1ed4a3f2400c814b4ac084d4db272b8d4"),
    ("llama-ddp-tiny.yaml", "701cbc4da2ea874171e8a030b1458b479cc529faf8a40a5a50d57c021c2be8d0"),
    ("llama-dp-tiny.yaml", "2d5f4a25ac0862df8da2e578490a162b5f4b82bee52ebd195803e32d9d0cb418"),
    ("ladder.yaml", "97119a1427476748b79bee576b99c1c29e42c989a32520c4663ce301eba2436b"),
    ("llama-pipeline-tiny.yaml", "009cc44a96442ced83208fe97bd6bdd3dbaa5e25a99987d297127cc371a3717c"),
    ("nanochat-tiny.yaml", "b531b4a512e42b5fe6cb104f6eb4184c5e9cf017056a1b4d2a166644387e43f4"),
    ("quickstart.yaml", "0025e9760572b625dfa001ee14c0e78a20ebeaa1e8e4dab35960e99df0ca525d"),
    ("transformer-ddp-pipeline-tiny.yaml", "c56d7ffb59318eb44b5796bf9477e67823cef0e152c54b3db9c83d7989bf47b7"),
    ("stories-lr.yaml.j2", "6aa542fb317947778fe232fec450411c49031d1f1379b2b733df187ee4d039b6"),
];

/// Files whose data is not shipped: the plan for one machine with eight A100 and 100,000 rows of training data.
const PLANS_OF_OTHER_DATA: &[(&str, &str)] = &[
    ("build-nanogpt.yaml.j2", "fc17214a4a1a1f005193812cb965cc53fd6695a1dc9b773717c4359b22cfd489"),
    ("data/fineweb.yaml", "6f8a80e94f59b92d9b5364baefd517aa08fe39ec7314c6e509fec22f0f74b050"),
    ("data/fineweb-edu.yaml", "6f8a80e94f59b92d9b5364baefd517aa08fe39ec7314c6e509fec22f0f74b050"),
    ("evidence/rung.yaml", "fa5118c556e4a86c92f74184aa7eca8876009623570449582c97097d61c4b5e0"),
    ("gpt2-124m.yaml", "4b11cb99cca485339403e2e7996473a78a0780349584a6a5ae904c9cacea32de"),
    ("gpt2-alpaca.yaml", "437b72b8bb82d6d570f708d959ec00e62bbb2b2a0b2d579791f594bead251984"),
    ("gpt2-fineweb-start.yaml", "3bb36fb11d7a06b8be24d1f7341bf8d6c521e3bdfa3bb29577bd7d075e942a0e"),
    ("gpt2-fineweb.yaml", "feac026cf4f185929efafe857c4ea6a9c9be4c8ba89fb445847ffc6c4ad4c318"),
    ("gpu/gpt2-124m.yaml", "99ca070378137fe175f75dce49688e8a43c37d0365547b333d41a99ef03139b0"),
    ("gpu/llama-179m.yaml", "2832134b1a73802002da2679da3e332f29f01bc0f54a1bb8454ff2bba09fcd3c"),
    ("llama-ddp.yaml", "046170aa06af6d7c347a8e576c5f0816ab212362493e862b216b4d1a19aab50c"),
    ("llama-dp.yaml", "932131cf9b8e210fd7620cd880f874a1abd2db20a8c2f6c5bb61dd7a3dd13aeb"),
    ("llama-pipeline.yaml", "18c34b2579ca2328affafaa374c75495bf16caa82d83ca8135dfdf46298a43de"),
    ("transformer-ddp-pipeline.yaml", "5fa302fa332a1868a4d190608f457ecdfca36feea5264a3fb1a34b9ec1a13444"),
    ("shakespeare-chars.yaml", "33c7a61e938684c8674fccfb25d204a8b51e12104065b13ac5ef53faf03adb8a"),
];

/// Sweeps, and experiments with `seeds`, with their ids and the plan hashes of their points, as far as they are part of a run's id.
const SWEEPS: &[(&str, &str, &[&str])] = &[
    ("evidence/baseline.yaml", "baseline-54dec4d2", BASELINE_POINTS),
    ("evidence/rate-and-depth.yaml", "rate-and-depth-77725fc6", RATE_AND_DEPTH_POINTS),
    ("evidence/wider.yaml", "wider-4ac1301d", WIDER_POINTS),
    ("sweeps/cooldowns.yaml", "cooldowns-934fda95", COOLDOWNS_POINTS),
    ("sweeps/ladder.yaml", "ladder-e3f336fd", LADDER_POINTS),
    ("sweeps/seeds.yaml", "seeds-80ed4993", SEEDS_POINTS),
    ("sweeps/stories.yaml", "stories-27b08764", STORIES_POINTS),
    ("sweeps/stories-asha.yaml", "stories-asha-74137c74", STORIES_POINTS),
];

const LADDER_POINTS: &[&str] =
    &["97119a14", "85f1609d", "e7d686f6", "076aba25", "f16d8370", "48389426", "6f453186", "2ff52eae"];

const COOLDOWNS_POINTS: &[&str] = &["9f7bb7d1", "56d1d9a3", "172e9595", "5cc5bc10", "c3762a87", "d1ccf925"];

const BASELINE_POINTS: &[&str] = &["4b93c926", "d6623a62", "e727ca0b", "277bb49b", "df5db172"];

const RATE_AND_DEPTH_POINTS: &[&str] = &[
    "50b1c287", "2349d431", "b1fdd5d1", "0cbe76fb", "a0debc64", "29f88410", "ae96d9c6", "a9009985", "0784f7d6",
    "41527e20", "cd6caa0f", "98c80f45", "8fc4e9b3", "ab2ea13a", "89d2af50", "80218bb3", "4b93c926", "d6623a62",
    "e727ca0b", "277bb49b", "ce9baab3", "1f0d43f5", "616bc67f", "a605b3f7", "140baa04", "c19a15fc", "3c142775",
    "f3dbe207", "ccdf7f3d", "450753b9", "e3e37c70", "189e6d2e", "86f32106", "efe547e6", "889b89f6", "d04313dc",
];

const WIDER_POINTS: &[&str] = &["9aa45707", "02caeb32", "b3227603", "2d74be60", "c775d783"];

const SEEDS_POINTS: &[&str] = &[
    "a9189c49", "73e1bfdc", "4fbe5055", "12106ca6", "188c41d6", "ed153d72", "34f157be", "4a32ad3b", "fe0a6d8b",
    "60287a49", "adb12dda", "ee28834f", "5f92b760", "5d9e9a5e", "e925ca10", "6c95816f",
];

const STORIES_POINTS: &[&str] = &[
    "f7222c5d", "9a4a32ae", "472f8fa6", "fc0b8c95", "4cb74e6a", "26f741d4", "b64b34a6", "857c74a9", "ca5c3026",
    "da668b66", "3fdce81a", "04b832e1",
];

#[test]
fn plan_hashes_of_shipped_experiments_stay() {
    let sandbox = Sandbox::new();
    for (name, hash) in PLANS_OF_SHIPPED_DATA {
        let file = experiment(name);
        let mut arguments = vec![&file[..], "--set", "device=cpu"];
        if Path::new(name).extension().is_some_and(|extension| extension == "j2") {
            arguments.extend(["--var", "lr=1e-3"]);
        }
        assert_eq!(plan_hash(&sandbox, &arguments), *hash, "{name}");
    }
    for (name, hash) in PLANS_OF_OTHER_DATA {
        let file = experiment(name);
        let mut arguments = vec![&file[..], "--rows", "100000", "--cluster", "1x8xA100"];
        if *name == "build-nanogpt.yaml.j2" {
            arguments.extend(["--var", "stage=8"]);
        }
        if ["evidence/rung.yaml", "shakespeare-chars.yaml"].contains(name) {
            arguments.extend(["--set", "model.vocab_size=65"]);
        }
        assert_eq!(plan_hash(&sandbox, &arguments), *hash, "{name}");
    }
    let plans = [PLANS_OF_SHIPPED_DATA, PLANS_OF_OTHER_DATA].concat();
    let mut listed: Vec<&str> =
        plans.iter().map(|(name, _)| *name).chain(SWEEPS.iter().map(|(name, ..)| *name)).collect();
    // Its points need the text of its base.
    listed.push("evidence/ladder.yaml");
    listed.sort_unstable();
    let shipped = experiment_files(&repository_path("experiments"));
    assert_eq!(listed, shipped, "every file in experiments/ is in one of these tables");
}

#[test]
fn ids_and_points_of_shipped_sweeps_stay() {
    let sandbox = Sandbox::new();
    for (name, id, points) in SWEEPS {
        let file = experiment(name);
        let sweep = sandbox.json_of(&["sweep", &file, "--dry-run", "--json"]);
        assert_eq!(sweep["id"], *id);
        let hashes =
            sweep["points"].as_array().unwrap().iter().map(|p| p["plan_hash"].as_str().unwrap()[..8].to_owned());
        assert_eq!(hashes.collect::<Vec<_>>(), *points, "{name}");
    }
}

#[test]
fn the_run_id_of_the_quickstart_stays() {
    let sandbox = Sandbox::new();
    let file = experiment("quickstart.yaml");
    sandbox.expect(0, &["apply", &file, "--set", "device=cpu", "--until-step", "1", "--quiet"]);
    assert_eq!(sandbox.only_run().id(), "quickstart-0025e976");
}

/// The bits of these runs depend on whether vectors have multiply-adds that round once: AVX-512, AVX2 (with FMA) and NEON have them,
/// SSE does not.
#[derive(Debug, Clone, Copy)]
enum MultiplyAdds {
    Fused,
    Unfused,
}

/// None on processors and C libraries for which the bits have not been recorded. Those of NEON and SSE were recorded in an emulator.
#[allow(clippy::unnecessary_wraps, reason = "other platforms return None")]
fn multiply_adds() -> Option<MultiplyAdds> {
    #[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
    {
        let are_fused = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        Some(if are_fused { MultiplyAdds::Fused } else { MultiplyAdds::Unfused })
    }
    #[cfg(all(target_arch = "aarch64", target_os = "linux", target_env = "gnu"))]
    {
        Some(MultiplyAdds::Fused)
    }
    #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux", target_env = "gnu")))]
    None
}

/// Eight steps on the built-in corpus, and where they end.
struct RecordedRun {
    id: &'static str,
    model: &'static str,
    batch: &'static str,
    more: &'static str,
    /// The final hash with fused multiply-adds, and without.
    final_hashes: [&'static str; 2],
    final_train_loss: f64,
    val_loss: f64,
}

impl RecordedRun {
    fn experiment(&self) -> String {
        let (name, _) = self.id.rsplit_once('-').unwrap();
        format!(
            "version: 1\nname: {name}\ndevice: cpu\nmodel: {}\n\
             data: {{tokenizer: {{bytes: {{}}}}, train: {{builtin: {{corpus: stories}}}}, validation: {{fraction: 0.05}}}}\n\
             batch: {}\ntrain: {{steps: 8}}\noptimizer: {{adamw: {{lr: 3e-3}}}}\n\
             schedule: {{warmup: {{steps: 2}}, decay: {{cosine: {{final: 0.1}}}}}}\n\
             eval: {{every: 4, at_start: true, loss: {{batches: 2}}}}\n{}\n",
            self.model, self.batch, self.more
        )
    }
}

const GPT2: &str = "{family: gpt2, layers: 2, heads: 2, d_model: 32, context_length: 16, dropout: 0.1}";
const LLAMA: &str = "{family: llama, layers: 2, heads: 2, kv_heads: 1, d_model: 32, context_length: 16}";

const RECORDED_RUNS: &[RecordedRun] = &[
    RecordedRun {
        id: "single-0e2f3208",
        model: GPT2,
        batch: "{sequences: 8, micro_batch: 4}",
        more: "",
        final_hashes: [
            "af22c976ba752168b46ae4049abb7f603d095e77aa0602899d4cce44af21ae78",
            "26f34a4b655a8df2ab79d52c25adc75edc73f319e14993bff9dcd15e90494c56",
        ],
        final_train_loss: 4.830_435_074_865_818,
        val_loss: 4.811_101_883_649_826,
    },
    RecordedRun {
        id: "ddp-724211f7",
        model: LLAMA,
        batch: "{sequences: 8, micro_batch: 4}",
        more: "parallel: {mode: ddp, replicas: 2}",
        final_hashes: [
            "8e97d4d2d035fabe7e25beaf69b613d3802920d3e08c42ce31cd7af50366a2e6",
            "d664647d298ca75c53e3b3a7945ad3a87f9e5efdddf3061164a76c3294b35ef6",
        ],
        final_train_loss: 4.908_920_716_494_322,
        val_loss: 4.904_007_695_615_292,
    },
    RecordedRun {
        id: "pipeline-256c230d",
        model: GPT2,
        batch: "{sequences: 8}",
        more: "parallel: {mode: pipeline, pipeline: {stages: 2, microbatches: 2}}",
        final_hashes: [
            "c4f6a1a40d672302a2b89aa4a8ebc0782d9894abe94de1f2db642ce4172d99bc",
            "1d734cb71297fd8d1ecda661ffc742a403a1728a45f5d362f8e67fa7f58cab9c",
        ],
        final_train_loss: 4.830_435_093_492_269_5,
        val_loss: 4.811_101_857_572_794,
    },
    RecordedRun {
        id: "bf16-9f2be733",
        model: GPT2,
        batch: "{sequences: 8, micro_batch: 4}",
        more: "precision: bf16",
        // After this few steps, rounding to bf16 hides that norms and losses are summed in another order.
        final_hashes: [
            "156811507783a90b40363809ef0a40685e3c54266fb57ed1539fddc89cd63f7e",
            "723e675278a6c4e6e4c0dcd2cb6b57214182376f8669a0682de14cba0676d8fd",
        ],
        final_train_loss: 4.829_913_932_830_095,
        val_loss: 4.810_371_588_915_586_5,
    },
];

/// The end of the bf16 run with the instruction VDPBF16PS.
const FINAL_HASH_WITH_AVX512_BF16: &str = "e9602f4d3a4993c3469d910c9aef35debf14a48efcc02c459bb1adbba1dfc3a9";

/// Trains a recorded run with the given products of bf16 matrices, which round sums differently, and returns its folder.
fn train(sandbox: &Sandbox, run: &RecordedRun, bf16_products: &str) -> RunFolder {
    sandbox.write("exp.yaml", run.experiment());
    let mut command = sandbox.command("apply exp.yaml --quiet --threads 2 --new");
    Finished::of(command.env("RUNNER_BF16_PRODUCTS", bf16_products)).expect_code(0);
    sandbox.runs().remove(run.id).expect("the run has its recorded id")
}

/// The relative difference of losses that another processor or C library may cause within eight steps.
const LOSS_TOLERANCE: f64 = 1e-3;

/// The final hash is compared where it has been recorded; the losses are compared everywhere.
#[test]
fn final_hashes_of_short_runs_stay() {
    let sandbox = Sandbox::new();
    for run in RECORDED_RUNS {
        let summary = train(&sandbox, run, "f32").summary();
        for (loss, recorded) in
            [(&summary["final_train_loss"], run.final_train_loss), (&summary["last_eval"]["val_loss"], run.val_loss)]
        {
            assert!(
                (loss.as_f64().unwrap() - recorded).abs() < LOSS_TOLERANCE * recorded,
                "{}: {loss}, not {recorded}",
                run.id
            );
        }
        if let Some(kind) = multiply_adds() {
            assert_eq!(summary["final_hash"], run.final_hashes[kind as usize], "{}, {kind:?}", run.id);
        }
    }
    #[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
    if is_x86_feature_detected!("avx512bf16") {
        let bf16 = RECORDED_RUNS.iter().find(|run| run.more == "precision: bf16").unwrap();
        let sandbox = Sandbox::new();
        assert_eq!(train(&sandbox, bf16, "avx512_bf16").final_hash(), FINAL_HASH_WITH_AVX512_BF16);
    }
}

/// Adds the path of each field of `value`: `a.b[].c`.
fn add_fields(value: &Value, path: &str, fields: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                add_fields(value, &format!("{path}.{key}"), fields);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| add_fields(item, &format!("{path}[]"), fields)),
        _ => {
            fields.insert(path.to_owned());
        }
    }
}

/// The files in a run directory, and the fields of those that are JSON.
fn files_and_fields(run: &RunFolder) -> BTreeSet<String> {
    let mut fields = BTreeSet::new();
    let mut folders = vec![run.0.clone()];
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let name = path.strip_prefix(&run.0).unwrap().to_str().unwrap().to_owned();
            match path.extension().and_then(|extension| extension.to_str()) {
                _ if path.is_dir() => folders.push(path),
                // The format of this file is that of the crate `tokenizers`.
                _ if name.ends_with("tokenizer.json") => _ = fields.insert(name),
                Some("json") => add_fields(&read_json(&path), &name, &mut fields),
                Some("jsonl") => {
                    for line in fs::read_to_string(&path).unwrap().lines() {
                        let line: Value = serde_json::from_str(line).unwrap();
                        let kind = line["kind"].as_str().map_or(String::new(), |kind| format!("({kind})"));
                        add_fields(&line, &format!("{name}{kind}"), &mut fields);
                    }
                }
                _ => _ = fields.insert(name),
            }
        }
    }
    fields
}

/// Users' programs read the files of a run directory and the output of `--json`. `tests/fixtures/output_fields.txt` lists their
/// names and fields: a change may add more to the list, and may remove or rename none.
#[test]
fn files_and_fields_stay() {
    let run = &RECORDED_RUNS[1];
    assert!(run.id.starts_with("ddp-"));
    let sandbox = Sandbox::new();
    let with_samples = "loss: {batches: 2}, samples: {prompts: [The], max_tokens: 2}";
    sandbox.write("exp.yaml", run.experiment().replace("loss: {batches: 2}", with_samples));
    let mut fields = BTreeSet::new();
    for line in sandbox.run("apply exp.yaml --json --trace --threads 2").expect_code(0).json_lines() {
        add_fields(&line, &format!("`apply`({})", line["kind"].as_str().unwrap()), &mut fields);
    }
    fields.extend(files_and_fields(&sandbox.only_run()));
    sandbox.expect(0, "apply exp.yaml --quiet --threads 2 --set seed=2 --set name=other");
    for command in [
        "runs",
        "runs show ddp",
        "eval ddp",
        "sample ddp --prompt The --max-tokens 2",
        "diff ddp other",
        "compare ddp other",
        "export ddp --to hf out",
        "seal ddp sealed",
        "export-metrics ddp --csv metrics.csv",
        "report ddp -o page.html",
        "gc",
        "runs rm other --yes",
    ] {
        let output = sandbox.run(&format!("{command} --json"));
        let name = command.split(" ddp").next().unwrap();
        add_fields(&output.expect_code(0).json(), &format!("`{name}`"), &mut fields);
    }
    for line in sandbox.run("verify sealed --steps 1..8 --json --threads 2").expect_code(0).json_lines() {
        if line["kind"] == "verification" {
            add_fields(&line, "`verify`", &mut fields);
        }
    }
    add_fields(&read_json(&sandbox.path("sealed/manifest.json")), "`seal`: manifest.json", &mut fields);
    // Which variables of the allow-list are set, and what limits the memory, depends on the machine.
    fields.retain(|field| !field.contains("sessions[].environment.") || field.ends_with(".RUNNER_CACHE"));
    fields.retain(|field| !field.contains(".memory_limit"));
    let listed: BTreeSet<String> = include_str!("../fixtures/output_fields.txt").lines().map(str::to_owned).collect();
    let missing: Vec<_> = listed.difference(&fields).collect();
    assert!(missing.is_empty(), "removed or renamed: {missing:#?}");
    let unlisted: Vec<_> = fields.difference(&listed).map(String::as_str).collect();
    assert!(unlisted.is_empty(), "add to output_fields.txt:\n{}", unlisted.join("\n"));
}
