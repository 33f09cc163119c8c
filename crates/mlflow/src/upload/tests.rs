use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use runner_plan::testing::{compiled, experiment};
use runner_record::files::write_sealed_json;
use runner_record::run_dir::MANIFEST;
use runner_record::testing::{timed_run, train};

use super::*;
use crate::testing::TestServer;

/// A finished run with one step and two parameters.
fn finished_run(root: &Path) -> PathBuf {
    let path = timed_run(root, &compiled(&experiment()), &[(0, "2026-01-01T00:00:00.000Z")], &train(1, "2.5"), "");
    let mut manifest: Value = serde_json::from_slice(&fs::read(path.join(MANIFEST)).unwrap()).unwrap();
    manifest["status"] = "done".into();
    manifest.as_object_mut().unwrap().remove("content_hash");
    write_sealed_json(&path.join(MANIFEST), &manifest).unwrap();
    fs::write(path.join(RESOLVED), "name: tiny\nseed: 1\n").unwrap();
    path
}

/// The answer of a server that knows the run and its parameter `name`, and keeps the run's files at `artifacts`.
fn known_run(request: &str, artifacts: &str) -> (u16, String) {
    let info = json!({"run_id": "r", "artifact_uri": artifacts});
    let answer = match request {
        _ if request.contains("get-by-name") => json!({"experiment": {"experiment_id": "0"}}),
        _ if request.ends_with("runs/search") => json!({"runs": [{"info": info}]}),
        _ if request.contains("runs/get") => {
            json!({"run": {"info": info, "data": {"params": [{"key": "name", "value": "other"}]}}})
        }
        _ => json!({}),
    };
    (200, answer.to_string())
}

fn upload(run: &Path, server: &TestServer) -> Upload {
    let server = Server { uri: server.uri.clone(), experiment: "tiny".to_owned(), credentials: Credentials::default() };
    Upload::new(run, &server).unwrap()
}

fn own_store(request: &str) -> (u16, String) {
    known_run(request, "mlflow-artifacts:/0/r/artifacts")
}

#[test]
fn the_server_gets_the_parameters_that_it_lacks_and_none_of_a_private_run() {
    for (mode, expected) in [(0o644, vec!["seed"]), (0o600, vec![])] {
        let dir = tempfile::tempdir().unwrap();
        let path = finished_run(dir.path());
        fs::set_permissions(path.join(RESOLVED), Permissions::from_mode(mode)).unwrap();
        let server = TestServer::start(own_store);
        assert_eq!(upload(&path, &server).send_new(None).unwrap().count, 1);
        let batches = server.bodies("runs/log-batch");
        let sent = batches.iter().flat_map(|batch| batch["params"].as_array().into_iter().flatten());
        assert_eq!(sent.map(|parameter| parameter["key"].as_str().unwrap()).collect::<Vec<_>>(), expected, "{mode:o}");
    }
}

#[test]
fn lines_stay_until_an_mlflow_server_has_accepted_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = finished_run(dir.path());
    let mut batches = 0;
    let server = TestServer::start(move |request| {
        batches += u32::from(request.ends_with("runs/log-batch"));
        // The first batch has the parameters.
        if batches == 2 { (200, "<html>Log in</html>".to_owned()) } else { own_store(request) }
    });
    let mut upload = upload(&path, &server);
    let error = upload.send_new(None).unwrap_err().to_string();
    assert!(error.contains("is it an MLflow server?"), "{error}");
    assert_eq!(SentPosition::read(&path, &server.uri, "tiny").unwrap().unwrap().train_step, None);
}

#[test]
fn no_batch_begins_after_the_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let path = finished_run(dir.path());
    let server = TestServer::start(own_store);
    let mut upload = upload(&path, &server);
    let sent = upload.send_new(Some(Instant::now())).unwrap();
    assert_eq!((sent.count, sent.is_all), (0, false));
    let sent = upload.send_new(None).unwrap();
    assert_eq!((sent.count, sent.is_all), (1, true));
}

/// Sends metrics, status and three files. Returns the warning, and the requests after those of the metrics.
fn finish(server: &TestServer) -> (Option<String>, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let path = finished_run(dir.path());
    let mut upload = upload(&path, server);
    upload.send_new(None).unwrap();
    let before = server.requests().len();
    upload.send_status().unwrap();
    let opened = FileContent::Opened(File::open(path.join(RESOLVED)).unwrap());
    let text = || FileContent::Text("text".to_owned());
    let files = [("a.yaml", opened), ("b c.json", text()), ("d.html", text())];
    let warning = upload.send_files(&files.map(|(name, content)| RunFile { name, content }));
    (warning, server.requests().split_off(before))
}

#[test]
fn files_follow_the_status_and_each_is_sent_once() {
    const UPDATE: &str = "POST /api/2.0/mlflow/runs/update";
    let put = |name: &str| format!("PUT /api/2.0/mlflow-artifacts/artifacts/0/r/artifacts/{name}");
    let all = [UPDATE.to_owned(), put("a.yaml"), put("b%20c.json"), put("d.html")];
    let server = TestServer::start(own_store);
    assert_eq!(finish(&server), (None, all.to_vec()));
    assert_eq!(server.bodies("runs/update").last().unwrap()["status"], "FINISHED");

    let refusing = |status: u16| {
        TestServer::start(move |request| {
            let is_refused = request.contains("yaml") || request.contains("json");
            if is_refused { (status, "{}".to_owned()) } else { own_store(request) }
        })
    };
    let (warning, requests) = finish(&refusing(400));
    let warning = warning.unwrap();
    assert!(warning.contains(" did not receive a.yaml, b c.json: it refuses 2.0/mlflow-artifacts/"), "{warning}");
    assert_eq!(requests, all);
    let (warning, requests) = finish(&refusing(503));
    let warning = warning.unwrap();
    assert!(warning.ends_with(" did not receive a.yaml, b c.json, d.html: it answers with status 503"), "{warning}");
    assert_eq!(requests, all[..2], "a server that is away is not asked again");
}

#[test]
fn a_server_without_its_own_store_gets_no_files_and_a_warning_is_shown() {
    let server = TestServer::start(|request| known_run(request, "s3://bucket/0/r"));
    let (warning, requests) = finish(&server);
    assert!(warning.unwrap().contains(" did not receive a.yaml, b c.json, d.html: "));
    assert_eq!(requests.len(), 1);
    assert_eq!(artifact_folder("mlflow-artifacts://host:5000/0/r/artifacts").as_deref(), Some("0/r/artifacts"));
}
