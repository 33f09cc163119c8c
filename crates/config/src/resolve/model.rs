//! The `model` section: presets, sizes that must fit each other, and what belongs to which family.

use crate::initial_weights::INIT_FROM_KEY;
use crate::presets;
use crate::raw::RawModel;
use crate::resolve::resolver::Resolver;
use runner_spec::diagnostic::list;
use runner_spec::experiment::task_key;
use runner_spec::experiment::{Batch, Eval, Family, Model, WeightInit};
use runner_spec::format::{choice_name, division, json_value};
use runner_spec::model::{BrokenRule, DEFAULT_ROPE_THETA, ModelOptions};
use runner_spec::model::{HeadMistake, Heads, head_mistakes};
use runner_weights::{CONTEXT, Difference, differences};
use serde_json::Value;

/// More parameters than any machine holds; beyond it arithmetic on sizes would overflow.
const MAX_PARAMETERS: f64 = 1e13;
/// More elements in the largest tensors of one forward pass than any machine holds.
const MAX_ACTIVATIONS: f64 = 1e15;

impl Resolver<'_> {
    #[expect(clippy::too_many_lines, reason = "one section of the file")]
    pub(crate) fn model(&mut self, raw: &RawModel) -> Option<Model> {
        let family = raw.family.unwrap_or_default();
        let defaults = family.defaults();
        if let Some(preset) = &raw.preset
            && presets::family(preset).is_some_and(|f| f != family)
        {
            let same: Vec<&str> = presets::names().into_iter().filter(|p| presets::family(p) == Some(family)).collect();
            return self.refuse(
                &["model.family", "model.preset"],
                format!("the preset `{preset}` does not belong to the family `{}`", choice_name(&family)),
                format!("its presets are {}", list(&same, "and")),
            );
        }
        let sizes = [
            ("layers", raw.layers),
            ("heads", raw.heads),
            ("d_model", raw.d_model),
            ("context_length", raw.context_length),
        ];
        let missing: Vec<&str> = sizes.iter().filter(|(_, size)| size.is_none()).map(|(key, _)| *key).collect();
        // A size that was given wrongly is not missing.
        let unreported: Vec<&str> =
            missing.into_iter().filter(|key| !self.mistakes.is_poisoned(&format!("model.{key}"))).collect();
        if !unreported.is_empty() {
            let (key, advice) = match &self.weights {
                Some(weights) => ("model.init.from", format!("which {} does not have", weights.file.display())),
                None => ("model.preset", format!("or set `preset` to one of {}", list(&presets::names(), "or"))),
            };
            let verb = if unreported.len() == 1 { "is" } else { "are" };
            let message = format!("{} {verb} missing in `model`", list(&unreported, "and"));
            let missing: Vec<String> = unreported.iter().map(|size| format!("model.{size}")).collect();
            let keys: Vec<&str> = std::iter::once(key).chain(missing.iter().map(String::as_str)).collect();
            self.error(&keys, message, format!("give the number, {advice}"));
        }
        let [Some(layers), Some(heads), Some(d_model), Some(context_length)] = sizes.map(|(_, size)| size) else {
            self.check_family_keys(raw, family);
            return None;
        };
        self.check_heads(raw, family, heads, d_model);
        let options = ModelOptions::of_section(json_value(raw));
        let width = options.head_dim.unwrap_or(d_model / heads);
        let heads_of = Heads { queries: heads, kv: raw.kv_heads.unwrap_or(heads), width };
        // What has a mistake is left out, so that others would seem wrong.
        let reads_sums = !["model.values", "model.sums"].iter().any(|key| self.mistakes.is_poisoned(key));
        let is_of_sums = |key: &String| key.starts_with("values") || key.starts_with("sums");
        for BrokenRule { keys, message, advice } in options.broken_rules(family, layers, d_model, heads_of) {
            if !reads_sums && keys.iter().all(is_of_sums) {
                continue;
            }
            let keys: Vec<String> = keys.iter().map(|key| format!("model.{key}")).collect();
            self.error(&keys.iter().map(String::as_str).collect::<Vec<_>>(), message, advice);
        }
        self.check_family_keys(raw, family);
        let d_ff = raw.d_ff.unwrap_or_else(|| {
            self.note("model.d_ff", format!("default ({})", defaults.d_ff_text));
            (defaults.d_ff)(d_model)
        });
        // A state dict that does not say how many heads there are has keys for a group of them.
        let groups = self.weights.as_ref().map_or(1, |weights| weights.spec.heads / weights.spec.kv_heads);
        if raw.kv_heads.is_none() {
            let note = if groups == 1 { "default (heads)" } else { "default (heads that share keys in the weights)" };
            self.note("model.kv_heads", note.into());
        }
        if raw.tie_embeddings.is_none() {
            self.note("model.tie_embeddings", format!("default of {}", choice_name(&family)));
        }
        if raw.vocab_size.is_none() {
            self.note("model.vocab_size", "default (the tokenizer's)".into());
        }
        let theta = raw.rope_theta.unwrap_or(DEFAULT_ROPE_THETA);
        let (options, rope_theta) = options.canonical(family, layers, d_model / heads, theta);
        let model = Model {
            family,
            vocab_size: raw.vocab_size,
            pad_vocab_to: raw.pad_vocab_to,
            context_length,
            layers,
            heads,
            kv_heads: raw.kv_heads.unwrap_or(heads / groups),
            d_model,
            d_ff,
            dropout: raw.dropout.unwrap_or(0.0),
            tie_embeddings: raw.tie_embeddings.unwrap_or(defaults.tie_embeddings),
            norm_eps: raw.norm_eps.unwrap_or(1e-5),
            rope_theta,
            options,
            init: raw.init.clone().map(|init| match init {
                WeightInit::From(source) => WeightInit::From(source.relative_to(self.folder_of(INIT_FROM_KEY))),
                pytorch @ WeightInit::Pytorch { .. } => pytorch,
            }),
        };
        self.model_of_weights(&model);
        let rows = model.vocab_size.unwrap_or(256) + model.pad_vocab_to.unwrap_or(0);
        let parameters = model.spec(rows).parameter_bound();
        if parameters > MAX_PARAMETERS {
            return self.refuse(
                &["model.layers", "model.d_model", "model.d_ff", "model.vocab_size"],
                format!("the model is too large: it has {parameters:.1e} parameters"),
                format!("at most {MAX_PARAMETERS:e} are possible; make `layers`, `d_model` or `d_ff` smaller"),
            );
        }
        Some(model)
    }

    /// Reports keys of the `model` section that contradict the initial weights. A file may choose a different vocabulary, a shorter
    /// context and any dropout.
    fn model_of_weights(&mut self, model: &Model) {
        let Some(weights) = self.weights.clone() else { return };
        let file = weights.file.display().to_string();
        for Difference { key, ours, theirs } in differences(&weights, model) {
            let at = format!("model.{key}");
            let shown = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            match theirs {
                None => self.error(
                    &[&at, "model.init.from"],
                    format!("`{at}` does not fit the weights that `model.init.from` names"),
                    format!("folders of GPT-2 have no `{key}`; delete it, or train from scratch"),
                ),
                Some(theirs) => self.error(
                    &[&at, "model.preset", "model.init.from"],
                    format!("`{at}` is {}, but the weights of `model.init.from` have {}", shown(&ours), shown(&theirs)),
                    match key.as_str() {
                        CONTEXT => format!("use at most {theirs}: later positions were never trained ({file})"),
                        _ => format!("delete it: {file} gives this value"),
                    },
                ),
            }
        }
    }

    /// Reports numbers of heads that do not fit the width or each other.
    fn check_heads(&mut self, raw: &RawModel, family: Family, heads: usize, d_model: usize) {
        let (kv_heads, name) = (raw.kv_heads.unwrap_or(heads), choice_name(&family));
        for mistake in head_mistakes(family, d_model, heads, kv_heads, raw.head_dim) {
            match mistake {
                HeadMistake::Width => self.indivisible_sizes("d_model", d_model, "heads", heads),
                HeadMistake::OddWidth if raw.head_dim.is_some() => self.error(
                    &["model.head_dim"],
                    format!("`model.head_dim` must be even, got {}", raw.head_dim.unwrap_or_default()),
                    format!("the rotary embedding of {name} rotates pairs of dimensions"),
                ),
                HeadMistake::OddWidth => self.error(
                    &["model.heads", "model.d_model"],
                    format!("the width of a head must be even: d_model / heads = {d_model} / {heads} = {}", d_model / heads),
                    format!(
                        "the rotary embedding of {name} rotates pairs of dimensions; make `d_model` a multiple of 2·heads"
                    ),
                ),
                HeadMistake::Grouped => self.error(
                    &["model.kv_heads", "model.heads"],
                    format!(
                        "`model.kv_heads` must equal `model.heads` in {name}, got {kv_heads} and {heads}"
                    ),
                    "delete `kv_heads`, or choose `family: llama`, which groups its queries",
                ),
                HeadMistake::Groups => self.indivisible_sizes("heads", heads, "kv_heads", kv_heads),
            }
        }
    }

    /// Reports that the size `part_key` does not divide the size `key`.
    fn indivisible_sizes(&mut self, key: &str, whole: usize, part_key: &str, part: usize) {
        let (divisors, multiples) = (join_or(&divisors_near(whole, part)), join_or(&multiples_near(whole, part)));
        self.error(
            &[&format!("model.{part_key}"), &format!("model.{key}")],
            format!("`model.{part_key}` does not divide `model.{key}`: {}", division(whole, part)),
            format!("nearest: {part_key} {divisors}; {key} {multiples}"),
        );
    }

    /// Reports keys that the family does not have. A key with the family's own value is not a mistake.
    fn check_family_keys(&mut self, raw: &RawModel, family: Family) {
        let name = choice_name(&family);
        for foreign in family.foreign_keys(&json_value(raw)) {
            let key = format!("model.{}", foreign.key);
            let other = Family::ALL.into_iter().find(|other| other.lacked(foreign.key).is_none()).unwrap_or_default();
            let message = format!("`{key}` is not a key of the family `{name}`");
            let other = choice_name(&other);
            self.error(&[&key], message, format!("delete it, or choose `family: {other}`; {name}: {}", foreign.why));
        }
    }

    /// Reports evaluations that predict a word from those before it, where the model sees the word itself.
    pub(crate) fn check_sight(&mut self, eval: &Eval, model: &Model) {
        let samples = eval.samples.iter().map(|_| "eval.samples".into());
        let given = samples.chain(eval.tasks().map(|(name, _)| task_key(name)));
        for key in given.filter(|_| model.options.mask.sees_ahead()) {
            self.error(
                &[&key, "model.causal"],
                format!("`{key}` predicts each word from the words before it, but with `model.causal: false` the model sees all words"),
                format!("delete `{key}`, or write `causal: true`"),
            );
        }
    }

    /// Reports sizes that are legal one by one and too large together.
    pub(crate) fn sizes(&mut self, model: &Model, batch: &Batch, length: usize) {
        let rows = batch.micro_batch as f64 * length as f64;
        let widest = model.d_ff.max(model.d_model).max(model.vocab_size.unwrap_or(0)) as f64;
        let elements = rows * widest * model.layers as f64;
        if elements > MAX_ACTIVATIONS {
            self.error(
                &["batch.micro_batch", "batch.sequences", "model.context_length"],
                format!(
                    "one forward pass over {} sequences of {length} would hold {elements:.0e} numbers",
                    batch.micro_batch
                ),
                "make `batch.micro_batch` smaller",
            );
        }
    }
}

/// All divisors of `n`, in order.
pub(crate) fn divisors(n: usize) -> Vec<usize> {
    let small = (1..).take_while(|i| i * i <= n).filter(|i| n.is_multiple_of(*i));
    let mut all: Vec<usize> = small.flat_map(|i| [i, n / i]).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// The divisors of `n` next to `near`, below and above.
pub(crate) fn divisors_near(n: usize, near: usize) -> Vec<usize> {
    let divisors = divisors(n);
    let below = divisors.iter().copied().rfind(|&d| d < near);
    let above = divisors.iter().copied().find(|&d| d > near);
    below.into_iter().chain(above).collect()
}

/// The multiples of `of` next to `near`, below and above.
pub(crate) fn multiples_near(near: usize, of: usize) -> Vec<usize> {
    let below = near / of * of;
    [below, below.saturating_add(of)].into_iter().filter(|&m| m > 0).collect()
}

/// `2 or 5`.
pub(crate) fn join_or(values: &[usize]) -> String {
    values.iter().map(usize::to_string).collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_legal_sizes_are_found() {
        assert_eq!(divisors_near(10, 4), [2, 5]);
        assert_eq!(divisors_near(7, 9), [7]);
        assert_eq!(divisors_near(770, 12), [11, 14]);
        assert_eq!(multiples_near(10, 4), [8, 12]);
        assert_eq!(multiples_near(3, 4), [4]);
    }
}
