//! `runner render`: renders a template, whether or not the result is an experiment.

use std::path::PathBuf;

use clap::Args;

use crate::cli::common::TemplateArgs;
use crate::cli::terminal::exit::{Exit, Result, refuse};
use crate::cli::terminal::output::print_content;
use runner_config::LoadOptions;
use runner_yaml::source::read;

#[derive(Debug, Clone, Args)]
pub(crate) struct RenderArgs {
    /// The template.
    pub file: PathBuf,
    #[command(flatten)]
    pub template: TemplateArgs,
}

/// Prints the rendered text, which ends in a new line.
///
/// # Errors
/// `ConfigError` with the mistakes of the template; a file that is not a template.
pub(crate) fn run(args: &RenderArgs) -> Result<Exit> {
    if !runner_template::is_template(&args.file) {
        refuse!("{} is not a template: templates end in .j2", args.file.display());
    }
    let text = read(&args.file, "name a template, such as exp.yaml.j2")?;
    let options = args.template.add_to(LoadOptions::default())?;
    let rendered = runner_template::render(&text, &args.file, &options.template)?;
    let mut out = rendered.text;
    if !out.is_empty() && !out.ends_with('\n') {
        out.push('\n');
    }
    print_content(&out)?;
    Ok(Exit::Done)
}
