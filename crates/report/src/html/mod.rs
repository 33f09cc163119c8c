//! Reports of runs: one page that needs nothing else, as a file or served while runs go on. See `docs/report.md`.

pub mod curves;
pub mod data;
pub mod error;
pub mod files;
pub mod gantt;
pub mod memory;
pub mod page;
pub mod samples;
pub mod serve;
pub mod settings;
pub mod sweep;
pub mod thin;

pub use data::{PageData, Request, read};
pub use error::ReportError;
pub use page::Page;
pub use serve::Live;
