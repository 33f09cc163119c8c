#!/usr/bin/env python3
"""Holds the pages of `runner report` against a headless Chromium: nothing is refused or fails, the curves are there, runs can be
switched off, what samples say stays text, and a page that is served follows its run.

    tests/browser/report.py RUNNER [--shots DIR]

Needs Chromium and Python's standard library. Exit code 0: all is well; 1: findings; 2: no Chromium."""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import chromium

HOSTILE = "<img src=x onerror=\"document.title='owned'\"></script><script>document.title='owned'</script> & \u2028 end"
STEPS = 40
EXPERIMENT = """version: 1
name: {name}
model: {{family: gpt2, layers: 4, heads: 2, d_model: 16, context_length: 16}}
data: {{tokenizer: {{chars: {{}}}}, train: {{text: {{files: [input.txt]}}}}, validation: {{fraction: 0.1}}}}
batch: {{sequences: 8, micro_batch: {micro_batch}}}
train: {{steps: {steps}}}
{parallel}
eval: {{every: 10, at_start: true, loss: {{batches: 2}}, samples: {{prompts: ["1", "2"], count: 1, max_tokens: 4}}}}
checkpoint: {{every: 20, keep: 2}}
"""
PIPELINE = "parallel: {mode: pipeline, pipeline: {stages: 2, schedule: gpipe, microbatches: 4}}"


class Lab:
    """A folder with runs."""

    def __init__(self, runner, folder):
        self.runner, self.folder = runner, folder
        self.environment = {**os.environ, "RUNNER_CACHE": str(folder / "cache"), "RUNNER_RUNS": str(folder / "runs")}
        (folder / "input.txt").write_text(" ".join(str(i * i % 997) for i in range(4000)))

    def run(self, *arguments):
        done = subprocess.run([self.runner, *map(str, arguments)], cwd=self.folder, env=self.environment,
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"runner {arguments[0]}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def train(self, name, parallel="", micro_batch=8):
        """A run of its own; its folder."""
        file = self.folder / f"{name}.yaml"
        file.write_text(EXPERIMENT.format(name=name, parallel=parallel, steps=STEPS, micro_batch=micro_batch))
        self.run("apply", file, "--threads", "1", "--quiet")
        return next((self.folder / "runs").glob(f"{name}-*"))

    def report(self, name, *runs):
        out = self.folder / name
        self.run("report", *runs, "-o", out)
        return out.as_uri()

    def serve(self, *runs):
        command = [self.runner, "report", *map(str, runs), "--serve", "--port", "0"]
        process = subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, text=True)
        return process, process.stdout.readline().strip()


def span(rank, what, mb, start, end):
    return {"rank": rank, "what": what, "mb": mb, "chunk": 0, "start": start, "end": end}


def watched():
    """A step of two stages: four forwards, four backwards, and the waiting in between."""
    spans = []
    for rank, offset in [(0, 0.0), (1, 0.01)]:
        spans += [span(rank, "forward", mb, offset + 0.01 * mb, offset + 0.01 * (mb + 1)) for mb in range(4)]
        begin = 0.07 - 0.02 * rank
        spans += [span(rank, None, None, offset + 0.04, begin)]
        spans += [span(rank, "backward", mb, begin + 0.02 * mb, begin + 0.02 * (mb + 1)) for mb in range(4)]
        spans += [span(rank, "update", None, 0.15, 0.16)]
    return {"format": 1, "step": 5, "end": 0.16, "spans": spans}


def spoil(run):
    """Puts markup into what a run recorded."""
    with open(run / "samples.jsonl", "a", encoding="utf-8") as file:
        for prompt in ["1", HOSTILE]:
            file.write(json.dumps({"step": STEPS, "prompt": prompt, "index": 1, "text": HOSTILE}) + "\n")
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["overrides"] = [HOSTILE]
    (run / "manifest.json").write_text(json.dumps(manifest))
    with open(run / "resolved.yaml", "a", encoding="utf-8") as file:
        file.write(f"# {HOSTILE}\n".replace("\u2028", " "))


def long_run(source, target, steps):
    """A copy of a run with a record of many steps."""
    shutil.copytree(source, target)
    with open(target / "metrics.jsonl", "w", encoding="utf-8") as file:
        for s in range(1, steps + 1):
            loss = 9.0 if s == steps // 2 else 2 + 5 / (1 + s / 900) + 0.1 * ((s * 7919) % 13) / 13
            line = {"kind": "train", "step": s, "loss": loss, "lr": 1e-3, "grad_norm": 1.0 + (s % 17) / 20, "tokens": 4096,
                    "tokens_per_second": 1e5 + s % 1000, "mfu": 0.4, "step_ms": 40.0 + s % 5, "data_ms": 0.1,
                    "forward_ms": 12.0 + s % 3, "backward_ms": 25.0, "optimizer_ms": 1.5}
            file.write(json.dumps(line) + "\n")


class Checks:
    def __init__(self, shots):
        self.findings, self.shots = [], shots

    def that(self, what, true):
        print(f"{'ok  ' if true else 'FAIL'}  {what}")
        if not true:
            self.findings.append(what)

    def shot(self, page, name):
        if self.shots:
            self.shots.mkdir(parents=True, exist_ok=True)
            page.shot(self.shots / f"{name}.png")

    def quiet(self, page, what):
        """No error, no exception, nothing refused by the page's policy, and nothing asked of the network."""
        wrong = [e["exceptionDetails"].get("exception", {}).get("description") for e in page.events("Runtime.exceptionThrown")]
        wrong += [e["entry"]["text"] for e in page.events("Log.entryAdded") if e["entry"]["level"] in ["error", "warning"]]
        wrong += [str(e["args"]) for e in page.events("Runtime.consoleAPICalled")]
        self.that(f"{what}: no console message" + "".join(f"\n      {text}" for text in wrong), not wrong)

    def closed(self, page):
        asked = {e["request"]["url"] for e in page.events("Network.requestWillBeSent")}
        outside = [url for url in asked if not url.startswith(("file:", "data:"))]
        self.that(f"nothing is asked of the network {outside or ''}", not outside)


def points(page, selector):
    """How many points the longest line under `selector` has."""
    return page.js(f"Math.max(0, ...[...document.querySelectorAll('{selector} .series path:not(.error)')]"
                   ".map((p) => p.getAttribute('d').split(/[ML]/).length - 1))")


# Labels of one chart that lie over each other.
OVERLAPS = """(() => {
  const found = [];
  for (const chart of document.querySelectorAll("figure svg")) {
    const boxes = [...chart.querySelectorAll("text")].map((t) => [t.textContent, t.getBoundingClientRect()]).filter(([, b]) => b.width);
    for (const [i, [a, p]] of boxes.entries()) for (const [b, q] of boxes.slice(i + 1)) {
      const x = Math.min(p.right, q.right) - Math.max(p.left, q.left), y = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
      if (x > 1 && y > 3) found.push(`${chart.closest("figure").dataset.chart}: ${a} | ${b}`);
    }
  }
  return found;
})()"""

# Text whose contrast with what is behind it is less than 4.5 to 1.
CONTRAST = """(() => {
  const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (colour) => { paint.clearRect(0, 0, 1, 1); paint.fillStyle = colour; paint.fillRect(0, 0, 1, 1); return [...paint.getImageData(0, 0, 1, 1).data]; };
  const light = (c) => c.slice(0, 3).map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)).reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => { for (let n = node; n; n = n.parentElement) { const c = rgb(getComputedStyle(n).backgroundColor); if (c[3] === 255) return c; } return [255, 255, 255, 255]; };
  const found = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || node.closest("script, style, svg, [hidden], .skip, noscript, :disabled") || !node.getClientRects().length) continue;
    const [a, b] = [light(rgb(getComputedStyle(node).color)), light(behind(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.add(`${node.tagName}.${node.className}: ${ratio.toFixed(2)}`);
  }
  return [...found];
})()"""


def several(checks, browser, lab, runs):
    """Two runs beside each other, one of them hostile."""
    page = browser.open(lab.report("several.html", *runs))
    for name in ["loss", "lr", "grad_norm", "tokens_per_second"]:
        checks.that(f"the {name} chart has its points", points(page, f"#curves [data-chart={name}]") >= STEPS)
    checks.that("a run has its phases", page.js("document.querySelectorAll('#steptime .area').length") >= 3)
    checks.that("every run has a curve", page.js("new Set([...document.querySelectorAll('[data-chart=loss] .series')].map((s) => s.dataset.run)).size") == 2)
    checks.that("images and scripts of others are none", page.js("document.images.length === 0 && document.scripts.length === 2"))
    checks.that("a hostile sample is text", page.js(f"document.querySelector('#samples').textContent.includes({json.dumps(HOSTILE)})"))
    page.js("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    page.until("document.querySelectorAll('details[open] .yaml').length === 2")
    checks.that("hostile flags and settings are text", page.js("['#record', '#settings'].every((id) => document.querySelector(id).textContent.includes('<img src=x onerror='))"))
    checks.that("nothing hostile has run", "owned" not in page.js("document.title"))
    page.js("document.querySelectorAll('#legend .run')[1].click()")
    checks.that("a run that is switched off has no curve", page.js("document.querySelectorAll('#curves .series[data-run=\"1\"]').length === 0 && document.querySelectorAll('#curves .series[data-run=\"0\"]').length > 0"))
    page.js("document.querySelectorAll('#legend .run')[0].click()")
    checks.that("with all runs off the page says so", page.js("document.querySelector('#curves .empty') !== null"))
    page.js("document.querySelectorAll('#legend .run').forEach((b) => b.click())")
    pointing(checks, page)
    checks.that(f"no labels lie over each other {page.js(OVERLAPS)}", not page.js(OVERLAPS))
    checks.that(f"text can be read {page.js(CONTRAST)}", not page.js(CONTRAST))
    checks.shot(page, "several-light")
    page.media(dark=True)
    checks.that("dark is dark", page.js("getComputedStyle(document.body).backgroundColor") == "rgb(15, 20, 24)")
    checks.that(f"text can be read in the dark {page.js(CONTRAST)}", not page.js(CONTRAST))
    checks.shot(page, "several-dark")
    page.js("document.querySelector('#theme').click()")
    checks.that("the theme can be chosen", page.js("getComputedStyle(document.body).backgroundColor") == "rgb(246, 247, 248)")
    checks.quiet(page, "several runs")
    checks.closed(page)
    page.close()


def pointing(checks, page):
    """The crosshair by mouse and by keys; zooming; the axes."""
    page.js("scrollTo(0, 0); document.querySelector('[data-chart=loss]').scrollIntoView({block: 'center'})")
    box = page.js("(() => { const b = document.querySelector('[data-chart=loss] svg').getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; })()")
    at = lambda x: (box[0] + x * box[2], box[1] + 0.4 * box[3])
    page.mouse("mouseMoved", *at(0.5))
    checks.that("hovering shows both runs", page.js("!document.querySelector('#tip').hidden && new Set([...document.querySelectorAll('#tip td:nth-child(2)')].map((t) => t.textContent)).size === 2"))
    checks.that("the other charts follow", page.js("[...document.querySelectorAll('#curves .cross')].every((c) => c.getAttribute('visibility') === 'visible')"))
    page.mouse("mousePressed", *at(0.4), button="left", clickCount=1)
    page.mouse("mouseMoved", *at(0.6), button="left")
    page.mouse("mouseReleased", *at(0.6), button="left", clickCount=1)
    ticks = "[...document.querySelectorAll('[data-chart=loss] .tick-text[text-anchor=middle]')].map((t) => Number(t.textContent))"
    checks.that("dragging zooms", page.js(f"Math.min(...{ticks}) > 5 && Math.max(...{ticks}) < {STEPS}"))
    page.js("document.querySelector('[data-key=zoom]').click()")
    checks.that("and back", page.js(f"Math.max(...{ticks}) === {STEPS}"))
    page.js("document.querySelector('[data-key=\"chart:curves:loss\"]').focus()")
    page.key("ArrowRight")
    checks.that("arrow keys read values", page.js("!document.querySelector('#tip').hidden"))
    for label in ["tokens", "time", "log y", "log x", "log x", "log y", "steps"]:
        page.js(f"[...document.querySelectorAll('#curves .toolbar button')].find((b) => b.textContent === '{label}').click()")
        checks.that(f"{label}: the curve is there", points(page, "[data-chart=loss]") >= STEPS - 1)
    checks.that("no curve has a hole of NaN", page.js("![...document.querySelectorAll('path')].some((p) => p.getAttribute('d')?.includes('NaN'))"))


def narrow_and_paper(checks, browser, lab, runs):
    page = browser.open(lab.report("narrow.html", *runs), width=700)
    checks.that("at 700 pixels nothing is wider than the page", page.js("document.documentElement.scrollWidth") <= 700)
    checks.that(f"no labels lie over each other at 700 {page.js(OVERLAPS)}", not page.js(OVERLAPS))
    checks.shot(page, "narrow")
    page.size(1280, 1000)
    page.media(kind="print", dark=True)
    checks.that("paper is white and has no controls", page.js("getComputedStyle(document.body).backgroundColor === 'rgb(255, 255, 255)' && getComputedStyle(document.querySelector('.side')).display === 'none'"))
    page.js("dispatchEvent(new Event('beforeprint'))")
    checks.that("the YAML is printed", page.js("document.querySelectorAll('details[open] .yaml').length") == len(runs))
    checks.shot(page, "paper")
    page.js("dispatchEvent(new Event('afterprint'))")
    checks.that("and folded again after", page.js("document.querySelectorAll('#settings details[open]').length") == 0)
    checks.that("a PDF comes out", len(page.call("Page.printToPDF", printBackground=True)["data"]) > 20_000)
    checks.quiet(page, "paper")
    page.close()


def pipeline(checks, browser, lab, run):
    (run / "timeline.json").write_text(json.dumps(watched()))
    page = browser.open(lab.report("pipeline.html", run), dark=True)
    bars = "document.querySelectorAll('#timeline [data-chart={}] .do.backward').length"
    checks.that("the plan has four backwards a stage", page.js(bars.format("planned")) == 8)
    checks.that("so has the measured step", page.js(bars.format("measured")) == 8)
    axis = "[...document.querySelectorAll('#timeline [data-chart={}] .track')].map((r) => [r.getAttribute('x'), r.getAttribute('width')]).join()"
    checks.that("both have the same axis", page.js(axis.format("planned")) == page.js(axis.format("measured")))
    checks.that("each rank has its memory", page.js("document.querySelectorAll('#memory .bar-name.first').length") == 2)
    checks.that(f"no labels lie over each other {page.js(OVERLAPS)}", not page.js(OVERLAPS))
    checks.shot(page, "pipeline-dark")
    checks.quiet(page, "pipeline")
    page.close()


def unlucky(checks, browser, lab, run):
    """Runs without a step, broken ones, and one of a hundred thousand steps."""
    runs = lab.folder / "runs"
    for name in ["bare", "broken", "torn"]:
        shutil.copytree(run, runs / name)
    for file in ["metrics.jsonl", "samples.jsonl", "summary.json", "resolved.yaml"]:
        (runs / "bare" / file).unlink()
    for file in ["manifest.json", "plan.json", "timeline.json", "resolved.yaml"]:
        (runs / "broken" / file).write_text("{")
    (runs / "torn" / "metrics.jsonl").write_text('{"kind":"train","step":1,"loss":null,"tokens":1}\n{"kind":"eval","step":1}\n{"ki')
    for name in ["bare", "broken", "torn"]:
        page = browser.open(lab.report(f"{name}.html", runs / name))
        checks.that(f"{name}: every section says something", page.js("[...document.querySelectorAll('.part:not([hidden]) .body')].every((b) => b.textContent.trim())"))
        checks.quiet(page, name)
        page.close()
    long_run(run, runs / "long", 100_000)
    url = lab.report("long.html", runs / "long")
    size = (lab.folder / "long.html").stat().st_size
    checks.that(f"100,000 steps make a page of less than 2 MB ({size / 1e6:.2f} MB)", size < 2e6)
    page = browser.open(url)
    checks.that("it says that it was thinned", page.js("document.querySelector('#curves').textContent.includes('thinned')"))
    checks.that("and the spike is there", page.js("JSON.parse(document.querySelector('#data').textContent).runs[0].curves.loss.y.includes(9)"))
    checks.shot(page, "long")
    checks.quiet(page, "long")
    page.close()


def served(checks, browser, lab, run):
    process, url = lab.serve(run)
    try:
        page = browser.open(url)
        page.until("document.querySelector('#live').textContent.includes('no run is going on')")
        page.js("document.querySelector('[data-key=\"toggle:log y\"]').click(); scrollTo(0, 700)")
        # The page asks every ten seconds where no run goes on.
        with open(run / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": "eval", "step": STEPS + 1, "val_loss": 1.2345}) + "\n")
        page.until("document.querySelector('#evaluation').textContent.includes('1.2345')")
        checks.that("fresh data comes by itself", True)
        checks.that("what the reader chose stays", page.js("document.querySelector('[data-key=\"toggle:log y\"]').getAttribute('aria-pressed') === 'true' && Math.abs(scrollY - 700) < 5"))
        checks.quiet(page, "served")
        process.terminate()
        process.wait()
        page.until("document.querySelector('#live').textContent.includes('the server is gone')")
        checks.that("the page says that the server is gone", True)
        page.close()
    finally:
        process.kill()
        process.wait()


def main():
    parser = argparse.ArgumentParser(description="Checks the pages of runner report in Chromium.")
    parser.add_argument("runner", type=pathlib.Path)
    parser.add_argument("--shots", type=pathlib.Path, help="a folder for pictures of the pages")
    given = parser.parse_args()
    path = chromium.find()
    if not path:
        print("no Chromium found: apt-get install chromium, or name one in CHROMIUM", file=sys.stderr)
        return 2
    checks = Checks(given.shots)
    with tempfile.TemporaryDirectory(prefix="report-") as folder, chromium.Chromium(path) as browser:
        lab = Lab(given.runner.resolve(), pathlib.Path(folder))
        one, two = lab.train("one"), lab.train("two", micro_batch=4)
        piped = lab.train("piped", PIPELINE, micro_batch=2)
        spoil(one)
        several(checks, browser, lab, [one, two])
        narrow_and_paper(checks, browser, lab, [one, two])
        pipeline(checks, browser, lab, piped)
        unlucky(checks, browser, lab, two)
        served(checks, browser, lab, two)
    print(f"{len(checks.findings)} findings" if checks.findings else "all is well")
    return 1 if checks.findings else 0


if __name__ == "__main__":
    sys.exit(main())
