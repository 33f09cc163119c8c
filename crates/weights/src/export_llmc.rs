//! A GPT-2 as llm.c's model file.

use std::path::Path;

use super::dtype::Dtype;
use super::error::WeightsError;
use super::export::{WeightSource, WrittenFiles, refuse_extensions, write_file, write_weights};
use super::llmc::{FAMILY, HEADER_BYTES, LlmcHeader, NORM_EPS, PADDING};
use super::writer::{FileForm, TensorDestination};
use runner_spec::format::choice_name;
use runner_spec::model::ModelSpec;
use runner_spec::model::layout::ParamLayout;
use runner_spec::model::parts::PartParameter;

/// A model to write as llm.c's file.
#[derive(Debug)]
pub struct LlmcExport<'a> {
    pub spec: &'a ModelSpec,
    /// The layout of the whole model.
    pub layout: &'a ParamLayout,
    /// f32 or bf16.
    pub dtype: Dtype,
    /// Tokens of the tokenizer: the rows after them are padding.
    pub vocab_size: usize,
}

impl LlmcExport<'_> {
    /// Writes the file `to`, first under a temporary name. With `force`, replaces a file that is there.
    ///
    /// # Errors
    /// If llm.c has no such model, the file is there, or something cannot be read or written.
    pub fn write(&self, to: &Path, force: bool, source: WeightSource<'_>) -> Result<WrittenFiles, WeightsError> {
        let header = self.header()?;
        let (header, targets, bytes) = self.lay_out(&header);
        write_file(to, force, FileForm::Plain { header, bytes }, |file| {
            write_weights(self.layout, self.dtype, &[file], targets, source)
        })
    }

    /// The bytes of the header, the position of each parameter, and the size of the file. Padding rows of the vocabulary that the file
    /// does not have are left out; rows that the model does not have stay zero.
    fn lay_out(&self, header: &LlmcHeader) -> (Vec<u8>, Vec<Option<TensorDestination>>, u64) {
        let mut at = HEADER_BYTES;
        let mut targets = vec![None; self.layout.entries.len()];
        for PartParameter { spec: parameter, .. } in header.parameters() {
            let elements = parameter.len();
            if let Ok(index) = self.layout.index(&parameter.name) {
                let elements = self.layout.entries[index].spec.len().min(elements);
                targets[index] = Some(TensorDestination { file: 0, at, elements, transposed: false });
            }
            at += (elements * self.dtype.size()) as u64;
        }
        (header.to_bytes(), targets, at)
    }

    fn header(&self) -> Result<LlmcHeader, WeightsError> {
        let s = self.spec;
        refuse_extensions(s, "llm.c's GPT-2")?;
        let refuse = |what: &str, found: String| {
            Err(WeightsError::Request(format!("llm.c's files need {what}, got {found}; use `--to hf`")))
        };
        if s.family != FAMILY {
            return refuse("a GPT-2", choice_name(&s.family));
        }
        if !s.tie_embeddings {
            return refuse("tied embeddings", "`model.tie_embeddings: false`".to_owned());
        }
        if s.d_ff != 4 * s.d_model {
            return refuse(&format!("`model.d_ff` 4·d_model = {}", 4 * s.d_model), s.d_ff.to_string());
        }
        if s.norm_eps != NORM_EPS {
            return refuse("`model.norm_eps` 1e-5", format!("{:e}", s.norm_eps));
        }
        if self.dtype == Dtype::F16 {
            return Err(WeightsError::Request(
                "llm.c's files hold f32 or bf16; use `--dtype f32` or `--dtype bf16`".to_owned(),
            ));
        }
        let spec = ModelSpec { vocab_size: self.vocab_size, ..s.clone() };
        Ok(LlmcHeader { dtype: self.dtype, spec, padded_vocab_size: self.vocab_size.next_multiple_of(PADDING) })
    }
}
