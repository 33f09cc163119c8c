//! Metrics of recorded runs in the formats of other programs: TensorBoard's event files, CSV. See `docs/export.md`.

mod csv;
mod new_file;
mod tensorboard;

pub use csv::export_csv;
pub use tensorboard::export_tensorboard;
