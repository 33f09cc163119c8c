//! Files that are whole or absent: they are written under a temporary name, synced, and renamed. Also which files the program wrote, and
//! the strict readers of JSON, YAML and safetensors headers that other programs may have written.

#![forbid(unsafe_code)]

mod file_system;
mod freed_bytes;
mod output_file;
mod own;
mod pattern;
mod regular;
pub mod safetensors_header;
pub mod sealed_json;
pub mod strict_json;
mod whole_file;

pub use file_system::{
    create_dir_all, explain_io_error, if_present, is_absent, is_lock_service_gone, is_private_file, parent_folder,
    sync_dir,
};
pub use freed_bytes::{FreedBytes, bytes_freed};
pub use output_file::OutputFile;
pub use own::{
    TEMPORARY_PREFIX, children, foreign_path, has_only, is_number, is_older_than, is_real_folder, is_temporary_name,
    leftovers, remove_abandoned, remove_all, temporary_prefix,
};
pub use pattern::{matching_paths, special_parts};
pub use regular::{
    BYTE_ORDER_MARK, append_owned, create_owned_dir, open_owned, open_regular, read_log_end, read_regular,
    read_regular_text, special_file_kind, without_byte_order_mark,
};
pub use tempfile::{NamedTempFile, TempDir};
pub use whole_file::{
    private_temporary_file, put_in_place, temporary_dir, temporary_file, write_atomic, write_atomic_as,
};
