//! The documentation holds together: every link leads to a file and a heading that exist, and the site has every page.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::sandbox::{Sandbox, repository_path};

/// The table of contents of the site.
const SUMMARY: &str = "docs/SUMMARY.md";

/// The targets of a page's links and images, and the anchors of its headings.
#[derive(Default)]
struct Page {
    targets: Vec<String>,
    anchors: BTreeSet<String>,
}

impl Page {
    fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let mut page = Self::default();
        let mut heading: Option<String> = None;
        for event in Parser::new_ext(&text, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.targets.push(dest_url.into_string());
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => page.add_anchor(&heading.take().unwrap_or_default()),
                Event::Text(text) | Event::Code(text) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&text);
                    }
                }
                _ => {}
            }
        }
        page
    }

    /// Adds the anchor that GitHub and mdBook give to a heading; a repeated one gets a number.
    fn add_anchor(&mut self, heading: &str) {
        let kept = heading.to_lowercase();
        let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let slug = kept.collect::<String>().replace(' ', "-");
        let mut anchor = slug.clone();
        let mut repeats = 0;
        while !self.anchors.insert(anchor.clone()) {
            repeats += 1;
            anchor = format!("{slug}-{repeats}");
        }
    }
}

/// The path without `.` and `..`.
fn normalize(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                normal.pop();
            }
            Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}

/// The documentation's pages in the repository `root`: README.md, CONTRIBUTING.md, all of `docs/`, and those that the summary names.
fn pages_of(root: &Path) -> BTreeSet<PathBuf> {
    let docs = pages_in(&root.join("docs")).into_iter();
    docs.chain(pages_of_site(root)).chain(["README.md", "CONTRIBUTING.md"].map(|name| root.join(name))).collect()
}

/// The pages in `folder` and its subfolders.
fn pages_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let pages = files.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages.chain(folders.iter().flat_map(|folder| pages_in(folder))).collect()
}

/// The pages that the summary names.
fn pages_of_site(root: &Path) -> BTreeSet<PathBuf> {
    let summary = root.join(SUMMARY);
    let targets = Page::read(&summary).targets;
    targets.iter().map(|target| normalize(&summary.with_file_name(target))).collect()
}

/// Every fault of the documentation in the repository `root`: one line each, with the page.
fn faults_of(root: &Path) -> Vec<String> {
    let mut faults = Vec::new();
    let pages = pages_of(root);
    let site = pages_of_site(root);
    let name = |path: &Path| path.strip_prefix(root).unwrap_or(path).display().to_string();
    for path in &pages {
        if !site.contains(path) && *path != root.join(SUMMARY) {
            faults.push(format!("{}: {SUMMARY} does not name it", name(path)));
        }
        for target in Page::read(path).targets {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) =
                target.split_once('#').map_or((&target[..], None), |(file, anchor)| (file, Some(anchor)));
            let file = if file.is_empty() { path.clone() } else { normalize(&path.with_file_name(file)) };
            if !file.starts_with(root) || !file.exists() {
                faults.push(format!("{}: {target} leads to no file", name(path)));
            } else if file.is_dir() {
                faults.push(format!("{}: {target} is a folder, which the site cannot show", name(path)));
            } else if anchor.is_some_and(|anchor| !Page::read(&file).anchors.contains(anchor)) {
                faults.push(format!("{}: {target} leads to no heading", name(path)));
            }
        }
    }
    faults
}

#[test]
fn every_link_leads_somewhere_and_the_site_has_every_page() {
    let faults = faults_of(&repository_path(""));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn faults_of_links_are_found() {
    let page = "# A page\n## Two words, `code`\n## Again\n## Again\n[up](../README.md) [here](#two-words-code) [second](#again-1) \
                [x](https://x.org/y) `[no](link.md)`\n";
    let sandbox = Sandbox::new()
        .with("README.md", "# Start\n[page](docs/page.md#a-page)\n")
        .with("CONTRIBUTING.md", "")
        .with("docs/SUMMARY.md", "- [Start](../README.md)\n- [Page](page.md)\n- [Contributing](../CONTRIBUTING.md)\n")
        .with("docs/page.md", page);
    let faults = || faults_of(&sandbox.folder().canonicalize().unwrap());
    assert_eq!(faults(), Vec::<String>::new());
    sandbox.write("docs/deep/unnamed.md", "");
    sandbox.write(
        "docs/lost.md",
        "[a](#again-2) [b](page.md#again-2) ![c](images/c.png) [d](../../outside.md) [e](../docs)",
    );
    assert_eq!(
        faults(),
        [
            "docs/deep/unnamed.md: docs/SUMMARY.md does not name it",
            "docs/lost.md: docs/SUMMARY.md does not name it",
            "docs/lost.md: #again-2 leads to no heading",
            "docs/lost.md: page.md#again-2 leads to no heading",
            "docs/lost.md: images/c.png leads to no file",
            "docs/lost.md: ../../outside.md leads to no file",
            "docs/lost.md: ../docs is a folder, which the site cannot show",
        ]
    );
}
