#!/usr/bin/env python3
"""Checks the pages of `runner report` in a headless Chromium: nothing is refused or fails, the curves are there,
runs can be switched off, what samples say stays text, and a page that is served follows its run.

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
from sealed_json import sealed

HOSTILE = "<img src=x onerror=\"document.title='owned'\"></script><script>document.title='owned'</script> & \u2028 end"
SHOWN = HOSTILE.replace("\u2028", "\ufffd")     # the page's data has no characters that hide or move text
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
SWEEP = """sweep:
  base: base.yaml
  grid: {train.steps: [10, 20], optimizer.adamw.lr: [1e-3, 1e-2]}
  seeds: 2
  objective: {metric: val_loss}
"""
SPEED_SWEEP = SWEEP.replace("metric: val_loss", "metric: tokens_per_second")
LADDER = """ladder:
  base: base.yaml
  dial: {model.d_model: [20, 8, 12, 4, 16]}
  rules:
    optimizer.adamw.lr: 0.01 * (8 / model.d_model) ** 0.5
  tokens_per_parameter: 0.5
  seeds: 2
"""
SPIKE = 9.0
PIPELINE = "parallel: {mode: pipeline, pipeline: {stages: 2, schedule: gpipe, microbatches: 4}}"


class Lab:
    """A folder with runs."""

    def __init__(self, runner, folder):
        self.runner, self.folder = runner, folder
        self.environment = {**os.environ, "RUNNER_CACHE": str(folder / "cache"), "RUNNER_RUNS": str(folder / "runs")}
        (folder / "input.txt").write_text(" ".join(str(i * i % 9973) for i in range(4000)))

    def run(self, *arguments):
        done = subprocess.run([self.runner, *map(str, arguments)], cwd=self.folder, env=self.environment,
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"runner {arguments[0]}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def train(self, name, parallel="", micro_batch=8):
        """Makes a run, and returns its folder."""
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
    (run / "manifest.json").write_text(sealed(manifest))
    with open(run / "resolved.yaml", "a", encoding="utf-8") as file:
        file.write(f"# {HOSTILE}\n".replace("\u2028", " "))


def long_run(source, target, steps):
    """A copy of a run with a record of many steps."""
    shutil.copytree(source, target)
    with open(target / "metrics.jsonl", "w", encoding="utf-8") as file:
        for s in range(1, steps + 1):
            loss = SPIKE if s == steps // 2 else 2 + 5 / (1 + s / 900) + 0.1 * ((s * 7919) % 13) / 13
            line = {"kind": "train", "step": s, "loss": loss, "lr": 1e-3, "grad_norm": 1.0 + (s % 17) / 20,
                    "tokens": 4096, "tokens_per_second": 1e5 + s % 1000, "mfu": 0.4,
                    "step_ms": 40.0 + s % 5, "data_ms": 0.1,
                    "forward_ms": 12.0 + s % 3, "backward_ms": 25.0, "optimizer_ms": 1.5}
            file.write(json.dumps(line) + "\n")


class Checks:
    def __init__(self, shots):
        self.findings, self.shots = [], shots

    def that(self, what, true):
        print(f"{'ok  ' if true else 'FAIL'}  {what}")
        if not true:
            self.findings.append(what)

    def none(self, what, found):
        self.that(f"no {what}" + "".join(f"\n      {one}" for one in found), not found)

    def shot(self, page, name):
        if self.shots:
            self.shots.mkdir(parents=True, exist_ok=True)
            page.shot(self.shots / f"{name}.png")

    def quiet(self, page, what):
        """No error, no exception, nothing refused by the page's policy, and nothing asked of the network."""
        thrown = [e["exceptionDetails"] for e in page.events("Runtime.exceptionThrown")]
        wrong = [e.get("exception", {}).get("description", e["text"]) for e in thrown]
        entries = [e["entry"] for e in page.events("Log.entryAdded")]
        wrong += [e["text"] for e in entries if e["level"] in ["error", "warning"]]
        wrong += [str(e["args"]) for e in page.events("Runtime.consoleAPICalled")]
        self.none(f"console message: {what}", wrong)

    def closed(self, page):
        asked = {e["request"]["url"] for e in page.events("Network.requestWillBeSent")}
        outside = [url for url in asked if not url.startswith(("file:", "data:"))]
        self.that(f"nothing is asked of the network {outside or ''}", not outside)


def several(checks, browser, lab, runs):
    """Two runs beside each other, one of them hostile."""
    page = browser.open(lab.report("several.html", *runs))
    for name in ["loss", "lr", "grad_norm", "tokens_per_second"]:
        checks.that(f"the {name} chart has its points", page.js(f"probe.points('{name}')") >= STEPS)
    checks.that("a run has its phases", page.js("probe.all('#steptime .area').length") >= 3)
    checks.that("every run has a curve", page.js("probe.runsIn('loss')") == 2)
    foreign = page.js("document.images.length + document.scripts.length - 2")
    checks.that("images and scripts of others are none", foreign == 0)
    checks.that("a hostile sample is text", page.js(f"probe.says('#samples', {json.dumps(SHOWN)})"))
    page.js("probe.all('details').forEach((d) => (d.open = true))")
    page.until("probe.all('details[open] .yaml').length === 2")
    for section in ["#record", "#settings"]:
        checks.that(f"hostile text in {section} is text", page.js(f"probe.says('{section}', '<img src=x onerror=')"))
    checks.that("nothing hostile has run", "owned" not in page.js("document.title"))
    legend(checks, page)
    pointing(checks, page)
    checks.none("labels over each other", page.js("probe.overlaps()"))
    checks.none("text that is hard to read", page.js("probe.faint()"))
    checks.shot(page, "several-light")
    page.media(dark=True)
    checks.that("dark is dark", page.js("probe.background()") == "rgb(15, 20, 24)")
    checks.none("text that is hard to read in the dark", page.js("probe.faint()"))
    checks.shot(page, "several-dark")
    page.js("probe.one('#theme').click()")
    checks.that("the theme can be chosen", page.js("probe.background()") == "rgb(246, 247, 248)")
    checks.quiet(page, "several runs")
    checks.closed(page)
    page.close()


def legend(checks, page):
    """Runs are switched off and on."""
    page.js("probe.all('#legend .run')[1].click()")
    lines = [page.js(f"probe.linesOf({run})") for run in (0, 1)]
    checks.that(f"a run that is switched off has no curve {lines}", lines[0] > 0 and lines[1] == 0)
    page.js("probe.all('#legend .run')[0].click()")
    checks.that("with all runs off the page says so", page.js("probe.one('#curves .empty') !== null"))
    page.js("probe.all('#legend .run').forEach((button) => button.click())")
    checks.that("and they come back", page.js("probe.runsIn('loss')") == 2)


def pointing(checks, page):
    """The crosshair by mouse and by keys; zooming; the axes."""
    page.js("probe.one('[data-chart=loss]').scrollIntoView({block: 'center'})")
    left, top, width, height = page.js("probe.place('[data-chart=loss] svg')")

    def at(share):
        return left + share * width, top + 0.4 * height

    page.mouse("mouseMoved", *at(0.5))
    checks.that("hovering shows both runs", page.js("probe.tipRuns()") == 2)
    checks.that("the other charts follow", page.js("probe.crossed()"))
    page.mouse("mousePressed", *at(0.4), button="left", clickCount=1)
    page.mouse("mouseMoved", *at(0.6), button="left")
    page.mouse("mouseReleased", *at(0.6), button="left", clickCount=1)
    ticks = page.js("probe.ticks()")
    checks.that(f"dragging zooms {ticks}", min(ticks) > 5 and max(ticks) < STEPS)
    page.js("probe.press('whole run')")
    checks.that("and back", max(page.js("probe.ticks()")) == STEPS)
    page.js("probe.one('[data-key=\"chart:curves:loss\"]').focus()")
    page.key("ArrowRight")
    checks.that("arrow keys read values", page.js("probe.tipRuns()") > 0)
    for label in ["tokens", "time", "log y", "log x", "log x", "log y", "steps"]:
        page.js(f"probe.press('{label}', '#curves')")
        checks.that(f"{label}: the curve is there", page.js("probe.points('loss')") >= STEPS - 1)
    checks.that("no curve is broken", not page.js("probe.broken()"))


def narrow_and_paper(checks, browser, lab, runs):
    page = browser.open(lab.report("narrow.html", *runs), width=700)
    checks.that("at 700 pixels nothing is wider", page.js("document.documentElement.scrollWidth") <= 700)
    checks.none("labels over each other at 700 pixels", page.js("probe.overlaps()"))
    checks.shot(page, "narrow")
    page.size(1280, 1000)
    page.until("probe.place('[data-chart=loss]')[2] > 700")
    page.media(kind="print", dark=True)
    checks.that("paper is white", page.js("probe.background()") == "rgb(255, 255, 255)")
    checks.that("paper has no controls", page.js("getComputedStyle(probe.one('.side')).display") == "none")
    page.js("dispatchEvent(new Event('beforeprint'))")
    page.until(f"probe.all('details[open] .yaml').length === {len(runs)}")
    checks.shot(page, "paper")
    page.js("dispatchEvent(new Event('afterprint'))")
    checks.that("and folded again after", page.js("probe.all('#settings details[open]').length") == 0)
    checks.that("a PDF comes out", len(page.call("Page.printToPDF", printBackground=True)["data"]) > 20_000)
    page.media(dark=True)
    page.size(1000, 1000)
    # The change of width is noticed before the next frame ends, and the page is drawn again 80 ms later: while it is printed.
    page.js("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
    page.js("new Promise(done => { dispatchEvent(new Event('beforeprint')); setTimeout(done, 200); })")
    checks.that("what is drawn again is printed, too", page.js("probe.all('details[open] .yaml').length") == len(runs))
    page.js("dispatchEvent(new Event('afterprint'))")
    checks.that("and it is folded again", page.js("probe.all('#settings details[open]').length") == 0)
    checks.quiet(page, "paper")
    page.close()


def pipeline(checks, browser, lab, run):
    (run / "timeline.json").write_text(sealed(watched()))
    page = browser.open(lab.report("pipeline.html", run), dark=True)
    for which in ["planned", "measured"]:
        checks.that(f"{which}: four backwards a stage", page.js(f"probe.bars('{which}', 'backward')") == 8)
    checks.that("both have the same axis", page.js("probe.axis('planned')") == page.js("probe.axis('measured')"))
    checks.that("each rank has its memory", page.js("probe.all('#memory .bar-name.first').length") == 2)
    checks.none("labels over each other", page.js("probe.overlaps()"))
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
    lines = ['{"kind":"train","step":1,"loss":null,"tokens":1}', '{"kind":"eval","step":1}', '{"ki']
    (runs / "torn" / "metrics.jsonl").write_text("\n".join(lines))
    for name in ["bare", "broken", "torn"]:
        page = browser.open(lab.report(f"{name}.html", runs / name))
        checks.that(f"{name}: every section says something", page.js("probe.silent()") == 0)
        checks.quiet(page, name)
        page.close()
    long_run(run, runs / "long", 100_000)
    url = lab.report("long.html", runs / "long")
    size = (lab.folder / "long.html").stat().st_size
    checks.that(f"100,000 steps make a page of less than 2 MB ({size / 1e6:.2f} MB)", size < 2e6)
    page = browser.open(url)
    checks.that("it says that it was thinned", page.js("probe.says('#curves', 'thinned')"))
    loss = page.js("JSON.parse(probe.one('#data').textContent).runs[0].curves.loss.y")
    checks.that("and the spike is there", SPIKE in loss)
    checks.shot(page, "long")
    checks.quiet(page, "long")
    page.close()


def sweep(checks, browser, lab):
    """Four settings with two seeds: the answer, the lines, the table, and choosing a range."""
    (lab.folder / "sweep.yaml").write_text(SWEEP)
    (lab.folder / "base.yaml").write_text(EXPERIMENT.format(name="point", parallel="", steps=STEPS, micro_batch=8))
    lab.run("sweep", "sweep.yaml", "--threads", "1", "--quiet")
    name = next((lab.folder / "runs" / "sweeps").iterdir()).name
    page = browser.open(lab.report("sweep.html", name))
    first = page.js("probe.one('main .part:not([hidden])').id")
    checks.that(f"the page begins with the answer {first}", first == "sweep" and page.js("probe.all('.answer .verdict').length") == 1)
    for chart, lines in [("axis-train.steps", 2), ("axis-optimizer.adamw.lr", 2), ("setting-curves", 4)]:
        drawn = page.js(f"probe.all('[data-chart=\"{chart}\"] .series').length")
        checks.that(f"{chart} has {lines} lines, got {drawn}", drawn == lines)
    bands = page.js("probe.all('[data-chart=setting-curves] .band').length")
    checks.that(f"a band a setting, got {bands}", bands == 4)
    checks.that("runs are named by their values", page.js("probe.says('#legend', 'lr 0.001, seed 1')"))
    checks.that("a line a point", page.js("probe.all('.parallel .lines path').length") == 8)
    checks.that("a row a point", page.js("probe.all('.points tbody tr').length") == 8)
    checks.that("a sweep of losses has no bars of speed", page.js("probe.all('[data-bars]').length") == 0)
    objective = "probe.all('.points tbody tr').map((r) => Number.parseFloat(r.cells[4].textContent))"
    values = page.js(objective)
    checks.that(f"the best is first {values}", values == sorted(values))
    page.js("probe.one('[data-key=\"sort:objective\"]').click()")
    checks.that("a heading turns the order", page.js(objective) == sorted(values, reverse=True))
    page.js("probe.one('.parallel').scrollIntoView({block: 'center'})")
    left, top, width, height = page.js("probe.place('.brush-zone')")
    x = left + width / 2
    page.mouse("mousePressed", x, top + 0.7 * height, button="left", clickCount=1)
    page.mouse("mouseMoved", x, top + height, button="left")
    page.mouse("mouseReleased", x, top + height, button="left", clickCount=1)
    checks.that("dragging along an axis chooses", page.js("probe.all('.points tr.dim').length") == 4)
    checks.none("labels over each other", page.js("probe.overlaps()"))
    checks.shot(page, "sweep")
    checks.quiet(page, "sweep")
    page.close()
    (lab.folder / "speed.yaml").write_text(SPEED_SWEEP)
    lab.run("sweep", "speed.yaml", "--threads", "1", "--quiet")
    name = next((lab.folder / "runs" / "sweeps").glob("speed-*")).name
    page = browser.open(lab.report("speeds.html", name))
    speeds(checks, page, "tokens_per_second", 8)
    checks.that("the page says why it has no MFU", page.js("probe.says('#sweep', 'RUNNER_PEAK_FLOPS')"))
    page.close()
    for number, summary in enumerate(sorted((lab.folder / "runs").glob("point-*/summary.json")), 1):
        known = json.loads(summary.read_text())
        known["medians"]["mfu"] = 0.1 * number
        summary.write_text(sealed(known))
    page = browser.open(lab.report("speed.html", name))
    speeds(checks, page, "mfu", 8)
    checks.that("a known peak needs no advice", not page.js("probe.says('#sweep', 'RUNNER_PEAK_FLOPS')"))
    checks.quiet(page, "speed")
    page.close()


def ladder(checks, browser, lab):
    """Five sizes with two seeds: the law, its check, its forecast and the rungs, and no size that leads."""
    (lab.folder / "ladder.yaml").write_text(LADDER)
    lab.run("sweep", "ladder.yaml", "--threads", "1", "--quiet")
    name = next((lab.folder / "runs" / "sweeps").glob("ladder-*")).name
    for width in [1280, 700]:
        page = browser.open(lab.report(f"ladder-{width}.html", name), width=width)
        first = page.js("probe.one('main .part:not([hidden])').id")
        words = page.js("probe.all('#sweep .ladder dt').map((name) => name.textContent)")
        checks.that(f"the page of a ladder begins with forecast, law and check {words}",
                    first == "sweep" and words == ["forecast", "law", "check"])
        whole = page.js("probe.one('#sweep').textContent")
        claims = [claim for claim in ["leads", "not decided", "best:", "What mattered", "to leader"] if claim in whole]
        checks.none("size that leads", claims)
        checks.none("complaint about a ruled key", page.js("probe.all('#sweep .complaints li').map((li) => li.textContent)"))
        lines = page.js("probe.all('[data-chart=law] .series').length")
        # A forecast that is not supported has no number to draw.
        forecasts = 0 if "not supported at" in whole else 1
        checks.that(f"the law, the rungs and {forecasts} forecasts are drawn, got {lines}", lines == 2 + forecasts)
        checks.that("the law has its interval", page.js("probe.all('[data-chart=law] .band').length") == 1)
        checks.that("a dot a rung", page.js("probe.all('[data-chart=law] .series.points circle').length") == 5 + forecasts)
        checks.that("nothing else is drawn of its settings", page.js("probe.all('#sweep figure').length") == 1)
        order = page.js("probe.all('.points tbody tr').map((row) => Number(row.dataset.point))")
        checks.that(f"points are in the order of their size {order}", order == [7, 8, 3, 4, 5, 6, 9, 10, 1, 2])
        checks.that(f"at {width} pixels nothing is wider", page.js("document.documentElement.scrollWidth") <= width)
        checks.none("labels over each other", page.js("probe.overlaps()"))
        checks.none("text that is hard to read", page.js("probe.faint()"))
        checks.shot(page, f"ladder-{width}")
        checks.quiet(page, f"ladder at {width} pixels")
        page.close()


def speeds(checks, page, name, points):
    """A bar a point, as long as its value in the data, the longest over the whole width."""
    page_rows = "JSON.parse(probe.one('#data').textContent).sweep.rows"
    values = page.js(f"{page_rows}.map((row) => row.{name})")
    widths = page.js(f"probe.all('[data-bars={name}] .bar-part').map((part) => Number.parseFloat(part.style.width))")
    to_scale = all(abs(width - 100 * value / max(values)) < 0.1 for width, value in zip(widths, values))
    checks.that(f"the bars of {name} are to scale {widths}", len(widths) == len(values) == points and to_scale)


def served(checks, browser, lab, run):
    process, url = lab.serve(run)
    try:
        page = browser.open(url)
        page.until("probe.says('#live', 'no run is training now')")
        page.js("probe.press('log y', '#curves'); scrollTo(0, 700)")
        top_of_curves = "probe.one('#curves').getBoundingClientRect().top"
        top = page.js(top_of_curves)
        # The page asks every ten seconds where no run goes on.
        with open(run / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": "eval", "step": STEPS + 1, "val_loss": 1.2345}) + "\n")
        page.until("probe.says('#evaluation', '1.2345')")
        checks.that("fresh data comes by itself", True)
        pressed = page.js("probe.one('[data-key=\"toggle:log y\"]').getAttribute('aria-pressed')")
        checks.that("what the reader chose stays", pressed == "true" and abs(page.js(top_of_curves) - top) < 5)
        checks.quiet(page, "served")
        process.terminate()
        process.wait()
        page.until("probe.says('#live', 'the server is gone')")
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
        sweep(checks, browser, lab)
        ladder(checks, browser, lab)
        unlucky(checks, browser, lab, two)
        served(checks, browser, lab, two)
    print(f"{len(checks.findings)} findings" if checks.findings else "all is well")
    return 1 if checks.findings else 0


if __name__ == "__main__":
    sys.exit(main())
