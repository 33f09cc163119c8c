//! The values and caveats of a sweep's best point as text.

use runner_spec::format::{loss, percent, printable, rate};
use runner_sweep::{BestPointCaveat, ObjectiveMetric, value_text};

/// The value of `metric` as text, as the tables of runs show it.
#[must_use]
pub fn metric_text(metric: ObjectiveMetric, value: f64) -> String {
    match metric {
        ObjectiveMetric::ValLoss | ObjectiveMetric::TrainLoss | ObjectiveMetric::ValBitsPerByte => loss(value),
        ObjectiveMetric::ValPerplexity => format!("{value:.2}"),
        ObjectiveMetric::HellaswagAcc | ObjectiveMetric::HellaswagAccNorm | ObjectiveMetric::HellaswagAccNormChars => {
            percent(value)
        }
        ObjectiveMetric::TokensPerSecond => rate(value),
    }
}

/// `caveat` as a sentence. `metric` is the objective.
pub fn caveat_text(metric: ObjectiveMetric, caveat: &BestPointCaveat) -> String {
    let value_of = |value: f64| metric_text(metric, value);
    match caveat {
        BestPointCaveat::LuckiestSeed { point, seeds, measured, diverged, mean, worst } => {
            let mut results = match measured {
                1 => "no other has a result".to_owned(),
                _ => format!("{} {} on average and {} at worst", metric.name(), value_of(*mean), value_of(*worst)),
            };
            if *measured > 1 && measured + diverged < *seeds {
                results = format!("{results}, of {measured} that have a result");
            }
            if *diverged > 0 {
                results = format!("{results}; {diverged} diverged");
            }
            format!(
                "point {point} is the luckiest of its {seeds} seeds ({results}): compare settings by all of their seeds"
            )
        }
        BestPointCaveat::EdgeOfRange { point, name, value, is_highest, values } => {
            let (edge, beyond) = if *is_highest { ("highest", "higher") } else { ("lowest", "lower") };
            let (name, value) = (printable(name), printable(&value_text(value)));
            format!("`{name}` of point {point} is {value}, the {edge} of {values} values: a {beyond} one may be better")
        }
    }
}

/// `caveat` in a few words, for a table.
pub fn short_caveat(caveat: &BestPointCaveat) -> String {
    match caveat {
        BestPointCaveat::LuckiestSeed { seeds, .. } => format!("luckiest of {seeds} seeds"),
        BestPointCaveat::EdgeOfRange { name, is_highest, .. } => {
            format!("{} {}", if *is_highest { "highest" } else { "lowest" }, printable(name))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn caveats_are_sentences() {
        let seeds = |measured, diverged| {
            let seeds = BestPointCaveat::LuckiestSeed { point: 3, seeds: 4, measured, diverged, mean: 2.5, worst: 3.0 };
            caveat_text(ObjectiveMetric::ValLoss, &seeds)
        };
        let advice = "compare settings by all of their seeds";
        assert_eq!(
            [seeds(4, 0), seeds(3, 1), seeds(2, 1), seeds(1, 0)],
            [
                "val_loss 2.5000 on average and 3.0000 at worst",
                "val_loss 2.5000 on average and 3.0000 at worst; 1 diverged",
                "val_loss 2.5000 on average and 3.0000 at worst, of 2 that have a result; 1 diverged",
                "no other has a result",
            ]
            .map(|results| format!("point 3 is the luckiest of its 4 seeds ({results}): {advice}"))
        );
        let edge = BestPointCaveat::EdgeOfRange {
            point: 2,
            name: "lr".to_owned(),
            value: json!(0.1),
            is_highest: false,
            values: 3,
        };
        let text = caveat_text(ObjectiveMetric::ValLoss, &edge);
        assert_eq!(text, "`lr` of point 2 is 0.1, the lowest of 3 values: a lower one may be better");
        assert_eq!(short_caveat(&edge), "lowest lr");
    }
}
