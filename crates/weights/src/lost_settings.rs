//! What the folder of weights from which a run started has, and an export lacks: a chat template.

use std::path::Path;

use super::folder::read_object;
use runner_files::is_absent;

const CHAT_TEMPLATES: [&str; 3] = ["chat_template.jinja", "additional_chat_templates", "chat_template.json"];

const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// A larger file is not looked into.
const MAX_BYTES: u64 = 16 << 20;

/// The note about a chat template of the folder `source`, from which a run started, that its export in the folder `exported` lacks.
pub fn describe_lost_template(source: &Path, exported: &Path) -> Option<String> {
    let is_lost = |file: &&str| !is_absent(&source.join(file)) && is_absent(&exported.join(file));
    let in_config = || {
        read_object(&source.join(TOKENIZER_CONFIG), MAX_BYTES)
            .ok()?
            .contains_key("chat_template")
            .then_some(TOKENIZER_CONFIG)
    };
    let file = CHAT_TEMPLATES.into_iter().find(is_lost).or_else(in_config)?;
    Some(format!("the export lacks the chat template in {}", source.join(file).display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chat_template_that_is_lost_is_noted() {
        let (source, exported) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let lost = || describe_lost_template(source.path(), exported.path());
        let config = source.path().join(TOKENIZER_CONFIG);
        std::fs::write(&config, r#"{"eos_token": "</s>"}"#).unwrap();
        assert_eq!(lost(), None);
        std::fs::write(&config, r#"{"chat_template": "{{ messages }}"}"#).unwrap();
        assert!(lost().unwrap().ends_with("tokenizer_config.json"));
        std::fs::write(source.path().join("chat_template.jinja"), "").unwrap();
        assert!(lost().unwrap().ends_with("chat_template.jinja"));
    }
}
