//! Where a run comes from: the runs that it was made from, and those that they were.

use std::path::Path;

use serde::Serialize;

use super::manifest::{Manifest, RunOrigin};
use super::run_dir;

/// No chain of this length was made by a person; a damaged manifest may name itself.
const MOST: usize = 100;

/// How a run was made from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AncestryRelation {
    Fork,
    Reproduction,
    /// The same training under another layout.
    Continuation,
}

/// A run that another was made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ancestor {
    pub relation: AncestryRelation,
    pub id: String,
    /// Its checkpoint that the other began with, if it did not begin from the start.
    pub step: Option<u64>,
    /// Its folder is not there any more, or holds another run.
    pub gone: bool,
}

/// The chain of runs in `root` that `manifest`'s run comes from, the nearest first, up to one whose folder is gone.
#[must_use]
pub fn ancestors(root: &Path, manifest: &Manifest) -> Vec<Ancestor> {
    let mut chain: Vec<Ancestor> = Vec::new();
    let mut next = parent(manifest);
    while let Some((ancestor, plan_hash)) = next.take() {
        let found = run_dir::read_manifest(&root.join(&ancestor.id)).ok().filter(|m| m.plan_hash == plan_hash);
        chain.push(Ancestor { gone: found.is_none(), ..ancestor });
        if chain.len() < MOST {
            next = found.as_ref().and_then(parent);
        }
    }
    chain
}

/// The run that this one was made from, and that run's plan.
fn parent(manifest: &Manifest) -> Option<(Ancestor, String)> {
    let began = manifest.continued_from.as_ref();
    let (relation, id, step, plan_hash) = match (&manifest.origin, began) {
        (Some(RunOrigin::Fork { id, step, plan_hash }), _) => (AncestryRelation::Fork, id, *step, plan_hash),
        (Some(RunOrigin::Reproduction { id, plan_hash }), began) => {
            (AncestryRelation::Reproduction, id, began.map(|b| b.step), plan_hash)
        }
        (None, Some(b)) => (AncestryRelation::Continuation, &b.id, Some(b.step), &b.plan_hash),
        (None, None) => return None,
    };
    Some((Ancestor { relation, id: id.clone(), step, gone: false }, plan_hash.clone()))
}

impl Ancestor {
    /// In words: `fork of a-1234 after step 5`.
    #[must_use]
    pub fn words(&self) -> String {
        let relation = match self.relation {
            AncestryRelation::Fork => "fork",
            AncestryRelation::Reproduction => "reproduction",
            AncestryRelation::Continuation => "continuation",
        };
        let step = self.step.map_or_else(String::new, |step| format!(" after step {step}"));
        let gone = if self.gone { " (which is gone)" } else { "" };
        format!("{relation} of {}{step}{gone}", self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_dir::{RunDir, RunFiles};
    use runner_plan::testing::{compiled, experiment};

    #[test]
    fn the_chain_ends_where_a_folder_is_gone() {
        let root = tempfile::tempdir().unwrap();
        let plan = compiled(&experiment());
        let make = |origin: Option<RunOrigin>| {
            let manifest = Manifest { origin, ..Manifest::new(&plan, "exp.yaml".into(), vec![], "1".into()) };
            RunDir::create(
                root.path(),
                RunFiles { experiment: "", resolved: "", plan: &plan, template: None, manifest },
            )
            .unwrap()
        };
        let hash = || plan.hash.clone();
        let first = make(None);
        let second = make(Some(RunOrigin::Fork { id: first.id(), step: Some(5), plan_hash: hash() }));
        let third = make(Some(RunOrigin::Reproduction { id: second.id(), plan_hash: hash() }));
        let words = |run: &RunDir| -> Vec<String> {
            ancestors(root.path(), run.manifest()).iter().map(Ancestor::words).collect()
        };
        assert!(words(&first).is_empty());
        let fork = format!("fork of {} after step 5", first.id());
        assert_eq!(words(&third), [format!("reproduction of {}", second.id()), fork.clone()]);
        std::fs::remove_dir_all(first.path()).unwrap();
        assert_eq!(words(&third)[1], format!("{fork} (which is gone)"));
        // One that names itself.
        let itself = run_dir::base_id(&plan.experiment_name, &plan.hash) + "-4";
        let odd = make(Some(RunOrigin::Fork { id: itself, step: None, plan_hash: hash() }));
        assert_eq!(words(&odd).len(), MOST);
    }
}
