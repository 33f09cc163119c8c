//! Against a server on loopback that answers as the hub does, and one on another port that files are redirected to.

mod http;
mod models;
mod preparation;
mod server;
mod well_known_datasets;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use runner_spec::experiment::{ColumnSeparator, HubSource, Source, Validation};
use server::{
    Asked, Broken, COMMIT, CONVERTED, Files, Here, Reply, Server, data, etag, fine, hub, local, pair, ranged, read,
    source,
};

#[test]
fn a_split_is_downloaded_once_and_the_token_stays_with_the_hub() {
    let (hub, cdn) = pair();
    let mut here = Here::new(&hub.address);
    let mut wanted = data(source("own/fine", Some("small"), "train"));
    wanted.validation = Some(Validation::Source(Source::Hub(source("own/fine", Some("small"), "test"))));
    let lowered = here.lower(&wanted).unwrap();
    let contents: Vec<Vec<u8>> = fine()[0].2[1..3].iter().map(|(_, content)| content.clone()).collect();
    assert!(read(&lowered) == contents);
    assert!(
        matches!(&lowered.local.data.validation, Some(Validation::Source(Source::Parquet(from))) if from.files[0].ends_with("test.parquet"))
    );
    let Source::Hub(pinned) = &lowered.pinned.data.train else { panic!() };
    assert_eq!(*pinned, HubSource { revision: COMMIT.to_owned(), ..source("own/fine", Some("small"), "train") });

    assert!(hub.asked().iter().all(|asked| asked.headers["authorization"] == "Bearer hf_secret"));
    assert_eq!(cdn.count(), 3);
    assert!(cdn.asked().iter().all(|asked| !asked.headers.contains_key("authorization")));
    assert!(!hub.asked().iter().any(|asked| asked.path.contains("other/")));

    // The cache has the layout of huggingface_hub.
    let repo = here.repo("datasets--own--fine");
    assert_eq!(fs::read_to_string(repo.join("refs/main")).unwrap(), COMMIT);
    let pointer = repo.join("snapshots").join(COMMIT).join("sample/000.parquet");
    assert_eq!(fs::read_link(pointer).unwrap(), Path::new("../../../blobs").join(etag(&contents[0])));
    assert!(
        fs::read_dir(repo.join("blobs")).unwrap().all(|e| !e.unwrap().path().to_string_lossy().contains("incomplete"))
    );

    // The cache is complete, so no request is sent: online or offline, by commit or by branch.
    let before = (hub.count(), cdn.count());
    assert_eq!(here.lower(&wanted).unwrap(), lowered);
    assert_eq!(here.lower(&lowered.pinned.data).unwrap(), lowered);
    here.settings.offline = true;
    assert_eq!(here.lower(&wanted).unwrap(), lowered);
    assert_eq!((hub.count(), cdn.count()), before);
    let other = here.lower(&data(source("own/fine", Some("smal"), "train"))).unwrap_err();
    assert!(other.contains("no configuration `smal`: did you mean `small`?"), "{other}");
    let other = here.lower(&data(source("own/other", None, "train"))).unwrap_err();
    assert!(
        other.contains("dataset own/other (main) is not in the cache") && other.ends_with("HF_HUB_OFFLINE is set"),
        "{other}"
    );
    assert_eq!((hub.count(), cdn.count()), before);
}

#[test]
fn resumes_a_broken_download() {
    let large = fine()[0].2[1].1.clone();
    let content = large.clone();
    // Every answer breaks off after 250,000 bytes.
    let cdn = Server::start(Arc::new(move |asked, _| {
        let reply = ranged(asked, &content);
        Reply { cut: Some(reply.body.len().min(250_000)), ..reply }
    }));
    let mut files = fine();
    files[0].2.remove(2);
    let hub = Server::start(hub(files, Some(cdn.address.clone())));
    let here = Here::new(&hub.address);
    assert!(read(&here.lower(&data(source("own/fine", Some("small"), "train"))).unwrap()) == [large.clone()]);
    let ranges: Vec<_> = cdn.asked().iter().map(|asked| asked.headers.get("range").cloned()).collect();
    assert_eq!(ranges.len(), 3);
    assert_eq!((ranges[0].clone(), ranges[2].as_deref()), (None, Some("bytes=500000-")));

    // A download that huggingface_hub started is resumed, too; one that is longer than the file is discarded.
    for begun in [&large[..400_000], &vec![0; 700_000][..]] {
        let here = Here::new(&hub.address);
        let blobs = here.repo("datasets--own--fine").join("blobs");
        fs::create_dir_all(&blobs).unwrap();
        fs::write(blobs.join(format!("{}.incomplete", etag(&large))), begun).unwrap();
        assert!(read(&here.lower(&data(source("own/fine", Some("small"), "train"))).unwrap()) == [large.clone()]);
    }
}

#[test]
fn a_server_that_never_sends_all_is_given_up() {
    let large = fine()[0].2[1].1.clone();
    let cases: [(Broken, &str); 4] = [
        // Always from the beginning, always cut.
        (|_, all| Reply { cut: Some(1000), ..Reply::new(200, all) }, "after 1000 of 600000 bytes"),
        (|_, all| Reply::new(200, &all[..5]), "after 5 of 600000 bytes"),
        (|_, all| Reply::new(200, [all, all].concat()), "it did not end after "),
        (|_, _| Reply::new(503, "busy"), "status 503"),
    ];
    for (answer, expected) in cases {
        let content = large.clone();
        let cdn = Server::start(Arc::new(move |asked, _| answer(asked, &content)));
        let mut files = fine();
        files[0].2.remove(2);
        let hub = Server::start(hub(files, Some(cdn.address.clone())));
        let here = Here::new(&hub.address);
        let message = here.lower(&data(source("own/fine", Some("small"), "train"))).unwrap_err();
        assert!(
            message.contains("`sample/000.parquet` of dataset own/fine") && message.contains(expected),
            "{message}"
        );
        assert!(cdn.count() <= 6, "{}", cdn.count());
        let snapshot = here.repo("datasets--own--fine").join("snapshots").join(COMMIT).join("sample");
        assert!(!snapshot.exists());
    }
}

#[test]
fn leftovers_of_others_are_not_taken_for_the_file() {
    let content = fine()[0].2[1].1.clone();
    let sha256 = etag(&content);
    for begun in [vec![7; content.len()], vec![7; 1000]] {
        let server = Server::start(hub(fine(), None));
        let here = Here::new(&server.address);
        let blobs = here.repo("datasets--own--fine").join("blobs");
        fs::create_dir_all(&blobs).unwrap();
        fs::write(blobs.join(format!("{sha256}.incomplete")), &begun).unwrap();
        let found = here.lower(&data(source("own/fine", Some("small"), "train"))).unwrap();
        assert!(read(&found)[0] == content, "{}", begun.len());
    }
    // A server whose content does not match the hash that it announces.
    let inner = hub(fine(), None);
    let server = Server::start(Arc::new(move |asked: &Asked, before| {
        let mut reply = inner(asked, before);
        if asked.path.contains("sample/000") {
            reply.body.reverse();
        }
        reply
    }));
    let here = Here::new(&server.address);
    let message = here.lower(&data(source("own/fine", Some("small"), "train"))).unwrap_err();
    assert!(message.contains("`sample/000.parquet`") && message.contains("SHA-256"), "{message}");
    assert!(!here.repo("datasets--own--fine/blobs").join(&sha256).exists());
}

#[test]
fn a_part_of_a_split_is_not_the_split() {
    let (hub, cdn) = pair();
    let mut here = Here::new(&hub.address);
    let wanted = data(source("own/fine", Some("small"), "train"));
    here.lower(&wanted).unwrap();
    here.settings.offline = true;
    let second = here.repo("datasets--own--fine/snapshots").join(COMMIT).join("sample/001.parquet");
    let link = fs::read_link(&second).unwrap();
    // The list of files is known: what is missing has a name.
    fs::remove_file(&second).unwrap();
    let message = here.lower(&wanted).unwrap_err();
    assert!(message.contains("`sample/001.parquet` of dataset own/fine (main) is not in the cache"), "{message}");
    // It is unknown, and the card has a pattern: there may be more than one or two.
    fs::remove_dir_all(here.folder.path().join("memos")).unwrap();
    for files in ["1 in all", "2 in all"] {
        let message = here.lower(&wanted).unwrap_err();
        let parts = ["`sample/000.parquet`", files, "there may be more", "HF_HUB_OFFLINE is set"];
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
        let _ = std::os::unix::fs::symlink(&link, &second);
    }
    // One that the card names is.
    let test = data(source("own/fine", Some("small"), "test"));
    let message = here.lower(&test).unwrap_err();
    assert!(
        message.contains("`test.parquet`, which its card lists, is missing") && message.contains("HF_HUB_OFFLINE"),
        "{message}"
    );
    fs::write(second.parent().unwrap().parent().unwrap().join("test.parquet"), "PAR1").unwrap();
    assert_eq!(local(&here.lower(&test).unwrap()).len(), 1);
    // The cache replaces a server that cannot be reached, but not one that refuses.
    here.settings.offline = false;
    here.settings.endpoint = "http://127.0.0.1:1".to_owned();
    assert!(here.lower(&wanted).unwrap_err().contains("cannot read from the hub at http://127.0.0.1:1"));
    assert_eq!(local(&here.lower(&test).unwrap()).len(), 1);
    let refusing = Server::start(Arc::new(|_: &Asked, _| Reply::new(403, "{}")));
    here.settings.endpoint.clone_from(&refusing.address);
    assert!(here.lower(&test).unwrap_err().contains("is gated"));
    // Asked again, the hub brings the rest.
    fs::remove_file(&second).unwrap();
    here.settings.endpoint.clone_from(&hub.address);
    let before = cdn.count();
    assert_eq!(read(&here.lower(&wanted).unwrap())[1], b"PAR1 second");
    assert!(cdn.count() == before);
}

#[test]
fn refusals_say_what_to_do() {
    let refused = |status: u16, code: &'static str, extra: &'static [(&'static str, &'static str)]| {
        let server = Server::start(Arc::new(move |asked: &Asked, _| {
            for (path, body) in extra {
                if asked.path.starts_with(path) {
                    return Reply::new(200, *body);
                }
            }
            Reply::new(status, "{\"error\": \"x\"}").with("x-error-code", code).with("x-error-message", "said so")
        }));
        let here = Here::new(&server.address);
        let message = here.lower(&data(source("own/fine", None, "train"))).unwrap_err();
        (message.replace(&server.address, "HUB"), server.count())
    };
    assert_eq!(
        refused(401, "RepoNotFound", &[]).0,
        "data.train.hub: dataset own/fine does not exist, or is private: the token does not give access to it (the hub says: said so)"
    );
    let gated = refused(403, "GatedRepo", &[]).0;
    assert!(gated.contains("is gated: accept its terms at HUB/datasets/own/fine, and set HF_TOKEN"), "{gated}");
    let found = refused(404, "RepoNotFound", &[]).0;
    assert_eq!(found, "data.train.hub: there is no dataset own/fine at HUB");
    let found = refused(404, "RevisionNotFound", &[]).0;
    assert_eq!(found, "data.train.hub: dataset own/fine has no revision `main`");
    for status in [429, 500] {
        let (message, count) = refused(status, "", &[]);
        assert!(message.contains(&format!("status {status}")) && message.contains("not in the cache"), "{message}");
        assert_eq!(count, 5);
    }
    // Nobody there.
    let message = Here::new("http://127.0.0.1:1").lower(&data(source("own/fine", None, "train"))).unwrap_err();
    assert!(
        message.contains("is not in the cache") && message.contains("cannot read from the hub at http://127.0.0.1:1"),
        "{message}"
    );
    let mut nobody = Here::new("http://127.0.0.1:1");
    nobody.settings.token = None;
    assert!(nobody.lower(&data(source("own/fine", None, "train"))).is_err());
}

#[test]
fn answers_that_mean_harm_are_refused() {
    let info = |sha: &str, file: &str| serde_json::json!({"sha": sha, "siblings": [{"rfilename": file}]}).to_string();
    let bodies = [
        info(COMMIT, "../../x.parquet"),
        info(COMMIT, "/etc/x.parquet"),
        info("../../etc", "train.parquet"),
        "{".to_owned(),
        "[]".to_owned(),
        "{\"sha\": 3}".to_owned(),
        "[".repeat(100_000),
    ];
    for body in bodies {
        let shown = body[..60.min(body.len())].to_owned();
        let server = Server::start(Arc::new(move |_, _| Reply::new(200, body.as_str())));
        let here = Here::new(&server.address);
        let message = here.lower(&data(source("own/fine", None, "train"))).unwrap_err();
        assert!(message.contains("answer"), "{shown}: {message}");
        assert!(!here.settings.cache.exists(), "{shown}");
    }
    let size = serde_json::json!({"rfilename": "train.parquet", "size": 3, "blobId": "abc"});
    let no_name = serde_json::json!({"rfilename": "train.parquet", "size": 3, "blobId": "../../../x"});
    for (file, location) in [(size, "ftp://x"), (no_name, "/elsewhere")] {
        let listing = serde_json::json!({"sha": COMMIT, "siblings": [file]}).to_string();
        let server = Server::start(Arc::new(move |asked: &Asked, _| {
            if asked.path.starts_with("/api") {
                return Reply::new(200, listing.as_str());
            }
            Reply::new(302, "abc").with("location", location)
        }));
        let here = Here::new(&server.address);
        let message = here.lower(&data(source("own/fine", None, "train"))).unwrap_err();
        assert!(message.contains("hub") && !here.folder.path().join("x").exists(), "{location}: {message}");
        assert!(!here.repo("datasets--own--fine").join("snapshots").exists(), "{location}");
    }
    // Redirects in a circle.
    let server = Server::start(Arc::new(|asked: &Asked, _| Reply::new(307, "").with("location", asked.path.clone())));
    assert!(
        Here::new(&server.address)
            .lower(&data(source("a/b", None, "train")))
            .unwrap_err()
            .contains("too many redirects")
    );
}

#[test]
fn uses_the_cache_of_huggingface_hub() {
    let mut here = Here::new("http://127.0.0.1:1");
    here.settings.offline = true;
    let repo = here.repo("datasets--tatsu-lab--alpaca");
    for folder in ["blobs", "refs"] {
        fs::create_dir_all(repo.join(folder)).unwrap();
    }
    let data_folder = repo.join("snapshots").join(COMMIT).join("data");
    fs::create_dir_all(&data_folder).unwrap();
    fs::write(repo.join("refs/main"), COMMIT).unwrap();
    fs::write(repo.join("blobs/abc123"), "PAR1").unwrap();
    let name = "train-00000-of-00001-a09b74b3ef9c3b56.parquet";
    std::os::unix::fs::symlink("../../../blobs/abc123", data_folder.join(name)).unwrap();
    let wanted = data(source("tatsu-lab/alpaca", None, "train"));
    let lowered = here.lower(&wanted).unwrap();
    assert_eq!(local(&lowered), [data_folder.join(name)]);
    // One of two is not all.
    fs::rename(data_folder.join(name), data_folder.join("train-00000-of-00002.parquet")).unwrap();
    let message = here.lower(&wanted).unwrap_err();
    assert!(message.contains("the cache has 1 of the 2 files"), "{message}");
    // A dangling link is not a file.
    fs::remove_file(repo.join("blobs/abc123")).unwrap();
    assert!(here.lower(&wanted).unwrap_err().contains("is not in the cache"));
}

#[test]
fn reads_the_hubs_conversion_of_a_format_that_it_does_not_read() {
    let plain = vec![(
        "datasets/own/plain",
        COMMIT,
        vec![("README.md", b"# plain".to_vec()), ("LICENSE.txt", b"x".to_vec()), ("input.xml", b"text".to_vec())],
    )];
    let mut both: Files = plain.clone();
    both.push(("datasets/own/plain", CONVERTED, vec![("default/train/0000.parquet", b"PAR1".to_vec())]));
    let wanted = data(source("own/plain", None, "train"));
    let server = Server::start(hub(both, None));
    let here = Here::new(&server.address);
    let lowered = here.lower(&wanted).unwrap();
    assert!(local(&lowered)[0].ends_with(format!("{CONVERTED}/default/train/0000.parquet")));
    let Source::Hub(pinned) = &lowered.pinned.data.train else { panic!() };
    assert_eq!(pinned.revision, CONVERTED);
    let count = server.count();
    assert_eq!(here.lower(&lowered.pinned.data).unwrap(), lowered);
    assert_eq!(here.lower(&wanted).unwrap(), lowered);
    assert_eq!(server.count(), count);
    let message = here.lower(&data(source("own/plain", None, "test"))).unwrap_err();
    assert!(message.contains("no split `test`; available: `train`"), "{message}");
    // Nothing was converted.
    let server = Server::start(hub(plain.clone(), None));
    let message = Here::new(&server.address).lower(&wanted).unwrap_err();
    assert!(message.contains("split `train` has `input.xml`; only"), "{message}");
    // It is unknown whether something was converted.
    let inner = hub(plain, None);
    let server = Server::start(Arc::new(move |asked: &Asked, before| {
        if asked.path.contains("convert") { Reply::new(503, "busy") } else { inner(asked, before) }
    }));
    let message = Here::new(&server.address).lower(&wanted).unwrap_err();
    assert!(message.contains("(refs/convert/parquet)") && message.contains("status 503"), "{message}");
}

#[test]
fn json_files_may_be_arrays_or_lines() {
    let content =
        [("a.jsonl", "{\"text\": \"a\"}\n"), ("b.json", "[{\"text\": \"b\"}]"), ("c.json", "{\"text\": \"c\"}\n")];
    let files = content.map(|(name, content)| (name, content.into())).to_vec();
    let server = Server::start(hub(vec![("datasets/own/mixed", COMMIT, files)], None));
    let here = Here::new(&server.address);
    let lowered = here.lower(&data(source("own/mixed", None, "train"))).unwrap();
    assert!(matches!(&lowered.local.data.train, Source::Json(from) if from.files.len() == 3), "{lowered:?}");
    assert!(read(&lowered) == content.map(|(_, content)| content.as_bytes().to_vec()));
}

#[test]
fn csv_files_are_read_with_the_separator_of_their_ending() {
    for (name, content) in [("train.csv", "id,text\n1,\"a, b\"\n"), ("train.tsv", "id\ttext\n1\ta, b\n")] {
        let files = vec![(name, content.as_bytes().to_vec())];
        let server = Server::start(hub(vec![("datasets/own/rows", COMMIT, files)], None));
        let here = Here::new(&server.address);
        let lowered = here.lower(&data(source("own/rows", None, "train"))).unwrap();
        let separator = if name.ends_with("csv") { ColumnSeparator::Comma } else { ColumnSeparator::Tab };
        assert!(matches!(&lowered.local.data.train, Source::Csv(from) if from.separator == separator), "{lowered:?}");
        assert!(read(&lowered) == [content.as_bytes()]);
    }
}

#[test]
fn a_card_that_cannot_be_read_is_refused() {
    for (card, problem) in [
        (b"---\nconfigs: [\n---\n".to_vec(), "its card (README.md): cannot read its YAML"),
        (b"---\nconfigs: [{data_files: a.jsonl}]\n---\n".to_vec(), "must have a `config_name`"),
        (b"# \xff".to_vec(), "its card (README.md) is not UTF-8 text"),
        (vec![b'x'; (4 << 20) + 1], "its card (README.md) is larger than 4"),
    ] {
        let files = vec![("README.md", card), ("a.jsonl", b"{}".to_vec())];
        let server = Server::start(hub(vec![("datasets/own/card", COMMIT, files)], None));
        let message = Here::new(&server.address).lower(&data(source("own/card", None, "train"))).unwrap_err();
        assert!(message.contains(problem), "{message}");
    }
}

#[test]
fn a_list_without_sizes_does_not_cause_a_request_for_each_of_its_files() {
    const FILES: usize = 20_000;
    let siblings: Vec<_> =
        (0..FILES).map(|i| serde_json::json!({"rfilename": format!("train-{i:05}.parquet")})).collect();
    let info = serde_json::json!({"id": "own/many", "sha": COMMIT, "siblings": siblings}).to_string();
    let server = Server::start(Arc::new(move |asked: &Asked, _| {
        let is_list = asked.path.starts_with("/api/datasets/own/many/");
        if is_list { Reply::new(200, info.clone()) } else { Reply::new(404, "{}") }
    }));
    let error = Here::new(&server.address).lower(&data(source("own/many", None, "train"))).unwrap_err();
    assert!(error.contains("gives neither the size nor the hash of `train-00000.parquet`"), "{error}");
    assert!(server.count() < 10, "{:?}", server.count());
}
