#!/usr/bin/env python3
"""The stages of build-nanogpt's write-up, by the program and by PyTorch from the same weights on the same rows, side by side.

    python benches/peers/build_nanogpt.py --text input.txt --tokenizer GPT2-FILES                    # all stages, reduced: one minute
    python benches/peers/build_nanogpt.py --text input.txt --tokenizer GPT2-FILES --stage 1 --full --micro-batch 4 --steps 20

The program runs experiments/build-nanogpt.yaml.j2 at each stage. PyTorch's side is the write-up's loop, with the settings of
each stage written out below: `torch.optim.AdamW`, autocast, `clip_grad_norm_`, accumulation, DDP over gloo with one process a
rank. It starts from the weights that the program starts from, and reads the same rows in the same order. So the curves differ
by rounding alone, which training enlarges. On a CPU TF32 is fp32 in both.

Reduced, the model has two layers of 64, a row 32 tokens and an epoch 80 rows. As at full size, an epoch has 20 batches, and a
step from stage 8 on has 32 batches. The warmup has 2 steps of 10. `--full` has GPT-2 124M and the write-up's rows. The example
with it takes 85 minutes of two cores and 9 GB. Needs torch, safetensors, tokenizers; `--scratch` needs 4 GB with `--full`.
"""

import argparse
import json
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

import gpt2

TEMPLATE = Path(__file__).resolve().parents[2] / "experiments" / "build-nanogpt.yaml.j2"
STAGES = range(1, 12)


def sizes(options):
    """What the reduction changes."""
    if options.full:
        return {"layers": 12, "heads": 12, "d_model": 768, "length": 1024, "rows": 16, "warmup": 10}
    return {"layers": 2, "heads": 2, "d_model": 64, "length": 32, "rows": 4, "warmup": 2}


def flags(options, stage, **more):
    size = sizes(options)
    files = {key: options.tokenizer.resolve() / name for key, name in (("vocab", "vocab.json"), ("merges", "merges.txt"))}
    settings = {
        "data.train.text.files": f"[{options.text.resolve()}]",
        "data.tokenizer.gpt2.vocab": files["vocab"], "data.tokenizer.gpt2.merges": files["merges"],
        "data.epoch_rows": 20 * size["rows"],
        "model.layers": size["layers"], "model.heads": size["heads"], "model.d_model": size["d_model"],
        "model.kv_heads": size["heads"], "model.d_ff": 4 * size["d_model"], "model.context_length": size["length"],
        "batch.sequences": size["rows"] * (32 if stage >= 8 else 1),
        "batch.micro_batch": options.micro_batch or size["rows"] // (4 if stage >= 11 else 1),
        "train.steps": options.steps, "checkpoint.every": options.steps,
    }
    if stage >= 6:
        settings["schedule.warmup.steps"] = size["warmup"]
    sets = [part for key, value in (settings | more).items() for part in ("--set", f"{key}={value}")]
    return ["--var", f"stage={stage}", *sets]


def first_weights(options, stage, folder):
    """What the program starts from: its weights after one step that moves nothing."""
    still = {"optimizer.adamw.lr": 1e-30, "optimizer.adamw.weight_decay": 0, "train.steps": 1, "batch.sequences": 1, "name": "first",
             "batch.micro_batch": 1, "schedule.warmup.steps": 0, "precision": "fp32", "parallel.mode": "single", "parallel.replicas": 1}
    gpt2.runner(options.runner, folder, "apply", TEMPLATE, "--quiet", "--threads", options.threads, *flags(options, stage, **still))
    run = gpt2.run_folder(folder, "first")
    gpt2.runner(options.runner, folder, "export", run, "--to", "safetensors", folder / "weights", "--force")
    gpt2.runner(options.runner, folder, "runs", "rm", run.name, "--yes")
    return folder / "weights" / "model.safetensors"


def ours(options, stage, folder):
    gpt2.runner(options.runner, folder, "apply", TEMPLATE, "--quiet", "--threads", options.threads, *flags(options, stage))
    run = gpt2.run_folder(folder, f"build-nanogpt-{stage}")
    lines, summary = gpt2.metrics(run, "train"), json.loads((run / "summary.json").read_text())
    return {"losses": [line["loss"] for line in lines], "step_ms": [line["step_ms"] for line in lines],
            "norms": [line["grad_norm"] for line in lines], "rates": [line["lr"] for line in lines],
            "peak_rss_bytes": summary["peak_rss_bytes"], "planned_memory_bytes": summary["planned_memory_bytes"]}


def pytorch(rank, world, options, stage, weights, out):
    """The loop of one rank. The first one writes its record to `out`."""
    torch.set_num_threads(options.threads)
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{out}.rendezvous", rank=rank, world_size=world)
    size = sizes(options)
    rows, length = size["rows"], size["length"]
    ids = torch.tensor(gpt2.tokenizer(options.tokenizer)(options.text.read_text()))
    inputs, targets = (ids[at : at + 20 * rows * length].view(-1, length) for at in (0, 1))
    model = gpt2.load(weights, heads=size["heads"])
    assert model.transformer["wte"].weight.shape[0] == (50304 if stage >= 4 else 50257)
    peak, betas = 6e-4 if stage >= 6 else 3e-4, (0.9, 0.95 if stage >= 5 else 0.999)
    parameters = gpt2.groups(model, 0.1) if stage >= 7 else model.parameters()
    optimizer = torch.optim.AdamW(parameters, lr=peak, betas=betas, fused=stage >= 7 or None)
    part_rows = options.micro_batch or rows // (4 if stage >= 11 else 1)
    passes = rows * (32 if stage >= 8 else 1) // (part_rows * world)
    forward = torch.nn.parallel.DistributedDataParallel(model) if world > 1 else model
    forward.train()
    record = {"losses": [], "step_ms": [], "norms": [], "rates": []}
    read = 0  # rows that all ranks have read
    for step in range(options.steps):
        started = time.monotonic()
        rate = gpt2.cosine(step, peak, 0.1 * peak, size["warmup"], options.steps) if stage >= 6 else peak
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad(set_to_none=True)
        total = torch.zeros(())
        for i in range(passes):
            mine = (read + rank * part_rows + torch.arange(part_rows)) % len(inputs)
            read += world * part_rows
            if world > 1:
                forward.require_backward_grad_sync = i == passes - 1
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=stage >= 3):
                loss = forward(inputs[mine], targets[mine]) / passes
            loss.backward()
            total += loss.detach()
        # PyTorch's own norm adds up millions of squares in f32, which loses digits.
        norm = sum(p.grad.double().pow(2).sum() for p in model.parameters()).sqrt()
        if stage >= 5:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if world > 1:
            dist.all_reduce(total, op=dist.ReduceOp.SUM)
        for key, value in ("losses", total.item() / world), ("norms", norm.item()), ("rates", rate):
            record[key].append(value)
        record["step_ms"].append(1e3 * (time.monotonic() - started))
    if world > 1:
        dist.destroy_process_group()
    record["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    if rank == 0:
        Path(out).write_text(json.dumps(record))


def train_in_pytorch(options, stage, weights, folder):
    world = 8 if stage >= 10 else 2 if stage == 9 else 1
    out = folder / f"pytorch-{stage}.json"
    # Processes of their own, so that the peak of memory is theirs.
    torch.multiprocessing.spawn(pytorch, (world, options, stage, weights, out), nprocs=world)
    return json.loads(out.read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runner", type=Path, default=Path("target/release/runner"))
    parser.add_argument("--text", type=Path, required=True, help="Tiny Shakespeare")
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder with vocab.json and merges.txt")
    parser.add_argument("--stage", type=int, nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--full", action="store_true", help="GPT-2 124M on rows of 1,024")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--micro-batch", type=int, help="rows of a pass [default: the stage's]")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--scratch", type=Path, help="where the folder for weights and runs is made")
    parser.add_argument("--json", type=Path, help="also write the records of all stages to this file")
    options = parser.parse_args()
    options.runner = options.runner.resolve()
    table, records = [], {}
    with tempfile.TemporaryDirectory(prefix="stages-", dir=options.scratch) as name:
        folder = Path(name)
        for stage in options.stage:
            weights = first_weights(options, stage, folder)
            mine, peer = ours(options, stage, folder), train_in_pytorch(options, stage, weights, folder)
            records[stage] = {"runner": mine, "pytorch": peer}
            apart = {key: max(abs(a - b) / abs(b) for a, b in zip(mine[key], peer[key], strict=True)) for key in ("losses", "norms", "rates")}
            median = [statistics.median(side["step_ms"]) for side in (mine, peer)]
            peak = [side["peak_rss_bytes"] / 2**30 for side in (mine, peer)]
            table.append([stage, mine["losses"][0], mine["losses"][-1], *(f"{apart[key]:.1e}" for key in apart),
                          *(f"{value:.0f}" for value in median), *(f"{value:.2f}" for value in peak)])
    gpt2.show(table, ("stage", "first loss", "last loss", "loss", "norm", "rate", "ours, ms", "PyTorch, ms", "ours, GiB", "PyTorch, GiB"))
    print(f"loss, norm, rate: the largest relative difference of {options.steps} steps; ms: median of a step with {options.threads} "
          "threads a rank; GiB: peak of resident memory, ours of all ranks, PyTorch's of one")
    if options.json:
        options.json.write_text(json.dumps(records) + "\n")


if __name__ == "__main__":
    main()
