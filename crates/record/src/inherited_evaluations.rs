//! The evaluations that a run inherits from the run whose checkpoint it begins with: those that compare with its own. Others are left out of
//! its record: its curves, best values and exports would show them beside its own, although they do not compare.

use runner_plan::MeasurementBasis;
use runner_spec::event::Evaluation;
use runner_spec::measure::Quantity;
use runner_spec::plan::Plan;

/// Why a run does not inherit another run's evaluations, by what they measure. What it inherits is left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EvaluationChanges(Vec<(Quantity, String)>);

impl EvaluationChanges {
    /// Compares how a run of the plan `is` measures with how the run `was_id` of the plan `was` did.
    pub fn between(was: &Plan, was_id: &str, is: &Plan) -> Self {
        let (from, to) = (MeasurementBasis::of_plan(was), MeasurementBasis::of_plan(is));
        let reason = |quantity: Quantity| {
            from.measures(&quantity).then_some(())?;
            let reason = if to.measures(&quantity) {
                to.describe_difference("this run", &from, was_id, &quantity)?
            } else {
                "this run measures none".to_owned()
            };
            Some((quantity, reason))
        };
        Self(MeasurementBasis::evaluated_quantities(was).into_iter().filter_map(reason).collect())
    }

    /// The reason why `quantity` is not inherited.
    fn reason(&self, quantity: &Quantity) -> Option<&str> {
        self.0.iter().find(|(changed, _)| changed == quantity).map(|(_, reason)| reason.as_str())
    }

    /// True if validation losses of both runs compare.
    pub fn inherits_validation_loss(&self) -> bool {
        self.reason(&Quantity::ValidationLoss).is_none()
    }

    /// The kinds of evaluations that are not inherited, each with the reason.
    pub fn describe(&self) -> Vec<String> {
        let describe = |(quantity, reason): &(Quantity, String)| match quantity {
            // They follow from the validation losses.
            Quantity::BitsPerByte if self.reason(&Quantity::ValidationLoss) == Some(reason) => None,
            Quantity::BitsPerByte => Some(format!("bits per byte ({reason})")),
            Quantity::Task(task) => Some(format!("{task} ({reason})")),
            _ => Some(format!("validation losses ({reason})")),
        };
        self.0.iter().filter_map(describe).collect()
    }

    /// The part of `evaluation` that is inherited; `None` if nothing is.
    pub fn inherited_part(&self, evaluation: &Evaluation) -> Option<Evaluation> {
        let mut part = evaluation.clone();
        part.measured.retain(|measure| self.reason(&measure.quantity()).is_none());
        (!part.measured.is_empty()).then_some(part)
    }
}
