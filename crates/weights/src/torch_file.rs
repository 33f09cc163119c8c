//! A file of `torch.save`: a zip archive of a pickle and of the bytes of each storage.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufReader, Read as _};
use std::path::Path;

use zip::{CompressionMethod, ZipArchive};

use super::dtype::Dtype;
use super::error::WeightsError;
use super::file_tensor::FileTensor;
use super::pickle::{MAX_NAME_BYTES, Pickle, PickledTensor, ValueId, shown};
use runner_files::open_regular;

/// The pickle of a file, in the folder of the archive.
pub(super) const PICKLE: &str = "data.pkl";
/// A larger pickle is refused.
const MAX_PICKLE_BYTES: u64 = 16 << 20;
/// A state dict with more tensors is refused. The longest model that an experiment may have has fewer.
const MAX_TENSORS: usize = 1 << 17;
/// The keys under which programs store the state dict beside other values.
const STATE_DICT_KEYS: [&str; 4] = ["model", "state_dict", "model_state_dict", "module"];

/// The tensors of a file.
#[derive(Debug)]
pub(super) struct TorchFile {
    pub(super) tensors: Vec<FileTensor>,
    /// The number of heads, which nanoGPT stores beside the state dict.
    pub(super) heads: Option<usize>,
}

/// Checks that the file `path` begins as a zip archive, the form of `torch.save`.
///
/// # Errors
/// If it does not, or cannot be read.
pub(super) fn check_is_archive(path: &Path) -> Result<(), WeightsError> {
    let mut bytes = Vec::new();
    let file = open_regular(path).map_err(WeightsError::io(path))?;
    file.take(262).read_to_end(&mut bytes).map_err(WeightsError::io(path))?;
    let message = match bytes.as_slice() {
        [b'P', b'K', 3, 4, ..] => return Ok(()),
        // As `torch.save` wrote files before PyTorch 1.6.
        bytes if matches!(bytes, [0x80, 2..=5, ..]) || bytes.get(257..) == Some(b"ustar") => {
            "a bare pickle or a tar archive, not the zip format of `torch.save`; if it is a state dict, convert it:\n\
             python -c \"import torch; torch.save(torch.load('old.pt', weights_only=True), 'new.pt')\""
        }
        _ if path.extension().is_some_and(|end| end == "safetensors") => {
            "unknown format; for safetensors, name the folder that contains config.json"
        }
        _ => "unknown format; use a file that `torch.save` wrote",
    };
    WeightsError::invalid(path, message)
}

impl TorchFile {
    /// Reads which tensors the file `path` has, number `file` of its folder.
    ///
    /// # Errors
    /// If it is not a file of `torch.save`, holds anything but tensors and plain values, or its parts do not fit one another.
    pub(super) fn open(file: usize, path: &Path) -> Result<Self, WeightsError> {
        check_is_archive(path)?;
        let mut archive = Archive::open(path)?;
        let invalid = |message: String| WeightsError::file(path, message);
        let bytes = archive.read(PICKLE, MAX_PICKLE_BYTES)?;
        if archive.position("byteorder").is_some() && archive.read("byteorder", 16)? != b"little" {
            return Err(invalid("big-endian files are not supported; save it on a little-endian machine".to_owned()));
        }
        let pickle = Pickle::read(&bytes).map_err(|message| invalid(format!("{message}{SAVE_ADVICE}")))?;
        let entries = |id| pickle.entries(id).map_err(invalid);
        let root = entries(pickle.root)?.ok_or_else(|| invalid(format!("not a state dict{SAVE_ADVICE}")))?;
        let nested = |wanted: &str| {
            let found = root.iter().find(|(key, _)| *key == wanted);
            found.map_or(Ok(None), |found| entries(found.1))
        };
        let is_weight = |(name, id): &(&str, ValueId)| name.ends_with("weight") && pickle.is_tensor(*id);
        let (mut state_dict, mut places) = (None, Vec::new());
        if root.iter().any(is_weight) {
            places.push("its top level".to_owned());
        }
        // Keys may share a value, which is looked at once.
        let mut seen = HashSet::new();
        for (key, id) in &root {
            let (is_new, is_known) = (seen.insert(*id), STATE_DICT_KEYS.contains(key));
            if !is_new && !is_known {
                continue;
            }
            let Some(inner) = entries(*id)? else { continue };
            let has_weights = inner.iter().any(is_weight);
            if is_new && has_weights {
                places.push(format!("`{}`", shown(key)));
            }
            if is_known && (has_weights || state_dict.is_none()) {
                state_dict = Some(inner);
            }
        }
        if let [first, second, ..] = places.as_slice() {
            return Err(invalid(format!("two state dicts, in {first} and in {second}{SAVE_ADVICE}")));
        }
        let heads = nested("model_args")?.and_then(|arguments| {
            let (_, heads) = arguments.into_iter().find(|(key, _)| *key == "n_head")?;
            usize::try_from(pickle.int(heads)?).ok()
        });
        let state_dict = state_dict.as_ref().unwrap_or(&root);
        if state_dict.len() > MAX_TENSORS {
            return Err(invalid(format!(
                "a state dict must have at most {MAX_TENSORS} tensors, got {}",
                state_dict.len()
            )));
        }
        let mut tensors = Vec::new();
        for (name, id) in state_dict {
            if name.len() > MAX_NAME_BYTES {
                return Err(invalid(format!(
                    "the name `{}…` must be at most {MAX_NAME_BYTES} bytes, got {}",
                    shown(name),
                    name.len()
                )));
            }
            let name = name.escape_debug();
            if !pickle.is_tensor(*id) {
                return Err(invalid(format!("not a state dict: `{name}` is not a tensor{SAVE_ADVICE}")));
            }
            let tensor = pickle.tensor(*id).ok_or_else(|| "its shape, strides or offset are invalid".to_owned());
            let placed = tensor.and_then(|tensor| archive.place(file, name.to_string(), &tensor));
            tensors.push(placed.map_err(|message| invalid(format!("tensor {name}: {message}")))?);
        }
        Ok(Self { tensors, heads })
    }
}

/// The message for an archive whose parts do not fit one another.
const DAMAGED: &str = "damaged or incomplete zip archive; copy it again";
const SAVE_ADVICE: &str = "\nsave one state dict alone: torch.save(model.state_dict(), 'model.pt'), or \
                           torch.save(checkpoint['model'], 'model.pt')";

/// An archive of `torch.save`, whose entries are not compressed.
struct Archive<'a> {
    path: &'a Path,
    zip: ZipArchive<BufReader<File>>,
    /// The folder of all entries, with a slash.
    root: String,
    bytes: u64,
}

impl<'a> Archive<'a> {
    fn open(path: &'a Path) -> Result<Self, WeightsError> {
        let file = open_regular(path).map_err(WeightsError::io(path))?;
        let bytes = file.metadata().map_err(WeightsError::io(path))?.len();
        let zip = ZipArchive::new(BufReader::new(file))
            .map_err(|error| WeightsError::file(path, format!("{DAMAGED}: {error}")))?;
        let root = zip.file_names().filter_map(Result::ok).find_map(|name| {
            let root = name.strip_suffix(PICKLE)?;
            (root.find('/') == Some(root.len().checked_sub(1)?)).then(|| root.to_owned())
        });
        let Some(root) = root else {
            return WeightsError::invalid(
                path,
                format!("a zip archive without {PICKLE}; use a file that `torch.save` wrote"),
            );
        };
        Ok(Self { path, zip, root, bytes })
    }

    fn position(&self, entry: &str) -> Option<usize> {
        self.zip.index_for_name(&format!("{}{entry}", self.root))
    }

    /// The number of `entry`, its first byte in the file, and the number of its bytes.
    fn extent(&mut self, entry: &str) -> Result<(usize, u64, u64), String> {
        let index =
            self.position(entry).ok_or_else(|| format!("{DAMAGED}: entry {} is missing", entry.escape_debug()))?;
        let found = self.zip.by_index_raw(index).map_err(|error| error.to_string())?;
        if found.compression() != CompressionMethod::Stored || found.encrypted() {
            return Err(format!("entry {entry} is compressed; save it again with `torch.save`"));
        }
        let (start, size) = (found.data_start().unwrap_or(u64::MAX), found.size());
        if start.checked_add(size).is_none_or(|end| end > self.bytes) {
            return Err(format!("{DAMAGED}: entry {entry} is cut short"));
        }
        Ok((index, start, size))
    }

    /// The bytes of `entry`, at most `most`.
    fn read(&mut self, entry: &str, most: u64) -> Result<Vec<u8>, WeightsError> {
        let (index, _, size) = self.extent(entry).map_err(|message| WeightsError::file(self.path, message))?;
        if size > most {
            return WeightsError::invalid(self.path, format!("`{entry}` must be at most {most} bytes, got {size}"));
        }
        let mut bytes = Vec::with_capacity(size as usize);
        let found = self.zip.by_index_raw(index).map_err(io::Error::from);
        found.and_then(|found| found.take(size).read_to_end(&mut bytes)).map_err(WeightsError::io(self.path))?;
        Ok(bytes)
    }

    /// The tensor `name` of file number `file`.
    fn place(&mut self, file: usize, name: String, tensor: &PickledTensor<'_>) -> Result<FileTensor, String> {
        let PickledTensor { storage_class, shape, strides, offset, storage, flag } = tensor;
        let (_, start, size) = self.extent(&format!("data/{storage}"))?;
        let tensor = FileTensor {
            file,
            name,
            dtype: (*storage_class).to_owned(),
            shape: shape.clone(),
            start,
            transposed: false,
        };
        // A tensor of another type may be a buffer, whose numbers are not read.
        let Some(dtype) = Dtype::from_storage(storage_class) else { return Ok(tensor) };
        if let Some(flag) = flag {
            return Err(format!(
                "its numbers are a lazy view with the flag `{}`, which is not supported; save a plain tensor, such as \
                 `tensor.resolve_neg()` or `tensor.resolve_conj()`",
                shown(flag)
            ));
        }
        let elements = shape.iter().try_fold(1_u64, |product, &n| product.checked_mul(n as u64));
        let width = dtype.size() as u64;
        let end = elements.and_then(|n| n.checked_add(*offset)?.checked_mul(width));
        if end.is_none_or(|end| end > size) {
            return Err(format!(
                "the shape {shape:?} from element {offset} on does not fit its storage `{storage}` of {size} bytes"
            ));
        }
        let reversed: Vec<usize> = shape.iter().rev().copied().collect();
        let transposed = match strides.as_slice() {
            strides if is_contiguous(shape, strides) => false,
            &[rows, columns] if is_contiguous(&reversed, &[columns, rows]) => true,
            _ => {
                return Err(format!(
                    "a view of {shape:?} with strides {strides:?} is not supported; save `tensor.contiguous()`"
                ));
            }
        };
        Ok(FileTensor { dtype: dtype.name().to_owned(), start: start + offset * width, transposed, ..tensor })
    }
}

/// True if the elements of a tensor lie one after another, the last dimension's next to each other.
fn is_contiguous(shape: &[usize], strides: &[usize]) -> bool {
    let mut expected = 1_usize;
    shape.len() == strides.len()
        && shape.iter().zip(strides).rev().all(|(&size, &stride)| {
            let fits = size == 1 || stride == expected;
            expected = expected.saturating_mul(size);
            fits
        })
}

#[cfg(test)]
mod tests;
