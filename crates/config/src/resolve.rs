//! Lowers the merged layers to an `Experiment`: fills in the defaults that depend on other keys, and reports keys that
//! contradict each other.

pub(crate) mod batch;
mod data;
mod devices;
mod model;
mod parallel;
pub(crate) mod resolver;
mod run;
mod source;
mod stages;
mod token_ids;

use std::path::Path;

use crate::files::LayerFile;
use crate::raw::RawExperiment;
use crate::resolve::resolver::Resolver;
use run::resolve_train;
use runner_spec::experiment::{AutoOr, Experiment};
use runner_spec::hub_name::{character_problem, is_legal_in_name};

impl Resolver<'_> {
    /// Resolves everything; `None` after mistakes.
    pub(crate) fn experiment(&mut self, raw: RawExperiment, path: &Path) -> Option<Experiment> {
        let name = self.name(raw.name.as_deref(), path);
        if raw.seeds.is_some() {
            let help = "`runner apply FILE` trains the group if the file itself has `seeds` (a flag or variable cannot make one); in a sweep, write \
                        `seeds` under `sweep`; `--set seeds=null` makes it one run";
            self.refuse::<()>(&["seeds"], "`seeds` makes a group of runs, and one run is needed here".to_owned(), help);
        }
        self.master_weights(raw.precision, raw.master_weights);
        let model = raw.model.and_then(|m| self.model(&m));
        let mut data = raw.data.and_then(|d| self.data(d, model.as_ref()));
        let length = data.as_ref().map(|d| d.layout.length());
        let raw_parallel = self.overridden(raw.parallel);
        let grid = self.grid(&raw_parallel);
        let batch = self.batch(&raw.batch, length, grid);
        if let (Some(data), Some(batch)) = (&mut data, &batch) {
            self.columns(&mut data.layout, batch.sequences);
        }
        let parallel = self.parallel(&raw_parallel, grid, batch.as_ref(), raw.device, model.as_ref().map(|m| m.layers));
        let train = resolve_train(raw.train);
        self.optimizer(&raw.optimizer, train.as_ref(), model.as_ref());
        let schedule = self.schedule(raw.schedule, train.as_ref());
        let validation = data.as_ref().map(|d| d.validation.is_some());
        let eval = self.eval(raw.eval, validation);
        if let (Some(data), Some(eval), Some(model)) = (&data, &eval, &model) {
            self.check_token_ids(data, eval, model);
            self.check_sight(eval, model);
        }
        let log = self.log(raw.log, name.as_deref());
        let is_auto = raw.batch.micro_batch == Some(AutoOr::Auto);
        if let (Some(model), Some(batch), Some(length), false) = (&model, &batch, length, is_auto) {
            self.sizes(model, batch, length);
        }
        if !self.mistakes.diagnostics.is_empty() {
            return None;
        }
        let experiment = Experiment {
            version: raw.version,
            name: name?,
            seed: raw.seed,
            device: raw.device,
            model: model?,
            data: data?,
            batch: batch?,
            train: train?,
            optimizer: raw.optimizer,
            schedule,
            precision: raw.precision,
            master_weights: raw.master_weights,
            parallel: parallel?,
            eval: eval?,
            checkpoint: raw.checkpoint,
            log: log?,
        };
        self.check_stages(&experiment);
        self.mistakes.diagnostics.is_empty().then_some(experiment)
    }

    /// The run's name, which is part of the name of its folder.
    fn name(&mut self, given: Option<&str>, path: &Path) -> Option<String> {
        let Some(name) = given else {
            let overlays: Vec<&LayerFile> = self.options.files.iter().filter(|file| file.key.is_empty()).collect();
            let files = if overlays.is_empty() { "name of the file" } else { "names of the files" };
            self.note("name", format!("default ({files})"));
            let names = overlays.iter().map(|overlay| name_of_file(&overlay.path, DEFAULT_NAME));
            let names: Vec<String> = std::iter::once(name_of_file(path, DEFAULT_NAME)).chain(names).collect();
            return Some(names.join("-").chars().take(MAX_NAME).collect());
        };
        let Some(problem) = name_problem(name) else { return Some(name.to_owned()) };
        let help = "it names the run's folder: use up to 100 letters, digits, `.`, `_` and `-`, and do not start with `.` or `-`";
        self.refuse(&["name"], format!("`name` {problem}"), help)
    }
}

/// The longest name of a folder.
const MAX_NAME: usize = 100;
/// The name of an experiment that has no other.
const DEFAULT_NAME: &str = "experiment";

/// The name for what the file `path` describes, such as `exp` for `exp.yaml` and `exp.yaml.j2`: legal as the name of a folder. It is
/// `default` if nothing of the file's name is.
pub fn name_of_file(path: &Path, default: &str) -> String {
    let plain = if runner_template::is_template(path) { path.with_extension("") } else { path.to_owned() };
    let stem = plain.file_stem().unwrap_or_default().to_string_lossy();
    let name: String = stem.chars().map(|c| if is_legal_in_name(c) { c } else { '-' }).take(MAX_NAME).collect();
    let name = name.trim_start_matches(['.', '-']);
    if name.is_empty() { default.to_owned() } else { name.to_owned() }
}

/// The reason why `name` cannot be the name of a folder.
pub fn name_problem(name: &str) -> Option<String> {
    character_problem(name, is_legal_in_name).or_else(|| match name {
        _ if name.starts_with(['.', '-']) => Some("starts with a dot or a dash".to_owned()),
        _ => (name.len() > MAX_NAME).then(|| format!("must have at most {MAX_NAME} characters, got {}", name.len())),
    })
}
