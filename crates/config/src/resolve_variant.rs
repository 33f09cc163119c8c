//! Contradictions of `master_weights` and of the keys that only the gpt2 family has.

use super::raw::{RawInit, RawModel};
use super::resolve::Resolver;
use runner_spec::experiment::{Family, NormPlace, Precision};

impl Resolver<'_> {
    /// Reports keys that llama does not have. A key with llama's own value is not a mistake.
    pub fn variant(&mut self, raw: &RawModel, family: Family) {
        if family != Family::Llama {
            return;
        }
        let given = [
            ("model.norm", raw.norm == Some(NormPlace::Post), "its norms stand before attention and MLP"),
            ("model.activation", raw.activation.is_some(), "its MLP is a SwiGLU"),
            ("model.positions", raw.positions.is_some(), "it rotates its positions"),
            ("model.embedding_scale", raw.embedding_scale == Some(true), "its embeddings are not scaled"),
            ("model.head_bias", raw.head_bias == Some(true), "it has no biases"),
            ("model.final_norm", raw.final_norm == Some(false), "a norm stands before its head"),
            ("model.mlp_dropout", raw.mlp_dropout.is_some_and(|p| p > 0.0), "it has no dropout"),
            ("model.init.pytorch", matches!(raw.init, Some(RawInit::Pytorch { .. })), "it starts from normal(0, 0.02)"),
        ];
        for (key, wrong, why) in given {
            if wrong {
                let message = format!("`{key}` is not a key of the family `llama`");
                self.error(&[key], message, format!("delete it, or choose `family: gpt2`; llama: {why}"));
            }
        }
    }

    /// Reports `master_weights: false` under a precision other than bf16, where all weights are 32-bit.
    pub fn master_weights(&mut self, precision: Precision, master_weights: bool) {
        if master_weights || precision == Precision::Bf16 {
            return;
        }
        let name = if precision == Precision::Fp32 { "fp32" } else { "tf32" };
        self.error(
            &["master_weights", "precision"],
            format!("`master_weights: false` under `precision: {name}`, whose weights are 32-bit"),
            "delete it, or choose `precision: bf16`",
        );
    }
}
