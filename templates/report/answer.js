// The answer of a sweep: what its results show, the objective against what varies, and the curves of its settings.

/** The lines that a chart has at most. */
const MOST_LINES = 8;

/** The names of what varies, without seeds. */
const settingNames = ({ verdict }) => [...new Set(verdict.settings.flatMap((setting) => Object.keys(setting.values)))];

/** The last key of a path, if no other name ends with it. */
function shortName(name, names) {
  const last = name.split(".").at(-1);
  return names.filter((other) => other.split(".").at(-1) === last).length > 1 ? name : last;
}

/** `lr 0.01, layers 4` */
const describeValues = (values, names) =>
  names.map((name) => `${shortName(name, Object.keys(values))} ${valueText(values[name])}`).join(", ");

/** The settings whose mean is known, the best first. */
const measuredSettings = ({ verdict }) => verdict.settings.filter((setting) => setting.sample);

/** The standard deviation over the seeds; null for one seed. */
const deviation = ({ sample }) => sample.sd ?? null;

/** A number with as many places as its uncertainty has, which keeps two digits. */
function withUncertainty(value, half) {
  if (!isNumber(half) || half <= 0) return significant(value, 5);
  const places = Math.max(0, Math.min(12, 1 - Math.floor(Math.log10(half))));
  return value.toFixed(places);
}

const pText = (p) => (p < 0.001 ? "< 0.001" : significant(p, 2));

const meanText = (setting) => withUncertainty(setting.sample.mean, deviation(setting));

/** What the results show, in words. */
function conclusion({ verdict }) {
  const [answer, ...details] = verdict.words;
  if (!answer) return null;
  const next = details[0]?.startsWith("next: ") ? details.shift() : null;
  return el(
    "div",
    { class: "answer", "data-conclusion": verdict.conclusion.kind },
    el("p", { class: "verdict" }, answer),
    next && el("p", {}, next),
    details.map((line) => el("p", { class: "muted" }, line)),
  );
}

/** The means of the settings and their comparisons with the leader. */
function settingsTable(sweep) {
  const { verdict, metric } = sweep;
  const names = settingNames(sweep);
  if (!verdict.settings.some((setting) => setting.points.length > 1)) return null;
  const signed = (value, half) => `${value < 0 ? "−" : "+"}${withUncertainty(Math.abs(value), half)}`;
  const rows = verdict.settings.map((setting) => {
    const { comparison } = setting;
    const ends = comparison?.interval;
    const half = ends ? (ends.high - ends.low) / 2 : null;
    return [
      ...names.map((name) => valueText(setting.values[name])),
      setting.sample ? meanText(setting) : MISSING,
      setting.sample?.sd ? significant(setting.sample.sd, 2) : MISSING,
      `${setting.sample?.n ?? setting.measured} of ${setting.points.length}`,
      comparison ? signed(comparison.difference, half) : MISSING,
      ends ? `${signed(ends.low, half)} to ${signed(ends.high, half)}` : MISSING,
      comparison ? pText(verdict.picked_from ? comparison.adjusted_p : comparison.p) : MISSING,
      setting.label,
    ];
  });
  const columns = [
    ...names.map((name) => ({ name: shortName(name, names), number: true })),
    { name: metric, unit: "mean", number: true },
    { name: "sd", unit: "over seeds", number: true },
    { name: "seeds", number: true },
    { name: "to leader", number: true },
    { name: "95% interval", number: true },
    { name: "p", number: true },
    { name: "" },
  ];
  return table("Settings: means over their seeds, and differences to the leading one", columns, rows);
}

/** The lines of the chart over `name`: the settings that agree in everything else, or, if these are many, in one other parameter. */
function linesOver(sweep, name, names) {
  const settings = measuredSettings(sweep).filter((setting) => isNumber(setting.values[name]));
  const others = names.filter((other) => other !== name);
  const by = (keys) => Map.groupBy(settings, (setting) => describeValues(setting.values, keys));
  let lines = by(others);
  let kept = others;
  if (lines.size > MOST_LINES) {
    kept = others.slice(0, 1);
    lines = by(kept);
  }
  // Settings are sorted by their mean: of those at the same place the first one is the best.
  const best = (group) => [...new Map(group.toReversed().map((setting) => [setting.values[name], setting])).values()];
  const sorted = (group) => best(group).sort((a, b) => a.values[name] - b.values[name]);
  return { lines: [...lines].map(([label, group]) => [label, sorted(group)]), left: others.filter((n) => !kept.includes(n)) };
}

/** The objective against the numeric parameter `name`. */
function axisChart(sweep, name, names, width) {
  const { lines, left } = linesOver(sweep, name, names);
  const order = [...lines].sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true })).slice(0, MOST_LINES);
  const values = order.flatMap(([, group]) => group.map((setting) => setting.values[name]));
  const [lo, hi] = [Math.min(...values), Math.max(...values)];
  const short = shortName(name, names);
  const series = order.map(([label, group], i) => ({
    kind: "points",
    joined: true,
    colour: `var(--run-${i % COLOURS})`,
    label,
    x: group.map((setting) => setting.values[name]),
    y: group.map((setting) => setting.sample.mean),
    error: group.map(deviation),
  }));
  const best = left.length ? `; the best of all ${left.map((other) => shortName(other, names)).join(", ")}` : "";
  return el(
    "div",
    { class: "axis-chart" },
    lineChart({
      group: "answer",
      name: `axis-${name}`,
      title: `${sweep.label} against ${short}`,
      unit: `means; bars: standard deviations over the seeds${best}`,
      x: { name: short, label: short, format: (v) => `${short} ${significant(v, 4)}`, tick: (v) => significant(v, 3) },
      xTicks: [...new Set(values)].sort((a, b) => a - b),
      logX: lo > 0 && hi / lo >= 8,
      pad: 0.06,
      format: (v) => significant(v, 5),
      tick: (v) => significant(v, 4),
      reading: (s, i) => withUncertainty(s.y[i], s.error[i]) + (s.error[i] ? `, sd ${withUncertainty(s.error[i], s.error[i])}` : ""),
      series,
      width,
      height: 300,
    }),
    order.length > 1 ? key(order.map(([label], i) => [label, `var(--run-${i % COLOURS})`])) : null,
  );
}

/** The objective against each numeric parameter. */
function axisCharts(sweep, width) {
  const names = settingNames(sweep);
  const kinds = (name) => new Set(measuredSettings(sweep).map((setting) => setting.values[name]).filter(isNumber)).size;
  const numeric = names.filter((name) => kinds(name) > 1);
  if (!numeric.length) return null;
  const columns = width < 720 || numeric.length === 1 ? 1 : 2;
  const each = Math.floor((width - 20 * (columns - 1)) / columns);
  return el("div", { class: `grid of-${columns}` }, numeric.map((name) => axisChart(sweep, name, names, each)));
}

/** The evaluations of `run` that measured `metric`. Before the first step every run is the same, and far from where it ends. */
const evaluationsOf = (run, metric) => run.curves.evals.filter((e) => e.step > 0 && isNumber(e[metric]));

/** The metric whose curves show how settings with this objective learned: null is the training loss. */
function evaluatedMetric(runs, objective) {
  if (objective === "train_loss") return null;
  const isDrawn = (measure) => measure.key === objective && measure.form !== "perplexity";
  const metric = data.measures.some(isDrawn) ? objective : "val_loss";
  return runs.every((run) => evaluationsOf(run, metric).length > 1) ? metric : null;
}

/** The curve of `run`: the evaluations of `metric`, or the smoothed training loss; null if there is none. */
function curveOf(run, metric) {
  if (metric !== null) {
    const evals = evaluationsOf(run, metric);
    return { x: evals.map((e) => e.step), y: evals.map((e) => e[metric]) };
  }
  const { loss: trained } = run.curves;
  if (!trained) return null;
  const from = trained.mean ?? trained;
  return { x: from.x, y: smooth(from.x, from.y, Math.max(1, timeConstant())) };
}

/** The mean of several curves and their range, at the steps of the first one that all of them reach. */
function meanCurve(curves) {
  const last = Math.min(...curves.map(({ x }) => x.at(-1)));
  const x = curves[0].x.filter((step) => step <= last);
  const at = x.map((step) => curves.map((curve) => interpolate(curve.x, curve.y, step)));
  return {
    x,
    y: at.map((values) => values.reduce((sum, value) => sum + value, 0) / values.length),
    low: curves.length > 1 ? at.map((values) => Math.min(...values)) : null,
    high: curves.length > 1 ? at.map((values) => Math.max(...values)) : null,
  };
}

/** The curves of the settings, the best first. */
function settingCurves(sweep, width) {
  if (sweep.metric === "tokens_per_second") return null;
  const names = settingNames(sweep);
  const runs = new Map(data.runs.map((run) => [run.id, run]));
  const byPoint = new Map(sweep.rows.map((row) => [row.point, runs.get(row.run)]));
  const shown = measuredSettings(sweep).slice(0, MOST_LINES);
  const runsOf = (setting) => setting.points.map((point) => byPoint.get(point)).filter(Boolean);
  const metric = evaluatedMetric(shown.flatMap(runsOf), sweep.metric);
  const drawn = shown
    .map((setting) => [setting, runsOf(setting).map((run) => curveOf(run, metric)).filter(Boolean)])
    .filter(([, curves]) => curves.length);
  if (!drawn.length) return null;
  const series = drawn.map(([setting, curves], i) => ({
    kind: "line",
    colour: `var(--run-${i % COLOURS})`,
    label: describeValues(setting.values, names) || "all seeds",
    ...meanCurve(curves),
  }));
  const range = drawn.some(([, curves]) => curves.length > 1) ? "means over the seeds; bands from the lowest to the highest seed" : "one seed each";
  const more = measuredSettings(sweep).length > MOST_LINES ? `; the ${MOST_LINES} best settings` : "";
  return el(
    "div",
    { class: "axis-chart" },
    lineChart({
      group: "answer-curves",
      name: "setting-curves",
      title: metric === null ? "Training loss, smoothed" : `${metric} while training`,
      unit: range + more,
      axis: "step",
      format: loss,
      tick: (v) => significant(v, 3),
      reading: (s, i) => loss(s.y[i]) + (s.low ? ` (${loss(s.low[i])} to ${loss(s.high[i])})` : ""),
      series,
      width,
      height: 300,
    }),
    series.length > 1 ? key(series.map((s) => [s.label, s.colour])) : null,
  );
}
