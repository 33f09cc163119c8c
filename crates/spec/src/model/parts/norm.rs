//! Normalization of rows.

use super::part::{PartParameter, Place};
use crate::model::family::{Names, NormKind};
use crate::model::initial::ParamInit;
use crate::model::options::{Biases, NormGain};
use crate::model::spec::ModelSpec;

/// One norm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Norm {
    pub kind: NormKind,
    pub name: &'static str,
    pub gain: NormGain,
    /// True for a LayerNorm that adds a trained vector.
    pub has_bias: bool,
    pub width: usize,
    pub eps: f64,
}

impl Norm {
    /// A norm of the residual stream.
    pub(super) fn new(spec: &ModelSpec, names: &Names) -> Self {
        let kind = spec.family.defaults().norm;
        let gain = spec.options.norm_gain;
        let has_bias = kind == NormKind::LayerNorm && gain != NormGain::None && spec.biases() != Biases::None;
        Self { kind, name: names.of(spec.family)[0], gain, has_bias, width: spec.d_model, eps: spec.norm_eps }
    }

    /// An RMSNorm of `width` numbers.
    pub(super) fn rms(spec: &ModelSpec, names: &Names, width: usize) -> Self {
        Self { kind: NormKind::RmsNorm, has_bias: false, width, ..Self::new(spec, names) }
    }

    pub(super) fn parameters(&self, place: &Place) -> impl Iterator<Item = PartParameter> {
        let vector = |end: &str, init| place.parameter(&format!("{}.{end}", self.name), vec![self.width], init);
        let weight = match self.gain {
            NormGain::Weight => Some(vector("weight", ParamInit::Ones)),
            NormGain::OnePlusWeight => Some(vector("weight", ParamInit::Zeros)),
            NormGain::None => None,
        };
        weight.into_iter().chain(self.has_bias.then(|| vector("bias", ParamInit::Zeros)))
    }

    /// Numbers that it keeps of each row: mean and 1/std, or 1/rms.
    pub(super) fn statistics(&self) -> usize {
        match self.kind {
            NormKind::LayerNorm => 2,
            NormKind::RmsNorm => 1,
        }
    }
}
