//! Metrics of recorded runs in other programs' files: TensorBoard's event files, CSV, Parquet. See `docs/export.md`.

mod csv;
mod error;
mod parquet;
mod place;
mod record;
mod tensorboard;

pub use csv::csv;
pub use error::ExportError;
pub use parquet::parquet;
pub use record::{Record, Row};
pub use tensorboard::{event_file, tensorboard};
