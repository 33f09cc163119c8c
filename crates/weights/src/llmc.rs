//! llm.c's model file (`gpt2_124M.bin`): a header of 256 numbers, then GPT-2's parameters one kind after another, all layers of
//! a kind together, matrices as `[out, in]`.

use std::io::Read;
use std::path::Path;

use super::described_model::DescribedModel;
use super::dtype::Dtype;
use super::error::WeightsError;
use runner_files::{open_regular, special_file_kind};
use runner_spec::model::parts::PartParameter;
use runner_spec::model::{Family, ModelSpec};

/// The family that a model file holds.
pub(super) const FAMILY: Family = Family::Gpt2;

const MAGIC: u32 = 20_240_326;
pub(super) const HEADER_BYTES: u64 = 1024;
/// The vocabulary is rounded up to a multiple of this.
pub(super) const PADDING: usize = 128;

/// The epsilon of llm.c's norms.
pub(super) const NORM_EPS: f64 = 1e-5;

/// The largest number of rows of an embedding.
const MAX_ROWS: usize = 100_000_000;

/// The header of a model file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LlmcHeader {
    pub(super) dtype: Dtype,
    /// The model, with the vocabulary of the tokenizer.
    pub(super) spec: ModelSpec,
    /// Rows of the embedding.
    pub(super) padded_vocab_size: usize,
}

impl LlmcHeader {
    /// The 1,024 bytes of the header.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let version = if self.dtype == Dtype::Bf16 { 5 } else { 3 };
        let ModelSpec { context_length, vocab_size, layers, heads, d_model, .. } = self.spec;
        let sizes = [context_length, vocab_size, layers, heads, d_model, self.padded_vocab_size];
        let numbers = [MAGIC, version].into_iter().chain(sizes.map(|n| n as u32));
        let mut out: Vec<u8> = numbers.flat_map(u32::to_le_bytes).collect();
        out.resize(HEADER_BYTES as usize, 0);
        out
    }

    /// All parameters in the order of their bytes: those of the model, but all layers of a kind together.
    pub(super) fn parameters(&self) -> Vec<PartParameter> {
        let all = ModelSpec { vocab_size: self.padded_vocab_size, ..self.spec.clone() }.decoder().parameters();
        // Every layer has the same kinds of parameters, in the same order.
        let count_in_block = |block: usize| all.iter().filter(|parameter| parameter.spec.block == block).count();
        let (embeddings, kinds) = (count_in_block(0), count_in_block(1));
        let mut ordered: Vec<(usize, PartParameter)> = all.into_iter().enumerate().collect();
        ordered.sort_by_key(|(index, parameter)| match parameter.spec.block {
            block if (1..=self.spec.layers).contains(&block) => (1, (index - embeddings) % kinds, block),
            block => (block.min(2), *index, 0),
        });
        ordered.into_iter().map(|(_, parameter)| parameter).collect()
    }

    /// The model of the file `path`, which begins with this header.
    ///
    /// # Errors
    /// If its sizes cannot be those of a model.
    pub(super) fn described(self, path: &Path) -> Result<DescribedModel, WeightsError> {
        let (vocab, padded) = (self.spec.vocab_size, self.padded_vocab_size);
        let described =
            DescribedModel { file: path.to_owned(), unknown: vec!["dropout"], spec: self.spec }.checked()?;
        if padded > MAX_ROWS {
            return Err(WeightsError::file(
                path,
                format!("its embedding must have at most {MAX_ROWS} rows, got {padded}"),
            ));
        }
        if vocab > padded {
            return WeightsError::invalid(
                path,
                format!("the vocabulary, {vocab}, is larger than the embedding of {padded} rows"),
            );
        }
        Ok(described)
    }
}

/// The header of the model file `path`.
///
/// # Errors
/// If it is missing, or no model file of llm.c of a version that is known.
pub(super) fn read_header(path: &Path) -> Result<LlmcHeader, WeightsError> {
    let wrong = |message: String| WeightsError::file(path, message);
    let mut file = open_regular(path).map_err(WeightsError::io(path))?;
    if !file.metadata().map_err(WeightsError::io(path))?.is_file() {
        let kind = special_file_kind(path).unwrap_or("neither a file nor a folder");
        return Err(wrong(format!("this is {kind}; name a folder or a file")));
    }
    let mut bytes = Vec::new();
    file.by_ref().take(HEADER_BYTES).read_to_end(&mut bytes).map_err(WeightsError::io(path))?;
    let number = |at: usize| {
        let four = bytes.get(4 * at..4 * at + 4)?;
        Some(u32::from_le_bytes([four[0], four[1], four[2], four[3]]))
    };
    if number(0) != Some(MAGIC) {
        let help = if path.extension().is_some_and(|e| e == "safetensors") {
            "; for safetensors, name the folder that contains config.json"
        } else {
            "; name a `torch.save` file or a model file of llm.c"
        };
        return Err(wrong(format!("unknown format{help}")));
    }
    if bytes.len() < HEADER_BYTES as usize {
        return Err(wrong(format!(
            "too short for a model file of llm.c: {} bytes, but the header takes {HEADER_BYTES}",
            bytes.len()
        )));
    }
    let dtype = match number(1) {
        Some(3) => Dtype::F32,
        Some(5) => Dtype::Bf16,
        version => {
            let version = version.unwrap_or(0);
            return Err(wrong(format!("unsupported version {version} of llm.c's format; use 3 (f32) or 5 (bf16)")));
        }
    };
    let size = |at: usize| number(at).map_or(0, |n| n as usize);
    let spec = ModelSpec::with_defaults(FAMILY, [3, 2, 4, 5, 6].map(size));
    Ok(LlmcHeader { dtype, spec, padded_vocab_size: size(7) })
}
