//! The evaluations that a run inherits from the run whose checkpoint it begins with: those that both measure in the same way. Others are
//! left out of its record: its curves, best values and exports would show them beside its own, although they do not compare.

use runner_spec::data::ChoiceFacts;
use runner_spec::format::count;
use runner_spec::plan::Plan;

use super::metrics::EvalLine;

/// Why a run does not inherit another run's evaluations. A field is `None` if the run inherits that kind, or there are none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EvaluationChanges {
    /// Why validation losses do not compare.
    loss: Option<String>,
    /// Why accuracies in multiple choice do not compare.
    choice: Option<String>,
}

impl EvaluationChanges {
    /// Compares how a run of the plan `is` measures with how a run of the plan `was` did.
    pub fn between(was: &Plan, is: &Plan) -> Self {
        Self { loss: describe_loss_change(was, is), choice: describe_choice_change(was, is) }
    }

    /// True if validation losses of both runs compare.
    pub fn keeps_loss(&self) -> bool {
        self.loss.is_none()
    }

    /// The kinds of evaluations that are not inherited, each with the reason.
    pub fn describe(&self) -> Vec<String> {
        let loss = self.loss.iter().map(|reason| format!("validation losses ({reason})"));
        let choice = self.choice.iter().map(|reason| format!("multiple choice ({reason})"));
        loss.chain(choice).collect()
    }

    /// The part of the evaluation `line` that is inherited; `None` if nothing is.
    pub fn inherited_part(&self, line: &EvalLine) -> Option<EvalLine> {
        // Each field by its name: one that is added belongs to one of the two.
        let EvalLine {
            step,
            val_loss,
            val_loss_se,
            val_tokens,
            val_rows,
            val_perplexity,
            val_bits_per_byte,
            hellaswag_acc,
            hellaswag_acc_norm,
            hellaswag_acc_norm_chars,
            hellaswag_n,
            hellaswag_cut,
        } = *line;
        let mut line = EvalLine { step, ..EvalLine::default() };
        if self.loss.is_none() {
            line = EvalLine { val_loss, val_loss_se, val_tokens, val_rows, val_perplexity, val_bits_per_byte, ..line };
        }
        if self.choice.is_none() {
            (line.hellaswag_acc, line.hellaswag_acc_norm) = (hellaswag_acc, hellaswag_acc_norm);
            (line.hellaswag_acc_norm_chars, line.hellaswag_n) = (hellaswag_acc_norm_chars, hellaswag_n);
            line.hellaswag_cut = hellaswag_cut;
        }
        (line != EvalLine { step, ..EvalLine::default() }).then_some(line)
    }
}

fn describe_loss_change(was: &Plan, is: &Plan) -> Option<String> {
    let measured = |plan: &Plan| Some((plan.data.validation.clone()?, plan.validation_rows()?));
    let (theirs, their_rows) = measured(was)?;
    let Some((own, own_rows)) = measured(is) else {
        return Some("this run measures none".to_owned());
    };
    let length = |plan: &Plan| plan.ranks.first().map(|rank| rank.program.batch.length as u64);
    if let (Some(was), Some(is)) = (length(was), length(is))
        && was != is
    {
        return Some(format!("rows have {} tokens instead of {}", count(is), count(was)));
    }
    if theirs != own {
        return Some("the validation data differs".to_owned());
    }
    (their_rows != own_rows)
        .then(|| format!("eval.loss reads {} rows instead of {}", count(own_rows), count(their_rows)))
}

fn describe_choice_change(was: &Plan, is: &Plan) -> Option<String> {
    let measured = |plan: &Plan| {
        let program = &plan.ranks.first()?.program;
        program.eval.choice_items?;
        Some((plan.data.choice.clone()?, program.model.context_length as u64))
    };
    let (theirs, their_context) = measured(was)?;
    let Some((own, own_context)) = measured(is) else {
        return Some("this run measures none".to_owned());
    };
    let ChoiceFacts { items, .. } = own;
    if theirs.items != items {
        return Some(format!(
            "eval.hellaswag has {} items instead of {}",
            count(items as u64),
            count(theirs.items as u64)
        ));
    }
    if theirs != own {
        return Some("the items of eval.hellaswag, or how their text is prepared, differ".to_owned());
    }
    // The plan does not record the token in front of a context, which padded rows determine; their hash covers it.
    if (was.totals.has_padding || is.totals.has_padding) && was.data.train.hash != is.data.train.hash {
        return Some(
            "data.layout or the training data differs, so contexts may begin with a different token".to_owned(),
        );
    }
    (their_context != own_context)
        .then(|| format!("model.context_length is {} instead of {}", count(own_context), count(their_context)))
}
