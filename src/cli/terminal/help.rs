//! `runner --help`: the commands in groups, and examples of those that are used most.

use std::fmt::Write as _;

use clap::Command;

/// The commands in the order in which they are shown.
const GROUPS: [(&str, &[&str]); 7] = [
    ("Write experiments", &["init", "import", "validate", "plan", "render", "schema", "coordinates"]),
    ("Train", &["apply", "sweep", "submit", "resume", "fork"]),
    ("Look at runs", &["runs", "watch", "report", "compare", "diff", "export-metrics"]),
    ("Use models", &["sample", "eval", "export"]),
    ("Reproduce and prove", &["reproduce", "seal", "verify"]),
    ("Prepare data", &["data", "tokenizer"]),
    ("This machine", &["doctor", "calibrate", "gc"]),
];

/// Examples of commands.
const EXAMPLES: [(&str, &str); 11] = [
    (
        "apply",
        "  runner apply exp.yaml\n  runner apply exp.yaml --set train.steps=100 --set optimizer.adamw.lr=3e-3\n  \
         runner apply base.yaml fast.yaml --set-file model=models/wide.yaml",
    ),
    (
        "plan",
        "  runner plan exp.yaml\n  runner plan exp.yaml --cluster 1x8xH100 --price 2.5\n  \
         runner plan exp.yaml --search --cluster 2x8xH100",
    ),
    ("sweep", "  runner sweep sweep.yaml --dry-run\n  runner sweep sweep.yaml --parallel 2\n  runner sweep results"),
    ("validate", "  runner validate exp.yaml\n  runner validate exp.yaml --explain"),
    (
        "runs",
        "  runner runs\n  runner runs 'gpt2-*' --where \"optimizer.adamw.lr > 1e-3 and status == 'done'\" --sort val_loss\n  \
         runner runs show RUN",
    ),
    ("watch", "  runner watch\n  runner watch SWEEP\n  runner watch --status running --plain"),
    ("compare", "  runner compare RUN RUN\n  runner compare SWEEP --sort val_loss"),
    ("report", "  runner report RUN RUN -o report.html\n  runner report SWEEP --serve"),
    ("fork", "  runner fork RUN --from latest --set train.steps=2000\n  runner fork RUN --from start --set seed=2"),
    ("sample", "  runner sample RUN --prompt 'Once upon a time'\n  runner sample --weights hub:gpt2 --prompt 'The'"),
    ("export", "  runner export RUN --to hf model"),
];

/// `program` with its commands in groups, and with examples.
pub(crate) fn with_groups(mut program: Command) -> Command {
    let about = |name: &str| {
        let command = program.find_subcommand(name);
        command.and_then(Command::get_about).map(ToString::to_string).unwrap_or_default()
    };
    let width = GROUPS.iter().flat_map(|(_, names)| *names).map(|name| name.len()).max().unwrap_or(0);
    let mut commands = String::new();
    for (group, names) in GROUPS {
        let _ = writeln!(commands, "{group}:");
        for name in names {
            let _ = writeln!(commands, "  {name:<width$}  {}", about(name));
        }
        commands.push('\n');
    }
    program = program.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{commands}Options:\n{{options}}{{after-help}}"
    ));
    for (name, examples) in EXAMPLES {
        program = program.mut_subcommand(name, |command| command.after_help(format!("Examples:\n{examples}")));
    }
    program
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The commands of [`GROUPS`].
    pub(crate) fn grouped() -> BTreeSet<&'static str> {
        GROUPS.iter().flat_map(|(_, names)| *names).copied().collect()
    }

    /// The lines of [`EXAMPLES`].
    pub(crate) fn examples() -> impl Iterator<Item = &'static str> {
        EXAMPLES.iter().flat_map(|(_, text)| text.lines().map(str::trim))
    }
}
