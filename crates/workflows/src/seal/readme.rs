//! The README of a sealed run: what the folder is, and the commands that verify it. It repeats no number of the record.

use std::path::Path;

use runner_compare::stored_plan::resolved_experiment;
use runner_record::run_dir;
use runner_spec::error::Result;
use runner_spec::format::{count, quoted_line};

use super::contents::last_step;
use super::manifest::{RUN, SealManifest};

/// The README of the sealed run in `folder`, which `seal` describes.
///
/// # Errors
/// If the record cannot be read.
pub(super) fn readme(folder: &Path, seal: &SealManifest) -> Result<String> {
    let (run, steps) = (folder.join(RUN), last_step(folder)?);
    let manifest = run_dir::read_manifest(&run)?;
    let own = seal.default_steps(steps).map(|own| {
        let (from, to) = (own.start(), own.end());
        (format!("--steps {from}..{to}"), "trains these steps again, from the sealed state")
    });
    // A fork begins with a checkpoint of another run.
    let foreign = manifest.foreign_steps();
    let begins_here = foreign == 0 || seal.state().is_some_and(|(step, _)| step == foreign);
    let whole = begins_here.then(|| (format!("--steps {}..{steps}", foreign + 1), "trains the whole run again"));
    let files = Some(("--only-files".to_owned(), "compares every byte with manifest.json"));
    let commands = [own, whole, files].into_iter().flatten();
    let commands: Vec<String> = commands.map(|(flags, what)| format!("runner verify . {flags}   # {what}\n")).collect();
    let commands = commands.concat();
    // The program makes or downloads other data itself.
    let data = if resolved_experiment(&run)?.data.train.files().is_empty() {
        ""
    } else {
        "`--data FOLDER` names the folder with the files of the data, which are found by their hashes. "
    };
    Ok(format!(
        "# {}\n\nThe weights of a run after step {} of {}, sealed by runner {}. `{RUN}/` is the record of the run, which `runner runs show {RUN}` \
         and `runner report {RUN} -o report.html` show. `manifest.json` has the BLAKE3 hash of each file.\n\n## Verify\n\n```sh\n{commands}```\n\n\
         {data}Steps that are not trained again are not verified.\n",
        quoted_line(&seal.run),
        count(seal.weights_step),
        count(steps),
        quoted_line(&seal.version),
    ))
}
