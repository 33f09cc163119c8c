// Loss, learning rate, gradient norm, speed: over steps, tokens or time.

const CURVES = [
  {
    name: "lr",
    title: "Learning rate",
    get: (c) => c.lr,
    format: (v) => significant(v, 4),
    tick: (v) => significant(v, 3),
    zero: true,
    plain: true,
  },
  {
    name: "grad_norm",
    title: "Gradient norm",
    unit: "before clipping",
    get: (c) => c.grad_norm,
    format: (v) => significant(v, 4),
    tick: (v) => significant(v, 3),
    zero: true,
  },
  {
    name: "tokens_per_second",
    title: "Speed",
    unit: "tokens/s",
    get: (c) => c.tokens_per_second,
    format: (v) => `${large(v, 4)} tokens/s`,
    tick: (v) => large(v),
    zero: true,
  },
  {
    name: "mfu",
    title: "MFU",
    unit: "of the devices' peak",
    get: (c) => c.mfu,
    format: (v) => percent(v, 2),
    tick: (v) => percent(v, 0),
    zero: true,
  },
];

const longest = () => Math.max(1, ...data.runs.map((run) => run.curves.last_step));

/** The time constant of smoothing, in steps: fine at first, a fifth of the run at most. */
const timeConstant = () => 0.2 * longest() * (state.smoothing / 100) ** 2;

/** Sums and weights of the values up to each one, weighted by exp(−distance / constant); over `order`, indices of `xs`. */
function decayingSums(xs, ys, constant, order) {
  let [sum, weight, before] = [0, 0, null];
  const out = [];
  for (const i of order) {
    if (ys[i] === null) continue;
    const keep = before === null ? 0 : Math.exp(-Math.abs(xs[i] - before) / constant);
    sum = keep * sum + ys[i];
    weight = keep * weight + 1;
    before = xs[i];
    out[i] = [sum, weight];
  }
  return out;
}

/** The average around each value, weighted by exp(−distance / constant) to both sides: it does not lag behind the curve. */
function smooth(xs, ys, constant) {
  const forwards = [...xs.keys()];
  const past = decayingSums(xs, ys, constant, forwards);
  const future = decayingSums(xs, ys, constant, forwards.reverse());
  // The value itself is in both sums.
  return ys.map((y, i) => (y === null ? null : (past[i][0] + future[i][0] - y) / (past[i][1] + future[i][1] - 1)));
}

/** A series of a run as lines: as it is, or faint behind what smoothing makes of it. */
function linesOf(series, { run, index }, label, plain) {
  const look = { run: index, colour: runColour(index), dash: runDash(index), label };
  const line = (kind, xs, ys) => ({ ...look, kind, x: xs.map((x) => place(run, x)), y: ys });
  const constant = plain ? 0 : timeConstant();
  if (!(constant > 0)) return [line("line", series.x, series.y)];
  // Of a series that was thinned only the extremes are here: its means are what an average is made of.
  const from = series.mean ?? series;
  return [line("faint", series.x, series.y), line("line", from.x, smooth(from.x, from.y, constant))];
}

function lossSeries(entry) {
  const { run, index } = entry;
  const trained = run.curves.loss ? linesOf(run.curves.loss, entry, "train") : [];
  const evals = run.curves.evals.filter((e) => isNumber(e.val_loss));
  if (!evals.length) return trained;
  const look = { run: index, kind: "points", colour: runColour(index), label: "validation" };
  return [...trained, { ...look, x: evals.map((e) => place(run, e.step)), y: evals.map((e) => e.val_loss) }];
}

function drawCurve(spec, series, width, height) {
  const zoom = (range) => {
    state.zoom = range;
    redraw("curves");
  };
  return lineChart({
    group: "curves",
    axis: state.axis,
    logX: state.logX,
    logY: state.logY,
    zoom: state.zoom,
    onZoom: zoom,
    ...spec,
    series,
    width,
    height,
  });
}

function curvesToolbar() {
  const set = (change) => {
    Object.assign(state, change);
    redraw("curves");
    if ("axis" in change) redraw("evaluation");
  };
  const constant = timeConstant();
  const said = constant < 0.5 ? "off" : `over ≈ ${counted(Math.round(constant), "step")}`;
  const slider = el("input", {
    type: "range",
    min: 0,
    max: 100,
    step: 1,
    value: state.smoothing,
    "data-key": "smoothing",
    "aria-label": "Smoothing",
    "aria-valuetext": said,
    on: { input: (event) => set({ smoothing: Number(event.target.value) }) },
  });
  return el(
    "div",
    { class: "toolbar" },
    choice(
      "x axis",
      Object.entries(AXES).map(([name, axis]) => [name, axis.name]),
      state.axis,
      (axis) => set({ axis, zoom: null }),
    ),
    toggle("log y", state.logY, () => set({ logY: !state.logY })),
    toggle("log x", state.logX, () => set({ logX: !state.logX, zoom: null })),
    el("label", { class: "slider" }, "smoothing", slider, el("output", null, said)),
    el(
      "button",
      {
        type: "button",
        class: "quiet",
        "data-key": "zoom",
        disabled: !state.zoom,
        on: { click: () => set({ zoom: null }) },
      },
      state.zoom ? "whole run" : "drag to zoom",
    ),
  );
}

/** What was thinned, in words. */
function thinned(runs) {
  const lengths = runs.map(({ run }) => run.curves.loss?.thinned_from).filter(Boolean);
  if (!lengths.length) return null;
  return note(
    `Curves of up to ${count(Math.max(...lengths))} points are thinned: of every stretch of steps the least and the greatest value are drawn, and smoothing averages the stretch's means. Spikes stay.`,
  );
}

function renderCurves(width) {
  const runs = shown();
  if (!data.runs.some((run) => run.curves.steps || run.curves.evals.length))
    return [empty("No step has been recorded yet.")];
  if (!runs.length) return [curvesToolbar(), empty(nothingShown())];
  const known = CURVES.filter((c) => data.runs.some((run) => c.get(run.curves)));
  const series = new Map(
    known.map((c) => [
      c.name,
      runs.flatMap((entry) => (c.get(entry.run.curves) ? linesOf(c.get(entry.run.curves), entry, "", c.plain) : [])),
    ]),
  );
  const losses = runs.flatMap(lossSeries);
  // All charts have the same x axis, so that what is above each other belongs together.
  const domain = extent(
    [losses, ...series.values()].flat().flatMap((s) => (state.logX ? s.x : [s.x[0], s.x[s.x.length - 1]])),
    state.logX,
  );
  const lossChart = drawCurve(
    {
      domain,
      name: "loss",
      title: "Loss",
      unit: "per token; lines train, dots validation",
      format: loss,
      tick: (v) => significant(v, 3),
      none: "no loss was recorded",
    },
    losses,
    width,
    340,
  );
  const columns = width < 640 ? 1 : known.length === 3 && width > 860 ? 3 : 2;
  const each = Math.floor((width - 20 * (columns - 1)) / columns);
  const charts = known.map((c) => drawCurve({ domain, ...c }, series.get(c.name), each, 220));
  const missing = data.runs.some((run) => run.curves.mfu)
    ? null
    : note("MFU is unknown, because the peak FLOP/s of the devices are; set them for new runs with RUNNER_PEAK_FLOPS.");
  return [curvesToolbar(), lossChart, el("div", { class: `grid of-${columns}` }, charts), missing, thinned(runs)];
}
