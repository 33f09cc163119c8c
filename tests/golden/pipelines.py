#!/usr/bin/env python3
"""The order of work of torch.distributed.pipelining's schedules: writes pipelines.txt next to this file.

    python pipelines.py            # needs torch

GPipe and 1F1B are run, with a stage that computes and sends nothing and notes what it is asked for; so this is the order
in which PyTorch works, not the one that it could print. Interleaved 1F1B is a list that PyTorch makes at construction.

A line is `schedule stages chunks micro-batches | rank 0 | rank 1 | …`; F3 is a forward of micro-batch 3, B3 its backward,
with `.1` behind it for the rank's second chunk.
"""

import logging
from pathlib import Path
from types import SimpleNamespace

import torch
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.pipelining.schedules import _ComputationType

HERE = Path(__file__).resolve().parent
LETTER = {_ComputationType.FORWARD: "F", _ComputationType.FULL_BACKWARD: "B"}


class Stage:
    """What a schedule sees of a stage: one without neighbours to talk to."""

    def __init__(self, index, stages, ranks):
        self.stage_index, self.num_stages = index, stages
        self.group_size, self.group_rank = ranks, index % ranks
        self.is_first, self.is_last = index == 0, index == stages - 1
        self.has_backward = True
        self.submod = torch.nn.Identity()
        self.device = torch.device("cpu")
        self.work = []

    def forward_one_chunk(self, index, *_, **__):
        self.work.append(f"F{index}")

    def backward_one_chunk(self, index, *_, **__):
        self.work.append(f"B{index}")

    def __getattr__(self, name):
        if name.startswith("get_") and name.endswith("_ops"):
            return lambda *_: []
        return lambda *_, **__: None


def run(schedule, stages, microbatches):
    """What each stage does under a schedule with one stage a rank."""
    out = []
    for index in range(stages):
        stage = Stage(index, stages, stages)
        made = schedule(stage, microbatches)
        made._check_inputs = lambda *_: ([()] * microbatches, [{}] * microbatches)
        made._initialize_stage = lambda *_: None
        made._step_microbatches()
        out.append(" ".join(stage.work))
    return out


def interleaved(ranks, chunks, microbatches):
    stages = [Stage(rank, ranks * chunks, ranks) for rank in range(0, ranks * chunks, ranks)]
    made = ScheduleInterleaved1F1B(stages, microbatches)
    out = []
    for rank in range(ranks):
        actions = [a for a in made.pipeline_order[rank] if a is not None and a.computation_type in LETTER]
        out.append(" ".join(f"{LETTER[a.computation_type]}{a.microbatch_index}.{a.stage_index // ranks}" for a in actions))
    return out


def main():
    logging.disable(logging.WARNING)
    lines = []
    for stages in (1, 2, 3, 4, 6):
        for microbatches in (1, 2, 3, 4, 5, 8, 12):
            lines.append((f"gpipe {stages} 1 {microbatches}", run(ScheduleGPipe, stages, microbatches)))
            if microbatches >= stages:  # PyTorch has no 1F1B of fewer
                lines.append((f"1f1b {stages} 1 {microbatches}", run(Schedule1F1B, stages, microbatches)))
    for ranks in (2, 3, 4):
        for chunks in (2, 3):
            for microbatches in range(1, 4 * ranks + 1):
                if microbatches % max(1, microbatches // ranks) == 0:
                    lines.append((f"interleaved_1f1b {ranks} {chunks} {microbatches}", interleaved(ranks, chunks, microbatches)))
    path = HERE / "pipelines.txt"
    path.write_text("".join(f"{name} | {' | '.join(work)}\n" for name, work in lines))
    print(f"{path.name}: {len(lines)} schedules, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
