//! `runner report`: writes a page about runs, or serves it while they train.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::cli::common::RunsFolderArgs;
use crate::cli::runs::selection::{NamedRuns, SelectionArgs};
use crate::cli::terminal::exit::{Exit, Result, refuse};
use crate::cli::terminal::interrupt::Interrupt;
use crate::cli::terminal::output::{
    check_replaceable, print, print_content, print_result, print_to_stderr, write_file_as,
};
use runner_files::open_regular;
use runner_report::html::{LiveReport, PAGE_PREFIX, Page, ReportRequest, read_page_data};
use runner_spec::format;

/// The port on which `--serve` listens without `--port`.
const DEFAULT_PORT: u16 = 8700;

#[derive(Debug, Clone, Args)]
pub(crate) struct ReportArgs {
    #[command(flatten)]
    pub selection: SelectionArgs,
    /// The file to write; `-` is standard output. An earlier report in this file is replaced.
    #[arg(long, short, value_name = "FILE", required_unless_present = "serve")]
    pub output: Option<PathBuf>,
    /// Replace the file even if it is not a report.
    #[arg(long)]
    pub force: bool,
    /// Serve the page to this machine only, and update it while the runs train, until Ctrl-C.
    #[arg(long, conflicts_with_all = ["output", "force", "json"])]
    pub serve: bool,
    /// The port to serve on; 0 picks a free one [default: 8700].
    #[arg(long, value_name = "N", requires = "serve")]
    pub port: Option<u16>,
    /// The title of the page [default: the run's id, or the number of runs].
    #[arg(long)]
    pub title: Option<String>,
    #[command(flatten)]
    pub root: RunsFolderArgs,
    /// Print JSON: the file, its size, and its runs.
    #[arg(long)]
    pub json: bool,
}

/// # Errors
/// If there is no such run, the file is there and no report, or it cannot be written; if the port is taken.
pub(crate) fn run(args: &ReportArgs) -> Result<Exit> {
    let request = request(args)?;
    if args.serve {
        return serve(args.port.unwrap_or(DEFAULT_PORT), request);
    }
    let Some(output) = &args.output else { refuse!("no file to write; use `-o FILE`") };
    let standard = output == Path::new("-");
    check_replaceable(output, true)?;
    if args.port.is_some() {
        refuse!("--port needs --serve");
    }
    if !standard && !args.force && !is_replaceable(output) {
        refuse!("{} already exists and is not a report; use `--force` to replace it", output.display());
    }
    let data = read_page_data(&request)?;
    let page = Page::new(&data, false)?;
    if standard {
        print_content(&page.html)?;
        return Ok(Exit::Done);
    }
    write_file_as(output, page.html.as_bytes(), true, data.is_private)?;
    let bytes = page.html.len() as u64;
    let runs: Vec<&str> = data.runs.iter().map(|run| run.id.as_str()).collect();
    print_result(args.json, &serde_json::json!({"path": output, "bytes": bytes, "runs": runs}), || {
        let runs = format::counted(runs.len() as u64, "run");
        format!("{}: {runs}, {}\n", output.display(), format::bytes(bytes))
    })
}

/// The run directories and the sweep that the arguments name.
fn request(args: &ReportArgs) -> Result<ReportRequest> {
    let root = args.root.root();
    let mut request = ReportRequest { title: args.title.clone(), ..ReportRequest::default() };
    for NamedRuns { runs, sweep } in args.selection.named(&root)? {
        match sweep {
            Some(folder) if request.sweep.is_none() => request.sweep = Some(folder),
            Some(_) => refuse!("a report shows only one sweep"),
            None => request.runs.extend(runs),
        }
    }
    Ok(request)
}

/// True if `path` does not exist or is an earlier report.
fn is_replaceable(path: &Path) -> bool {
    if path.symlink_metadata().is_err() {
        return true;
    }
    let mut start = vec![0; PAGE_PREFIX.len()];
    let read = open_regular(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && start == PAGE_PREFIX.as_bytes()
}

/// Serves until a signal ends the process.
fn serve(port: u16, request: ReportRequest) -> Result<Exit> {
    // Nothing is ever half done here, so the first signal ends the process with the documented code.
    let _interrupt = Interrupt::install()?;
    let live = LiveReport::bind(port, request)?;
    print(&format!("http://{}/\n", live.address()))?;
    print_to_stderr("press Ctrl-C to stop");
    live.serve()
}
