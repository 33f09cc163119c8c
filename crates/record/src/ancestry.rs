//! The ancestors of a run: the run that it was made from, the run that this one was made from, and so on.

use std::path::Path;

use serde::Serialize;

use super::manifest::{ContinuedFrom, Manifest, RunOrigin};
use super::run_dir;

/// The longest chain that is followed: a damaged manifest may name its own run.
const MAX_ANCESTORS: usize = 100;

crate::named_enum! {
    /// The way in which a run was made from another.
    pub enum AncestryRelation {
        Fork = "fork",
        Reproduction = "reproduction",
        /// Continues the same training under another layout.
        Continuation = "continuation",
    }
}

/// A run that another was made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ancestor {
    pub relation: AncestryRelation,
    pub id: String,
    /// The step of its checkpoint with which the other run began; `None` if that began from the start.
    pub step: Option<u64>,
    /// True if its folder was removed, or holds another run.
    pub gone: bool,
    #[serde(skip)]
    plan_hash: String,
}

/// The chain of runs in `root` that `manifest`'s run comes from, the nearest first, up to one whose folder is gone.
pub fn ancestors(root: &Path, manifest: &Manifest) -> Vec<Ancestor> {
    let mut chain: Vec<Ancestor> = Vec::new();
    let mut next = parent(manifest.origin.as_ref(), manifest.continued_from.as_ref());
    let own_id = &manifest.id;
    while let Some(mut ancestor) = next.take().filter(|_| chain.len() < MAX_ANCESTORS) {
        // A folder without a readable manifest of the plan is no longer the ancestor.
        let manifest = run_dir::read_manifest(&root.join(&ancestor.id)).ok();
        let manifest = manifest.filter(|m| m.plan_hash == ancestor.plan_hash);
        // One run may have the id of another, in another folder, that it was made from.
        let manifest =
            manifest.filter(|_| ancestor.id != *own_id && chain.iter().all(|nearer| nearer.id != ancestor.id));
        ancestor.gone = manifest.is_none();
        next = manifest.and_then(|m| parent(m.origin.as_ref(), m.continued_from.as_ref()));
        chain.push(ancestor);
    }
    chain
}

/// The nearest ancestor of a run with these fields of a manifest, as if it were there; `None` if it was not made from another run.
pub fn parent(origin: Option<&RunOrigin>, continued_from: Option<&ContinuedFrom>) -> Option<Ancestor> {
    let continued_step = continued_from.map(|from| from.step);
    let (relation, id, step, plan_hash) = match (origin, continued_from) {
        (Some(RunOrigin::Fork { id, step, plan_hash }), _) => (AncestryRelation::Fork, id, *step, plan_hash),
        (Some(RunOrigin::Reproduction { id, plan_hash, .. }), _) => {
            (AncestryRelation::Reproduction, id, continued_step, plan_hash)
        }
        (None, Some(from)) => (AncestryRelation::Continuation, &from.id, continued_step, &from.plan_hash),
        (None, None) => return None,
    };
    Some(Ancestor { relation, id: id.clone(), step, gone: false, plan_hash: plan_hash.clone() })
}

impl Ancestor {
    /// The ancestor as text: `fork of a-1234 after step 5`.
    pub fn describe(&self) -> String {
        let step = self.step.map_or_else(String::new, |step| format!(" after step {step}"));
        let gone = if self.gone { " (which is not in this folder)" } else { "" };
        format!("{} of {}{step}{gone}", self.relation.name(), self.id)
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
                RunFiles {
                    experiment: "",
                    resolved: "",
                    plan: &plan,
                    template: None,
                    merged: None,
                    is_private: false,
                    manifest,
                },
                None,
            )
            .unwrap()
        };
        let hash = || plan.hash.clone();
        let first = make(None);
        let second = make(Some(RunOrigin::Fork { id: first.id(), step: Some(5), plan_hash: hash() }));
        let third = make(Some(RunOrigin::Reproduction { id: second.id(), plan_hash: hash(), state_hash: None }));
        let chain = |run: &RunDir| -> Vec<String> {
            ancestors(root.path(), run.manifest()).iter().map(Ancestor::describe).collect()
        };
        assert!(chain(&first).is_empty());
        let fork = format!("fork of {} after step 5", first.id());
        assert_eq!(chain(&third), [format!("reproduction of {}", second.id()), fork.clone()]);
        std::fs::remove_dir_all(first.path()).unwrap();
        assert_eq!(chain(&third)[1], format!("{fork} (which is not in this folder)"));
        // One that names itself.
        let itself = run_dir::base_id(&plan.experiment_name, &plan.hash) + "-4";
        let odd = make(Some(RunOrigin::Fork { id: itself, step: None, plan_hash: hash() }));
        let said = format!("fork of {} (which is not in this folder)", odd.id());
        assert_eq!(chain(&odd), [said]);
    }
}
