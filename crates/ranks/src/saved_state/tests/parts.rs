//! Checkpoints in parts: every layout from every other's, damage, kills.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::PathBuf;

use safetensors::SafeTensors;

use super::super::*;
use runner_checkpoint::{
    Checkpoints, MODEL, OPTIMIZER, PartRecord, PartSpec, STATE, SavedCheckpoint, dir_name, export_weights, hash_state,
    pending_folder, saved_steps, write_part,
};
use runner_compute::testing::spec;
use runner_spec::event::BestValidation;
use runner_spec::experiment::Family;
use runner_spec::model::{ModelSpec, ParamSpec, parameters};

pub(super) const PLAN: &str = "aaaaaaaabbbbbbbb";

/// What one rank holds, what of it it writes, and how many moments it has.
pub(super) struct Rank {
    pub(super) layout: Arc<ParamLayout>,
    pub(super) owned: Vec<usize>,
    pub(super) moments: usize,
}

/// GPT-2 with tied embeddings, and Llama without, of two layers: blocks 0 to 3.
pub(super) fn models() -> [ModelSpec; 2] {
    let gpt2 = ModelSpec { layers: 2, ..spec() };
    [gpt2.clone(), ModelSpec { family: Family::Llama, tie_embeddings: false, ..gpt2 }]
}

/// A pipeline cut before each of `cuts`; with tied embeddings the last stage has a copy of the matrix.
pub(super) fn stages(spec: &ModelSpec, cuts: &[usize]) -> Vec<Rank> {
    let all = parameters(spec);
    let bounds: Vec<usize> = [0].iter().chain(cuts).chain(&[spec.layers + 2]).copied().collect();
    let stage = |bounds: &[usize]| {
        let mut specs: Vec<_> = all.iter().filter(|p| (bounds[0]..bounds[1]).contains(&p.block)).cloned().collect();
        let tied = spec.tie_embeddings && bounds[0] > 0 && bounds[1] == spec.layers + 2;
        if tied {
            specs.push(all[0].clone());
        }
        // As under Muon, in one of the two models.
        let has_one = |p: &ParamSpec| !spec.tie_embeddings && p.is_matrix() && (1..=spec.layers).contains(&p.block);
        let layout = Arc::new(ParamLayout::with_fewer_moments(specs, has_one));
        let own = |i: &usize| !tied || layout.entries[*i].spec.name != all[0].name;
        let owned = (0..layout.entries.len()).filter(own).collect();
        Rank { layout, owned, moments: 2 }
    };
    bounds.windows(2).map(stage).collect()
}

/// Each rank again as a replica that keeps no moments and writes nothing.
fn replicated(ranks: Vec<Rank>) -> Vec<Rank> {
    let twin = |r: &Rank| Rank { layout: r.layout.clone(), owned: Vec::new(), moments: 0 };
    let twins: Vec<Rank> = ranks.iter().map(twin).collect();
    ranks.into_iter().chain(twins).collect()
}

fn layouts(spec: &ModelSpec) -> Vec<(&'static str, Vec<Rank>)> {
    vec![
        ("whole", stages(spec, &[])),
        ("whole, two replicas", replicated(stages(spec, &[]))),
        ("two stages", stages(spec, &[2])),
        ("three stages", stages(spec, &[1, 3])),
        ("two stages, two replicas", replicated(stages(spec, &[1]))),
    ]
}

/// The numbers of a parameter in a section after `step`: a function of these alone, so the same under every layout.
pub(super) fn numbers(step: u64, name: &str, section: usize, len: usize) -> Vec<f32> {
    let seed = blake3::hash(format!("{step} {name} {section}").as_bytes());
    let mut bytes = vec![0; 4 * len];
    blake3::Hasher::new_keyed(seed.as_bytes()).finalize_xof().fill(&mut bytes);
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as f32 / u32::MAX as f32).collect()
}

pub(super) fn state(rank: &Rank, step: u64) -> TrainState {
    let mut values = Vec::new();
    for section in 0..=rank.moments {
        let first = rank.layout.first_in_section(section);
        for entry in rank.layout.entries.iter().filter(|entry| entry.offset >= first) {
            values.extend(numbers(step, &entry.spec.name, section, entry.spec.len()));
        }
    }
    let len = values.len();
    let buffer = Tensor::from_vec(values, len, &Device::Cpu).unwrap();
    let best = Some(BestValidation { step, val_loss: 0.5 });
    TrainState { step, tokens: 96 * step, best, layout: rank.layout.clone(), buffer, moments: rank.moments }
}

/// Bit for bit what `state` would be.
pub(super) fn assert_is(found: &TrainState, rank: &Rank, step: u64, what: &str) {
    let bits = |s: &TrainState| s.buffer.to_vec1::<f32>().unwrap().into_iter().map(f32::to_bits).collect::<Vec<_>>();
    let want = state(rank, step);
    assert!(bits(found) == bits(&want), "{what}");
    assert_eq!((found.step, found.tokens, found.best), (step, want.tokens, want.best), "{what}");
}

/// The parts of `ranks` after `step`, written to the pending folder; the last rank reports first.
pub(super) fn parts(checkpoints: &Checkpoints, ranks: &[Rank], step: u64) -> Vec<PartRecord> {
    let writers: Vec<&Rank> = ranks.iter().filter(|r| !r.owned.is_empty()).collect();
    let count = writers.len();
    let folder = checkpoints.begin(step).unwrap();
    let write = |(index, rank): (usize, &&Rank)| {
        let record =
            write_part(&folder, PartSpec { index, count }, &state_reader(&state(rank, step)), &rank.owned, &|path| {
                File::create_new(path)
            })
            .unwrap();
        serde_json::from_str(&serde_json::to_string(&record).unwrap()).unwrap()
    };
    let mut parts: Vec<PartRecord> = writers.iter().enumerate().map(write).collect();
    parts.reverse();
    parts
}

pub(super) fn save(checkpoints: &Checkpoints, ranks: &[Rank], step: u64) -> SavedCheckpoint {
    let parts = parts(checkpoints, ranks, step);
    commit(checkpoints, step, parts).unwrap()
}

pub(super) fn commit(
    checkpoints: &Checkpoints,
    step: u64,
    parts: Vec<PartRecord>,
) -> Result<SavedCheckpoint, RecordError> {
    checkpoints.commit(step, 96 * step, Some(BestValidation { step, val_loss: 0.5 }), None, parts)
}

pub(super) struct Fixture {
    pub(super) dir: tempfile::TempDir,
    pub(super) ranks: Vec<Rank>,
}

impl Fixture {
    /// Steps 1 and 2 of a run in two stages.
    pub(super) fn new() -> Self {
        let fixture = Self { dir: tempfile::tempdir().unwrap(), ranks: stages(&models()[0], &[2]) };
        save(&fixture.open(), &fixture.ranks, 1);
        save(&fixture.open(), &fixture.ranks, 2);
        fixture
    }

    pub(super) fn open(&self) -> Checkpoints {
        Checkpoints::open(self.dir.path(), PLAN, 9).unwrap()
    }

    pub(super) fn file(&self, step: u64, name: &str) -> PathBuf {
        self.dir.path().join(dir_name(step)).join(name)
    }

    /// Step 2 is found bad because of `text`, by the process that chooses and by the ranks that need the bytes.
    pub(super) fn falls_back(&self, text: &str) {
        let path = self.dir.path().join(dir_name(2));
        let loads = self.ranks.iter().map(|rank| load_state(&path, Some(PLAN), &rank.layout, 2, DType::F32));
        let errors: Vec<String> = loads.filter_map(Result::err).map(|error| error.to_string()).collect();
        assert!(!errors.is_empty() && errors.iter().all(|e| e.contains(text)), "{text}: {errors:?}");
        let chosen = self.open().choose().unwrap().unwrap();
        assert_eq!(chosen.step, 1);
        let warning = chosen.warnings.join("\n");
        assert!(warning.contains(text) && warning.contains("falling back to step-00000001"), "{warning}");
        assert!(self.dir.path().join("step-00000002.damaged").is_dir());
        for rank in &self.ranks {
            let state = load_state(&chosen.path, Some(PLAN), &rank.layout, rank.moments, DType::F32).unwrap();
            assert_is(&state, rank, 1, text);
        }
    }
}

#[test]
fn every_layout_continues_from_every_other() {
    for spec in models() {
        for (from, writers) in layouts(&spec) {
            let dir = tempfile::tempdir().unwrap();
            let checkpoints = Checkpoints::open(dir.path(), PLAN, 2).unwrap();
            let saved = save(&checkpoints, &writers, 7);
            let chosen = checkpoints.choose().unwrap().unwrap();
            assert_eq!((chosen.step, &chosen.hash), (7, &saved.hash));
            for (to, readers) in layouts(&spec) {
                let what = format!("{:?}: {to} from {from}", spec.family);
                std::thread::scope(|scope| {
                    for rank in &readers {
                        let (path, what) = (&chosen.path, &what);
                        scope.spawn(move || {
                            let state = load_state(path, Some(PLAN), &rank.layout, rank.moments, DType::F32).unwrap();
                            assert_is(&state, rank, 7, what);
                        });
                    }
                });
            }
            let whole = &stages(&spec, &[])[0];
            let (weights, step) =
                load_weights(dir.path(), CheckpointChoice::Latest, &whole.layout, &Device::Cpu).unwrap();
            let want = state(whole, 7).weights().unwrap().to_vec1::<f32>().unwrap();
            assert_eq!((weights.to_vec1::<f32>().unwrap(), step), (want, 7));
        }
    }
}

#[test]
fn one_part_equals_the_checkpoint_of_one_process() {
    let whole = stages(&models()[0], &[]);
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let one = save(&Checkpoints::open(a.path(), PLAN, 2).unwrap(), &whole, 3);
    let process =
        Checkpoints::open(b.path(), PLAN, 2).unwrap().save(&state_reader(&state(&whole[0], 3)), None).unwrap();
    assert_eq!(one.hash, process.hash);
    assert_eq!(one.hash, hash_state(&state_reader(&state(&whole[0], 3))).unwrap());
    for name in [MODEL, OPTIMIZER, STATE] {
        assert_eq!(fs::read(one.path.join(name)).unwrap(), fs::read(process.path.join(name)).unwrap(), "{name}");
    }
    let text = fs::read_to_string(one.path.join(STATE)).unwrap();
    assert!(text.contains("\"format\": 1,") && !text.contains("\"parts\""), "{text}");
}

#[test]
fn parts_are_named_and_hold_each_tensor_once() {
    let fixture = Fixture::new();
    let names: BTreeSet<String> = fs::read_dir(fixture.dir.path().join(dir_name(2)))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    let want = [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "optimizer-00001-of-00002.safetensors",
        "optimizer-00002-of-00002.safetensors",
        "state.json",
    ];
    assert_eq!(names, want.map(str::to_owned).into());
    let mut tensors = Vec::new();
    for name in &want[..2] {
        let bytes = fs::read(fixture.file(2, name)).unwrap();
        tensors.extend(SafeTensors::deserialize(&bytes).unwrap().names().into_iter().map(str::to_owned));
    }
    tensors.sort();
    let mut all: Vec<String> = parameters(&models()[0]).into_iter().map(|p| p.name).collect();
    all.sort();
    assert_eq!(tensors, all);
}

#[test]
fn the_hash_of_parts_is_over_step_tokens_and_their_hashes() {
    let fixture = Fixture::new();
    let checkpoints = fixture.open();
    let records = parts(&checkpoints, &fixture.ranks, 3);
    let mut bytes = [3u64.to_le_bytes(), 288u64.to_le_bytes()].concat();
    for (rank, record) in fixture.ranks.iter().zip(records.iter().rev()) {
        let mut part = Vec::new();
        for section in 0..=2 {
            for entry in rank.owned.iter().map(|&index| &rank.layout.entries[index].spec) {
                part.extend(numbers(3, &entry.name, section, entry.len()).iter().flat_map(|x| x.to_le_bytes()));
            }
        }
        assert_eq!(record.hash.state, blake3::hash(&part).to_hex().as_str());
        bytes.extend(record.hash.state.bytes());
    }
    let saved = commit(&checkpoints, 3, records).unwrap();
    assert_eq!(saved.hash.state, blake3::hash(&bytes).to_hex().as_str());
}

#[test]
fn a_commit_needs_every_part_unchanged() {
    type Change = fn(&mut Vec<PartRecord>, &Path);
    let cases: [(&str, Change); 7] = [
        ("part 2 of 2 is missing", |parts, _| drop(parts.remove(0))),
        ("part 1 of 2 is missing", |parts, _| drop(parts.remove(1))),
        ("part 1 of 1 is missing", |parts, _| parts.clear()),
        ("part 2 of 2 is missing", |parts, _| parts[0] = parts[1].clone()),
        ("part 2 of 2 is from step 2 instead of 3", |parts, _| parts[0].step = 2),
        ("part 2 of 2 has 1 optimizer moments", |parts, _| parts[0].moments = 1),
        ("model-00002-of-00002.safetensors is cut short: it has 1 bytes", |_, folder| {
            fs::write(folder.join("model-00002-of-00002.safetensors"), "x").unwrap();
        }),
    ];
    for (text, change) in cases {
        let fixture = Fixture::new();
        let checkpoints = fixture.open();
        let mut records = parts(&checkpoints, &fixture.ranks, 3);
        change(&mut records, &pending_folder(fixture.dir.path(), 3));
        let error = commit(&checkpoints, 3, records).unwrap_err().to_string();
        assert!(error.contains(text) && error.contains("saving checkpoint step-00000003"), "{error}");
        assert!(error.ends_with("the last good checkpoint is step-00000002"), "{error}");
        assert!(!pending_folder(fixture.dir.path(), 3).exists());
        assert_eq!(checkpoints.choose().unwrap().unwrap().step, 2);
    }
}

#[test]
fn a_kill_before_the_commit_leaves_nothing_that_counts() {
    let fixture = Fixture::new();
    parts(&fixture.open(), &fixture.ranks, 3);
    let left = pending_folder(fixture.dir.path(), 3);
    assert_eq!(fs::read_dir(&left).unwrap().count(), 4);
    assert_eq!(saved_steps(fixture.dir.path()).unwrap(), [1, 2]);
    assert_eq!(
        load_weights(fixture.dir.path(), CheckpointChoice::Latest, &fixture.ranks[0].layout, &Device::Cpu).unwrap().1,
        2
    );
    assert_eq!(fixture.open().choose().unwrap().unwrap().step, 2);
    assert!(!left.exists(), "removed at the next opening");
}

#[test]
#[cfg(target_os = "linux")]
fn the_rank_of_a_part_reports_a_full_disk() {
    let fixture = Fixture::new();
    let folder = fixture.open().begin(3).unwrap();
    let rank = &fixture.ranks[1];
    for full in ["model-00002-of-00002.safetensors", "optimizer-00002-of-00002.safetensors"] {
        let create = |path: &Path| {
            if path.ends_with(full) { File::options().write(true).open("/dev/full") } else { File::create_new(path) }
        };
        let part = PartSpec { index: 1, count: 2 };
        let error =
            write_part(&folder, part, &state_reader(&state(rank, 3)), &rank.owned, &create).unwrap_err().to_string();
        assert!(error.contains("the disk is full") && error.contains(full), "{error}");
        assert!(error.contains("the last good checkpoint is step-00000002"), "{error}");
        fs::remove_dir_all(&folder).unwrap();
    }
    let part = PartSpec { index: 2, count: 2 };
    assert!(
        write_part(&folder, part, &state_reader(&state(rank, 3)), &rank.owned, &|path| File::create_new(path)).is_err(),
        "no such part"
    );
    let part = PartSpec { index: 1, count: 2 };
    assert!(
        write_part(&folder, part, &state_reader(&state(rank, 3)), &[999], &|path| File::create_new(path)).is_err(),
        "no such entry"
    );
}

#[test]
fn a_rank_reads_only_what_it_needs() {
    let fixture = Fixture::new();
    fs::write(fixture.file(2, "optimizer-00001-of-00002.safetensors"), {
        let mut bytes = fs::read(fixture.file(2, "optimizer-00001-of-00002.safetensors")).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        bytes
    })
    .unwrap();
    let path = fixture.dir.path().join(dir_name(2));
    let first = &fixture.ranks[0];
    assert!(load_state(&path, Some(PLAN), &first.layout, 2, DType::F32).is_err());
    let replica = Rank { layout: first.layout.clone(), owned: Vec::new(), moments: 0 };
    assert_is(&load_state(&path, Some(PLAN), &first.layout, 0, DType::F32).unwrap(), &replica, 2, "weights alone");
    let error = load_state(&path, Some(PLAN), &first.layout, 1, DType::F32).unwrap_err().to_string();
    assert!(error.contains("has 2 optimizer moments, but this run's optimizer has 1"), "{error}");
}

#[test]
fn the_checkpoint_of_another_plan_is_loaded_when_asked_for() {
    let fixture = Fixture::new();
    let (path, rank) = (fixture.dir.path().join(dir_name(2)), &fixture.ranks[0]);
    let error = load_state(&path, Some("cccccccc"), &rank.layout, 2, DType::F32).unwrap_err().to_string();
    assert!(error.contains("belongs to a different plan (aaaaaaaabbbb; this run's is cccccccc)"), "{error}");
    assert_is(&load_state(&path, None, &rank.layout, 2, DType::F32).unwrap(), rank, 2, "any plan");
}

#[test]
fn a_checkpoint_is_adopted_by_another_run() {
    let fixture = Fixture::new();
    let from = fixture.dir.path();
    let dir = tempfile::tempdir().unwrap();
    let to = Checkpoints::open(dir.path(), "dddddddd", 9).unwrap();
    let (step, hash) = to.adopt(from, CheckpointChoice::Latest, true).unwrap();
    let chosen = to.choose().unwrap().unwrap();
    assert_eq!((step, chosen.step, &chosen.hash), (2, 2, &hash));
    for rank in &fixture.ranks {
        let state = load_state(&chosen.path, Some("dddddddd"), &rank.layout, 2, DType::F32).unwrap();
        assert_is(&state, rank, 2, "adopted");
    }
    assert_eq!(fixture.open().choose().unwrap().unwrap().hash, hash, "the other run keeps its own");
    assert_eq!(to.adopt(from, CheckpointChoice::Step(1), false).unwrap().0, 1);

    let error = to.adopt(from, CheckpointChoice::Step(5), true).unwrap_err().to_string();
    assert!(error.contains("no checkpoint of step 5; there are: 1, 2"), "{error}");
    let name = "optimizer-00001-of-00002.safetensors";
    let mut bytes = fs::read(fixture.file(2, name)).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::remove_file(fixture.file(2, name)).unwrap();
    fs::write(fixture.file(2, name), bytes).unwrap();
    let other = tempfile::tempdir().unwrap();
    let error = Checkpoints::open(other.path(), "eeee", 9)
        .unwrap()
        .adopt(from, CheckpointChoice::Latest, true)
        .unwrap_err()
        .to_string();
    assert!(error.contains("does not match the hash") && error.contains("next good one is step-00000001"), "{error}");
    assert_eq!(fs::read_dir(other.path()).unwrap().count(), 0);
}

#[test]
fn an_export_of_parts_is_the_file_of_one_process() {
    let fixture = Fixture::new();
    let whole = &stages(&models()[0], &[])[0];
    let one = tempfile::tempdir().unwrap();
    let saved = Checkpoints::open(one.path(), PLAN, 2).unwrap().save(&state_reader(&state(whole, 2)), None).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("new/folder");
    let made = export_weights(fixture.dir.path(), CheckpointChoice::Latest, &whole.layout, &to).unwrap();
    let bytes = fs::read(to.join(MODEL)).unwrap();
    assert_eq!((made.path, made.bytes, made.step), (to.join(MODEL), bytes.len() as u64, 2));
    assert!(bytes == fs::read(saved.path.join(MODEL)).unwrap());

    // Of a damaged checkpoint nothing comes, and what was there stays.
    let name = "model-00002-of-00002.safetensors";
    let mut part = fs::read(fixture.file(2, name)).unwrap();
    *part.last_mut().unwrap() ^= 1;
    fs::write(fixture.file(2, name), part).unwrap();
    let error =
        export_weights(fixture.dir.path(), CheckpointChoice::Latest, &whole.layout, &to).unwrap_err().to_string();
    assert!(error.contains("does not match") && error.contains("next good one is step-00000001"), "{error}");
    assert!(fs::read(to.join(MODEL)).unwrap() == bytes);
    assert_eq!(fs::read_dir(&to).unwrap().count(), 1, "nothing temporary stays");
    assert_eq!(export_weights(fixture.dir.path(), CheckpointChoice::Step(1), &whole.layout, &to).unwrap().step, 1);
}
