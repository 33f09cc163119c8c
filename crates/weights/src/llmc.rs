//! llm.c's model file (`gpt2_124M.bin`): a header of 256 numbers, then GPT-2's parameters one kind after another, all layers of
//! a kind together, matrices as [out, in].

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::describe::DescribedModel;
use super::dtype::Dtype;
use super::error::WeightsError;
use super::folder::convert;
use runner_spec::experiment::Family;
use runner_spec::model::{DEFAULT_ROPE_THETA, Gpt2Variant, ModelSpec};

const MAGIC: u32 = 20_240_326;
/// Bytes of the header.
pub(super) const HEADER: u64 = 1024;
/// The vocabulary is rounded up to a multiple of this.
pub(super) const PADDING: usize = 128;

/// Rows of an embedding are no more.
const MOST_ROWS: usize = 100_000_000;

/// What the header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) dtype: Dtype,
    pub(super) context_length: usize,
    /// Tokens of the tokenizer.
    pub(super) vocab_size: usize,
    pub(super) layers: usize,
    pub(super) heads: usize,
    pub(super) d_model: usize,
    /// Rows of the embedding.
    pub(super) padded_vocab_size: usize,
}

/// A parameter in the file's order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    /// As this program calls it.
    pub(super) name: String,
    pub(super) shape: Vec<u64>,
}

impl Header {
    /// The 1,024 bytes.
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let version = if self.dtype == Dtype::Bf16 { 5 } else { 3 };
        let sizes =
            [self.context_length, self.vocab_size, self.layers, self.heads, self.d_model, self.padded_vocab_size];
        let numbers = [MAGIC, version].into_iter().chain(sizes.map(|n| n as u32));
        let mut out: Vec<u8> = numbers.flat_map(u32::to_le_bytes).collect();
        out.resize(HEADER as usize, 0);
        out
    }

    /// All parameters in the order of their bytes.
    pub(super) fn parts(&self) -> Vec<Part> {
        let (c, v, t) = (self.d_model as u64, self.padded_vocab_size as u64, self.context_length as u64);
        let mut out = vec![part("transformer.wte.weight", &[v, c]), part("transformer.wpe.weight", &[t, c])];
        let kinds: [(&str, &[u64]); 12] = [
            ("ln_1.weight", &[c]),
            ("ln_1.bias", &[c]),
            ("attn.c_attn.weight", &[3 * c, c]),
            ("attn.c_attn.bias", &[3 * c]),
            ("attn.c_proj.weight", &[c, c]),
            ("attn.c_proj.bias", &[c]),
            ("ln_2.weight", &[c]),
            ("ln_2.bias", &[c]),
            ("mlp.c_fc.weight", &[4 * c, c]),
            ("mlp.c_fc.bias", &[4 * c]),
            ("mlp.c_proj.weight", &[c, 4 * c]),
            ("mlp.c_proj.bias", &[c]),
        ];
        for (kind, shape) in kinds {
            out.extend((0..self.layers).map(|layer| part(&format!("transformer.h.{layer}.{kind}"), shape)));
        }
        out.extend([part("transformer.ln_f.weight", &[c]), part("transformer.ln_f.bias", &[c])]);
        out
    }

    pub(super) fn described(self, path: &Path) -> Result<DescribedModel, WeightsError> {
        let described = DescribedModel {
            file: path.to_owned(),
            gives_dropout: false,
            spec: ModelSpec {
                family: Family::Gpt2,
                vocab_size: self.vocab_size,
                context_length: self.context_length,
                layers: self.layers,
                heads: self.heads,
                kv_heads: self.heads,
                d_model: self.d_model,
                d_ff: self.d_model.saturating_mul(4),
                dropout: 0.0,
                tie_embeddings: true,
                norm_eps: 1e-5,
                rope_theta: DEFAULT_ROPE_THETA,
                variant: Gpt2Variant::default(),
            },
        };
        let described = described.checked()?;
        let (vocab, padded) = (self.vocab_size, self.padded_vocab_size);
        if padded > MOST_ROWS {
            return Err(WeightsError::file(path, format!("an embedding of {padded} rows; {MOST_ROWS} are possible")));
        }
        if vocab > padded {
            let message = format!("a vocabulary of {vocab} in an embedding of {padded} rows");
            return Err(WeightsError::file(path, message));
        }
        Ok(described)
    }
}

fn part(name: &str, shape: &[u64]) -> Part {
    Part { name: name.to_owned(), shape: shape.to_vec() }
}

/// The header of the model file `path`.
///
/// # Errors
/// If it is missing, or no model file of llm.c of a version that is known.
pub(super) fn read_header(path: &Path) -> Result<Header, WeightsError> {
    let wrong = |message: String| WeightsError::file(path, message);
    let mut file = File::open(path).map_err(WeightsError::io(path))?;
    if !file.metadata().map_err(WeightsError::io(path))?.is_file() {
        return Err(wrong("neither a folder nor a file".into()));
    }
    let mut bytes = Vec::new();
    file.by_ref().take(HEADER).read_to_end(&mut bytes).map_err(WeightsError::io(path))?;
    let number = |at: usize| {
        let four = bytes.get(4 * at..4 * at + 4)?;
        Some(u32::from_le_bytes([four[0], four[1], four[2], four[3]]))
    };
    if bytes.starts_with(b"PK\x03\x04") || bytes.starts_with(&[0x80, 2]) {
        let folder = path.parent().unwrap_or(path);
        return Err(wrong(format!("a pickle of PyTorch: {}", convert(folder))));
    }
    if number(0) != Some(MAGIC) {
        let help = if path.extension().is_some_and(|e| e == "safetensors") {
            "; of safetensors the folder is named, whose config.json says what they are"
        } else {
            ""
        };
        return Err(wrong(format!("not a model file of llm.c, which begins with {MAGIC}{help}")));
    }
    if bytes.len() < HEADER as usize {
        return Err(wrong(format!("{} bytes are no model file of llm.c: its header has {HEADER}", bytes.len())));
    }
    let dtype = match number(1) {
        Some(3) => Dtype::F32,
        Some(5) => Dtype::Bf16,
        version => {
            let version = version.unwrap_or(0);
            return Err(wrong(format!("llm.c's version {version}; 3 (f32) and 5 (bf16) are read")));
        }
    };
    let size = |at: usize| number(at).map_or(0, |n| n as usize);
    Ok(Header {
        dtype,
        context_length: size(2),
        vocab_size: size(3),
        layers: size(4),
        heads: size(5),
        d_model: size(6),
        padded_vocab_size: size(7),
    })
}
