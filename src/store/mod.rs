//! The run directory: manifest, metrics, checkpoints.
