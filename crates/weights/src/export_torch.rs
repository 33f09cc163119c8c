//! A state dict of PyTorch in the zip archive of `torch.save`, with the names and matrices of `transformers`.

use std::path::Path;

use super::dtype::Dtype;
use super::error::WeightsError;
use super::export::{WeightSource, WrittenFiles, refuse_extensions, write_file, write_weights};
use super::torch_file::PICKLE;
use super::writer::{FileForm, TensorDestination};
use runner_spec::model::ModelSpec;
use runner_spec::model::layout::ParamLayout;
use runner_spec::model::parts::{Head, PartParameter};

/// A model to write as a state dict.
#[derive(Debug)]
pub struct TorchExport<'a> {
    pub spec: &'a ModelSpec,
    /// The layout of the whole model.
    pub layout: &'a ParamLayout,
    pub dtype: Dtype,
    /// True to leave out the head, and the prefix of the other names.
    pub base_model: bool,
}

impl TorchExport<'_> {
    /// Writes the file `to`, first under a temporary name. With `force`, replaces a file that is there.
    ///
    /// # Errors
    /// If `transformers` has no such model, the file is there, or something cannot be read or written.
    pub fn write(&self, to: &Path, force: bool, source: WeightSource<'_>) -> Result<WrittenFiles, WeightsError> {
        refuse_extensions(self.spec, "a state dict of `transformers`")?;
        let (pickle, targets) = self.lay_out();
        let entries = vec![(PICKLE, pickle), ("byteorder", b"little".to_vec()), ("version", b"3\n".to_vec())];
        write_file(to, force, FileForm::Archive(entries), |file| {
            write_weights(self.layout, self.dtype, &[file], targets, source)
        })
    }

    /// The pickle of the state dict, and the place of each parameter. A tied head has the storage of the embedding.
    fn lay_out(&self) -> (Vec<u8>, Vec<Option<TensorDestination>>) {
        let decoder = self.spec.decoder();
        let prefix = self.spec.family.defaults().prefix;
        let mut pickle = b"\x80\x02ccollections\nOrderedDict\n)R(".to_vec();
        let (mut targets, mut tied) = (vec![None; self.layout.entries.len()], None);
        for (number, PartParameter { spec, transposed, .. }) in self.spec.decoder().parameters().into_iter().enumerate()
        {
            let Some(index) = self.layout.index(&spec.name) else { continue };
            let name = if self.base_model { spec.name.strip_prefix(prefix) } else { Some(spec.name.as_str()) };
            // The head has no prefix.
            let Some(name) = name else { continue };
            let mut shape = spec.shape.clone();
            if transposed {
                shape.reverse();
            }
            add_tensor(&mut pickle, self.dtype, name, number, &shape);
            if decoder.head.tied && spec.name == decoder.embedding.tokens {
                tied = Some((number, shape));
            }
            targets[index] = Some(TensorDestination { file: 0, at: number as u64, elements: spec.len(), transposed });
        }
        if let Some((number, shape)) = tied.filter(|_| !self.base_model) {
            add_tensor(&mut pickle, self.dtype, Head::WEIGHT, number, &shape);
        }
        pickle.extend(b"u.");
        (pickle, targets)
    }
}

/// Adds an entry to the dict of a pickle: a call of `_rebuild_tensor_v2` with a view of the whole storage `number`.
pub(super) fn add_tensor(pickle: &mut Vec<u8>, dtype: Dtype, name: &str, number: usize, shape: &[usize]) {
    let elements = shape.iter().product();
    let strides: Vec<usize> = (1..=shape.len()).map(|dimension| shape[dimension..].iter().product()).collect();
    text(pickle, name);
    pickle.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
    text(pickle, "storage");
    pickle.extend(format!("ctorch\n{}\n", dtype.storage()).bytes());
    text(pickle, &number.to_string());
    text(pickle, "cpu");
    int(pickle, elements);
    pickle.extend(b"tQ");
    int(pickle, 0);
    for sizes in [shape, &strides] {
        pickle.push(b'(');
        for size in sizes {
            int(pickle, *size);
        }
        pickle.push(b't');
    }
    // No gradient, no hooks.
    pickle.extend(b"\x89ccollections\nOrderedDict\n)RtR");
}

/// BINUNICODE.
pub(super) fn text(pickle: &mut Vec<u8>, value: &str) {
    pickle.push(b'X');
    pickle.extend((value.len() as u32).to_le_bytes());
    pickle.extend(value.bytes());
}

/// LONG1 of eight bytes.
pub(super) fn int(pickle: &mut Vec<u8>, value: usize) {
    pickle.extend(b"\x8a\x08");
    pickle.extend((value as u64).to_le_bytes());
}
