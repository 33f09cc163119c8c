//! Legal names of the hub's repositories and of their files. Other names are refused before they become part of a path or an address.

use super::safe_text::is_plain_line;

/// The branch of a hub repository that is read if the file names no other.
pub const HUB_DEFAULT_BRANCH: &str = "main";

/// The most bytes of a part of a name, the owner or the repository.
const MAX_PART: usize = 96;
const MAX_REVISION: usize = 255;
const MAX_PATH: usize = 1024;

/// True if `c` may be part of a name: of a repository here, and of the folders that this program creates.
pub fn is_legal_in_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')
}

/// The reason why `text` is empty or has a character that is not legal.
pub fn character_problem(text: &str, is_legal: impl Fn(char) -> bool) -> Option<String> {
    if text.is_empty() {
        return Some("is empty".to_owned());
    }
    text.chars().find(|&c| !is_legal(c)).map(|c| format!("contains the character `{}`", c.escape_debug()))
}

/// The reason why `name` is not the name of a repository, such as "is empty".
pub fn name_problem(name: &str) -> Option<String> {
    if name.split('/').count() > 2 {
        return Some("has more than one `/`".to_owned());
    }
    if let Some(problem) = character_problem(name, |c| is_legal_in_name(c) || c == '/') {
        return Some(problem);
    }
    let wrong = |part: &str| {
        part.is_empty() || part.len() > MAX_PART || part.starts_with(['.', '-']) || part.ends_with(['.', '-'])
    };
    if name.split('/').any(wrong) || name.contains("..") || name.contains("--") {
        return Some(format!("must be the name of a repository, got `{}`", crate::diagnostic::short(name)));
    }
    None
}

/// The reason why `revision` is not a branch, tag or commit.
pub fn revision_problem(revision: &str) -> Option<String> {
    if let Some(problem) = character_problem(revision, |c| is_legal_in_name(c) || c == '/') {
        return Some(problem);
    }
    let wrong = |part: &str| part.is_empty() || part.starts_with('.');
    let illegal = revision.len() > MAX_REVISION || revision.starts_with('-') || revision.contains("..");
    (illegal || revision.split('/').any(wrong)).then(|| "must be a branch, a tag or a commit".to_owned())
}

/// The reason why a text is not the name of a configuration or split.
pub fn word_problem(word: &str) -> Option<String> {
    character_problem(word, |c| !c.is_control() && !r#"/\*?[<>:|""#.contains(c))
}

/// True if `path` names a file inside a repository, and inside the folder that holds its files.
pub fn is_inside(path: &str) -> bool {
    !path.is_empty()
        && path.len() <= MAX_PATH
        && is_plain_line(path)
        && !path.contains('\\')
        && path.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

/// True if `text` is the full name of a commit.
pub fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// True if `etag` may name a file of the cache.
pub fn is_etag(etag: &str) -> bool {
    (1..=128).contains(&etag.len()) && etag.chars().all(is_legal_in_name) && !etag.starts_with('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_names_that_leave_a_folder() {
        for name in ["gpt2", "HuggingFaceFW/fineweb", "a/b.c_d-e", "tatsu-lab/alpaca"] {
            assert_eq!(name_problem(name), None, "{name}");
        }
        for name in ["", "/", "a/", "/a", "a/b/c", "../a", "a/..", "a..b", "a b", "a\nb", ".a", "a--b", "é", "a/-b"] {
            assert!(name_problem(name).is_some(), "{name}");
        }
        for revision in ["main", "refs/convert/parquet", "v1.0", "refs/pr/3", &"a".repeat(40)] {
            assert_eq!(revision_problem(revision), None, "{revision}");
        }
        for revision in ["", "../main", "a/../b", "/a", "a//b", "a b", "-x", "a/.b", "a..b"] {
            assert!(revision_problem(revision).is_some(), "{revision}");
        }
        for path in ["a", "data/train-00000-of-00001 x.parquet", "a/.gitattributes"] {
            assert!(is_inside(path), "{path}");
        }
        for path in ["", "/a", "a/", "..", "../x", "a/../../x", "a//b", "a\\b", "./a", "a\0"] {
            assert!(!is_inside(path), "{path}");
        }
        assert!(!is_etag("../x") && !is_etag("") && !is_etag(".a") && is_etag("0123abcd-2"));
        assert!(word_problem("../x").is_some() && word_problem("sample-10BT").is_none());
    }
}
