//! A small MLflow server on the loopback interface, which can go away and come back on the same port.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use serde_json::{Value, json};

/// A run as the server has it.
#[derive(Debug, Default, Clone)]
pub struct ServedRun {
    pub name: String,
    pub status: String,
    pub parameters: BTreeMap<String, String>,
    pub tags: BTreeMap<String, String>,
    /// The values of each metric at each step, in the order in which they came.
    pub metrics: BTreeMap<String, BTreeMap<u64, Vec<f64>>>,
}

impl ServedRun {
    /// The steps of a metric. Each must have come once.
    #[track_caller]
    pub fn steps(&self, key: &str) -> Vec<u64> {
        let values = self.metrics.get(key).cloned().unwrap_or_default();
        let repeated: Vec<_> = values.iter().filter(|(_, values)| values.len() != 1).collect();
        assert!(repeated.is_empty(), "{key} came several times: {repeated:?}");
        values.into_keys().collect()
    }
}

/// The content of the server, and the header with which the last request was authorized.
#[derive(Debug, Default)]
struct State {
    experiments: Vec<String>,
    runs: Vec<ServedRun>,
    authorization: String,
}

pub struct MlflowServer {
    state: Arc<Mutex<State>>,
    port: u16,
    listening: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

impl MlflowServer {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut server = Self { state: Arc::default(), port, listening: None };
        server.listen(listener);
        server
    }

    pub fn uri(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Closes the port. What the server has stays.
    pub fn go_away(&mut self) {
        let (stop, thread) = self.listening.take().unwrap();
        stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        thread.join().unwrap();
    }

    pub fn come_back(&mut self) {
        self.listen(TcpListener::bind(("127.0.0.1", self.port)).unwrap());
    }

    fn listen(&mut self, listener: TcpListener) {
        let (stop, state) = (Arc::new(AtomicBool::new(false)), self.state.clone());
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                answer(stream.unwrap(), &state);
            }
        });
        self.listening = Some((stop, thread));
    }

    pub fn runs(&self) -> Vec<ServedRun> {
        self.state.lock().unwrap().runs.clone()
    }

    /// The only run.
    #[track_caller]
    pub fn run(&self) -> ServedRun {
        let mut runs = self.runs();
        assert_eq!(runs.len(), 1, "one run on the server");
        runs.remove(0)
    }

    pub fn experiments(&self) -> Vec<String> {
        self.state.lock().unwrap().experiments.clone()
    }

    pub fn authorization(&self) -> String {
        self.state.lock().unwrap().authorization.clone()
    }
}

/// Answers one request. A client that is killed in the middle of it gets no answer.
fn answer(mut stream: TcpStream, state: &Mutex<State>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        match reader.read_line(&mut line) {
            Ok(n) if n > 0 && !line.trim().is_empty() => head.push(line.trim().to_owned()),
            Ok(n) if n > 0 => break,
            _ => return,
        }
    }
    let header = |name: &str| {
        let line = head.iter().find(|line| line.to_lowercase().starts_with(&format!("{name}:")));
        line.map(|line| line[name.len() + 1..].trim().to_owned()).unwrap_or_default()
    };
    let mut body = vec![0; header("content-length").parse().unwrap_or(0)];
    if reader.read_exact(&mut body).is_err() {
        return;
    }
    let mut words = head[0].split(' ');
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    let mut state = state.lock().unwrap();
    state.authorization = header("authorization");
    let (status, answer) = respond(&mut state, method, path.strip_prefix("/api/2.0/").unwrap(), &body);
    let answer = answer.to_string();
    let length = answer.len();
    let text = format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{answer}");
    let _ = stream.write_all(text.as_bytes());
}

fn respond(state: &mut State, method: &str, path: &str, body: &[u8]) -> (u16, Value) {
    let error = |status, code: &str| (status, json!({"error_code": code, "message": "no"}));
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let list = |key: &str| body[key].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let info = |i: usize| json!({"run_id": i.to_string()});
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    match path.strip_prefix("mlflow/").unwrap() {
        "experiments/get-by-name" => {
            let name = query.strip_prefix("experiment_name=").unwrap().replace("%20", " ");
            match state.experiments.iter().position(|known| *known == name) {
                Some(i) => (200, json!({"experiment": {"experiment_id": i.to_string()}})),
                None => error(404, "RESOURCE_DOES_NOT_EXIST"),
            }
        }
        "experiments/create" => {
            state.experiments.push(text(&body["name"]));
            (200, json!({"experiment_id": (state.experiments.len() - 1).to_string()}))
        }
        "runs/search" => {
            let filter = text(&body["filter"]);
            let found = state.runs.iter().position(|run| filter.contains(&format!("= '{}'", run.tags["runner.key"])));
            let Some(i) = found else { return (200, json!({})) };
            let parameters = state.runs[i].parameters.iter();
            let parameters: Vec<_> = parameters.map(|(key, value)| json!({"key": key, "value": value})).collect();
            let latest = state.runs[i]
                .metrics
                .iter()
                .map(|(key, values)| json!({"key": key, "step": values.keys().next_back(), "value": 0.0}));
            let data = json!({"metrics": latest.collect::<Vec<_>>(), "params": parameters});
            (200, json!({"runs": [{"info": info(i), "data": data}]}))
        }
        "runs/create" => {
            let tags = list("tags").iter().map(|tag| (text(&tag["key"]), text(&tag["value"]))).collect();
            let (name, status) = (text(&body["run_name"]), "RUNNING".to_owned());
            state.runs.push(ServedRun { name, status, tags, ..ServedRun::default() });
            (200, json!({"run": {"info": info(state.runs.len() - 1)}}))
        }
        "runs/log-batch" => {
            let (metrics, parameters) = (list("metrics"), list("params"));
            if metrics.len() > 1000 || parameters.len() > 100 {
                return error(400, "INVALID_PARAMETER_VALUE");
            }
            let run = &mut state.runs[text(&body["run_id"]).parse::<usize>().unwrap()];
            // A parameter keeps its value, as on the real server.
            let changes = |p: &Value| run.parameters.get(&text(&p["key"])).is_some_and(|old| *old != text(&p["value"]));
            if parameters.iter().any(changes) {
                return error(400, "INVALID_PARAMETER_VALUE");
            }
            for metric in metrics {
                let (key, step) = (text(&metric["key"]), metric["step"].as_u64().unwrap());
                assert!(metric["timestamp"].as_i64().unwrap() > 0);
                run.metrics.entry(key).or_default().entry(step).or_default().push(metric["value"].as_f64().unwrap());
            }
            run.parameters.extend(parameters.iter().map(|p| (text(&p["key"]), text(&p["value"]))));
            (200, json!({}))
        }
        "runs/update" => {
            state.runs[text(&body["run_id"]).parse::<usize>().unwrap()].status = text(&body["status"]);
            (200, json!({}))
        }
        other => panic!("{method} {other}"),
    }
}
