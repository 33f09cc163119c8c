//! The table of a sweep's results as CSV, with the comparison of the settings.

use std::iter::once;

use runner_spec::measure::Measure;
use serde_json::Value;

use crate::points::value_text;
use crate::results::SweepResults;
use crate::verdict::SweepVerdict;

impl SweepResults {
    /// The table as CSV: a header and one line for each row, with the columns `point`, one for each name that varies, `status`,
    /// `steps_done`, `tokens_done`, `flops_done`, the metric, `seconds`, `own_seconds`, `run`, `val_tokens` and `standard_error` (those that
    /// the metric was measured on, and its error over their rows), and those of bits per byte, `tokens_per_second` and `mfu` that are
    /// not the metric.
    /// If settings of `verdict` have several seeds, the columns `setting` (its rank), `setting_mean`, `setting_half_width` (of the mean's
    /// interval), `difference_to_leader` and `adjusted_p` follow. Unknown values are empty. A name that is also another column gets the prefix `param.`. A text that a spreadsheet would take for a
    /// formula gets the prefix `'`.
    ///
    /// # Errors
    /// No input causes one.
    pub fn csv(&self, verdict: &SweepVerdict) -> Result<String, csv::Error> {
        let metric = &*self.objective.metric.key();
        let bits_per_byte = &*Measure::BITS_PER_BYTE.key();
        let measured = [bits_per_byte, "val_tokens", "standard_error", "tokens_per_second", "mfu"];
        let mut own =
            vec!["point", "status", "steps_done", "tokens_done", "flops_done", metric, "seconds", "own_seconds", "run"];
        own.extend(measured.iter().filter(|name| **name != metric));
        let of_setting = ["setting", "setting_mean", "setting_half_width", "difference_to_leader", "adjusted_p"];
        let of_setting = if verdict.has_seeds() { &of_setting[..] } else { &[] };
        own.extend(of_setting);
        let mut names: Vec<&str> = Vec::new();
        for (name, _) in self.rows.iter().flat_map(|row| &row.values) {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        let mut writer = csv::Writer::from_writer(Vec::new());
        let header = names.iter().map(|&n| if own.contains(&n) { format!("param.{n}") } else { escape_formula(n) });
        writer.write_record(once("point".to_owned()).chain(header).chain(own[1..].iter().map(|&n| n.to_owned())))?;
        for row in &self.rows {
            let value = |name: &&str| match row.values.iter().find(|(n, _)| n == name) {
                Some((_, Value::String(text))) => escape_formula(text),
                Some((_, other)) => value_text(other),
                None => String::new(),
            };
            let number =
                |x: Option<f64>| x.filter(|x| x.is_finite()).map_or_else(String::new, |x| value_text(&Value::from(x)));
            let rest = [
                row.status.name().to_owned(),
                row.steps.to_string(),
                row.tokens.map_or_else(String::new, |tokens| tokens.to_string()),
                number(row.flops),
                number(row.objective),
                number(row.seconds),
                number(row.own_seconds),
                row.run.as_deref().map(escape_formula).unwrap_or_default(),
            ];
            let tokens = row.measured_on.map_or_else(String::new, |sample| sample.tokens.to_string());
            let error = row.measured_on.and_then(|sample| sample.standard_error);
            let [bits, error, speed, mfu] =
                [row.evaluated.bits_per_byte(), error, row.tokens_per_second, row.mfu].map(number);
            let measured = measured.iter().zip([bits, tokens, error, speed, mfu]);
            let measured = measured.filter(|(name, _)| **name != metric).map(|(_, value)| value);
            let rank = verdict.settings.iter().position(|setting| setting.has_point(row.point));
            let setting = rank.map(|rank| &verdict.settings[rank]);
            let sample = setting.and_then(|setting| setting.sample);
            let comparison = setting.and_then(|setting| setting.comparison.as_ref());
            let cells = [
                rank.map_or_else(String::new, |rank| (rank + 1).to_string()),
                number(sample.map(|sample| sample.mean)),
                number(sample.and_then(|sample| Some(sample.interval?.half_width()))),
                number(comparison.map(|comparison| comparison.paired.difference)),
                number(
                    comparison.filter(|comparison| comparison.test.is_some()).map(|comparison| comparison.adjusted_p),
                ),
            ];
            let cells = cells.into_iter().take(of_setting.len());
            let first = once(row.point.to_string()).chain(names.iter().map(value));
            writer.write_record(first.chain(rest).chain(measured).chain(cells))?;
        }
        let bytes = writer.into_inner().map_err(|e| csv::Error::from(e.into_error()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// `text`, marked as text where a spreadsheet would compute it.
fn escape_formula(text: &str) -> String {
    if text.starts_with(['=', '+', '-', '@', '\t', '\r']) { format!("'{text}") } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use runner_spec::measure::{LossSample, Measured};
    use serde_json::json;

    use super::*;
    use crate::results::PointStatus;
    use crate::results::tests::{results, row};
    use crate::spec::Goal;
    use crate::verdict::Conclusion;

    fn no_settings() -> SweepVerdict {
        SweepVerdict {
            conclusion: Conclusion::NoResult,
            settings: Vec::new(),
            noise: None,
            row_noise: None,
            words: Vec::new(),
        }
    }

    #[test]
    fn csv_has_the_comparison_of_the_setting_of_each_point() {
        let points = [(json!(0.1), 1, 2.0), (json!(0.1), 2, 2.5), (json!(0.2), 1, 1.0), (json!(0.2), 2, 1.25)];
        let (record, table) = crate::testing::finished(&points);
        let verdict = SweepVerdict::new(&record, &table, &[], true);
        let text = table.csv(&verdict).unwrap();
        let header = "setting,setting_mean,setting_half_width,difference_to_leader,adjusted_p\n";
        assert!(text.lines().next().unwrap().ends_with(header.trim_end()), "{text}");
        let cells = |point: &str| -> Vec<&str> {
            let line = text.lines().find(|line| line.starts_with(point)).unwrap();
            line.split(',').rev().take(5).collect::<Vec<_>>().into_iter().rev().collect()
        };
        let (worse, leader) = (cells("1,"), cells("4,"));
        assert_eq!((worse[0], worse[1], worse[3]), ("2", "2.25", "1.125"));
        assert_eq!((leader[0], leader[1], leader[3], leader[4]), ("1", "1.125", "", ""));
    }

    #[test]
    fn csv_reads_back_and_holds_no_formulas() {
        let mut first = row(2, PointStatus::Done, Some(1.25));
        first.values.push(("status".to_owned(), json!(-3)));
        (first.evaluated, first.mfu) = (Measured::default().with(Measure::BITS_PER_BYTE, 0.5), Some(0.25));
        first.measured_on = Some(LossSample { tokens: 2048, rows: 32, standard_error: Some(0.125) });
        let table =
            results(Goal::Minimize, vec![row(1, PointStatus::Failed, None), first]).csv(&no_settings()).unwrap();
        let expected = "point,lr,decay,param.status,status,steps_done,tokens_done,flops_done,val_loss,seconds,own_seconds,run,val_bits_per_byte,val_tokens,standard_error,tokens_per_second,mfu\n\
                        2,1e-5,\"'=1+1, \"\"x\"\"\",-3,done,10,80,,1.25,1.5,0.5,run-2,0.5,2048,0.125,,0.25\n\
                        1,1e-5,\"'=1+1, \"\"x\"\"\",,failed,10,80,,,1.5,0.5,run-1,,,,,\n";
        assert_eq!(table, expected);
        let mut reader = csv::Reader::from_reader(table.as_bytes());
        assert!(reader.records().all(|record| record.unwrap().len() == 17));
        let mut speed = results(Goal::Maximize, vec![row(1, PointStatus::Done, Some(10.0))]);
        speed.objective.metric = Measure::TOKENS_PER_SECOND;
        let header = "point,lr,decay,status,steps_done,tokens_done,flops_done,tokens_per_second,seconds,own_seconds,run,val_bits_per_byte,val_tokens,standard_error,mfu\n";
        assert!(speed.csv(&no_settings()).unwrap().starts_with(header), "the objective has one column");
    }
}
