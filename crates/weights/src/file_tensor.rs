//! A tensor in a file of names and tensors, and the parameter whose name it has.

use std::os::unix::fs::FileExt as _;
use std::path::Path;

use super::dtype::Dtype;
use super::pickle::shown;
use runner_files::open_regular;
use runner_spec::model::parts::Head;
use runner_spec::model::{Family, ModelSpec};

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

impl FileTensor {
    /// True if the tensor, in the file `path`, and `other`, in the file `other_path`, have the same numbers in the same shape and type.
    pub(super) fn has_same_numbers(&self, path: &Path, other: &Self, other_path: &Path) -> std::io::Result<bool> {
        let form = |tensor: &Self| (tensor.dtype.clone(), tensor.shape.clone(), tensor.transposed);
        let Some(dtype) = Dtype::from_name(&self.dtype).filter(|_| form(self) == form(other)) else { return Ok(false) };
        if (path, self.start) == (other_path, other.start) {
            return Ok(true);
        }
        let count = self.shape.iter().product::<usize>() * dtype.size();
        let (a, b) = (open_regular(path)?, open_regular(other_path)?);
        let (mut x, mut y) = (vec![0; CHUNK_BYTES.min(count)], vec![0; CHUNK_BYTES.min(count)]);
        for begin in (0..count).step_by(CHUNK_BYTES) {
            let n = CHUNK_BYTES.min(count - begin);
            a.read_exact_at(&mut x[..n], self.start + begin as u64)?;
            b.read_exact_at(&mut y[..n], other.start + begin as u64)?;
            if x[..n] != y[..n] {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The parts that wrappers of modules put into names, at any depth: `torch.compile`, FSDP, and its recomputation of activations.
const WRAPPERS: [&str; 3] = ["_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"];

/// Removes from the names of `tensors` what wrappers of the model add: [`WRAPPERS`], and the path of the model in the module that holds it,
/// such as `module` in DDP, `model` in Lightning, or the attribute of another class. The path is what precedes the embedding's name.
///
/// # Errors
/// If there are embeddings at two paths.
pub(super) fn unwrap_names(tensors: &mut [FileTensor]) -> Result<(), String> {
    let embeddings = Family::ALL.map(|family| {
        let prefix = family.defaults().prefix;
        (prefix.trim_end_matches('.'), embedding(family)[prefix.len()..].split('.').collect::<Vec<_>>())
    });
    let mut path: Option<Vec<String>> = None;
    for tensor in tensors.iter_mut() {
        let parts: Vec<&str> = tensor.name.split('.').filter(|part| !WRAPPERS.contains(part)).collect();
        for (prefix, name) in &embeddings {
            let Some(outer) = parts.strip_suffix(name.as_slice()) else { continue };
            let outer = outer.strip_suffix(&[*prefix]).unwrap_or(outer);
            if let Some(other) = path.as_deref().filter(|path| *path != outer) {
                let [first, second] = [other.join("."), outer.join(".")].map(|path| match path.as_str() {
                    "" => "the top level".to_owned(),
                    path => format!("`{}`", shown(path)),
                });
                return Err(format!("it has the tensors of two models, at {first} and at {second}; save one of them"));
            }
            path = Some(outer.iter().map(|part| (*part).to_owned()).collect());
        }
        tensor.name = parts.join(".");
    }
    // A class may hold the head outside of the model, at a part of its path.
    for tensor in tensors {
        for part in path.iter().flatten() {
            let inner = tensor.name.strip_prefix(part.as_str()).and_then(|name| name.strip_prefix('.'));
            let Some(inner) = inner else { break };
            tensor.name = inner.to_owned();
        }
    }
    Ok(())
}

/// The name of the embedding of tokens.
pub(super) fn embedding(family: Family) -> &'static str {
    ModelSpec::with_defaults(family, [1; 5]).decoder().embedding.tokens
}

/// `name` with the prefix that this program uses. Files of a model without its head leave the prefix out.
pub(super) fn canonical(family: Family, name: &str) -> String {
    let prefix = family.defaults().prefix;
    if name.starts_with(prefix) || name == Head::WEIGHT { name.to_owned() } else { format!("{prefix}{name}") }
}

/// True if the tensor `name`, in canonical form, is a buffer that older versions of `transformers` saved.
pub(super) fn is_buffer(family: Family, name: &str) -> bool {
    family.defaults().buffers.iter().any(|end| name.ends_with(end))
}
