//! The names of parameters in Hugging Face files, and of tensors in such files that are not parameters.

use runner_spec::experiment::Family;

/// The prefix of all parameters but the head's.
pub(super) fn prefix(family: Family) -> &'static str {
    match family {
        Family::Gpt2 => "transformer.",
        Family::Llama => "model.",
    }
}

/// `name` with the prefix that this program uses. Files of a model without its head leave the prefix out.
pub(super) fn canonical(family: Family, name: &str) -> String {
    let prefix = prefix(family);
    if name.starts_with(prefix) || name == HEAD { name.to_owned() } else { format!("{prefix}{name}") }
}

/// The name of the head's weights. A model whose head is the embedding has no such parameter.
pub(super) const HEAD: &str = "lm_head.weight";

/// True if the tensor `name`, in canonical form, is a buffer that older versions of `transformers` saved: masks and angles that
/// follow from the configuration.
pub(super) fn is_buffer(family: Family, name: &str) -> bool {
    match family {
        Family::Gpt2 => name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"),
        Family::Llama => name.ends_with("rotary_emb.inv_freq"),
    }
}

/// True if GPT-2's files hold the matrix `name` as [in, out] (Conv1D), transposed.
pub(super) fn is_conv1d(family: Family, name: &str) -> bool {
    const CONV1D: [&str; 4] = [".attn.c_attn.weight", ".attn.c_proj.weight", ".mlp.c_fc.weight", ".mlp.c_proj.weight"];
    family == Family::Gpt2 && CONV1D.iter().any(|end| name.ends_with(end))
}

/// True if the parameter `name` is the token embedding or the head, which have a row for each token.
pub(super) fn has_token_rows(family: Family, name: &str) -> bool {
    name == HEAD || name == runner_spec::model::stage::token_embedding(family)
}

/// True if the parameter `name` is the position embedding, which has a row for each position.
pub(super) fn has_position_rows(name: &str) -> bool {
    name == "transformer.wpe.weight"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_four_matrices_and_the_buffers_are_special() {
        let conv = |name: &str| is_conv1d(Family::Gpt2, name);
        assert!(conv("transformer.h.0.attn.c_attn.weight") && conv("transformer.h.11.mlp.c_proj.weight"));
        assert!(!conv("transformer.wte.weight") && !conv("transformer.h.0.attn.c_attn.bias") && !conv(HEAD));
        assert!(!is_conv1d(Family::Llama, "model.layers.0.mlp.c_fc.weight"));
        assert!(is_buffer(Family::Gpt2, "transformer.h.0.attn.bias"));
        assert!(!is_buffer(Family::Gpt2, "transformer.h.0.attn.c_attn.bias"));
        assert_eq!(canonical(Family::Gpt2, "h.0.ln_1.weight"), "transformer.h.0.ln_1.weight");
        assert_eq!(canonical(Family::Llama, HEAD), HEAD);
    }
}
