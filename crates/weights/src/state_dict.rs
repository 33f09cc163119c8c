//! The model whose state dict is in a file: its sizes are the shapes of its tensors.

use std::collections::BTreeMap;
use std::path::Path;

use super::described_model::{DescribedModel, MAX_CONTEXT};
use super::error::WeightsError;
use super::file_tensor::{FileTensor, canonical, embedding, unwrap_names};
use super::torch_file::TorchFile;
use runner_spec::model::parts::Head;
use runner_spec::model::{Family, ModelSpec};

/// Describes the model whose state dict is in the file `path`. What no shape says has the family's default, and is `unknown`.
///
/// # Errors
/// If the file cannot be read, or its tensors are not those of a GPT-2 or a Llama.
pub(super) fn describe(path: &Path) -> Result<DescribedModel, WeightsError> {
    let TorchFile { mut tensors, heads } = TorchFile::open(0, path)?;
    unwrap_names(&mut tensors).map_err(|message| WeightsError::file(path, message))?;
    let families = Family::ALL.map(|family| {
        let by_name = tensors.iter().map(|tensor| (canonical(family, &tensor.name), tensor));
        (family, embedding(family), by_name.collect::<BTreeMap<String, &FileTensor>>())
    });
    let Some((family, tokens, by_name)) = families.iter().find(|(_, tokens, by_name)| by_name.contains_key(*tokens))
    else {
        let names = families.map(|(_, tokens, _)| format!("`{tokens}`")).join(" nor ");
        return WeightsError::invalid(path, format!("not the state dict of a GPT-2 or a Llama: found neither {names}"));
    };
    let shape = |name: &str| match by_name.get(name) {
        Some(tensor) => Ok(tensor.shape.as_slice()),
        None => WeightsError::invalid(path, format!("tensor {name} is missing")),
    };
    let rows = |name: &str| Ok(shape(name)?.first().copied().unwrap_or(0));
    let &[vocab_size, d_model] = shape(tokens)? else {
        return WeightsError::invalid(path, format!("tensor {tokens} must be a matrix"));
    };
    // The tensor whose rows are positions, the first matrix of the first MLP, and the one whose rows are keys, which may be fewer than queries.
    let (positions, mlp, keys) = match family {
        Family::Gpt2 => (Some("transformer.wpe.weight"), "transformer.h.0.mlp.c_fc.weight", None),
        Family::Llama => (None, "model.layers.0.mlp.gate_proj.weight", Some("model.layers.0.self_attn.k_proj.weight")),
    };
    let layers = (0..by_name.len()).take_while(|n| by_name.contains_key(&mlp.replace(".0.", &format!(".{n}."))));
    let layers = layers.count();
    // The matrix may be transposed.
    let mlp_size = shape(mlp)?.iter().fold(1_usize, |product, &n| product.saturating_mul(n));
    let d_ff = mlp_size.checked_div(d_model).unwrap_or(0);
    let context_length = positions.map_or(Ok(MAX_CONTEXT), rows)?;
    // Heads that share keys: as many as the width of the queries has widths of the keys.
    let groups = match keys.map(rows).transpose()? {
        None => 1,
        Some(width) if width > 0 && d_model.is_multiple_of(width) => d_model / width,
        Some(width) => {
            return WeightsError::invalid(path, format!("the width of keys, {width}, must divide d_model, {d_model}"));
        }
    };
    let mut unknown = vec!["dropout", "norm_eps", "rope_theta"];
    if heads.is_none() {
        unknown.extend(["heads", "kv_heads"]);
    }
    if positions.is_none() {
        unknown.push("context_length");
    }
    let head = by_name.get(Head::WEIGHT);
    if head.is_none() {
        unknown.push("tie_embeddings");
    }
    let is_tied = head.map_or(Ok(true), |head| head.has_same_numbers(path, by_name[*tokens], path));
    let tie_embeddings = is_tied.map_err(WeightsError::io(path))?;
    let heads = heads.unwrap_or(groups);
    let sizes = [vocab_size, context_length, layers, heads, d_model];
    let spec = ModelSpec::with_defaults(*family, sizes);
    let spec = ModelSpec { kv_heads: heads / groups, d_ff, tie_embeddings, ..spec };
    DescribedModel { file: path.to_owned(), unknown, spec }.checked()
}
