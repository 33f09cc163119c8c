#!/usr/bin/env python3
"""Replicates the conclusions of small sweeps with new seeds and new validation rows.

    cargo build --release
    python3 benches/replication.py                       # 70 claims and 100 pairs of equal settings, a quarter of an hour on two cores
    python3 benches/replication.py --claims 7 --equal 10

1. Claims. Each sweep compares two values of one setting with the seeds 1 to 4 on 32 validation rows. All conclusions are
   written to claims.json before anything is replicated; its hash is printed.
2. Replication. Each sweep is trained again with the seeds 101 to 112 on 2,000 rows.
3. Equal settings: `d_ff` 64 and 65, whose losses hardly differ, with other random numbers. A sweep that calls one of them
   the best is wrong.
4. Planted differences: the same run with a part of its steps left out.

The results depend on no clock, and on the processor only through the rounding of sums.
"""

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

EXPERIMENT = """\
version: 1
name: claim
device: cpu
model: {family: llama, layers: 1, heads: 2, d_model: 32, d_ff: 64, context_length: 32}
data:
  tokenizer: {chars: {}}
  train: {builtin: {corpus: stories}}
  validation: {fraction: 0.2}
batch: {sequences: 8, micro_batch: 8}
train: {steps: 60}
optimizer: {adamw: {lr: 1e-2, betas: [0.9, 0.95], weight_decay: 0.1}}
schedule: {warmup: {steps: 6}, decay: {cosine: {final: 0.1}}}
eval: {loss: {rows: 32}}
checkpoint: null
"""

# A setting, and ten pairs of its values: from clear differences to none.
PAIRS = {
    "optimizer.adamw.lr": [(0.01, 0.01 * factor) for factor in (1.05, 1.1, 1.2, 1.5, 2, 3, 0.9, 0.7, 0.5, 0.3)],
    "model.d_ff": [(64, width) for width in (32, 48, 56, 72, 80, 96, 128, 160, 192, 256)],
    "model.layers": [(a, b) for a in (1, 2, 3, 4) for b in (2, 3, 4, 5, 6) if a < b][:10],
    "optimizer.adamw.weight_decay": [(0.1, decay) for decay in (0.0, 0.01, 0.05, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 4.0)],
    "optimizer.adamw.betas": [([0.9, 0.95], [b1, b2]) for b1 in (0.5, 0.8, 0.9, 0.95, 0.98) for b2 in (0.9, 0.99)],
    "schedule.warmup.steps": [(6, steps) for steps in (0, 1, 2, 4, 8, 10, 15, 20, 30, 40)],
    "train.clip_norm": [(1.0, norm) for norm in (0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.8, 1.5, 2.0, 5.0)],
}


def sweep(options, folder, name, axis, values, seeds, rows, sets=()):
    """The verdict of a sweep over `values` of `axis`."""
    text = {
        "sweep": {
            "name": name,
            "base": "claim.yaml",
            "grid": {axis: values},
            "seeds": seeds,
            "parallel": 2,
            "set": {"eval.loss.rows": rows, **dict(sets)},
        }
    }
    file = folder / f"{name}.yaml"
    file.write_text(json.dumps(text))
    command = [options.runner, "sweep", str(file), "--json", "--runs", str(folder / "runs")]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])["verdict"]


def conclusion(verdict, axis):
    """What a claim consists of: the kind, the leading value, the difference of the other one, and its interval."""
    leader, other = verdict["settings"][0], verdict["settings"][1]
    found = other.get("comparison") or {"difference": 0.0}
    return {
        "kind": verdict["conclusion"]["kind"],
        "leader": leader["values"][axis],
        "difference": found["difference"],
        "interval": found.get("interval"),
        "new_seeds": len(verdict.get("new_seeds", [])),
    }


def claims(options, folder):
    chosen = [(axis, pair) for i in range(10) for axis, pairs in PAIRS.items() for pair in pairs[i : i + 1]][: options.claims]
    found = []
    for number, (axis, pair) in enumerate(chosen):
        verdict = sweep(options, folder, f"claim-{number}", axis, list(pair), [1, 2, 3, 4], 32)
        found.append({"axis": axis, "values": list(pair), **conclusion(verdict, axis)})
    text = json.dumps(found, indent=1)
    (folder / "claims.json").write_text(text)
    print(f"{len(found)} claims, SHA-256 of claims.json {hashlib.sha256(text.encode()).hexdigest()}", flush=True)
    return found


def replicate(options, folder, found):
    again = []
    for number, claim in enumerate(found):
        seeds = list(range(101, 113))
        verdict = sweep(options, folder, f"again-{number}", claim["axis"], claim["values"], seeds, 2000)
        again.append(conclusion(verdict, claim["axis"]))
    both = list(zip(found, again))
    best = [(a, b) for a, b in both if a["kind"] == "best"]
    same = sum(a["leader"] == b["leader"] for a, b in best)
    shown = sum(a["leader"] == b["leader"] and b["kind"] == "best" for a, b in best)
    reversed_ = sum(a["leader"] != b["leader"] and b["kind"] == "best" for a, b in best)
    print(f"best: {len(best)}; {same} have the same leader with new seeds and rows, {shown} are best again, {reversed_} the reverse")

    def in_first_direction(claim, repeated):
        sign = 1 if claim["leader"] == repeated["leader"] else -1
        return sign * abs(repeated["difference"])

    ratios = [in_first_direction(a, b) / abs(a["difference"]) for a, b in best if a["difference"]]
    if len(ratios) > 1:
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"difference with new seeds / first difference: median {middle:.2f}, quartiles {low:.2f} and {high:.2f}")

    def contains(claim, repeated):
        # Differences are to the leader of a claim. The difference of the replication is turned to the same direction.
        return claim["interval"]["low"] <= in_first_direction(claim, repeated) <= claim["interval"]["high"]

    inside = [contains(a, b) for a, b in both if a["interval"]]
    print(f"the first interval contains the second difference: {sum(inside)} of {len(inside)}")
    open_ = [(a, b) for a, b in both if a["kind"] == "undecided"]
    enough = [(a, b) for a, b in open_ if 0 < a["new_seeds"] <= 12]
    decided = lambda pairs: sum(b["kind"] != "undecided" for _, b in pairs)  # noqa: E731
    print(f"not decided: {len(open_)}; 12 new seeds decided {decided(open_)}, and {decided(enough)} of the {len(enough)} that asked for at most 12")
    for kind in sorted({a["kind"] for a, _ in both} - {"best", "undecided"}):
        print(f"{kind}: {sum(a['kind'] == kind for a, _ in both)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runner", default="target/release/runner", help="the program")
    parser.add_argument("--claims", type=int, default=70, help="claims that are replicated (%(default)s)")
    parser.add_argument("--equal", type=int, default=100, help="sweeps of equal settings (%(default)s)")
    parser.add_argument("--planted", type=int, default=20, help="sweeps for each planted difference (%(default)s)")
    parser.add_argument("--folder", type=Path, help="where runs and claims.json are kept [default: a folder that is removed]")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="replication-") as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "claim.yaml").write_text(EXPERIMENT)
        replicate(options, folder, claims(options, folder))
        wrong = 0
        for number in range(options.equal):
            seeds = list(range(1000 + 4 * number, 1004 + 4 * number))
            wrong += sweep(options, folder, f"equal-{number}", "model.d_ff", [64, 65], seeds, 32)["conclusion"]["kind"] == "best"
        print(f"equal settings, 4 seeds: {wrong} of {options.equal} sweeps call one of them the best")
        for steps in (58, 54, 48):
            kinds = []
            for number in range(options.planted):
                seeds = list(range(5000 + 4 * number, 5004 + 4 * number))
                verdict = sweep(options, folder, f"planted-{steps}-{number}", "train.steps", [60, steps], seeds, 32)
                kinds.append(conclusion(verdict, "train.steps"))
            right = sum(kind["kind"] == "best" and kind["leader"] == 60 for kind in kinds)
            wrong = sum(kind["kind"] == "best" and kind["leader"] != 60 for kind in kinds)
            print(f"planted: {60 - steps} of 60 steps left out, 4 seeds: {right} of {options.planted} found, {wrong} reversed")


if __name__ == "__main__":
    main()
