//! The names of parameters in Hugging Face files, and of tensors in such files that are not parameters.

use runner_spec::model::Family;
use runner_spec::model::parts::Head;

/// `name` with the prefix that this program uses. Files of a model without its head leave the prefix out.
pub(super) fn canonical(family: Family, name: &str) -> String {
    let prefix = family.defaults().prefix;
    if name.starts_with(prefix) || name == Head::WEIGHT { name.to_owned() } else { format!("{prefix}{name}") }
}

/// True if the tensor `name`, in canonical form, is a buffer that older versions of `transformers` saved.
pub(super) fn is_buffer(family: Family, name: &str) -> bool {
    family.defaults().buffers.iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_spec::model::ModelSpec;

    #[test]
    fn only_the_four_matrices_and_the_buffers_are_special() {
        let spec = |family| ModelSpec::with_defaults(family, [9, 8, 12, 2, 8]).decoder();
        let gpt2 = spec(Family::Gpt2).parameters();
        let conv = |name: &str| gpt2.iter().find(|p| p.spec.name == name).expect("a parameter").transposed;
        assert!(conv("transformer.h.0.attn.c_attn.weight") && conv("transformer.h.11.mlp.c_proj.weight"));
        assert!(!conv("transformer.wte.weight") && !conv("transformer.h.0.attn.c_attn.bias"));
        assert!(gpt2.iter().all(|p| p.spec.name != Head::WEIGHT), "the head is tied");
        assert!(spec(Family::Llama).parameters().iter().all(|parameter| !parameter.transposed));
        assert!(is_buffer(Family::Gpt2, "transformer.h.0.attn.bias"));
        assert!(!is_buffer(Family::Gpt2, "transformer.h.0.attn.c_attn.bias"));
        assert_eq!(canonical(Family::Gpt2, "h.0.ln_1.weight"), "transformer.h.0.ln_1.weight");
        assert_eq!(canonical(Family::Llama, Head::WEIGHT), Head::WEIGHT);
    }
}
