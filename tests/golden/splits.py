#!/usr/bin/env python3
"""Which rows each rank of PyTorch's data parallelism reads at which step: writes splits.txt next to this file.

    python splits.py               # needs torch

A DataLoader with a DistributedSampler over numbers that stand for places in the order of one epoch: what stands at a place,
the permutation says, which is another matter. With `drop_last` the sampler leaves out what cannot be divided among the
ranks, and the loader a last batch that is not full, as training scripts set both.

A line is `drop_last|keep rows ranks rows-per-rank | rank 0 | rank 1 | …`; steps are divided by `;`, places by blanks.
"""

from pathlib import Path

from torch.utils.data import DataLoader, DistributedSampler

HERE = Path(__file__).resolve().parent


def places(rows, ranks, rank, size, drop_last):
    """The batches of `rank` in one epoch."""
    sampler = DistributedSampler(range(rows), num_replicas=ranks, rank=rank, shuffle=False, drop_last=drop_last)
    loader = DataLoader(range(rows), batch_size=size, sampler=sampler, drop_last=drop_last)
    return [batch.tolist() for batch in loader]


def main():
    lines = []
    for drop_last in (True, False):
        for ranks in (1, 2, 3, 4):
            for size in (1, 2, 3):
                for rows in (12, 13, 24, 25, 31):
                    work = [places(rows, ranks, rank, size, drop_last) for rank in range(ranks)]
                    text = [";".join(" ".join(map(str, batch)) for batch in batches) for batches in work]
                    head = f"{'drop_last' if drop_last else 'keep'} {rows} {ranks} {size}"
                    lines.append(" | ".join([head, *text]))
    path = HERE / "splits.txt"
    path.write_text("".join(line + "\n" for line in lines))
    print(f"{path.name}: {len(lines)} cases, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
