#!/usr/bin/env python3
"""Prints what gpu_check.sh found as Markdown: python3 scripts/gpu_table.py RESULTS PARTS

RESULTS are lines as gpu_common.Notes writes them, PARTS lines of `name<TAB>result<TAB>seconds`. Exit code 1 if a check or a part failed.
"""

import sys
from pathlib import Path

import gpu_common as common

WORDS = {True: "ok", False: "**FAILED**", None: "not done"}


def row(cells):
    return "| " + " | ".join(str(c).replace("|", "\\|").replace("\n", " ") for c in cells) + " |"


def table(head, rows):
    return [row(head), "|" + "---|" * len(head), *map(row, rows), ""]


def gib(count):
    return "" if count is None else f"{count / 2**30:.2f}"


def mfu(figures):
    return " / ".join(f"{share:.1%}" for share in figures["mfu"]) if figures and figures.get("mfu") else ""


def forecast(figures):
    ms = figures.get("forecast_ms")
    return "" if ms is None else f"{ms:.1f} ({ms / figures['step_ms'] - 1:+.1%})"


def bench(results):
    """One line for each model, precision and micro-batch: ours, and PyTorch's in the same sitting."""
    cells = {}
    for r in results:
        if r["part"] == "bench" and "who" in r:
            cells.setdefault((r["model"], r["precision"], r["rows"]), {})[r["who"]] = r
    rows = []
    for (model, precision, size), by in cells.items():
        ours = by.get("runner", {}).get("figures")
        line = [model, precision, size]
        line += [f"{ours['tokens_per_second']:,.0f}", f"{ours['step_ms']:.1f}", forecast(ours), mfu(ours), gib(ours["measured"]),
                 gib(ours["planned"]), gib(ours["driver_bytes"])] if ours else [why(by.get("runner")), *[""] * 6]
        for who in ("compile", "eager"):
            theirs = by.get(who, {}).get("figures")
            if theirs:
                ratio = f"{ours['tokens_per_second'] / theirs['tokens_per_second']:.2f}" if ours else ""
                line += [f"{theirs['tokens_per_second']:,.0f}", gib(theirs["measured"]), ratio]
            else:
                line += [why(by.get(who)), "", ""]
        rows.append(line)
    head = ["model", "precision", "micro-batch", "runner tokens/s", "ms a step", "forecast", "MFU (llm.c / PaLM)", "GiB measured", "planned",
            "by driver", "PyTorch compiled", "GiB", "ours/theirs", "PyTorch eager", "GiB", "ours/theirs"]
    return table(head, rows) if rows else []


def why(result):
    if result is None:
        return "not asked"
    return ("FAILED: " if result["ok"] is False else "") + (result["note"] or "not done").splitlines()[0][:60]


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    results, parts = common.results(Path(sys.argv[1])), Path(sys.argv[2])
    parts = [line.split("\t") for line in parts.read_text().splitlines()] if parts.exists() else []
    lines = ["## Parts", "", *table(["part", "result", "seconds"], parts)]
    speeds = bench(results)
    if speeds:
        lines += ["## Speed", "", *speeds]
    checks = [r for r in results if not (r["part"] == "bench" and "who" in r and r["ok"] is not False)]
    if checks:
        shown = [[r["part"], r["name"], WORDS[r["ok"]], r["value"], r["limit"], r["note"][:200]] for r in checks]
        lines += ["## Checks", "", *table(["part", "check", "result", "value", "limit", "note"], shown)]
    counts = {word: sum(1 for r in results if r["ok"] is key) for key, word in ((True, "ok"), (False, "failed"), (None, "not done"))}
    lines.append(", ".join(f"{count} {word}" for word, count in counts.items()) + " of " + str(len(results)))
    print("\n".join(lines))
    return 1 if counts["failed"] or any(part[1].startswith("FAILED") for part in parts) else 0


if __name__ == "__main__":
    sys.exit(main())
