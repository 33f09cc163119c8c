//! `model.init.from`: differences between the file and the description of the weights.

use serde_json::Value;

use super::resolver::Resolver;
use runner_spec::experiment::Model;
use runner_weights::{CONTEXT, Difference, differences};

impl Resolver<'_> {
    /// Reports keys of the `model` section that contradict the initial weights. A file may choose another vocabulary, a shorter
    /// context and any dropout.
    pub(crate) fn model_of_weights(&mut self, model: &Model) {
        let Some(weights) = self.weights.clone() else { return };
        let file = weights.file.display().to_string();
        for Difference { key, ours, theirs } in differences(&weights, model) {
            let at = format!("model.{key}");
            let shown = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            match theirs {
                None => self.error(
                    &[&at, "model.init.from"],
                    format!("`{at}` makes another model than the one whose weights `model.init.from` names"),
                    format!("delete it: {file} is of a GPT-2 as it was published"),
                ),
                Some(theirs) => self.error(
                    &[&at, "model.preset", "model.init.from"],
                    format!("`{at}` is {}, and the weights of `model.init.from` have {}", shown(&ours), shown(&theirs)),
                    match key.as_str() {
                        CONTEXT => format!("at most {theirs}: positions beyond were never trained ({file})"),
                        _ => format!("delete it: the numbers of {file} fill this section"),
                    },
                ),
            }
        }
    }
}
