//! The ancestors of a run: the run that it was made from, the run that this one was made from, and so on.

use std::path::Path;

use serde::Serialize;

use super::manifest::{ContinuedFrom, Manifest, RunOrigin};
use super::run_dir;

/// The longest chain that is followed: a damaged manifest may name its own run.
const MAX_ANCESTORS: usize = 100;

/// The way in which a run was made from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AncestryRelation {
    Fork,
    Reproduction,
    /// Continues the same training under another layout.
    Continuation,
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
}

/// The chain of runs in `root` that `manifest`'s run comes from, the nearest first, up to one whose folder is gone.
pub fn ancestors(root: &Path, manifest: &Manifest) -> Vec<Ancestor> {
    let mut chain: Vec<Ancestor> = Vec::new();
    let mut current = Some(manifest.clone());
    while let Some(manifest) = current.take()
        && let Some(parent) = parent(manifest.origin.as_ref(), manifest.continued_from.as_ref())
        && chain.len() < MAX_ANCESTORS
    {
        // A folder without a readable manifest of the plan is not the parent any more.
        current = run_dir::read_manifest(&root.join(parent.id)).ok().filter(|m| m.plan_hash == parent.plan_hash);
        let (relation, id, step) = (parent.relation, parent.id.to_owned(), parent.step);
        chain.push(Ancestor { relation, id, step, gone: current.is_none() });
    }
    chain
}

/// The run that another one was made from.
#[derive(Debug, Clone, Copy)]
pub struct Parent<'a> {
    pub relation: AncestryRelation,
    pub id: &'a str,
    /// The step of its checkpoint with which the other run began; `None` if that began from the start.
    pub step: Option<u64>,
    pub plan_hash: &'a str,
}

/// The parent of a run with these fields of a manifest; `None` if it was not made from another run.
pub fn parent<'a>(origin: Option<&'a RunOrigin>, continued_from: Option<&'a ContinuedFrom>) -> Option<Parent<'a>> {
    let continued_step = continued_from.map(|from| from.step);
    let (relation, id, step, plan_hash) = match (origin, continued_from) {
        (Some(RunOrigin::Fork { id, step, plan_hash }), _) => (AncestryRelation::Fork, id, *step, plan_hash),
        (Some(RunOrigin::Reproduction { id, plan_hash }), _) => {
            (AncestryRelation::Reproduction, id, continued_step, plan_hash)
        }
        (None, Some(from)) => (AncestryRelation::Continuation, &from.id, continued_step, &from.plan_hash),
        (None, None) => return None,
    };
    Some(Parent { relation, id, step, plan_hash })
}

impl Ancestor {
    /// The ancestor as text: `fork of a-1234 after step 5`.
    pub fn describe(&self) -> String {
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
                None,
            )
            .unwrap()
        };
        let hash = || plan.hash.clone();
        let first = make(None);
        let second = make(Some(RunOrigin::Fork { id: first.id(), step: Some(5), plan_hash: hash() }));
        let third = make(Some(RunOrigin::Reproduction { id: second.id(), plan_hash: hash() }));
        let chain = |run: &RunDir| -> Vec<String> {
            ancestors(root.path(), run.manifest()).iter().map(Ancestor::describe).collect()
        };
        assert!(chain(&first).is_empty());
        let fork = format!("fork of {} after step 5", first.id());
        assert_eq!(chain(&third), [format!("reproduction of {}", second.id()), fork.clone()]);
        std::fs::remove_dir_all(first.path()).unwrap();
        assert_eq!(chain(&third)[1], format!("{fork} (which is gone)"));
        // One that names itself.
        let itself = run_dir::base_id(&plan.experiment_name, &plan.hash) + "-4";
        let odd = make(Some(RunOrigin::Fork { id: itself, step: None, plan_hash: hash() }));
        assert_eq!(chain(&odd).len(), MAX_ANCESTORS);
    }
}
