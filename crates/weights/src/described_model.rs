//! A model as its weights' own file describes it, and the reading of a `config.json`.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::error::WeightsError;
use super::folder::{CONFIG, tokenizer_beside};
use runner_files::strict_json;
use runner_spec::experiment::Tokenizer;
use runner_spec::model::{Family, ModelSpec};
use runner_spec::model::{HeadMistake, head_mistakes};

/// A model as its weights' own file describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct DescribedModel {
    /// The file with the description.
    pub file: PathBuf,
    pub spec: ModelSpec,
    /// Keys of the `model` section that the file does not give. The experiment gives them; `spec` has defaults that fit the others.
    pub unknown: Vec<&'static str>,
}

/// The longest context that an experiment may have.
pub(super) const MAX_CONTEXT: usize = 16_777_216;

impl DescribedModel {
    /// Checks that the numbers can be those of a model.
    ///
    /// # Errors
    /// The first number that cannot.
    pub(super) fn checked(self) -> Result<Self, WeightsError> {
        let spec = &self.spec;
        let wrong = |message: String| Err(WeightsError::file(&self.file, message));
        // The limits are those of the experiment file.
        let sizes = [
            ("vocabulary", spec.vocab_size, 100_000_000),
            ("context length", spec.context_length, MAX_CONTEXT),
            ("number of layers", spec.layers, 10_000),
            ("number of heads", spec.heads, 10_000),
            ("number of key-value heads", spec.kv_heads, 10_000),
            ("width", spec.d_model, 1_000_000),
            ("feed-forward width", spec.d_ff, 10_000_000),
        ];
        for (what, size, most) in sizes {
            if size == 0 || size > most {
                return wrong(format!("the {what} must be 1 to {most}, got {size}"));
            }
        }
        match head_mistakes(spec.family, spec.d_model, spec.heads, spec.kv_heads, spec.options.head_dim).first() {
            Some(HeadMistake::Width) => {
                return wrong(format!("the width, {}, must be a multiple of the {} heads", spec.d_model, spec.heads));
            }
            Some(HeadMistake::OddWidth) => {
                return wrong(format!("the width of a head must be even, got {}", spec.head_dim()));
            }
            Some(HeadMistake::Groups | HeadMistake::Grouped) => {
                let (heads, kv_heads) = (spec.heads, spec.kv_heads);
                return wrong(format!("the {heads} heads must be a multiple of the {kv_heads} key-value heads"));
            }
            None => {}
        }
        let broken = spec.options.broken_rules(spec.family, spec.layers, spec.d_model, spec.attention_heads());
        if let Some(rule) = broken.into_iter().next() {
            return wrong(rule.message);
        }
        if !(spec.norm_eps > 0.0 && spec.norm_eps <= 1.0) {
            return wrong(format!("the norm's epsilon must be above 0 and at most 1, got {}", spec.norm_eps));
        }
        let theta = spec.rope_theta;
        if !(theta > 0.0 && theta <= 1e12) {
            return wrong(format!("`rope_theta` must be above 0 and at most 1e12, got {theta}"));
        }
        if !(0.0..1.0).contains(&spec.dropout) {
            return wrong(format!("the dropout must be at least 0 and below 1, got {}", spec.dropout));
        }
        Ok(self)
    }

    /// True if the file gives the `key` of the `model` section.
    pub fn gives(&self, key: &str) -> bool {
        !self.unknown.contains(&key)
    }

    /// The tokenizer beside a `config.json`. A file that describes itself has none: those beside it may belong to other models.
    pub fn tokenizer(&self) -> Option<Tokenizer> {
        tokenizer_beside(Some(&self.file).filter(|file| file.ends_with(CONFIG))?)
    }

    /// The warning for a state dict about settings of the model that it does not record, apart from keys that `is_given` accepts; `None` for
    /// other files.
    pub fn assumptions(&self, is_given: impl Fn(&str) -> bool) -> Option<String> {
        if self.gives("norm_eps") {
            return None;
        }
        let ModelSpec { family, norm_eps, rope_theta, .. } = self.spec;
        let (architecture, numbers) = match family {
            Family::Gpt2 => ("activation `gelu_new`", vec![("norm_eps", format!("{norm_eps:e}"))]),
            Family::Llama => (
                "activation `silu`, attention to all earlier positions",
                vec![("norm_eps", format!("{norm_eps:e}")), ("rope_theta", rope_theta.to_string())],
            ),
        };
        let numbers = numbers.into_iter().filter(|(key, _)| !is_given(key));
        let assumed: Vec<String> = numbers.map(|(key, value)| format!(", `{key}` {value}")).collect();
        let file = self.file.display();
        Some(format!("{file} does not record how its model computes; assumed: {architecture}{}", assumed.concat()))
    }

    /// The description as a `model` section of an experiment file.
    #[expect(clippy::expect_used, reason = "a specification is numbers, texts and truth values")]
    pub fn model_section(&self) -> Value {
        let mut section = serde_json::to_value(&self.spec).expect("a specification is plain JSON");
        if let Some(keys) = section.as_object_mut() {
            // Options are keys like the others.
            if let Some(Value::Object(options)) = keys.remove("variant") {
                keys.extend(options);
            }
            for key in self.unknown.iter().copied().chain(self.spec.family.hidden_keys()) {
                keys.remove(key);
            }
        }
        section
    }
}

/// A `config.json`. Errors name its file and its keys.
pub(super) struct HfConfig<'a> {
    pub(super) file: &'a Path,
    pub(super) map: Map<String, Value>,
}

impl HfConfig<'_> {
    pub(super) fn wrong(&self, message: String) -> WeightsError {
        WeightsError::file(self.file, message)
    }

    /// The value of `key` as `read` reads it; `None` if it is missing or null. `wanted` describes the values that `read` accepts.
    fn value<'a, T>(
        &'a self,
        key: &str,
        wanted: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, WeightsError> {
        let Some(value) = self.map.get(key).filter(|value| !value.is_null()) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.mismatch(key, wanted, value))
    }

    /// A size; `None` if it is missing or null.
    pub(super) fn size(&self, key: &str) -> Result<Option<usize>, WeightsError> {
        self.value(key, "a whole number", |value| usize::try_from(value.as_u64()?).ok())
    }

    /// A size that must be present.
    pub(super) fn required_size(&self, key: &str) -> Result<usize, WeightsError> {
        self.size(key)?.ok_or_else(|| self.wrong(format!("`{key}` is missing")))
    }

    /// The sizes of `keys`, all of which must be present.
    pub(super) fn required_sizes<const N: usize>(&self, keys: [&str; N]) -> Result<[usize; N], WeightsError> {
        let mut sizes = [0; N];
        for (size, key) in sizes.iter_mut().zip(keys) {
            *size = self.required_size(key)?;
        }
        Ok(sizes)
    }

    pub(super) fn number(&self, key: &str) -> Result<Option<f64>, WeightsError> {
        self.value(key, "a number", Value::as_f64)
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, WeightsError> {
        self.value(key, "true or false", Value::as_bool)
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&str>, WeightsError> {
        self.value(key, "a string", Value::as_str)
    }

    /// Checks that the flag `key` is `wanted`, as it is if it is missing. `why` explains the requirement.
    ///
    /// # Errors
    /// If the flag has the other value.
    pub(super) fn check_flag(&self, key: &str, wanted: bool, why: &str) -> Result<(), WeightsError> {
        if self.flag(key)?.unwrap_or(wanted) == wanted {
            return Ok(());
        }
        Err(self.wrong(format!("`{key}: {}` is not supported; {why}", !wanted)))
    }

    pub(super) fn mismatch(&self, key: &str, wanted: &str, value: &Value) -> WeightsError {
        let kind = strict_json::describe_type(value);
        if strict_json::non_finite(value).is_some() {
            return self.wrong(format!("`{key}` must be {wanted}, got {kind}"));
        }
        let shown: String = value.to_string().chars().take(60).collect();
        self.wrong(format!("`{key}` must be {wanted}, got {kind} ({shown})"))
    }
}
