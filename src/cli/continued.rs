//! `runner apply --continue`: going on with another run's checkpoint under another layout.

use std::path::{Path, PathBuf};

use anyhow::bail;

use super::exit::RequestError;
use runner_spec::plan::Plan;
use runner_spec::program::{Instruction, Program};
use runner_store::manifest::Manifest;
use runner_store::{CheckpointChoice, catalog, run_dir};

#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct ContinueArgs {
    /// Begin with the record and newest checkpoint of this run, which trains the same under another layout.
    #[arg(long = "continue", value_name = "RUN")]
    pub run: Option<String>,
    /// Begin with its checkpoint after this many steps instead.
    #[arg(long = "continue-step", value_name = "N", requires = "run")]
    pub step: Option<u64>,
}

/// The run to begin with.
#[derive(Debug)]
pub(crate) struct Source {
    pub path: PathBuf,
    pub which: CheckpointChoice,
    /// The plan of that run.
    pub plan: Plan,
    manifest: Manifest,
}

impl ContinueArgs {
    /// Whether there is such a run in `root`, before anything takes long.
    ///
    /// # Errors
    /// If there is none.
    pub(crate) fn look(&self, root: &Path) -> anyhow::Result<()> {
        self.run.iter().try_for_each(|wanted| catalog::resolve(root, wanted).map(|_| ()).map_err(Into::into))
    }

    /// The run that is asked for, if it can be continued by one of `plan`.
    ///
    /// # Errors
    /// If there is no such run in `root`, or it computes something else.
    pub(crate) fn source(&self, root: &Path, plan: &Plan) -> anyhow::Result<Option<Source>> {
        let Some(wanted) = &self.run else { return Ok(None) };
        let path = catalog::resolve(root, wanted)?;
        let manifest = run_dir::read_manifest(&path)?;
        let theirs = runner_lab::stored_plan::read(&path)?;
        if theirs.hash == plan.hash {
            bail!(RequestError(format!("{} is a run of this file: without --continue it is resumed", manifest.id)));
        }
        if theirs.math_hash != plan.math_hash {
            let what = differences(&theirs, plan);
            let what = if what.is_empty() { String::new() } else { format!(": {}", what.join(", ")) };
            bail!(RequestError(format!(
                "{} cannot be continued by this file, which computes something else{what}; only layout, device, \
                 micro-batches and evaluation may differ",
                manifest.id
            )));
        }
        let which = self.step.map_or(CheckpointChoice::Latest, CheckpointChoice::Step);
        Ok(Some(Source { path, which, plan: theirs, manifest }))
    }
}

impl Source {
    /// Whether `run`, which is there already, began with this.
    ///
    /// # Errors
    /// If it did not.
    pub(crate) fn is_where_it_began(&self, run: &Manifest) -> anyhow::Result<()> {
        let wanted = match self.which {
            CheckpointChoice::Step(step) => Some(step),
            CheckpointChoice::Latest | CheckpointChoice::Best => None,
        };
        let began = run.continued_from.as_ref();
        let same = began.is_some_and(|c| {
            (&c.id, &c.plan_hash) == (&self.manifest.id, &self.manifest.plan_hash)
                && wanted.is_none_or(|step| step == c.step)
        });
        if same {
            return Ok(());
        }
        let how = began.map_or_else(
            || "from the start".to_owned(),
            |c| format!("with the checkpoint of {} after step {}", c.id, c.step),
        );
        bail!(RequestError(format!(
            "{} is a run of this file that began {how}: without --continue it is resumed, with --new another begins",
            run.id
        )))
    }
}

fn clip(program: &Program) -> Option<&Instruction> {
    program.step.iter().find(|i| matches!(i, Instruction::ClipNorm { .. }))
}

/// In what the two plans differ that changes numbers, in the file's words.
pub(super) fn differences(a: &Plan, b: &Plan) -> Vec<&'static str> {
    let (Some(p), Some(q)) = (a.ranks.first().map(|r| &r.program), b.ranks.first().map(|r| &r.program)) else {
        return Vec::new();
    };
    let table = [
        ("seed", p.seed != q.seed),
        ("data", a.data.train != b.data.train || a.data.tokenizer_hash != b.data.tokenizer_hash),
        ("model", p.model != q.model),
        ("model.init", a.data.weights != b.data.weights),
        ("batch.sequences", p.batch.sequences != q.batch.sequences),
        ("data.layout", p.batch.length != q.batch.length),
        ("train.steps", p.steps != q.steps),
        ("train.clip_norm", clip(p) != clip(q)),
        ("optimizer", p.optimizer != q.optimizer),
        ("schedule or learning rate", p.schedule != q.schedule),
        ("precision", p.precision != q.precision),
        ("master_weights", p.master_weights != q.master_weights),
    ];
    table.into_iter().filter(|(_, differ)| *differ).map(|(what, _)| what).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_plan::testing::{compiled, experiment};

    #[test]
    fn differences_are_named_in_the_files_words() {
        let plan = compiled(&experiment());
        let mut other = experiment();
        other.seed += 1;
        other.train.steps = Some(99);
        let other = compiled(&other);
        assert_ne!(plan.math_hash, other.math_hash);
        let what = differences(&plan, &other);
        assert!(what.starts_with(&["seed", "train.steps"]), "{what:?}");
        assert!(differences(&plan, &plan).is_empty());
    }
}
