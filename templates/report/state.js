// What the page shows, and what its reader has chosen. Drawing reads this; nothing else is remembered.

let data = JSON.parse(byId("data").textContent);

const COLOURS = 8;
/** With more runs than this, those with the lowest validation loss are on at first. */
const MANY = 12;
const AT_FIRST = 8;

const state = {
  hidden: new Set(),
  axis: "step",
  logX: false,
  logY: false,
  smoothing: 30,
  /** What part of the x axis is shown, in its unit; null: all. */
  zoom: null,
  /** Samples: which prompt, which step (null: the last), and whether all steps are listed. */
  prompt: 0,
  sampleStep: null,
  everySample: false,
  /** The rungs of a ladder are in the order of their size: the best of different sizes says nothing. */
  sort: { column: data.sweep?.ladder ? "size" : "objective", down: false },
  /** Sweep: ranges of values by parameter that are let through. */
  brushes: new Map(),
};

function chooseAtFirst() {
  if (data.runs.length <= MANY) return;
  // Losses that do not compare order nothing.
  const best = (run) => data.incomparable.length ? 0 : run.curves.best_eval?.val_loss ?? Infinity;
  const order = [...data.runs].sort((a, b) => best(a) - best(b));
  for (const run of order.slice(AT_FIRST)) state.hidden.add(run.id);
}

/** The runs that are on, each with its place, which gives its colour. */
const shown = () => data.runs.map((run, index) => ({ run, index })).filter(({ run }) => !state.hidden.has(run.id));

/** Why there is nothing to draw of any run. */
const nothingShown = () => (data.runs.length ? "All runs are switched off." : "There is no run yet.");

/** In a sweep as good as its point is, like the point's line; else one of the runs' own. */
function runColour(index) {
  const point = data.sweep?.rows.find((row) => row.run === data.runs[index].id);
  if (!point) return `var(--run-${index % COLOURS})`;
  const grade = grades(data.sweep).get(point.point);
  return grade === null ? "var(--muted)" : ramp(grade);
}

/** Runs beyond the colours are told apart by dashes. */
const runDash = (index) => (data.sweep ? null : [null, "6 3", "2 3", "9 3 2 3"][Math.floor(index / COLOURS) % 4]);
/** What distinguishes a run, and its id. */
const fullName = ({ name, id }) => (name.includes(id) ? name : `${name} (${id})`);
const runName = (index) => [swatch(runColour(index), runDash(index)), fullName(data.runs[index])];

const AXES = {
  step: {
    name: "steps",
    label: "optimizer step",
    format: (v) => `step ${count(v)}`,
    tick: (v) => (v >= 1e4 ? large(v) : significant(v)),
  },
  tokens: { name: "tokens", label: "tokens seen", format: (v) => `${large(v, 4)} tokens`, tick: (v) => large(v) },
  seconds: { name: "time", label: "time spent in steps", format: (v) => `after ${duration(v)}`, tick: (v) => v },
};

/** Where a step of `run` lies on the chosen axis. */
function place(run, step) {
  if (state.axis === "step") return step;
  return interpolate(run.curves.axis.step, run.curves.axis[state.axis], step);
}

const isDark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};

const STATUS = {
  done: "done",
  running: "running",
  interrupted: "interrupted",
  failed: "failed",
  diverged: "failed",
  broken: "broken",
  queued: "queued",
};
/** How a run stands: one that its sweep judged and did not promote was not merely interrupted. */
function runStatus(run) {
  const stopped = data.sweep?.rows.some((row) => row.run === run.id && row.status === "stopped");
  return stopped && run.status === "interrupted" ? "stopped early" : run.status;
}
const badge = (status) => el("span", { class: `badge ${STATUS[status] ?? ""}` }, status);
