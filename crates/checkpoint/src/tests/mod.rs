//! States that are saved and read again.

mod continued_run;
mod damaged_parts;
mod hashes;
mod parts;
mod recorder;
mod saving;
