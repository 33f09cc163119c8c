//! Metrics of recorded runs in the formats of other programs: TensorBoard's event files, CSV, Parquet. See `docs/export.md`.

mod csv;
mod new_file;
mod parquet;
mod tensorboard;

pub use csv::export_csv;
pub use parquet::export_parquet;
pub use tensorboard::export_tensorboard;
