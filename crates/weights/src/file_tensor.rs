//! A tensor in a file of names and tensors, and the parameter whose name it has.

use std::os::unix::fs::FileExt as _;
use std::path::Path;

use runner_files::open_regular;
use runner_spec::model::Family;
use runner_spec::model::parts::Head;

/// Bytes compared at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// A tensor, and the file that holds it.
#[derive(Debug)]
pub(super) struct FileTensor {
    pub(super) file: usize,
    pub(super) name: String,
    /// The name in safetensors, or another that no type has that is read.
    pub(super) dtype: String,
    pub(super) shape: Vec<usize>,
    /// The first byte of its data in the file.
    pub(super) start: u64,
    /// True if its columns lie one after another, a view of its transpose.
    pub(super) transposed: bool,
}

/// The prefixes that wrappers of models put in front of names: `torch.compile`, `DistributedDataParallel`, and a class that holds the model
/// without its head as `base_model`.
const WRAPPERS: [&str; 3] = ["_orig_mod.", "module.", "base_model."];

/// `name` with the prefix that this program uses. Files of a model without its head leave the prefix out.
pub(super) fn canonical(family: Family, mut name: &str) -> String {
    while let Some(inner) = WRAPPERS.iter().find_map(|wrapper| name.strip_prefix(wrapper)) {
        name = inner;
    }
    let prefix = family.defaults().prefix;
    if name.starts_with(prefix) || name == Head::WEIGHT { name.to_owned() } else { format!("{prefix}{name}") }
}

/// True if the tensor `name`, in canonical form, is a buffer that older versions of `transformers` saved.
pub(super) fn is_buffer(family: Family, name: &str) -> bool {
    family.defaults().buffers.iter().any(|end| name.ends_with(end))
}

/// True if `count` bytes from two positions of files on are equal.
pub(super) fn equal_bytes(a: (&Path, u64), b: (&Path, u64), count: usize) -> std::io::Result<bool> {
    let (file_a, file_b) = (open_regular(a.0)?, open_regular(b.0)?);
    let (mut x, mut y) = (vec![0; CHUNK_BYTES.min(count)], vec![0; CHUNK_BYTES.min(count)]);
    for begin in (0..count).step_by(CHUNK_BYTES) {
        let n = CHUNK_BYTES.min(count - begin);
        file_a.read_exact_at(&mut x[..n], a.1 + begin as u64)?;
        file_b.read_exact_at(&mut y[..n], b.1 + begin as u64)?;
        if x[..n] != y[..n] {
            return Ok(false);
        }
    }
    Ok(true)
}
