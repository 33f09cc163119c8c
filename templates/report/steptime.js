// Where the time of a step goes: medians as bars, and over the steps as stacked areas.

const PHASES = [
  ["data", "data"],
  ["forward", "forward"],
  ["backward", "backward"],
  ["optimizer", "optimizer"],
  ["communication", "communication"],
  ["other", "other"],
];
const phaseColour = (name) => `var(--phase-${name})`;
const AREAS = 6;

/** A bar of parts `[name, value, colour]` on a scale that ends at `most`. */
function stackedBar(parts, most, format, label) {
  const bar = el("div", {
    class: "bar",
    role: "img",
    "aria-label": `${label}: ${parts.map(([name, value]) => `${name} ${format(value)}`).join(", ")}`,
  });
  for (const [name, value, colour] of parts) {
    if (!(value > 0)) continue;
    const part = el("span", { class: "bar-part", style: { width: `${(100 * value) / most}%`, "--colour": colour } });
    bar.append(tipped(part, () => el("p", null, swatch(colour), `${name} ${format(value)}`)));
  }
  return bar;
}

function medianBars(runs) {
  const parts = ({ medians }) =>
    PHASES.filter(([name]) => isNumber(medians[name])).map(([name, title]) => [
      title,
      medians[name],
      phaseColour(name),
    ]);
  const total = (curves) =>
    Math.max(
      curves.medians.step_ms ?? 0,
      parts(curves).reduce((sum, [, value]) => sum + value, 0),
    );
  const most = Math.max(...runs.map(({ run }) => total(run.curves)), Number.MIN_VALUE);
  const rows = runs.map(({ run, index }) => [
    el("span", { class: "bar-name" }, runName(index)),
    stackedBar(parts(run.curves), most, milliseconds, `Time of a step of ${run.name}`),
    el("span", { class: "bar-value" }, milliseconds(run.curves.medians.step_ms)),
  ]);
  return el("div", { class: "bars" }, rows.flat());
}

/** The stacked areas of a run. */
function phaseArea({ run, index }, width, height) {
  const { phases } = run.curves;
  const used = PHASES.filter(([name]) => phases[name].some((v) => v > 0));
  const sums = phases.x.map((_, i) => used.reduce((sum, [name]) => sum + (phases[name][i] ?? 0), 0));
  const first = phases.x.length > 1 ? Math.max(0, phases.x[0] - phases.bucket) : 0;
  const atX = scale(first, phases.x[phases.x.length - 1], MARGIN.left, width - MARGIN.right, false);
  const atY = scale(...niceDomain(0, robust(sums), 4, { zero: true }), height - MARGIN.bottom, MARGIN.top, false);
  const base = phases.x.map(() => 0);
  const areas = used.map(([name, title]) => {
    const below = base.slice();
    phases[name].forEach((v, i) => (base[i] += v ?? 0));
    return svg("path", {
      class: "area",
      d: stepArea([first, ...phases.x], below, base, atX, atY),
      style: { "--colour": phaseColour(name) },
      "data-name": title,
    });
  });
  const clip = `clip-phase-${index}`;
  const plot = {
    x: MARGIN.left,
    y: MARGIN.top,
    width: width - MARGIN.left - MARGIN.right,
    height: height - MARGIN.top - MARGIN.bottom,
  };
  const root = svg(
    "svg",
    {
      viewBox: `0 0 ${width} ${height}`,
      role: "img",
      "aria-label": `Time of a step of ${run.name} by phase over steps, stacked`,
    },
    svg("clipPath", { id: clip }, svg("rect", plot)),
    yAxis(atY, { width, height, format: (v) => significant(v, 3) }),
    svg("g", { "clip-path": `url(#${clip})` }, areas),
    xAxis(atX, { width, height, axis: "step", log: false }),
  );
  tipped(root, (_, event) => {
    const box = root.getBoundingClientRect();
    const step = atX.invert(((event.clientX - box.left) / box.width) * width);
    if (step < first || step > phases.x[phases.x.length - 1]) return null;
    const i = Math.max(
      0,
      phases.x.findIndex((x) => x >= step),
    );
    const head =
      phases.bucket > 1
        ? `mean of ${count(phases.bucket)} steps to ${count(phases.x[i])}`
        : `step ${count(phases.x[i])}`;
    const rows = [...used]
      .reverse()
      .map(([name, title]) =>
        el(
          "tr",
          null,
          el("td", null, swatch(phaseColour(name))),
          el("td", null, title),
          el("td", { class: "number" }, milliseconds(phases[name][i])),
        ),
      );
    return [el("p", { class: "tip-head" }, head), el("table", null, rows)];
  });
  const unit = phases.bucket > 1 ? `ms, means of ${count(phases.bucket)} steps` : "ms";
  return el(
    "figure",
    { class: "chart", "data-chart": "phases" },
    el("figcaption", null, el("span", { class: "chart-title" }, runName(index)), el("span", { class: "unit" }, unit)),
    root,
  );
}

/** The greatest of `values`, unless a few are far beyond the others: then what nearly all stay below. */
function robust(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const most = sorted[sorted.length - 1];
  const usual = sorted[Math.floor(0.97 * (sorted.length - 1))];
  return most > 2 * usual ? 1.25 * usual : most;
}

/** The outline of an area that keeps its height over each of its steps. */
function stepArea(edges, below, above, atX, atY) {
  const top = above.map(
    (v, i) => `L${atX(edges[i]).toFixed(1)},${atY(v).toFixed(1)}L${atX(edges[i + 1]).toFixed(1)},${atY(v).toFixed(1)}`,
  );
  const bottom = below
    .map(
      (v, i) =>
        `L${atX(edges[i + 1]).toFixed(1)},${atY(v).toFixed(1)}L${atX(edges[i]).toFixed(1)},${atY(v).toFixed(1)}`,
    )
    .reverse();
  return `M${top.join("").slice(1)}${bottom.join("")}Z`;
}

function renderStepTime(width) {
  const runs = shown().filter(({ run }) => run.curves.phases);
  if (!runs.length) return [empty(shown().length ? "No step has been timed yet." : nothingShown())];
  const ranks = runs.some(({ run }) => isNumber(run.curves.medians.communication));
  const used = PHASES.filter(([name]) => runs.some(({ run }) => isNumber(run.curves.medians[name])));
  const columns = width < 640 || runs.length === 1 ? 1 : 2;
  const each = Math.floor((width - 20 * (columns - 1)) / columns);
  return [
    key(used.map(([name, title]) => [title, phaseColour(name)])),
    el("h3", null, "Medians"),
    medianBars(runs),
    el("h3", null, "Over the run"),
    el(
      "div",
      { class: `grid of-${columns}` },
      runs.slice(0, AREAS).map((entry) => phaseArea(entry, each, 210)),
    ),
    runs.length > AREAS
      ? note(`The first ${AREAS} of ${runs.length} runs are drawn: switch some off to see others.`)
      : null,
    ranks
      ? note(
          "With several ranks the phases are those of the first rank, and communication is the mean over ranks, waiting included; it may overlap the phases.",
        )
      : null,
  ];
}
