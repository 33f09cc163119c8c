use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use runner_plan::testing::{compiled, experiment};
use runner_record::files::write_sealed_json;
use runner_record::run_dir::MANIFEST;
use runner_record::testing::{timed_run, train};

use super::*;
use crate::testing::TestServer;

/// A finished run with one step and two parameters.
fn finished_run(root: &Path) -> PathBuf {
    let path = timed_run(root, &compiled(&experiment()), &[(0, "2026-01-01T00:00:00.000Z")], &train(1, "2.5"));
    let mut manifest: Value = serde_json::from_slice(&fs::read(path.join(MANIFEST)).unwrap()).unwrap();
    manifest["status"] = "done".into();
    manifest.as_object_mut().unwrap().remove("content_hash");
    write_sealed_json(&path.join(MANIFEST), &manifest).unwrap();
    fs::write(path.join(RESOLVED), "name: tiny\nseed: 1\n").unwrap();
    path
}

/// The answer of a server that knows the run and its parameter `name`.
fn known_run(request: &str) -> (u16, String) {
    let info = json!({"run_id": "r"});
    let answer = match request {
        _ if request.contains("get-by-name") => json!({"experiment": {"experiment_id": "0"}}),
        _ if request.ends_with("runs/search") => {
            json!({"runs": [{"info": info, "data": {"params": [{"key": "name", "value": "other"}]}}]})
        }
        _ => json!({}),
    };
    (200, answer.to_string())
}

fn upload(run: &Path, server: &TestServer) -> Upload {
    let server = Server { uri: server.uri.clone(), experiment: "tiny".to_owned(), credentials: Credentials::default() };
    Upload::new(run, &server)
}

#[test]
fn the_server_gets_the_parameters_that_it_lacks_and_none_of_a_private_run() {
    for (mode, expected) in [(0o644, vec!["seed"]), (0o600, vec![])] {
        let dir = tempfile::tempdir().unwrap();
        let path = finished_run(dir.path());
        fs::set_permissions(path.join(RESOLVED), Permissions::from_mode(mode)).unwrap();
        let server = TestServer::start(known_run);
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
        let is_batch = request.ends_with("runs/log-batch");
        batches += u32::from(is_batch);
        // The first batch has the parameters.
        if is_batch && batches == 2 { (200, "<html>Log in</html>".to_owned()) } else { known_run(request) }
    });
    let mut upload = upload(&path, &server);
    let error = upload.send_new(None).unwrap_err().to_string();
    assert!(error.contains("is it an MLflow server?"), "{error}");
    assert_eq!(upload.served.sent.get("train"), None);
    assert_eq!(upload.send_new(None).unwrap().count, 1, "the server says that it lacks the line");
}

#[test]
fn no_batch_begins_after_the_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let path = finished_run(dir.path());
    let server = TestServer::start(known_run);
    let mut upload = upload(&path, &server);
    let sent = upload.send_new(Some(Instant::now())).unwrap();
    assert_eq!((sent.count, sent.is_all), (0, false));
    let sent = upload.send_new(None).unwrap();
    assert_eq!((sent.count, sent.is_all), (1, true));
}

#[test]
fn the_status_follows_the_metrics() {
    let dir = tempfile::tempdir().unwrap();
    let path = finished_run(dir.path());
    let server = TestServer::start(known_run);
    let mut upload = upload(&path, &server);
    upload.send_new(None).unwrap();
    upload.send_status().unwrap();
    assert_eq!(server.requests().last().unwrap(), "POST /api/2.0/mlflow/runs/update");
    assert_eq!(server.bodies("runs/update").last().unwrap()["status"], "FINISHED");
}
