//! The values and caveats of a sweep's leading setting as text.

use runner_spec::format::printable;
use runner_sweep::{BestPointCaveat, value_text};

/// `caveat` as a sentence.
pub fn caveat_text(caveat: &BestPointCaveat) -> String {
    match caveat {
        BestPointCaveat::EdgeOfRange { name, value, is_highest, values, .. } => {
            let (edge, beyond) = if *is_highest { ("highest", "higher") } else { ("lowest", "lower") };
            let (name, value) = (printable(name), printable(&value_text(value)));
            format!("the leading `{name}` is {value}, the {edge} of {values} values: a {beyond} one may be better")
        }
        BestPointCaveat::DifferentFacts { facts } => {
            format!(
                "the runs differ in {}, not in their settings alone: `runner diff` says what that means",
                facts.join(" and ")
            )
        }
        BestPointCaveat::SharedText { warning } => printable(warning),
    }
}

/// `caveat` in a few words, for a table.
pub fn short_caveat(caveat: &BestPointCaveat) -> String {
    match caveat {
        BestPointCaveat::EdgeOfRange { name, is_highest, .. } => {
            format!("{} {}", if *is_highest { "highest" } else { "lowest" }, printable(name))
        }
        BestPointCaveat::DifferentFacts { facts } => format!("runs differ in {}", facts.join(" and ")),
        BestPointCaveat::SharedText { .. } => "evaluated text was used before".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn caveats_are_sentences() {
        let edge = BestPointCaveat::EdgeOfRange {
            point: 2,
            name: "lr".to_owned(),
            value: json!(0.1),
            is_highest: false,
            values: 3,
        };
        let text = caveat_text(&edge);
        assert_eq!(text, "the leading `lr` is 0.1, the lowest of 3 values: a lower one may be better");
        assert_eq!(short_caveat(&edge), "lowest lr");
        let facts = BestPointCaveat::DifferentFacts { facts: vec!["bf16 products", "processor"] };
        assert!(caveat_text(&facts).starts_with("the runs differ in bf16 products and processor, not in"));
        assert_eq!(short_caveat(&facts), "runs differ in bf16 products and processor");
    }
}
