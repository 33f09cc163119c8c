//! The command line of this process, as a person repeats it in a shell.

use std::ffi::OsString;

use runner_spec::format::shell_word;

/// This process's command for a shell, without `--new`, which would begin again.
pub(crate) fn repeated_command() -> String {
    shell_command(std::env::args_os().skip(1).filter(|argument| argument != "--new"))
}

/// This process's command for a shell, unchanged.
pub(crate) fn given_command() -> String {
    shell_command(std::env::args_os().skip(1))
}

fn shell_command(arguments: impl Iterator<Item = OsString>) -> String {
    std::iter::once("runner".to_owned())
        .chain(arguments.map(|argument| shell_word(&argument.to_string_lossy()).into_owned()))
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_the_arguments_again() {
        let arguments = ["sweep", "my sweeps/it's.yaml", "--set", "a={b: 1}", "--runs=../r", ""];
        assert_eq!(
            shell_command(arguments.into_iter().map(OsString::from)),
            r"runner sweep 'my sweeps/it'\''s.yaml' --set 'a={b: 1}' --runs=../r ''"
        );
    }
}
