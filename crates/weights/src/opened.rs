//! Opened weights: the files have every tensor of the model in its shape, and nothing else. Numbers are read tensor by tensor.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::describe::describe;
use super::described_model::DescribedModel;
use super::difference::{Difference, differences};
use super::dtype::Dtype;
use super::error::WeightsError;
use super::file_tensor::{FileTensor, canonical, embedding, is_buffer, unwrap_names};
use super::folder;
use super::torch_file::TorchFile;
use runner_files::open_regular;
use runner_spec::experiment::Model;
use runner_spec::format::counted;
use runner_spec::model::parts::{Head, PartParameter, Rows};
use runner_spec::model::{Family, InitialWeights, ModelSpec, ParamSpec, parameters};

/// The number of bytes read at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// Weights on a disk.
#[derive(Debug)]
pub struct OpenedWeights {
    pub described: DescribedModel,
    pub files: Vec<PathBuf>,
    /// The tensors, by the names that this program gives its parameters.
    tensors: BTreeMap<String, Tensor>,
    /// True for a GPT-2 without biases, as nanoGPT trains it: they are read as zeros.
    lacks_biases: bool,
}

/// A parameter's numbers in a file.
#[derive(Debug, Clone)]
struct Tensor {
    file: usize,
    dtype: Dtype,
    /// The shape of the parameter: matrices are `[out, in]`.
    shape: Vec<usize>,
    /// True if the file has the matrix as `[in, out]`.
    transposed: bool,
    /// True if a model that starts with these weights may have another number of rows.
    rows_vary: bool,
    at: u64,
}

impl OpenedWeights {
    /// Opens the weights at `path`: a folder, or a file of `torch.save`.
    ///
    /// # Errors
    /// If there are none, or files, description and tensors do not fit one another.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        let described = describe(path)?;
        let (files, mut found) = if path.is_dir() {
            folder::tensors(path)?
        } else {
            (vec![path.to_owned()], TorchFile::open(0, path)?.tensors)
        };
        unwrap_names(&mut found).map_err(|message| WeightsError::file(path, message))?;
        let family = described.spec.family;
        let parameters: BTreeMap<String, PartParameter> =
            described.spec.decoder().parameters().into_iter().map(|p| (p.spec.name.clone(), p)).collect();
        // nanoGPT has the names of `transformers`, and matrices as `nn.Linear` has them.
        let is_linear = found.iter().any(|found| {
            let parameter = parameters.get(&canonical(family, &found.name)).filter(|parameter| parameter.transposed);
            let is_square = found.shape.first() == found.shape.last();
            parameter.is_some_and(|parameter| !is_square && parameter.spec.shape == found.shape)
        });
        let tokens = found.iter().find(|found| canonical(family, &found.name) == embedding(family));
        let mut tensors = BTreeMap::new();
        for found in &found {
            let name = canonical(family, &found.name);
            if is_buffer(family, &name) {
                continue;
            }
            let path = &files[found.file];
            let tensor =
                tensor(parameters.get(&name), found, is_linear).map_err(|message| WeightsError::file(path, message))?;
            // A tied head is the embedding. A file may hold both, with equal numbers.
            if described.spec.tie_embeddings && name == Head::WEIGHT {
                tokens.map_or(Ok(()), |tokens| check_tied_head(&described, &files, found, tokens))?;
                continue;
            }
            if tensors.insert(name, tensor).is_some() {
                let message = format!("tensor {} occurs twice, once with a different prefix", found.name);
                return WeightsError::invalid(path, message);
            }
        }
        let mut opened = Self { described, files, tensors, lacks_biases: false };
        opened.check_tensors(path)?;
        Ok(opened)
    }

    /// Checks that the tensors are those of the described model.
    fn check_tensors(&mut self, path: &Path) -> Result<(), WeightsError> {
        let DescribedModel { file, spec: ModelSpec { layers, .. }, .. } = &self.described;
        // The expected tensors are listed only for as many layers as the files can hold.
        if *layers > self.tensors.len() {
            let tensors = counted(self.tensors.len() as u64, "tensor");
            let message = format!("{} lists {layers} layers, but the file has only {tensors}", file.display());
            return WeightsError::invalid(path, message);
        }
        let mut expected = parameters(&self.described.spec);
        let is_gpt2 = self.described.spec.family == Family::Gpt2;
        self.lacks_biases = is_gpt2 && !self.tensors.keys().any(|name| is_bias(name));
        if self.lacks_biases {
            expected.retain(|parameter| !is_bias(&parameter.name));
        }
        let missing: Vec<&str> =
            expected.iter().map(|p| p.name.as_str()).filter(|name| !self.tensors.contains_key(*name)).collect();
        if let [first, rest @ ..] = missing.as_slice() {
            let verb = if rest.is_empty() { "is" } else { "are" };
            return WeightsError::invalid(path, format!("tensor {first}{} {verb} missing", and_more(rest.len())));
        }
        for parameter in &expected {
            let tensor = &self.tensors[&parameter.name];
            if tensor.shape != parameter.shape {
                let shown = |shape: &[usize]| {
                    let mut shape = shape.to_vec();
                    if tensor.transposed {
                        shape.reverse();
                    }
                    format!("{shape:?}")
                };
                let (have, want) = (shown(&tensor.shape), shown(&parameter.shape));
                let message = format!(
                    "tensor {} must have the shape {want} (from {}), got {have}",
                    parameter.name,
                    file.display()
                );
                return WeightsError::invalid(&self.files[tensor.file], message);
            }
        }
        let known: BTreeSet<&str> = expected.iter().map(|p| p.name.as_str()).collect();
        let mut others = self.tensors.iter().filter(|(name, _)| !known.contains(name.as_str()));
        if let Some((name, tensor)) = others.next() {
            let more = and_more(others.count());
            let message = format!("unexpected tensor {name}{more}: not part of the model in {}", file.display());
            return WeightsError::invalid(&self.files[tensor.file], message);
        }
        Ok(())
    }

    /// Checks that `model` can start from these weights. It may have another vocabulary, which the planner checks, and fewer positions.
    ///
    /// # Errors
    /// The first number that differs.
    pub fn check_fits(&self, model: &Model) -> Result<(), WeightsError> {
        let Some(Difference { key, ours, theirs }) = differences(&self.described, model).into_iter().next() else {
            return Ok(());
        };
        let message = match theirs {
            Some(theirs) => format!("`model.{key}` is {ours}, but the weights have {theirs}"),
            None => format!("these weights do not support `model.{key}: {ours}`"),
        };
        Err(WeightsError::file(&self.described.file, message))
    }

    /// Reads the parameter `name` of shape `shape` into `values`, which has as many elements. Rows that the file does not have
    /// are left as they are, as are all of a head that a state dict lacks; rows that `shape` does not have are not read. Biases of a GPT-2
    /// without any are zeros.
    ///
    /// # Errors
    /// If there is no such tensor of such a shape, it has a number that is not finite, or the file cannot be read.
    pub fn read(&self, name: &str, shape: &[usize], values: &mut [f32]) -> Result<(), WeightsError> {
        if name == Head::WEIGHT && self.lacks_head() {
            return Ok(());
        }
        if self.lacks_biases && is_bias(name) {
            values.fill(0.0);
            return Ok(());
        }
        let path = &self.described.file;
        let Some(tensor) = self.tensors.get(name) else {
            return WeightsError::invalid(path, format!("there is no tensor {name}"));
        };
        let path = &self.files[tensor.file];
        let fits = match (shape, tensor.shape.as_slice()) {
            ([_, columns], [_, theirs]) if tensor.rows_vary => columns == theirs,
            (ours, theirs) => ours == theirs,
        };
        let elements: usize = shape.iter().product();
        if !fits || elements != values.len() {
            let message = format!("asked for shape {shape:?}, but tensor {name} has {:?}", tensor.shape);
            return WeightsError::invalid(path, message);
        }
        let held: usize = tensor.shape.iter().product();
        let file = open_regular(path).map_err(WeightsError::io(path))?;
        let values = &mut values[..held.min(elements)];
        let read = match tensor.shape.as_slice() {
            [out, columns] if tensor.transposed => tensor.read_transposed(&file, *out, *columns, values),
            _ => tensor.read_plain(&file, values),
        };
        read.map_err(WeightsError::io(path))?;
        if let Some(number) = values.iter().find(|number| !number.is_finite()) {
            let message = format!("every number must be finite, got {number} in tensor {name}");
            return WeightsError::invalid(path, message);
        }
        Ok(())
    }

    /// True if they are a state dict without a head, whose model may tie it to the embedding or not.
    pub fn lacks_head(&self) -> bool {
        !self.described.gives("tie_embeddings")
    }

    /// Rows of the vocabulary that the file has.
    pub fn vocab_size(&self) -> usize {
        let embedding = self.tensors.get(self.described.spec.decoder().embedding.tokens);
        embedding.and_then(|tensor| tensor.shape.first().copied()).unwrap_or(self.described.spec.vocab_size)
    }
}

/// Checks that the tied `head` has the numbers of the `embedding`.
fn check_tied_head(
    described: &DescribedModel,
    files: &[PathBuf],
    head: &FileTensor,
    embedding: &FileTensor,
) -> Result<(), WeightsError> {
    let path = &files[head.file];
    let form = |tensor: &FileTensor| (tensor.dtype.clone(), tensor.shape.clone(), tensor.transposed);
    let what = if form(head) == form(embedding) { "their values" } else { "shape or type" };
    if head.has_same_numbers(path, embedding, &files[embedding.file]).map_err(WeightsError::io(path))? {
        return Ok(());
    }
    let (head, name, config) = (Head::WEIGHT, described.spec.decoder().embedding.tokens, described.file.display());
    let message =
        format!("{head} and {name} differ in {what}, but {config} ties them; set `tie_word_embeddings` to false there");
    WeightsError::invalid(path, message)
}

/// True if `name` is that of a bias.
fn is_bias(name: &str) -> bool {
    name.rsplit('.').next() == Some("bias")
}

/// The end of a sentence about one of several tensors, of which `count` are not named.
fn and_more(count: usize) -> String {
    if count == 0 { String::new() } else { format!(" and {count} more") }
}

impl Tensor {
    fn read_plain(&self, file: &File, values: &mut [f32]) -> std::io::Result<()> {
        let size = self.dtype.size();
        let mut bytes = vec![0; CHUNK_BYTES.min(values.len() * size)];
        let mut at = self.at;
        for values in values.chunks_mut(CHUNK_BYTES / size) {
            let bytes = &mut bytes[..values.len() * size];
            file.read_exact_at(bytes, at)?;
            self.dtype.decode(bytes, values);
            at += bytes.len() as u64;
        }
        Ok(())
    }

    /// The file has `[columns, out]`, `values` is `[out, columns]`. Some rows of the file at a time.
    fn read_transposed(&self, file: &File, out: usize, columns: usize, values: &mut [f32]) -> std::io::Result<()> {
        let row_bytes = out * self.dtype.size();
        let rows = (CHUNK_BYTES / row_bytes.max(1)).clamp(1, columns.max(1));
        let (mut bytes, mut numbers) = (vec![0; rows * row_bytes], vec![0.0; rows * out]);
        let mut first = 0;
        while first < columns {
            let n = rows.min(columns - first);
            let (bytes, numbers) = (&mut bytes[..n * row_bytes], &mut numbers[..n * out]);
            file.read_exact_at(bytes, self.at + (first * row_bytes) as u64)?;
            self.dtype.decode(bytes, numbers);
            for (o, row) in values.chunks_exact_mut(columns).enumerate() {
                for (i, value) in row[first..first + n].iter_mut().enumerate() {
                    *value = numbers[i * out + o];
                }
            }
            first += n;
        }
        Ok(())
    }
}

/// The tensor `found` of a file as `parameter`, if the model has it, or the reason why it cannot be one. With `is_linear` all matrices of
/// the file are `[out, in]`.
fn tensor(parameter: Option<&PartParameter>, found: &FileTensor, is_linear: bool) -> Result<Tensor, String> {
    let Some(dtype) = Dtype::from_name(&found.dtype) else {
        return Err(format!("tensor {} has type {}; only f32, f16 and bf16 are supported", found.name, found.dtype));
    };
    let mut shape = found.shape.clone();
    let is_conv = !is_linear && shape.len() == 2 && parameter.is_some_and(|parameter| parameter.transposed);
    let rows_vary = parameter.is_some_and(|parameter| parameter.rows != Rows::Fixed);
    if is_conv {
        shape.reverse();
    }
    let transposed = is_conv != found.transposed;
    Ok(Tensor { file: found.file, dtype, shape, transposed, rows_vary, at: found.start })
}

impl InitialWeights for OpenedWeights {
    fn fill(&self, parameter: &ParamSpec, values: &mut [f32]) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(self.read(&parameter.name, &parameter.shape, values)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_spec::model::Family;

    #[test]
    fn only_the_four_matrices_and_the_buffers_are_special() {
        let spec = |family| ModelSpec::with_defaults(family, [9, 8, 12, 2, 8]);
        let gpt2 = spec(Family::Gpt2).decoder().parameters();
        let conv = |name: &str| gpt2.iter().find(|p| p.spec.name == name).expect("a parameter").transposed;
        assert!(conv("transformer.h.0.attn.c_attn.weight") && conv("transformer.h.11.mlp.c_proj.weight"));
        assert!(!conv("transformer.wte.weight") && !conv("transformer.h.0.attn.c_attn.bias"));
        assert!(gpt2.iter().all(|p| p.spec.name != Head::WEIGHT), "the head is tied");
        assert!(spec(Family::Llama).decoder().parameters().iter().all(|parameter| !parameter.transposed));
        assert!(is_buffer(Family::Gpt2, "transformer.h.0.attn.bias"));
        assert!(!is_buffer(Family::Gpt2, "transformer.h.0.attn.c_attn.bias"));
        assert_eq!(canonical(Family::Gpt2, "h.0.ln_1.weight"), "transformer.h.0.ln_1.weight");
        assert_eq!(canonical(Family::Llama, Head::WEIGHT), Head::WEIGHT);
    }
}
