#!/usr/bin/env python3
"""Scores HellaSwag by `runner eval --hellaswag-text lm_eval` and by lm-eval 0.4, and compares item by item.

    python benches/peers/lm_eval_hellaswag.py --weights DIR --items hellaswag_val.jsonl --limit 300

DIR is a folder that `transformers` loads, such as one that `runner export --to hf` wrote. The items have the fields of HellaSwag's own files:
`ctx_a`, `ctx_b`, `activity_label`, `endings` and `label`. lm-eval reads them as a local data set, with the `process_docs` of its own task
`hellaswag`. Ends with 1 if a summed loss differs by more than 1e-5 of it, or an item is decided otherwise. Needs torch, transformers,
lm-eval, accelerate, datasets.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")

import numpy as np

TOLERANCE = 1e-5


def score_with_lm_eval(weights, items, cache):
    """For each item the log-likelihoods of the endings and their characters; and lm-eval's `acc` and `acc_norm`."""
    os.environ["HF_DATASETS_CACHE"] = str(cache)
    import lm_eval
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks.hellaswag.utils import process_docs

    metrics = [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in ("acc", "acc_norm")]
    task = ConfigurableTask(config={
        "task": "local_hellaswag", "dataset_path": "json", "dataset_kwargs": {"data_files": {"validation": str(items)}},
        "output_type": "multiple_choice", "validation_split": "validation", "process_docs": process_docs,
        "doc_to_text": "{{query}}", "doc_to_target": "{{label}}", "doc_to_choice": "choices", "metric_list": metrics})
    model = HFLM(pretrained=str(weights), device="cpu", dtype="float32", batch_size=16)
    result = lm_eval.simple_evaluate(model=model, tasks=[task], bootstrap_iters=0, log_samples=True)
    samples = sorted(result["samples"]["local_hellaswag"], key=lambda sample: sample["doc_id"])
    scored = [([response[0][0] for response in sample["resps"]], [len(c) for c in sample["doc"]["choices"]]) for sample in samples]
    means = result["results"]["local_hellaswag"]
    return scored, means["acc,none"], means["acc_norm,none"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runner", type=Path, default=Path("target/release/runner"))
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--items", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=300)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        items, ours_file = Path(folder, "items.jsonl"), Path(folder, "ours.jsonl")
        items.write_text("".join(options.items.read_text().splitlines(keepends=True)[: options.limit]))
        command = [options.runner.resolve(), "eval", "--weights", options.weights, "--hellaswag", items, "--hellaswag-text", "lm_eval",
                   "--items", ours_file, "--json"]
        ours = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        scored = [json.loads(line) for line in ours_file.read_text().splitlines()]
        theirs, acc, acc_norm = score_with_lm_eval(options.weights.resolve(), items, Path(folder, "cache"))
    assert len(scored) == len(theirs), (len(scored), len(theirs))
    largest, differ = 0.0, 0
    for mine, (likelihoods, characters) in zip(scored, theirs):
        likelihoods = np.array(likelihoods)
        largest = max(largest, float(np.max(np.abs(likelihoods + mine["losses"]) / np.abs(likelihoods))))
        chosen = int(np.argmax(likelihoods)), int(np.argmax(likelihoods / np.array(characters, dtype=float)))
        differ += (mine["choice"], mine["choice_norm_chars"], mine["characters"]) != (*chosen, characters)
    print(f"{len(scored)} items: a summed loss differs by {largest:.1e} of it at most; {differ} items are decided otherwise")
    print(f"ours: acc {ours['hellaswag_acc']:.6f}, acc_norm_chars {ours['hellaswag_acc_norm_chars']:.6f}")
    print(f"lm-eval: acc {acc:.6f}, acc_norm {acc_norm:.6f}")
    same = (ours["hellaswag_acc"], ours["hellaswag_acc_norm_chars"]) == (acc, acc_norm)
    sys.exit(0 if largest <= TOLERANCE and not differ and same else 1)


if __name__ == "__main__":
    main()
