//! The text that ends a run: its headline, its numbers, and the commands that come next.

use std::fmt::Write as _;
use std::path::Path;

use super::table::name_value_lines;
use runner_record::summary::{Summary, headline};
use runner_spec::format::{bytes, count, counted, loss, percent, phase_times, printable, rate};
use runner_spec::measure::{Estimate, Measure};

/// The numbers of a summary, as `name  value` lines.
pub fn details(summary: &Summary) -> String {
    let mut rows: Vec<(&str, String)> = Vec::new();
    rows.extend(summary.error.as_ref().map(|error| ("error", printable(error))));
    rows.extend(summary.final_train_loss.map(|x| ("train loss", loss(x))));
    if let Some(last) = summary.last_eval.as_ref().map(|last| &last.measured) {
        // The sample has the error of the loss itself.
        let text = |of: Estimate<'_>| if *of.measure == Measure::VAL_LOSS { loss(of.value) } else { of.to_string() };
        let losses: Vec<String> = last.losses().map(text).collect();
        if last.val_loss().is_some() {
            let best = summary.best_eval.as_ref().and_then(|best| Some((best.step, best.val_loss()?)));
            let best =
                best.map_or_else(String::new, |(step, best)| format!("  best {} at step {}", loss(best), count(step)));
            let sample = last.val_sample().map_or_else(String::new, |sample| format!("  ({sample})"));
            rows.push(("val loss", format!("{}{best}{sample}", losses.join("  "))));
        }
        for scores in last.tasks() {
            let of = scores.items.map_or_else(String::new, |n| format!("  of {} items", count(n)));
            let cut = scores.cut.map_or_else(String::new, |n| format!(", {} cut to the context", count(n)));
            rows.push((scores.task, format!("{}{of}{cut}", scores.shares_text("  "))));
        }
    }
    rows.extend(summary.test.as_ref().map(|test| ("test loss", test.text(summary.is_inherited(test.step)))));
    let m = &summary.medians;
    if let (Some(speed), Some(step)) = (m.tokens_per_second, m.step_ms) {
        let mfu = m.mfu.map_or_else(String::new, |mfu| format!("  mfu {}", percent(mfu)));
        let basis = if summary.is_prediction_disturbed { " by a calibration of a busy machine" } else { "" };
        let predicted = summary.predicted_step_ms.map_or_else(String::new, |ms| format!(", {ms:.1} predicted{basis}"));
        rows.push(("speed", format!("{} tokens/s  {step:.1} ms a step{mfu}  (medians{predicted})", rate(speed))));
    }
    if let [Some(data), Some(forward), Some(backward), Some(optimizer)] =
        [m.data_ms, m.forward_ms, m.backward_ms, m.optimizer_ms]
    {
        rows.push(("phases", phase_times([data, forward, backward, optimizer], m.comm_ms)));
    }
    if let Some(peak) = summary.peak_rss_bytes {
        rows.push(("memory", format!("peak {}  planned {}", bytes(peak), bytes(summary.planned_memory_bytes))));
    }
    name_value_lines(rows)
}

/// The text that `apply` ends with. Other commands find the run as `run`; its folder is `path`. `resuming_command` resumes an interrupted
/// run. A run `has_samples` if it has a checkpoint, and its attention sees no tokens that are to be predicted.
pub fn closing_text(
    summary: &Summary,
    run: &str,
    path: &Path,
    has_samples: bool,
    resuming_command: Option<&str>,
) -> String {
    let mut out = format!("{}\n{}  {:12}{}\n", headline(summary), details(summary), "run", path.display());
    out.push_str("next:\n");
    if let Some(command) = resuming_command {
        let _ = writeln!(out, "  {command}");
    }
    if has_samples && summary.final_hash.is_some() {
        let _ = writeln!(out, "  runner sample {run} --prompt \"…\"");
    }
    let _ = writeln!(out, "  runner runs show {run}");
    out
}

/// An RFC 3339 time without its fraction.
pub fn short_time(time: &str) -> String {
    printable(&time.split('.').next().unwrap_or(time).replace('T', " "))
}

/// The message for a run that has nothing left to do. Without checkpoints it can be neither sampled from nor evaluated.
pub fn up_to_date_message(id: &str, summary: Option<&Summary>, has_checkpoints: bool) -> String {
    let last = summary.and_then(|s| s.last_eval.as_ref()?.val_loss());
    let last = last.map_or_else(String::new, |last| format!(", val loss {}", loss(last)));
    let steps = summary.map_or_else(String::new, |s| format!(", {}", counted(s.steps, "step")));
    let deleted = if has_checkpoints { "" } else { "; its checkpoints were deleted" };
    format!("up to date: {id}{steps}{last}{deleted}")
}

#[cfg(test)]
mod tests {
    use runner_record::manifest::RunStatus;
    use runner_record::summary::TestResult;

    use super::*;
    use runner_record::summary::{Medians, OwnAmounts};
    use runner_spec::event::Evaluation;

    fn summary() -> Summary {
        let keys = ["val_loss", "val_loss_se", "val_tokens", "val_rows", "val_perplexity", "val_bits_per_byte"];
        let losses = keys.into_iter().zip([1.8123, 0.01234, 111_488.0, 871.0, 6.12, 0.6571]);
        let scores = Measure::all_of_task("hellaswag").zip([0.31, 0.335, 0.32, 200.0]);
        let measured = losses.map(|(key, value)| (Measure::of_key(key).unwrap(), value)).chain(scores).collect();
        let eval = Evaluation { measured, ..Evaluation::new(2000) };
        Summary {
            id: "chars-0a1b2c3d".into(),
            status: RunStatus::Done,
            error: None,
            not_finite: false,
            steps: 2000,
            steps_total: 2000,
            tokens: 1_536_000,
            wall_seconds: 112.4,
            own: OwnAmounts { steps: 2000, tokens: 1_536_000, wall_seconds: 112.4 },
            final_train_loss: Some(1.73),
            last_eval: Some(eval),
            best_eval: Some(Evaluation::of_loss(1750, 1.81)),
            test: Some(TestResult {
                step: 1750,
                loss: 1.84,
                perplexity: 6.2965,
                bits_per_byte: None,
                tokens: 111_488,
                rows: 871,
                standard_error: Some(0.0125),
            }),
            medians: Medians {
                step_ms: Some(55.2),
                data_ms: Some(0.1),
                forward_ms: Some(18.0),
                backward_ms: Some(35.0),
                optimizer_ms: Some(2.0),
                comm_ms: None,
                tokens_per_second: Some(13_913.0),
                mfu: None,
            },
            predicted_step_ms: Some(51.0),
            is_prediction_disturbed: false,
            peak_rss_bytes: Some(330 << 20),
            planned_memory_bytes: 320 << 20,
            ranks: Vec::new(),
            final_hash: Some("s".into()),
            weights_hash: Some("w".into()),
            metrics: None,
        }
    }

    #[test]
    fn a_score_of_cut_items_says_so() {
        let mut summary = summary();
        summary.last_eval.as_mut().unwrap().measured.set(Measure::of_key("hellaswag_cut").unwrap(), 12.0);
        assert!(details(&summary).contains("acc_norm_chars 32.0% (SE 3.3%)  of 200 items, 12 cut to the context"));
    }

    #[test]
    fn a_finished_run_closes_with_its_results() {
        insta::assert_snapshot!(closing_text(&summary(), "chars-0a1b2c3d", Path::new("runs/chars-0a1b2c3d"), true, None), @r#"
        done: chars-0a1b2c3d, 2,000 steps, 1,536,000 tokens in 1m 52s, val loss 1.8123 (0.6571 bits/byte)
          train loss  1.7300
          val loss    1.8123  perplexity 6.12 (SE 0.076)  bits/byte 0.6571 (SE 0.0045)  best 1.8100 at step 1,750  (111,488 tokens in 871 rows, standard error 0.012)
          hellaswag   acc 31.0% (SE 3.3%)  acc_norm 33.5% (SE 3.3%)  acc_norm_chars 32.0% (SE 3.3%)  of 200 items
          test loss   1.8400  perplexity 6.30 (SE 0.079)  (checkpoint of step 1,750, 111,488 tokens in 871 rows, standard error 0.013)
          speed       13,913 tokens/s  55.2 ms a step  (medians, 51.0 predicted)
          phases      data 0.1  forward 18.0  backward 35.0  optimizer 2.0 ms
          memory      peak 330 MiB  planned 320 MiB
          run         runs/chars-0a1b2c3d
        next:
          runner sample chars-0a1b2c3d --prompt "…"
          runner runs show chars-0a1b2c3d
        "#);
    }

    #[test]
    fn a_failure_shows_its_cause() {
        let failed = Summary {
            status: RunStatus::Failed,
            error: Some("step 7: the loss is not finite".into()),
            steps: 6,
            own: OwnAmounts { steps: 6, ..summary().own },
            last_eval: None,
            best_eval: None,
            test: None,
            ..summary()
        };
        insta::assert_snapshot!(closing_text(&failed, "r", Path::new("runs/r"), true, None), @r#"
        failed: chars-0a1b2c3d, 6 of 2,000 steps, 1,536,000 tokens in 1m 52s
          error       step 7: the loss is not finite
          train loss  1.7300
          speed       13,913 tokens/s  55.2 ms a step  (medians, 51.0 predicted)
          phases      data 0.1  forward 18.0  backward 35.0  optimizer 2.0 ms
          memory      peak 330 MiB  planned 320 MiB
          run         runs/r
        next:
          runner sample r --prompt "…"
          runner runs show r
        "#);
    }

    #[test]
    fn an_interrupted_run_names_the_command_that_resumes_it() {
        let interrupted = Summary { status: RunStatus::Interrupted, steps: 6, ..summary() };
        let text = closing_text(&interrupted, "r", Path::new("runs/r"), true, Some("runner resume r"));
        assert!(text.contains("\nnext:\n  runner resume r\n  runner sample r"), "{text}");
    }
}
