//! Normalization of rows.

use super::part::{PartParameter, Place};
use crate::model::family::{Names, NormKind};
use crate::model::initial::ParamInit;
use crate::model::spec::ModelSpec;

/// One norm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Norm {
    pub kind: NormKind,
    pub name: &'static str,
    width: usize,
    pub eps: f64,
}

impl Norm {
    pub(super) fn new(spec: &ModelSpec, names: &Names) -> Self {
        let kind = spec.family.defaults().norm;
        Self { kind, name: names.of(spec.family)[0], width: spec.d_model, eps: spec.norm_eps }
    }

    pub fn has_bias(&self) -> bool {
        self.kind == NormKind::LayerNorm
    }

    pub(super) fn parameters(&self, place: &Place) -> impl Iterator<Item = PartParameter> {
        let vector = |end: &str, init| place.parameter(&format!("{}.{end}", self.name), vec![self.width], init);
        let bias = self.has_bias().then(|| vector("bias", ParamInit::Zeros));
        [vector("weight", ParamInit::Ones)].into_iter().chain(bias)
    }

    /// Numbers that it keeps of each row: mean and 1/std, or 1/rms.
    pub(super) fn statistics(&self) -> usize {
        match self.kind {
            NormKind::LayerNorm => 2,
            NormKind::RmsNorm => 1,
        }
    }
}
