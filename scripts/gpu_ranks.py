#!/usr/bin/env python3
"""Holds several ranks against one: the small Llama under ddp, sharded ddp and pipelines of each schedule with two ranks (and ddp on all GPUs where there are several).

    python3 scripts/gpu_ranks.py --runner ./runner --scratch /tmp/ranks [--results FILE]

A machine with one GPU takes NCCL 2.30 or newer, which lets two ranks share it (NCCL_MULTI_RANK_GPU_ENABLE=1, experimental), and
`parallel.devices` then lists it twice. The
layouts train the same rows from the same weights, so in fp32 the losses differ by the order of sums alone: the limits are those of
scripts/gpu_parity.py for fp32.
"""

import sys

import gpu_common as common
from gpu_parity import LIMITS, TINY, compare

OLDEST_SHARING = (2, 30)


def layouts(gpus, sharing=False):
    """Names and settings of the layouts. `gpus`: the number of GPUs; `sharing`: two ranks use the first GPU."""
    devices = ", devices: [cuda:0, cuda:0]" if sharing else ""
    listed = {
        "ddp 2": {"parallel": f"{{mode: ddp, replicas: 2, bucket_mb: 0.25{devices}}}", "batch.micro_batch": 2},
        "pipeline 2": {"parallel": f"{{mode: pipeline, pipeline: {{stages: 2, schedule: 1f1b, microbatches: 4}}{devices}}}",
                       "batch.micro_batch": 2},
    }
    listed["ddp 2, sharded"] = {
        "parallel": f"{{mode: ddp, replicas: 2, bucket_mb: 0.25, shard: parameters{devices}}}", "batch.micro_batch": 2}
    for name, schedule in (("zero bubble 2", "zero_bubble"), ("interleaved 2", "interleaved_1f1b, chunks: 2")):
        listed[name] = {"parallel": f"{{mode: pipeline, pipeline: {{stages: 2, schedule: {schedule}, microbatches: 4}}{devices}}}",
                        "batch.micro_batch": 2}
    if gpus >= 4:
        listed["ddp 2 x pipeline 2"] = {
            "parallel": "{mode: pipeline, replicas: 2, pipeline: {stages: 2, schedule: 1f1b, microbatches: 2}}", "batch.micro_batch": 2}
    if gpus >= 2:
        listed["dp 2"] = {"parallel": "{mode: dp, replicas: 2}", "batch.micro_batch": 2}
    if gpus in (4, 8):
        listed[f"ddp {gpus}"] = {"parallel": f"{{mode: ddp, replicas: {gpus}, bucket_mb: 0.25}}", "batch.micro_batch": 1}
    return listed


def sharing(device):
    """The environment that ranks need, whether two of them share a GPU, and why there can be none."""
    if device == "cpu":
        return {}, False, ""
    gpus, nccl = len(common.driver()), common.nccl_version()
    if nccl is None or gpus == 0:
        return {}, False, "NCCL (libnccl.so.2) is not to be found" if gpus else "there is no GPU"
    version, path = nccl
    print(f"NCCL {'.'.join(map(str, version))}: {path}; {gpus} GPUs")
    if gpus == 1 and version < OLDEST_SHARING:
        return {}, False, f"one GPU, and NCCL {'.'.join(map(str, version))} does not let ranks share it (2.30 does)"
    return ({"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4"}, True, "") if gpus == 1 else ({}, False, "")


def main():
    options = common.arguments(__doc__.splitlines()[0], 60).parse_args()
    options.runner = options.runner.resolve()
    notes, clock = common.Notes(options.results, "ranks"), common.Clock(options.seconds)
    environment, shares, why = sharing(options.device)
    if why:
        notes.add("several ranks", None, note=why)
        return 0
    gpus = len(common.driver()) if options.device == "cuda" else 2

    def train(name, settings):
        folder = options.scratch / f"ranks-{name.replace(' ', '-')}"
        folder.mkdir(parents=True, exist_ok=True)
        base = {"device": options.device, "precision": "fp32"} | (TINY if options.tiny else {})
        base |= {"batch.sequences": 8, "model.layers": 4, "train.steps": 12 if options.tiny else 20}
        command = [options.runner, "apply", common.EXPERIMENTS / "parity-llama.yaml", "--quiet", "--threads", 2, *common.flags(base | settings)]
        limit = max(1, min(clock.left(), 60))
        code, _, said = common.run(command, folder, limit, expect=None, environment=environment)
        return code, said, folder

    def curve(folder):
        return common.losses(common.run_folder(folder, "parity-llama"))

    try:
        code, said, folder = train("single", {"batch.micro_batch": 2})
        if code != 0:
            raise common.Failed(f"exit code {code}\n{common.tail(said)}")
        reference = curve(folder)
    except common.Failed as error:
        notes.add("one rank", False, note=str(error))
        return 1
    for name, settings in layouts(gpus, shares).items():
        label = name + (" on one GPU" if shares else "")
        if clock.left() < 3:
            notes.add(label, None, note="not reached: no time was left")
            continue
        try:
            code, said, folder = train(name, settings)
            if code != 0:
                raise common.Failed(f"exit code {code}\n{common.tail(said)}")
            found, wrong = compare(curve(folder), reference, LIMITS["fp32"])
        except common.Failed as error:
            notes.add(label, False, note=str(error))
            continue
        value = ", ".join(f"{key} {number:.1e}" for key, number in found.items())
        notes.add(f"{label}: losses beside one rank's", not wrong, value, ", ".join(f"{v:.2g}" for v in LIMITS["fp32"].values()), wrong)
    return 1 if notes.failed else 0


if __name__ == "__main__":
    sys.exit(main())
