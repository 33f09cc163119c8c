//! Events of a run as JSON lines, for `--json`.

use std::path::Path;

use serde::Serialize;

use runner_record::MetricLine;
use runner_record::summary::Summary;
use runner_spec::event::{Event, SampleText};

/// One line of standard output.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum JsonEvent<'a> {
    Start {
        run: &'a Path,
        step: u64,
        steps: u64,
    },
    Sample(&'a SampleText),
    Checkpoint {
        step: u64,
    },
    Warning {
        message: &'a str,
    },
    /// The last line; `up_to_date` is true if there was nothing to do and no damage was found.
    Summary {
        run: &'a Path,
        up_to_date: bool,
        summary: Option<&'a Summary>,
    },
    /// A line of `metrics.jsonl`, which has a kind itself, and the perplexity of a training step.
    #[serde(untagged)]
    Metric {
        #[serde(flatten)]
        line: Box<MetricLine>,
        #[serde(skip_serializing_if = "Option::is_none")]
        perplexity: Option<f64>,
    },
}

impl<'a> JsonEvent<'a> {
    /// The event as one line of JSON.
    #[expect(clippy::expect_used, reason = "plain data, whose maps have strings as keys")]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("an event is JSON")
    }

    fn metric(line: MetricLine) -> Self {
        let perplexity = if let MetricLine::Train(train) = &line { train.perplexity() } else { None };
        Self::Metric { line: Box::new(line), perplexity }
    }

    /// The line for `event` of the run in the folder `run`; `None` if the event is not shown.
    pub fn new(event: &'a Event, run: &'a Path) -> Option<Self> {
        Some(match event {
            Event::Start { step, steps } => Self::Start { run, step: *step, steps: *steps },
            Event::Step(metrics) => Self::metric(metrics.into()),
            Event::Eval(metrics) => Self::metric(metrics.into()),
            Event::Sample(sample) => Self::Sample(sample),
            Event::Saved { step } => Self::Checkpoint { step: *step },
            Event::Warning(message) => Self::Warning { message },
            Event::Rows(_) | Event::Watched(_) => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_spec::event::{Evaluation, StepMetrics};

    #[test]
    fn events_are_tagged_objects() {
        let text = |event: &Event| serde_json::to_string(&JsonEvent::new(event, Path::new("runs/a"))).unwrap();
        assert_eq!(text(&Event::Warning("w".into())), "{\"kind\":\"warning\",\"message\":\"w\"}");
        let eval = Evaluation::of_loss(2, 1.0);
        assert_eq!(text(&Event::Eval(eval)), "{\"kind\":\"eval\",\"step\":2,\"val_loss\":1.0}");
        let step = text(&Event::Step(StepMetrics { step: 2, epoch: 0.5, ..StepMetrics::default() }));
        assert!(step.starts_with("{\"kind\":\"train\",\"step\":2,\"epoch\":0.5,"), "{step}");
        assert!(step.ends_with(",\"perplexity\":1.0}"), "{step}");
        let sample = SampleText { step: 1, prompt: "p".into(), index: 0, text: "\x1b".into() };
        let line = text(&Event::Sample(sample));
        assert_eq!(line, "{\"kind\":\"sample\",\"step\":1,\"prompt\":\"p\",\"index\":0,\"text\":\"\\u001b\"}");
    }
}
