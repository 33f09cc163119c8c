//! The keys of the file in which two plans differ.

use runner_spec::plan::Plan;

/// The keys of the file, or sections of it, in which two plans differ: those that change numbers, and if `with_layout` is true those
/// of layout, device, micro-batches and evaluation.
#[must_use]
pub fn differing_plan_keys(a: &Plan, b: &Plan, with_layout: bool) -> Vec<&'static str> {
    let (Some(p), Some(q)) = (a.ranks.first().map(|r| &r.program), b.ranks.first().map(|r| &r.program)) else {
        return Vec::new();
    };
    let table = [
        ("seed", p.seed != q.seed),
        ("data", a.data.train != b.data.train || a.data.tokenizer_hash != b.data.tokenizer_hash),
        ("model", p.model != q.model),
        ("model.init", a.data.weights != b.data.weights),
        ("data.position", p.batch.position != q.batch.position),
        ("batch.sequences", p.batch.sequences != q.batch.sequences),
        ("data.layout", p.batch.length != q.batch.length),
        ("train.steps", p.steps != q.steps),
        ("train.clip_norm", p.clip_norm() != q.clip_norm()),
        ("optimizer", p.optimizer != q.optimizer),
        ("schedule or learning rate", p.schedule != q.schedule),
        ("precision", p.precision != q.precision),
        ("master_weights", p.master_weights != q.master_weights),
        ("parallel", with_layout && (a.mesh != b.mesh || p.chunks != q.chunks || p.buckets != q.buckets)),
        ("batch.micro_batch", with_layout && p.batch.micro_batch != q.batch.micro_batch),
        ("eval", with_layout && (p.eval != q.eval || p.start != q.start || p.periodic != q.periodic)),
        ("device", with_layout && p.device != q.device),
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
        let what = differing_plan_keys(&plan, &other, false);
        assert!(what.starts_with(&["seed", "train.steps"]), "{what:?}");
        assert!(differing_plan_keys(&plan, &plan, true).is_empty());
    }
}
