//! The budget of each point of a sweep: what its training may cost. It determines the steps of the point before the sweep starts.

use runner_spec::format::{count, seconds};
use serde::{Deserialize, Serialize};

/// What the training of one point may cost.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Budget {
    pub kind: BudgetKind,
    /// FLOPs as counted for MFU, tokens, or seconds; positive.
    pub amount: f64,
}

runner_record::named_enum! {
    pub enum BudgetKind {
        Flops = "flops",
        Tokens = "tokens",
        Time = "time",
    }
}

impl Budget {
    /// The budget in words, such as `2 h 0 min of training`.
    #[must_use]
    pub fn describe(self) -> String {
        let Self { kind, amount } = self;
        match kind {
            BudgetKind::Flops => format!("{amount:e} FLOPs"),
            BudgetKind::Tokens => format!("{} tokens", count(amount as u64)),
            BudgetKind::Time => format!("{} of training", seconds(amount)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_described_and_reads_back() {
        let flops = Budget { kind: BudgetKind::Flops, amount: 1e18 };
        assert_eq!(flops.describe(), "1e18 FLOPs");
        assert_eq!(Budget { kind: BudgetKind::Time, amount: 7200.0 }.describe(), "2h 00m of training");
        let json = serde_json::to_string(&flops).unwrap();
        assert_eq!(serde_json::from_str::<Budget>(&json).unwrap(), flops);
        assert_eq!(json, r#"{"kind":"flops","amount":1e+18}"#);
    }
}
