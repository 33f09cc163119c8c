//! The lines of `metrics.jsonl`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use runner_spec::event::{Evaluation, StepMetrics};
use runner_spec::format::json_value;

/// One line. A number that is not finite is written as `null`, which JSON has, and read as `None`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum MetricLine {
    Train(TrainLine),
    /// Without its time. What was not evaluated is left out.
    Eval(Evaluation),
}

/// `StepMetrics` as written; times in milliseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainLine {
    pub step: u64,
    pub epoch: Option<f64>,
    pub loss: Option<f64>,
    pub lr: Option<f64>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub lr_by_group: BTreeMap<String, f64>,
    pub grad_norm: Option<f64>,
    pub tokens: u64,
    pub tokens_per_second: Option<f64>,
    pub mfu: Option<f64>,
    pub step_ms: Option<f64>,
    pub data_ms: Option<f64>,
    pub forward_ms: Option<f64>,
    pub backward_ms: Option<f64>,
    pub optimizer_ms: Option<f64>,
    /// Present for runs with several ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comm_ms: Option<f64>,
}

impl MetricLine {
    pub fn step(&self) -> u64 {
        match self {
            Self::Train(line) => line.step,
            Self::Eval(line) => line.step,
        }
    }
}

impl TrainLine {
    /// The training perplexity, which follows from the loss. `None` if it is not finite.
    pub fn perplexity(&self) -> Option<f64> {
        self.loss.map(f64::exp).filter(|perplexity| perplexity.is_finite())
    }
}

impl From<&StepMetrics> for MetricLine {
    fn from(metrics: &StepMetrics) -> Self {
        // A number that is not finite becomes `None`.
        #[expect(clippy::expect_used, reason = "a stated invariant: the metrics have all fields of their line")]
        Self::Train(serde_json::from_value(json_value(metrics)).expect("metrics have the fields of a line"))
    }
}

impl From<&Evaluation> for MetricLine {
    fn from(evaluation: &Evaluation) -> Self {
        Self::Eval(Evaluation { eval_ms: None, ..evaluation.clone() })
    }
}

#[cfg(test)]
mod tests {
    use runner_spec::measure::{Measure, Measured};

    use super::*;

    fn step() -> StepMetrics {
        StepMetrics {
            step: 3,
            epoch: 0.75,
            loss: 2.5,
            lr: 6e-4,
            grad_norm: 1.0 / 3.0,
            tokens: 768,
            tokens_per_second: 1e4,
            mfu: None,
            step_ms: 76.8,
            data_ms: 0.1,
            forward_ms: 25.0,
            backward_ms: 50.0,
            optimizer_ms: 1.7,
            ..StepMetrics::default()
        }
    }

    #[test]
    fn a_line_without_an_epoch_is_read() {
        let line = "{\"kind\":\"train\",\"step\":3,\"loss\":1.0,\"tokens\":8}";
        let Ok(MetricLine::Train(line)) = serde_json::from_str(line) else { panic!("a train line") };
        assert_eq!((line.epoch, line.perplexity()), (None, Some(1_f64.exp())));
        assert_eq!(TrainLine { loss: Some(1e3), ..line }.perplexity(), None);
    }

    #[test]
    fn a_train_line_is_as_documented() {
        let line = serde_json::to_string(&MetricLine::from(&step())).unwrap();
        assert_eq!(
            line,
            "{\"kind\":\"train\",\"step\":3,\"epoch\":0.75,\"loss\":2.5,\"lr\":0.0006,\"grad_norm\":0.3333333333333333,\"tokens\":768,\
             \"tokens_per_second\":10000.0,\"mfu\":null,\"step_ms\":76.8,\"data_ms\":0.1,\"forward_ms\":25.0,\
             \"backward_ms\":50.0,\"optimizer_ms\":1.7}"
        );
    }

    #[test]
    fn an_eval_line_leaves_out_what_is_absent() {
        let measured = Measured::default().with(Measure::VAL_LOSS, 1.5).with(Measure::VAL_PERPLEXITY, 4.5);
        let eval = Evaluation { step: 4, measured, eval_ms: Some(7.0) };
        let line = serde_json::to_string(&MetricLine::from(&eval)).unwrap();
        assert_eq!(line, "{\"kind\":\"eval\",\"step\":4,\"val_loss\":1.5,\"val_perplexity\":4.5}");
    }

    #[test]
    fn non_finite_numbers_stay_json_and_read_back_as_none() {
        let m = StepMetrics { loss: f64::NAN, grad_norm: f64::INFINITY, ..step() };
        let text = serde_json::to_string(&MetricLine::from(&m)).unwrap();
        assert!(text.contains("\"loss\":null") && text.contains("\"grad_norm\":null"), "{text}");
        let MetricLine::Train(back) = serde_json::from_str(&text).unwrap() else { panic!("a train line") };
        assert_eq!((back.loss, back.grad_norm, back.lr), (None, None, Some(6e-4)));
    }

    #[test]
    fn numbers_come_back_bit_for_bit() {
        for bits in [0x3FB9_9999_9999_999Au64, 0x3FF0_0000_0000_0001, 0x0000_0000_0000_0001, 0x7FEF_FFFF_FFFF_FFFF] {
            let loss = f64::from_bits(bits);
            let text = serde_json::to_string(&MetricLine::from(&StepMetrics { loss, ..step() })).unwrap();
            let MetricLine::Train(back) = serde_json::from_str(&text).unwrap() else { panic!("a train line") };
            assert_eq!(back.loss.unwrap().to_bits(), bits);
        }
    }
}
