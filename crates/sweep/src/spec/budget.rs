//! The budget of each point of a sweep: what its training may cost. It determines the steps of the point before the sweep starts.

use runner_spec::format::{count, seconds};
use serde::{Deserialize, Serialize};

/// What the training of one point may cost.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Budget {
    pub kind: BudgetKind,
    /// FLOPs as counted for MFU, tokens, seconds, or the cost; positive.
    pub amount: f64,
    /// The price of a device-hour, in the unit of the cost; `None` for other budgets, and until the command gives it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<f64>,
}

runner_record::named_enum! {
    pub enum BudgetKind {
        Flops = "flops",
        Tokens = "tokens",
        Time = "time",
        Cost = "cost",
    }
}

impl Budget {
    /// The seconds of training that a budget of time or cost pays for on `devices` devices; `None` for other budgets, or without a price.
    #[must_use]
    pub fn seconds(self, devices: usize) -> Option<f64> {
        match self.kind {
            BudgetKind::Time => Some(self.amount),
            BudgetKind::Cost => Some(self.amount / self.price? * 3600.0 / devices.max(1) as f64),
            BudgetKind::Flops | BudgetKind::Tokens => None,
        }
    }

    /// The budget in words, such as `2 h 0 min of training`.
    #[must_use]
    pub fn describe(self) -> String {
        let Self { kind, amount, price } = self;
        match kind {
            BudgetKind::Flops => format!("{amount:e} FLOPs"),
            BudgetKind::Tokens => format!("{} tokens", count(amount as u64)),
            BudgetKind::Time => format!("{} of training", seconds(amount)),
            BudgetKind::Cost => {
                let price = price.map_or_else(String::new, |price| format!(" at {price} per device-hour"));
                format!("a cost of {amount}{price}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_pays_for_seconds_of_all_devices() {
        let cost = Budget { kind: BudgetKind::Cost, amount: 20.0, price: Some(2.5) };
        assert_eq!((cost.seconds(1), cost.seconds(8)), (Some(28_800.0), Some(3600.0)));
        assert_eq!(Budget { price: None, ..cost }.seconds(1), None);
        assert_eq!(cost.describe(), "a cost of 20 at 2.5 per device-hour");
        let flops = Budget { kind: BudgetKind::Flops, amount: 1e18, price: None };
        assert_eq!((flops.seconds(1), flops.describe().as_str()), (None, "1e18 FLOPs"));
        let json = serde_json::to_string(&flops).unwrap();
        assert_eq!(serde_json::from_str::<Budget>(&json).unwrap(), flops);
        assert_eq!(json, r#"{"kind":"flops","amount":1e+18}"#);
    }
}
