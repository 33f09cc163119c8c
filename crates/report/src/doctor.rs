//! The report of `runner doctor` as text.

use std::fmt::Write as _;

use crate::table::{Align, table};
use runner_machine::doctor::DoctorReport;
use runner_spec::format::{bytes, counted, printable};

/// Values of environment variables are cut after this many characters. The report as JSON has more of them.
const MAX_VALUE_CHARS: usize = 100;

/// The report as text, without the control characters that drivers, libraries and the environment may contain.
pub fn doctor_text(report: &DoctorReport) -> String {
    let mut out = String::new();
    // Writing into a String cannot fail.
    let mut line = |head: &str, text: &str| {
        let _ = writeln!(out, "{head:<11}{text}");
    };
    let nccl = if report.build.nccl { "with NCCL" } else { "without NCCL" };
    let build = match report.build.cuda {
        Some(cuda) => format!("with CUDA {cuda}, {nccl}"),
        None => "without CUDA (`make cuda` builds with it)".to_owned(),
    };
    line("runner", &format!("{}, {build}", report.build.version));
    let machine = &report.machine;
    let memory = machine.memory_bytes.map_or_else(|| "unknown memory".to_owned(), |n| format!("{} memory", bytes(n)));
    let cpu = machine.cpu.as_deref().unwrap_or("unknown processor");
    line("machine", &format!("{cpu}, {}, {memory}, {}", counted(machine.cores as u64, "core"), machine.os));
    if let Some(limit) = &machine.memory_limit {
        line("", &format!("memory limited to {} by {}", bytes(limit.bytes), limit.source));
    }
    line("", &report.cpu.to_string());
    let driver = &report.driver;
    let version = driver.version.as_deref();
    let of_driver = match (version, &driver.cuda) {
        (None, None) => "none".to_owned(),
        (Some(version), None) => format!("{version}, without libcuda.so.1"),
        (version, Some(cuda)) => format!("{}, up to CUDA {cuda}", version.unwrap_or("of unknown version")),
    };
    line("driver", &of_driver);
    if let Some(error) = &driver.error {
        line("", error);
    }
    out += &gpu_table(report);
    out += &library_table(report);
    for note in &report.notes {
        let _ = writeln!(out, "note: {note}");
    }
    if !report.environment.is_empty() {
        out.push_str("\nenvironment\n");
        for (name, value) in &report.environment {
            let shown: String = value.chars().take(MAX_VALUE_CHARS).collect();
            let more = if shown.len() < value.len() { "…" } else { "" };
            let _ = writeln!(out, "  {name}={}{more}", shown.replace('\n', " "));
        }
    }
    out += &feature_lines(report);
    printable(&out)
}

fn gpu_table(report: &DoctorReport) -> String {
    let gpus = &report.driver.gpus;
    if gpus.is_empty() {
        return String::new();
    }
    let columns = [("GPU", Align::Right), ("name", Align::Left), ("memory", Align::Right), ("compute", Align::Right)];
    let rows = gpus.iter().map(|gpu| {
        vec![gpu.index.to_string(), gpu.name.clone(), bytes(gpu.memory_bytes), gpu.compute_capability.to_string()]
    });
    format!("\n{}", table(&columns, &rows.collect::<Vec<_>>()))
}

fn library_table(report: &DoctorReport) -> String {
    let columns = [("library", Align::Left), ("version", Align::Left), ("file", Align::Left)];
    let rows = report.libraries.iter().map(|library| {
        let file = match (&library.path, &library.error) {
            (_, Some(error)) => error.clone(),
            (Some(path), None) => path.display().to_string(),
            (None, None) => "?".to_owned(),
        };
        let absent = if library.error.is_some() { "-" } else { "?" };
        vec![library.name.to_owned(), library.version.clone().unwrap_or_else(|| absent.to_owned()), file]
    });
    format!("\n{}", table(&columns, &rows.collect::<Vec<_>>()))
}

/// Each feature and what it lacks. What several features lack is explained once.
fn feature_lines(report: &DoctorReport) -> String {
    let mut out = "\n".to_owned();
    let mut explained = Vec::new();
    for feature in &report.features {
        let ready = if feature.ready { "ready" } else { "not ready" };
        let _ = writeln!(out, "{:<36}{ready}", feature.name);
        for missing in &feature.missing {
            if !explained.contains(&missing) {
                explained.push(missing);
                let _ = writeln!(out, "  {}\n    {}", missing.what, missing.mend);
            }
        }
    }
    out
}
