//! The list of commands, and the exit code of their errors.

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use super::experiment::{coordinates, import, init, plan, render, schema, validate};
use super::machine::{calibrate, completions, doctor, version};
use super::models::{eval, export, logits, sample};
use super::training::{apply, fork, rank, reproduce, resume, seal, submit, verify};
use super::{data, runs, sweep};
use crate::cli::common::apply_process_variables;
use crate::cli::data::tokenizer;
use crate::cli::runs::{compare, diff, export_metrics, gc, report, watch};
use crate::cli::terminal::exit::{CommandError, Exit, Result, render};
use crate::cli::terminal::help;
use crate::cli::terminal::interrupt::ignore_signal;
use crate::cli::terminal::output::print_to_stderr;
use crate::cli::terminal::suggestions;
use runner_report::is_reader_gone;

/// Train language models from one declarative file.
///
/// An experiment file describes a model, its data, and its training. `runner apply` trains it and records everything in a run
/// directory. The same command resumes an interrupted run, or reports that the run is done.
#[derive(Debug, Parser)]
#[command(
    version,
    long_version = version::long_version(),
    propagate_version = true,
    arg_required_else_help = true,
    after_help = "Exit codes: 0 done, 1 the run failed, 2 the request was wrong, 3 differences\n\
                  found, 75 stopped by a scheduler, 130 interrupted.\n\
                  Environment: RUNNER_RUNS (folder of runs), RUNNER_CACHE (folder of prepared data), RUNNER_PEAK_FLOPS\n\
                  (of the device, for MFU), RUNNER_CUDA_LIBS (folders of CUDA's libraries), RUNNER_<KEY>__<KEY> (a key of the\n\
                  experiment), RUNNER_BF16_PRODUCTS (amx_bf16, avx512_bf16 or f32: how a CPU multiplies in bf16),\n\
                  NO_COLOR."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train what an experiment file describes, or resume its run.
    ///
    /// Ctrl-C finishes the step, saves a checkpoint and exits with code 130; the same command without --new resumes from there. After a
    /// crash it resumes from the last checkpoint. Either way, the numbers are those of a run without interruption.
    Apply(apply::ApplyArgs),
    /// Repeat a recorded run from its own directory, and compare the results.
    ///
    /// The command first reports what has changed since the run: the plan, the content of data and tokenizer, the program, the
    /// machine. Exit code 0: the results are equal, bit for bit or within the tolerance; 3: they diverged.
    Reproduce(reproduce::ReproduceArgs),
    /// Start a new run from the settings of another run, with changes, or from its checkpoint.
    ///
    /// --from says where it starts: from scratch or from a checkpoint. The same command without --new resumes the new run.
    Fork(fork::ForkArgs),
    /// Resume an interrupted or failed run from its own directory.
    ///
    /// The run's resolved.yaml is used, so later changes to the experiment file or to defaults do not matter.
    Resume(resume::ResumeArgs),
    Submit(submit::SubmitArgs),
    Init(init::InitArgs),
    Import(import::ImportArgs),
    Plan(plan::PlanArgs),
    Coordinates(coordinates::CoordinatesArgs),
    Calibrate(calibrate::CalibrateArgs),
    Compare(compare::CompareArgs),
    Data(data::DataArgs),
    Diff(diff::DiffArgs),
    Doctor(doctor::DoctorArgs),
    /// Check an experiment file or a sweep file, and show every mistake with its line and column.
    Validate(validate::ValidateArgs),
    /// Render a template (a file that ends in .j2) and print the result.
    Render(render::RenderArgs),
    /// Print the JSON Schema of the experiment file or the sweep file, for editors.
    Schema(schema::SchemaArgs),
    /// List recorded runs, show one, tag runs, or remove them.
    Runs(runs::RunsArgs),
    /// Write an HTML page about runs (curves, timelines, memory, samples, settings), or serve it while they train.
    Report(report::ReportArgs),
    Watch(watch::WatchArgs),
    /// Evaluate a run's checkpoint, or another program's weights: validation loss and multiple choice.
    Eval(eval::EvalArgs),
    /// Continue prompts with a run's checkpoint, or with another program's weights.
    Sample(sample::SampleArgs),
    /// Write the weights of a run's checkpoint for other programs: `transformers` and PyTorch.
    Export(export::ExportArgs),
    /// Make a folder of a run that others can verify: record, weights, training state, and the hash of every byte.
    Seal(seal::SealArgs),
    /// Verify a sealed run: compare every byte with its manifest, and train steps of it again.
    ///
    /// Exit code 0: every byte matches the manifest, and the steps gave the recorded numbers, bit for bit or within the tolerance; 3: something
    /// has changed, the steps diverged, or nothing was trained again.
    Verify(verify::VerifyArgs),
    Sweep(sweep::SweepArgs),
    Tokenizer(tokenizer::TokenizerArgs),
    ExportMetrics(export_metrics::ExportMetricsArgs),
    Gc(gc::GcArgs),
    #[command(hide = true)]
    Logits(logits::LogitsArgs),
    #[command(hide = true)]
    Rank(rank::RankArgs),
}

/// The command line.
fn program() -> clap::Command {
    help::with_groups(Cli::command())
}

/// Runs the command that the process was started with.
pub(crate) fn run() -> ExitCode {
    completions::answer_shell(program);
    // A write beyond a limit on the size of files (`ulimit -f`) is an error that is reported, not the end of the process.
    ignore_signal(libc::SIGXFSZ);
    // Before arguments are parsed: the version names what the variables choose.
    let variables = apply_process_variables();
    let parsed = program().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => {
            let error = suggestions::with_tip(error, &program());
            if error.use_stderr() {
                // The error quotes arguments, which may be the names of foreign files.
                let text = error.render();
                let text = if console::colors_enabled_stderr() { text.ansi().to_string() } else { text.to_string() };
                print_to_stderr(text.trim_end());
                return ExitCode::from(error.exit_code() as u8);
            }
            if error.kind() == ErrorKind::DisplayVersion
                && let Err(error) = variables
            {
                return report(&error);
            }
            // Help or a version that cannot be written is an error.
            return match error.print() {
                Err(failure) if !is_reader_gone(&failure) => {
                    print_to_stderr(&format!("error: standard output: {failure}"));
                    Exit::Failed.into()
                }
                _ => ExitCode::from(error.exit_code() as u8),
            };
        }
    };
    let clock = runner_record::time::check_clock().map_err(CommandError::from);
    match clock.and(variables).and_then(|()| execute(&cli.command)) {
        Ok(exit) => exit.into(),
        Err(error) => report(&error),
    }
}

/// Writes `error` to standard error, and returns its exit code.
fn report(error: &CommandError) -> ExitCode {
    print_to_stderr(&render(error, console::colors_enabled_stderr()));
    Exit::of_error(error.kind()).into()
}

fn execute(command: &Command) -> Result<Exit> {
    match command {
        Command::Apply(args) => apply::run(args),
        Command::Resume(args) => resume::run(args),
        Command::Submit(args) => submit::run(args),
        Command::Init(args) => init::run(args),
        Command::Import(args) => import::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Data(args) => data::run(args),
        Command::Diff(args) => diff::run(args),
        Command::Reproduce(args) => reproduce::run(args),
        Command::Fork(args) => fork::run(args),
        Command::Runs(args) => runs::run(args),
        Command::Report(args) => report::run(args),
        Command::Watch(args) => watch::run(args),
        Command::Eval(args) => eval::run(args),
        Command::Sample(args) => sample::run(args),
        Command::Export(args) => export::run(args),
        Command::ExportMetrics(args) => export_metrics::run(args),
        Command::Gc(args) => gc::run(args),
        Command::Logits(args) => logits::run(args),
        Command::Rank(args) => rank::run(args),
        Command::Seal(args) => seal::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Sweep(args) => sweep::run(args),
        Command::Tokenizer(args) => tokenizer::run(args),
        Command::Render(args) => render::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Coordinates(args) => coordinates::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Calibrate(args) => calibrate::run(args),
        Command::Validate(args) => validate::run(args),
        Command::Schema(args) => schema::run(args),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        program().debug_assert();
    }

    #[test]
    fn help_has_every_command_once_and_its_examples_are_legal() {
        let all: BTreeSet<String> = program()
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
            .map(|command| command.get_name().to_owned())
            .collect();
        assert_eq!(help::tests::grouped().into_iter().map(str::to_owned).collect::<BTreeSet<_>>(), all);
        for example in help::tests::examples() {
            // A quoted word is one argument; a command's parser sees no quotes.
            let quoted = example.split(['\'', '"']).enumerate();
            let words =
                quoted.flat_map(|(i, part)| if i % 2 == 0 { part.split_whitespace().collect() } else { vec![part] });
            program().try_get_matches_from(words).unwrap_or_else(|error| panic!("{example}: {error}"));
        }
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "a table of cases")]
    fn commands_parse() {
        for line in [
            "runner apply exp.yaml --set a.b=1 --set c=2 --threads 2 --new --runs d --quiet --json",
            "runner apply exp.yaml --until-step 5 --expect-plan 0a1b2c3d --sweep-point lr:3",
            "runner reproduce abc --threads 1 --tolerance 1e-3 --trace --json --quiet --runs d",
            "runner data prepare a.jsonl b.jsonl --tokenizer gpt2:d --to llmc out --name x --shard-tokens 1_000 --field body --threads 2",
            "runner data prepare --from exp.yaml --set a.b=1 --to nanogpt out --validation 0.1 --force --quiet --json",
            "runner tokenizer train a.txt --vocab-size 300 --special-token [PAD] --out t.json --force --threads 2 --json",
            "runner tokenizer train --from exp.yaml --set data.validation=null --var a=1 --vocab-size 300",
            "runner reproduce abc --check",
            "runner fork abc --set optimizer.adamw.lr=1e-4 --from 100 --name other",
            "runner fork abc --from best --new --threads 2 --until-step 5 --trace --json",
            "runner resume abc --threads 2 --quiet --json --runs d",
            "runner coordinates exp.yaml --widths 64,128 --steps 3 --json",
            "runner plan exp.yaml --json",
            "runner plan exp.yaml --cluster 2x8xH100 --rows 1000 --price 2.5 --rank 3 --instructions --memory",
            "runner calibrate --quick",
            "runner compare a b c --sort val_loss --json --runs d",
            "runner diff a.yaml b --set a.b=1 --rows 5 --threads 2 --json --exit-code --runs d",
            "runner calibrate --show --json",
            "runner doctor --json",
            "runner validate exp.yaml --explain",
            "runner validate exp.yaml.j2 --var lr=1e-3 --var=x=-1 --vars a.yaml --vars b.yaml",
            "runner plan exp.yaml.j2 --var lr=1e-3 --vars a.yaml",
            "runner render exp.yaml.j2 --var lr=1e-3 --vars a.yaml",
            "runner schema",
            "runner schema --sweep",
            "runner report a b -o out.html --force --title t --runs d --json",
            "runner report s -o -",
            "runner report a --serve --port 0",
            "runner runs --json",
            "runner runs show abc --json --runs d",
            "runner runs g* s --status done,failed --tag a --tag b --since 7d --where step>3 --sort -started --limit 3",
            "runner runs tag abc def --add x --remove y --json --runs d",
            "runner runs rm abc def --yes --keep-record --force --json",
            "runner gc --yes --older-than 30d --cache --checkpoints --json --runs d",
            "runner export-metrics abc def --tensorboard d --csv a.csv --force --json",
            "runner eval --weights out --text a.txt b.txt --length 8 --tokenizer bytes --precision bf16 --items i.jsonl --force",
            "runner sample --weights hub:gpt2 --prompt a",
            "runner eval abc --best --rows 3 --hellaswag f.jsonl --limit 5 --json",
            "runner export abc --step 5 --to safetensors dir --force --runs d",
            "runner export abc --best --to safetensors dir",
            "runner export abc --to hf dir --dtype bf16 --shard-size 2GB --vocab trimmed --json",
            "runner export abc --to torch model.pt --dtype bf16 --base-model",
            "runner sweep s.yaml --dry-run --new --parallel 2 --threads 4 --runs d --set a=1 --quiet --launcher local",
            "runner sweep s.yaml --launcher slurm --nodes 2 --time 12h --job-option=--partition=a --job-option --exclusive",
            "runner submit exp.yaml --nodes 2 --time 90m --job-option=--partition=a --set a=1 --threads 2 --new",
            "runner sweep status",
            "runner sweep status abc --json --runs d",
            "runner sweep results abc --csv",
            "runner sweep list --json --runs d",
            "runner sweep rm abc --with-runs --yes --json --runs d",
            "runner sweep point runs/sweeps/abc 3 --threads 1 --until-step 5",
            "runner sample abc --step 5 --prompt a --prompt b --top-k 0 --temperature 0",
        ] {
            Cli::try_parse_from(line.split(' ')).unwrap_or_else(|e| panic!("{line}: {e}"));
        }
        for line in [
            "runner apply",
            "runner apply a --threads 0",
            "runner report a",
            "runner report a --serve -o out.html",
            "runner apply a --until-step 0",
            "runner apply a --expect-plan xyz",
            "runner apply a --sweep-point lr:0",
            "runner resume",
            "runner reproduce abc --tolerance -1",
            "runner fork abc --from newest",
            "runner runs show",
            "runner diff a",
            "runner export a --to gguf d",
            "runner sweep",
            "runner sweep s.yaml --parallel 0",
            "runner sweep results --csv --json",
            "runner sweep rm",
            "runner submit exp.yaml --time 1m",
            "runner submit",
            "runner data prepare a.txt --to llmc out",
            "runner data prepare a.txt --tokenizer bytes --to llmc",
            "runner data prepare a.txt --from exp.yaml --to llmc out",
            "runner data prepare a.txt --tokenizer bytes --set a.b=1 --to llmc out",
            "runner data prepare a.txt --tokenizer bytes --to llmc out --shard-tokens 1e8",
            "runner tokenizer train a.txt",
            "runner tokenizer train a.txt --from exp.yaml --vocab-size 300",
            "runner tokenizer train a.txt --set a.b=1 --vocab-size 300",
            "runner nothing",
        ] {
            let error = Cli::try_parse_from(line.split(' ')).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }
}
