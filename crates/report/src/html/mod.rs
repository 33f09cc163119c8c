//! HTML reports of runs: one page that needs no other file, written once or served while runs train. See `docs/report.md`.

mod checkpoints;
mod curves;
mod data;
mod gantt;
mod memory;
mod names;
mod page;
mod problems;
mod samples;
mod serve;
mod settings;
mod sweep;

pub use data::{PageData, ReportRequest, read_page_data};
pub(crate) use data::{RunData, RunReader};
pub use page::{PAGE_PREFIX, Page};
pub use serve::LiveReport;
