"""Trains while a real `mlflow server` and the run itself are killed in turn, and compares what the server then has with the record.

    pip install mlflow
    python tests/peers/mlflow_server.py target/debug/runner [FOLDER]

Every step must be on the server once, with the values of the record, and so must the parameters, the report and the samples. With FOLDER,
the files stay there and the server goes on until Ctrl-C, so that its page can be looked at.
"""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

import mlflow

program = pathlib.Path(sys.argv[1]).resolve()
keep = len(sys.argv) > 2
folder = pathlib.Path(sys.argv[2] if keep else tempfile.mkdtemp())
folder.mkdir(parents=True, exist_ok=True)
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
uri = f"http://127.0.0.1:{port}"

(folder / "exp.yaml").write_text(f"""version: 1
name: stories
model: {{family: gpt2, layers: 2, heads: 4, d_model: 64, context_length: 64}}
data: {{tokenizer: {{bytes: {{}}}}, train: {{builtin: {{corpus: stories}}}}, validation: {{fraction: 0.02}}}}
batch: {{sequences: 16, micro_batch: 16}}
train: {{steps: 1000000}}
schedule: {{warmup: {{steps: 20}}, decay: {{constant: {{}}}}}}
eval: {{every: 50, at_start: true, samples: {{prompts: [Once upon a time], max_tokens: 40}}}}
checkpoint: {{every: 25}}
log: {{tensorboard: true, mlflow: {{uri: "{uri}", experiment: Stories}}}}
""")


def start_server():
    command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1",
               "--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder / "artifacts")]
    log = open(folder / "server.log", "a")
    server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, cwd=folder)
    for _ in range(600):
        try:
            urllib.request.urlopen(f"{uri}/health", timeout=1).read()
            return server
        except OSError:
            time.sleep(0.2)
    raise SystemExit("the server does not start: see server.log")


def kill_server(server):
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def apply(*arguments):
    return subprocess.Popen([program, "apply", "exp.yaml", *arguments], cwd=folder)


def record():
    runs = [p for p in (folder / "runs").glob("stories-*") if (p / "metrics.jsonl").exists()]
    lines = (runs[0] / "metrics.jsonl").read_text().splitlines() if runs else []
    return runs[0] if runs else None, [json.loads(line) for line in lines if line.endswith("}")]


def last_step():
    return max((line["step"] for line in record()[1]), default=0)


def wait_for_steps(count):
    target = last_step() + count
    while last_step() < target:
        time.sleep(0.05)


server = start_server()
run = apply()
wait_for_steps(60)
time.sleep(2)
print(f"the server is killed after step {last_step()}")
kill_server(server)
wait_for_steps(60)
print(f"it starts again after step {last_step()}")
server = start_server()
wait_for_steps(30)
time.sleep(2)
print(f"the run is killed after step {last_step()}")
run.kill()
run.wait()
run = apply()
wait_for_steps(30)
print(f"the server is killed after step {last_step()}, and the run ends without it")
kill_server(server)
run.send_signal(signal.SIGINT)
assert run.wait() == 130
server = start_server()
path, _ = record()
subprocess.run([program, "export-metrics", path.name, "--mlflow", uri], cwd=folder, check=True)
# One more session goes on.
assert apply("--until-step", str(last_step() + 20)).wait() == 0

path, lines = record()
client = mlflow.MlflowClient(uri)
[experiment] = [e for e in client.search_experiments() if e.name == "Stories"]
[shown] = client.search_runs([experiment.experiment_id])
assert shown.info.run_name == path.name and shown.info.status == "KILLED", shown.info
checked = 0
for kind, prefix, keys in [
    ("train", "train", ["epoch", "loss", "lr", "grad_norm", "tokens"]),
    ("train", "time", ["step_ms", "forward_ms", "backward_ms"]),
    ("eval", "eval", ["val_loss", "val_perplexity"]),
]:
    for key in keys:
        history = client.get_metric_history(shown.info.run_id, f"{prefix}/{key}")
        expected = [(line["step"], line[key]) for line in lines if line["kind"] == kind]
        found = sorted((m.step, m.value) for m in history)
        assert [step for step, _ in found] == [step for step, _ in expected], f"{prefix}/{key}: steps are missing or double"
        # Steps that a resume repeated have other times.
        assert prefix == "time" or found == expected, f"{prefix}/{key}"
        checked += len(found)
assert shown.data.params["model.d_model"] == "64" and shown.data.params["log.mlflow.experiment"] == "Stories"
assert shown.data.tags["runner.plan_hash"] == json.loads((path / "manifest.json").read_text())["plan_hash"]
print(f"{checked} values of {lines[-1]['step']} steps, {len(shown.data.params)} parameters: as recorded")
if keep:
    print(f"{uri}/#/experiments/{experiment.experiment_id}/runs/{shown.info.run_id}")
    server.wait()
kill_server(server)
