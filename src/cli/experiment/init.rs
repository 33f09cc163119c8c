//! `runner init`: writes a short experiment file that trains at once, to start from.

use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::PossibleValuesParser;
use serde_json::{Map, Value, json};

use crate::cli::models::text_source::{check_file, printable_path};
use crate::cli::terminal::exit::{Exit, Result, refuse};
use crate::cli::terminal::output::{print, write_file};
use runner_config::LoadOptions;
use runner_config::resolve::name_problem;
use runner_spec::experiment::FileFormat;
use runner_spec::format::printable;
use runner_template::{Inputs, render, yaml_text};

/// The experiment file to start from: a template with the variables `file`, `family`, `layout` and `files`.
const STARTER: &str = include_str!("../../../templates/starter.yaml.j2");

/// Write a short experiment file with comments, which trains at once, to start from.
#[derive(Debug, Clone, Args)]
pub(crate) struct InitArgs {
    /// The experiment's name; the file is NAME.yaml in the current folder.
    #[arg(default_value = "experiment")]
    name: String,
    /// The model's family.
    #[arg(long, value_parser = PossibleValuesParser::new(["gpt2", "llama"]), default_value = "gpt2")]
    model: String,
    /// The division of the work.
    #[arg(long, value_parser = PossibleValuesParser::new(["single", "dp", "ddp", "pipeline"]), default_value = "single")]
    parallel: String,
    /// Train on this text file instead of built-in stories.
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Replace a file of this name.
    #[arg(long)]
    force: bool,
}

/// # Errors
/// If the name or the text file cannot be used; if the file exists and `--force` is not given.
pub(crate) fn run(args: &InitArgs) -> Result<Exit> {
    let name = args.name.strip_suffix(".yaml").unwrap_or(&args.name);
    if let Some(problem) = name_problem(name) {
        refuse!("`{}` {problem}: a name has up to 100 letters, digits, `.`, `_` and `-`", printable(name));
    }
    if let Some(path) = &args.text {
        check_file(path)?;
        if let Some(format) = FileFormat::of_path(path).filter(|format| format.text_key().is_some()) {
            refuse!("--text {} is {}; name a file of plain text", printable_path(path), format.name);
        }
    }
    let file = format!("{name}.yaml");
    let files = args.text.as_ref().map(|path| yaml_text(&json!([path.display().to_string()])));
    let vars = [
        ("file", json!(file)),
        ("family", json!(args.model)),
        ("layout", json!(args.parallel)),
        ("files", json!(files)),
    ];
    let vars: Map<String, Value> = vars.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    let text = render(STARTER, Path::new("starter.yaml.j2"), &Inputs { vars, ..Inputs::default() })?.text;
    // The file must be a valid experiment, so a name or a text file that is not usable is reported now.
    runner_config::from_str(&text, Path::new(&file), &LoadOptions::default())?;
    write_file(Path::new(&file), text.as_bytes(), args.force)?;
    print(&format!(
        "wrote {file}\n  runner validate {file} --explain   # every key and its value\n  runner apply {file}\n"
    ))?;
    Ok(Exit::Done)
}
