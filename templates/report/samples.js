// What runs continued prompts with, as they learned.

/** Prompts of all runs, in the order in which they first come. */
const prompts = () => [...new Set(data.runs.flatMap((run) => run.samples.items.map((s) => s.prompt)))];

/** The steps at which `prompt` was continued, of all runs. */
const sampleSteps = (prompt, runs) =>
  [...new Set(runs.flatMap(({ run }) => run.samples.items.filter((s) => s.prompt === prompt).map((s) => s.step)))].sort(
    (a, b) => a - b,
  );

/** The continuations of `prompt` by `run` at `step`, or at its last step before that. */
function samplesAt(run, prompt, step) {
  const mine = run.samples.items.filter((s) => s.prompt === prompt && s.step <= step);
  const latest = Math.max(...mine.map((s) => s.step));
  return mine.filter((s) => s.step === latest);
}

function sampleCard({ run, index }, prompt, step) {
  const samples = samplesAt(run, prompt, step);
  const head = el(
    "header",
    null,
    el("span", { class: "run-name" }, runName(index)),
    el("span", { class: "muted" }, samples.length ? `step ${count(samples[0].step)}` : ""),
  );
  const text = (s) => el("p", { class: "sample" }, el("span", { class: "prompt" }, s.prompt), s.text);
  return el(
    "article",
    { class: "sample-card", style: { "--colour": runColour(index) } },
    head,
    samples.length ? samples.map(text) : empty("nothing yet at this step"),
  );
}

function sampleSlider(steps, at) {
  const set = (i) => {
    state.sampleStep = i === steps.length - 1 ? null : steps[i];
    redraw("samples");
  };
  const said = `step ${count(steps[at])}`;
  const slider = el("input", {
    type: "range",
    min: 0,
    max: steps.length - 1,
    step: 1,
    value: at,
    "data-key": "sample-step",
    "aria-label": "Step of the samples",
    "aria-valuetext": said,
    on: { input: (event) => set(Number(event.target.value)) },
  });
  return el("label", { class: "slider wide" }, "after", slider, el("output", null, said));
}

function renderSamples() {
  const all = prompts();
  if (!all.length) {
    const configured = data.runs.some((run) => /^ {2}samples:\s*$/m.test(run.yaml ?? ""));
    return [empty(configured ? "No sample has been recorded yet." : "No samples were configured.")];
  }
  const runs = shown();
  if (!runs.length) return [empty(nothingShown())];
  const prompt = all[Math.min(state.prompt, all.length - 1)];
  const steps = sampleSteps(prompt, runs);
  const choose = (i) => {
    state.prompt = i;
    redraw("samples");
  };
  const tools = el(
    "div",
    { class: "toolbar" },
    all.length > 1
      ? choice(
          "prompt",
          all.map((text, i) => [i, text.length > 40 ? `${text.slice(0, 39)}…` : text || "(empty)"]),
          Math.min(state.prompt, all.length - 1),
          choose,
        )
      : null,
  );
  if (!steps.length) return [tools, empty("The runs shown have no samples of this prompt.")];
  const wanted = state.sampleStep ?? steps[steps.length - 1];
  const at = Math.max(
    0,
    steps.findLastIndex((step) => step <= wanted),
  );
  if (steps.length > 1) {
    if (!state.everySample) tools.append(sampleSlider(steps, at));
    tools.append(
      toggle("every step", state.everySample, () => {
        state.everySample = !state.everySample;
        redraw("samples");
      }),
    );
  }
  const having = runs.filter(({ run }) => run.samples.items.some((s) => s.prompt === prompt));
  const row = (step) =>
    el(
      "div",
      { class: "samples" },
      having.map((entry) => sampleCard(entry, prompt, step)),
    );
  const cut = data.runs.map((run) => run.samples.thinned_from).filter(Boolean);
  return [
    tools,
    ...(state.everySample
      ? steps.flatMap((step) => [el("h3", null, `After ${counted(step, "step")}`), row(step)])
      : [row(steps[at])]),
    cut.length ? note(`Samples of ${count(Math.max(...cut))} steps were recorded; 40 of them are here.`) : null,
  ];
}
