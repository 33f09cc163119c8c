//! The table of a sweep's results as CSV, with the comparison of the settings.

use std::iter::once;

use serde_json::Value;

use crate::points::{names_of, value_text};
use crate::results::{ResultsRow, SweepResults};
use crate::verdict::{SettingComparison, SweepVerdict};
use runner_spec::measure::Measure;

impl SweepResults {
    /// The table as CSV: a header and one line for each row. The first columns are `point` and one for each name that varies; a name that is
    /// also another column gets the prefix `param.`. Unknown values are empty. A text that a spreadsheet would take for a formula gets the
    /// prefix `'`.
    ///
    /// # Errors
    /// No input causes one.
    pub fn csv(&self, verdict: &SweepVerdict) -> Result<String, csv::Error> {
        let metric = &*self.objective.metric.key();
        let names = names_of(self.rows.iter().map(|row| &row.values));
        let mut writer = csv::Writer::from_writer(Vec::new());
        for (number, row) in self.rows.iter().enumerate() {
            let figures = figures(row, metric, verdict);
            if number == 0 {
                let is_taken = |name: &str| name == "point" || figures.iter().any(|(figure, _)| *figure == name);
                let head = |name: &&str| if is_taken(name) { format!("param.{name}") } else { escape_formula(name) };
                let own = figures.iter().map(|(name, _)| (*name).to_owned());
                writer.write_record(once("point".to_owned()).chain(names.iter().map(head)).chain(own))?;
            }
            let value = |name: &&str| match row.values.iter().find(|(n, _)| n == name) {
                Some((_, Value::String(text))) => escape_formula(text),
                Some((_, other)) => value_text(other),
                None => String::new(),
            };
            let first = once(row.point.to_string()).chain(names.iter().map(value));
            writer.write_record(first.chain(figures.into_iter().map(|(_, figure)| figure)))?;
        }
        let bytes = writer.into_inner().map_err(|e| csv::Error::from(e.into_error()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// The figures of a row by their columns: its own, and with several seeds those of its setting.
fn figures<'m>(row: &ResultsRow, metric: &'m str, verdict: &SweepVerdict) -> Vec<(&'m str, String)> {
    let number = |x: Option<f64>| x.filter(|x| x.is_finite()).map_or_else(String::new, |x| value_text(&Value::from(x)));
    let whole = |n: Option<u64>| n.map_or_else(String::new, |n| n.to_string());
    let mut out = vec![
        ("status", row.status.name().to_owned()),
        ("steps_done", row.steps.to_string()),
        ("tokens_done", whole(row.tokens)),
        ("flops_done", number(row.flops)),
        (metric, number(row.objective)),
        ("seconds", number(row.seconds)),
        ("own_seconds", number(row.own_seconds)),
        ("run", row.run.as_deref().map(escape_formula).unwrap_or_default()),
    ];
    let measured = [
        ("val_bits_per_byte", number(row.evaluated.bits_per_byte())),
        ("val_tokens", whole(row.measured_on.map(|sample| sample.tokens))),
        ("standard_error", number(Measure::of_key(metric).and_then(|metric| row.evaluated.standard_error(&metric)))),
        ("tokens_per_second", number(row.tokens_per_second)),
        ("mfu", number(row.mfu)),
    ];
    out.extend(measured.into_iter().filter(|(name, _)| *name != metric));
    if verdict.has_seeds() {
        let rank = verdict.settings.iter().position(|setting| setting.points.contains(&row.point));
        let setting = rank.map(|rank| &verdict.settings[rank]);
        let sample = setting.and_then(|setting| setting.sample);
        let comparison = setting.and_then(|setting| setting.comparison.as_ref());
        out.extend([
            ("setting", rank.map_or_else(String::new, |rank| (rank + 1).to_string())),
            ("setting_mean", number(sample.map(|sample| sample.mean))),
            ("setting_sd", number(sample.and_then(|sample| sample.sd))),
            ("difference_to_leader", number(comparison.map(SettingComparison::difference))),
            ("p", number(comparison.map(|comparison| comparison.compared.contrast.p))),
            ("adjusted_p", number(comparison.map(|comparison| comparison.compared.adjusted_p))),
            ("setting_label", setting.map_or_else(String::new, |setting| setting.label.clone())),
        ]);
    }
    out
}

/// `text`, marked as text where a spreadsheet would compute it.
fn escape_formula(text: &str) -> String {
    if text.starts_with(['=', '+', '-', '@', '\t', '\r']) { format!("'{text}") } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use runner_spec::measure::LossSample;
    use serde_json::json;

    use super::*;
    use crate::results::PointStatus;
    use crate::results::tests::{results, row};
    use crate::verdict::Background;

    fn no_settings() -> SweepVerdict {
        let results = results(Measure::VAL_LOSS, Vec::new());
        SweepVerdict::of_settings(&[], &results, true, &Background::default())
    }

    #[test]
    fn csv_has_the_comparison_of_the_setting_of_each_point() {
        let points = [(json!(0.1), 1, 2.0), (json!(0.1), 2, 2.5), (json!(0.2), 1, 1.0), (json!(0.2), 2, 1.25)];
        let (record, table) = crate::testing::finished(&points);
        let verdict = SweepVerdict::new(&record, &table, true);
        let text = table.csv(&verdict).unwrap();
        let header = "setting,setting_mean,setting_sd,difference_to_leader,p,adjusted_p,setting_label\n";
        assert!(text.lines().next().unwrap().ends_with(header.trim_end()), "{text}");
        let cells = |point: &str| -> Vec<&str> {
            let line = text.lines().find(|line| line.starts_with(point)).unwrap();
            line.split(',').rev().take(7).collect::<Vec<_>>().into_iter().rev().collect()
        };
        let (worse, leader) = (cells("1,"), cells("4,"));
        assert_eq!((worse[0], worse[1], worse[3]), ("2", "2.25", "1.125"));
        assert_eq!((leader[0], leader[1], leader[3], leader[4]), ("1", "1.125", "", ""));
    }

    #[test]
    fn csv_reads_back_and_holds_no_formulas() {
        let mut first = row(2, PointStatus::Done, Some(1.25));
        first.values.push(("status".to_owned(), json!(-3)));
        let measured = [(Measure::VAL_LOSS, 1.25), (Measure::VAL_LOSS_SE, 0.125), (Measure::BITS_PER_BYTE, 0.5)];
        (first.evaluated, first.mfu) = (measured.into_iter().collect(), Some(0.25));
        first.measured_on = Some(LossSample { tokens: 2048, rows: 32, standard_error: Some(0.125) });
        let table =
            results(Measure::VAL_LOSS, vec![row(1, PointStatus::Failed, None), first]).csv(&no_settings()).unwrap();
        let expected = "point,lr,decay,param.status,status,steps_done,tokens_done,flops_done,val_loss,seconds,own_seconds,run,val_bits_per_byte,val_tokens,standard_error,tokens_per_second,mfu\n\
                        2,1e-5,\"'=1+1, \"\"x\"\"\",-3,done,10,80,,1.25,1.5,0.5,run-2,0.5,2048,0.125,,0.25\n\
                        1,1e-5,\"'=1+1, \"\"x\"\"\",,failed,10,80,,,1.5,0.5,run-1,,,,,\n";
        assert_eq!(table, expected);
        let mut reader = csv::Reader::from_reader(table.as_bytes());
        assert!(reader.records().all(|record| record.unwrap().len() == 17));
        let speed = results(Measure::TOKENS_PER_SECOND, vec![row(1, PointStatus::Done, Some(10.0))]);
        let header = "point,lr,decay,status,steps_done,tokens_done,flops_done,tokens_per_second,seconds,own_seconds,run,val_bits_per_byte,val_tokens,standard_error,mfu\n";
        assert!(speed.csv(&no_settings()).unwrap().starts_with(header), "the objective has one column");
    }
}
