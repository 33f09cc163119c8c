//! `model.init.from`: what the weights say of their model, and what the file may say otherwise.

use super::experiment::Model;
use super::resolve::Resolver;
use crate::weights::FIXED;

impl Resolver<'_> {
    /// Reports what the `model` section says otherwise than the weights that it starts from. Its numbers are theirs unless a
    /// higher layer gives others: the vocabulary may be another, the context shorter, dropout is free.
    pub(crate) fn model_of_weights(&mut self, model: &Model) {
        let Some(weights) = self.weights.clone() else { return };
        let file = weights.file.display().to_string();
        let theirs = weights.model();
        let ours = serde_json::to_value(model).unwrap_or_default();
        for key in FIXED {
            let (Some(theirs), Some(ours)) = (theirs.get(key), ours.get(key)) else { continue };
            if theirs == ours || theirs.as_f64().is_some_and(|t| Some(t) == ours.as_f64()) {
                continue;
            }
            let [theirs, ours] = [theirs, ours].map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned));
            self.error(
                &[&format!("model.{key}"), "model.preset", "model.init.from"],
                format!("`model.{key}` is {ours}, and the weights of `model.init.from` have {theirs}"),
                format!("delete it: the numbers of {file} fill this section"),
            );
        }
        let variants = [
            ("norm", !model.norm.is_default()),
            ("activation", !model.activation.is_default()),
            ("positions", !model.positions.is_default()),
            ("embedding_scale", model.embedding_scale),
            ("head_bias", model.head_bias),
            ("final_norm", !model.final_norm),
        ];
        for (key, _) in variants.into_iter().filter(|(_, other)| *other) {
            self.error(
                &[&format!("model.{key}"), "model.init.from"],
                format!("`model.{key}` makes another model than the one whose weights `model.init.from` names"),
                format!("delete it: {file} is of a GPT-2 as it was published"),
            );
        }
        if model.context_length > weights.context_length {
            let (ours, theirs) = (model.context_length, weights.context_length);
            self.error(
                &["model.context_length", "model.preset", "model.init.from"],
                format!("`model.context_length` is {ours}, and the weights of `model.init.from` have {theirs}"),
                format!("at most {theirs}: positions beyond were never trained ({file})"),
            );
        }
    }
}
