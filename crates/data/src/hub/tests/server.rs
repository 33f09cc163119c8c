//! For tests: a hub on loopback, and who asks it.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ring::digest::{SHA256, digest};

use super::super::{LoweredData, Settings, lower};
pub(super) use super::http::{Answering, Asked, Broken, Reply, Server, ranged};
use crate::hashing::hex;
use runner_spec::experiment::{Data, HubSource, Layout, Source, Tokenizer};

pub(super) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
pub(super) const CONVERTED: &str = "89abcdef0123456789abcdef0123456789abcdef";

pub(super) fn etag(content: &[u8]) -> String {
    hex(digest(&SHA256, content).as_ref())
}

/// The content of the server: repository, commit and files.
pub(super) type Files = Vec<(&'static str, &'static str, Vec<(&'static str, Vec<u8>)>)>;

/// A hub of `files` that redirects to `cdn` what ends in .parquet.
pub(super) fn hub(files: Files, cdn: Option<String>) -> Arc<Answering> {
    Arc::new(move |asked, _| {
        let path = asked.path.split('?').next().unwrap_or_default();
        for (name, commit, files) in &files {
            let revisions = [*commit, if *commit == CONVERTED { "refs%2Fconvert%2Fparquet" } else { "main" }];
            for revision in revisions {
                if path == format!("/api/{name}/revision/{revision}") {
                    let sibling = |(file, content): &(_, Vec<u8>)| {
                        let content = serde_json::json!({"sha256": etag(content), "size": content.len()});
                        serde_json::json!({"rfilename": file, "lfs": content})
                    };
                    let siblings: Vec<_> = files.iter().map(sibling).collect();
                    let info = serde_json::json!({"id": name, "sha": commit, "siblings": siblings, "tags": []});
                    return Reply::new(200, info.to_string());
                }
            }
            let place = name.strip_prefix("models/").unwrap_or(name);
            let Some(file) = path.strip_prefix(&format!("/{place}/resolve/{commit}/")) else { continue };
            let Some((_, content)) = files.iter().find(|(f, _)| *f == file) else { continue };
            if let Some(cdn) = cdn.as_ref().filter(|_| file.ends_with(".parquet")) {
                return Reply::new(302, "moved")
                    .with("location", format!("{cdn}/blob/{}?secret=1", etag(content)))
                    .with("etag", "\"of-the-redirect\"");
            }
            return ranged(asked, content);
        }
        Reply::new(404, "{}").with("x-error-code", "RepoNotFound")
    })
}

pub(super) struct Here {
    pub(super) folder: tempfile::TempDir,
    pub(super) settings: Settings,
}

impl Here {
    pub(super) fn new(endpoint: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings {
            endpoint: endpoint.to_owned(),
            cache: folder.path().join("hub"),
            memos: folder.path().join("memos"),
            token: Some("hf_secret".to_owned()),
            offline: false,
            wait: Duration::from_millis(1),
        };
        Self { folder, settings }
    }

    pub(super) fn lower(&self, data: &Data) -> Result<LoweredData, String> {
        lower(&data.clone().into(), &self.settings, &|_| ()).map_err(|error| {
            assert!(!format!("{error:?}").contains("hf_secret"));
            error.to_string()
        })
    }

    pub(super) fn repo(&self, name: &str) -> PathBuf {
        self.settings.cache.join(name)
    }
}

pub(super) fn source(dataset: &str, config: Option<&str>, split: &str) -> HubSource {
    HubSource {
        dataset: dataset.to_owned(),
        config: config.map(str::to_owned),
        split: split.to_owned(),
        column: Some("text".to_owned()),
        template: None,
        revision: "main".to_owned(),
    }
}

pub(super) fn data(train: HubSource) -> Data {
    Data {
        tokenizer: Tokenizer::Bytes {},
        train: Source::Hub(train),
        validation: None,
        layout: Layout::packed(8),
        shuffle: true,
        drop_last: false,
        epoch_rows: None,
        position: None,
    }
}

pub(super) fn local(lowered: &LoweredData) -> Vec<PathBuf> {
    lowered.local.data.train.files().to_vec()
}

pub(super) fn read(lowered: &LoweredData) -> Vec<Vec<u8>> {
    local(lowered).iter().map(|path| fs::read(path).unwrap()).collect()
}

pub(super) const CARD: &str = "---\nconfigs:\n- config_name: small\n  data_files:\n  - split: train\n    path: sample/*.parquet\n  - split: test\n    path: test.parquet\n---\n";

pub(super) fn fine() -> Files {
    let large: Vec<u8> = (0..600_000_u32).map(|i| (i % 251) as u8).collect();
    vec![(
        "datasets/own/fine",
        COMMIT,
        vec![
            ("README.md", CARD.into()),
            ("sample/000.parquet", large),
            ("sample/001.parquet", b"PAR1 second".to_vec()),
            ("test.parquet", b"PAR1 test".to_vec()),
            ("other/x.parquet", b"never asked for".to_vec()),
        ],
    )]
}

/// A server of blobs, and a hub that redirects to it.
pub(super) fn pair() -> (Server, Server) {
    let contents: Vec<Vec<u8>> = fine()[0].2.iter().map(|(_, content)| content.clone()).collect();
    let cdn = Server::start(Arc::new(move |asked, _| {
        let found = contents.iter().find(|c| asked.path == format!("/blob/{}?secret=1", etag(c)));
        found.map_or(Reply::new(404, ""), |content| ranged(asked, content))
    }));
    let hub = Server::start(hub(fine(), Some(cdn.address.clone())));
    (hub, cdn)
}
