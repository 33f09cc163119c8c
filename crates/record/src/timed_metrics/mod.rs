//! The metrics of a run by name and time of day, as other programs take them: TensorBoard's event files, and the lines that a run
//! appends while another thread or program reads them.

mod columns;
mod event_file;
mod followed_metrics;
mod timed_record;

pub use columns::{Column, MetricValues, columns};
pub use event_file::{EventFileWriter, LiveEventFile, event_file_name};
pub use followed_metrics::MetricTail;
pub use timed_record::{TimedLine, TimedRecord};
