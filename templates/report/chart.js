// Line charts: axes, lines, a crosshair that all charts of a group share, and zooming by dragging.

/** Charts whose crosshairs move together, by name. */
const linked = new Map();
/** Points from this many on are joined. */
const JOINED = 4;
const MARGIN = { top: 10, right: 14, bottom: 38, left: 58 };

/** `M1,2L3,4…`; a missing value is a gap. */
function linePath(points) {
  let path = "";
  let pen = false;
  for (const [x, y] of points) {
    if (y === null) {
      pen = false;
      continue;
    }
    path += `${pen ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`;
    pen = true;
  }
  return path;
}

/** The least and the greatest of `values` that can be drawn; null if there are none. */
function extent(values, log) {
  let [lo, hi] = [Infinity, -Infinity];
  for (const value of values) {
    if (!isNumber(value) || (log && value <= 0)) continue;
    lo = Math.min(lo, value);
    hi = Math.max(hi, value);
  }
  return lo <= hi ? [lo, hi] : null;
}

/** The ends of the bar at index `i` of a series: its `ends`, or its `error` to both sides; null if it has none. */
function errorEnds({ y, error, ends }, i) {
  if (ends) return ends[i];
  return isNumber(error?.[i]) && isNumber(y[i]) ? [y[i] - error[i], y[i] + error[i]] : null;
}

/** Values of all series in `[from, to]`, with what their errors reach. */
function* visible(series, [from, to]) {
  for (const s of series) {
    const { x, y, low, high } = s;
    for (let i = 0; i < x.length; i += 1) {
      if (x[i] < from || x[i] > to || y[i] === null) continue;
      yield y[i];
      if (low) yield* [low[i], high[i]];
      yield* errorEnds(s, i) ?? [];
    }
  }
}

/** Ticks for times: round in the unit that fits. */
function timeTicks([lo, hi], n) {
  const [unit, letter] = hi >= 172800 ? [86400, "d"] : hi >= 7200 ? [3600, "h"] : hi >= 180 ? [60, "min"] : [1, "s"];
  return linearTicks(lo / unit, hi / unit, n).map((v) => [v * unit, `${significant(v)} ${letter}`]);
}

/** The ticks at `values` whose labels do not touch. */
function ticksAt(at, values, format) {
  const ticks = [];
  for (const value of values)
    if (ticks.every(([other]) => Math.abs(at(other) - at(value)) > 44)) ticks.push([value, format(value)]);
  return ticks;
}

/** The x axis: ticks that do not touch, and its label. */
function xAxis(at, { width, height, axis, x: shown = AXES[axis], xTicks, log }) {
  const n = Math.max(2, Math.floor((width - MARGIN.left - MARGIN.right) / 84));
  const timed = axis === "seconds" && !log;
  const ticks = xTicks
    ? ticksAt(at, xTicks, shown.tick)
    : timed
      ? timeTicks(at.domain, n)
      : ticksOf(at, n).map((v) => [v, axis === "seconds" ? duration(v) : shown.tick(v)]);
  const base = height - MARGIN.bottom;
  const tick = ([value, text]) => {
    const x = at(value);
    return [
      svg("line", { class: "tick", x1: x, x2: x, y1: base, y2: base + 4 }),
      svg("text", { class: "tick-text", x, y: base + 16, "text-anchor": "middle" }, text),
    ];
  };
  const middle = (MARGIN.left + width - MARGIN.right) / 2;
  return svg(
    "g",
    null,
    svg("line", { class: "axis", x1: MARGIN.left, x2: width - MARGIN.right, y1: base, y2: base }),
    ticks.flatMap(tick),
    svg(
      "text",
      { class: "axis-label", x: middle, y: height - 4, "text-anchor": "middle" },
      shown.label + (log ? ", log" : ""),
    ),
  );
}

/** The y axis: grid lines and their values. */
function yAxis(at, { width, height, format }) {
  const ticks = ticksOf(at, Math.max(2, Math.floor((height - MARGIN.top - MARGIN.bottom) / 40)));
  return svg(
    "g",
    null,
    ticks
      .map((value) => [
        svg("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: at(value), y2: at(value) }),
        svg("text", { class: "tick-text", x: MARGIN.left - 8, y: at(value) + 4, "text-anchor": "end" }, format(value)),
      ])
      .flat(),
  );
}

/** The area between the lowest and the highest values of a series. */
function bandOf(s, atX, atY) {
  const inside = (value) => (atY.log ? Math.max(value, atY.domain[0]) : value);
  const edge = (values) => s.x.map((x, i) => `${atX(x).toFixed(1)},${atY(inside(values[i])).toFixed(1)}`);
  const path = [...edge(s.high), ...edge(s.low).reverse()];
  return svg("path", { class: "band", d: `M${path.join("L")}Z` });
}

/** One series: a line, a faint line, or points with their errors. */
function drawSeries(s, atX, atY) {
  const drawable = (value) => isNumber(value) && !(atY.log && value <= 0);
  const points = s.x
    .map((x, i) => [x, s.y[i]])
    .filter(([x]) => !atX.log || x > 0)
    .map(([x, y]) => [atX(x), drawable(y) ? atY(y) : null]);
  const style = { "--colour": s.colour, "stroke-dasharray": s.dash ?? "none" };
  const group = svg("g", { class: `series ${s.kind}`, "data-run": s.run, style });
  if (s.low) group.append(bandOf(s, atX, atY));
  // A line between few points would say what nobody measured.
  if (s.kind !== "points" || s.joined || points.length >= JOINED) group.append(svg("path", { class: s.joined ? "joined" : null, d: linePath(points) }));
  if (s.error || s.ends) {
    s.x.forEach((x, i) => {
      const ends = errorEnds(s, i);
      if (!drawable(s.y[i]) || !ends || (atX.log && x <= 0)) return;
      const [top, bottom] = [atY(ends[1]), atY(Math.max(ends[0], atY.log ? atY.domain[0] : -Infinity))];
      group.append(
        svg("path", {
          class: "error",
          d: `M${atX(x)},${top}V${bottom}M${atX(x) - 3},${top}h6M${atX(x) - 3},${bottom}h6`,
        }),
      );
    });
  }
  const dots = s.kind === "points" || points.length === 1;
  if (dots)
    for (const [x, y] of points)
      if (y !== null) group.append(svg("circle", { cx: x, cy: y, r: points.length > 60 ? 2 : 3.2 }));
  return group;
}

/**
 * A line chart. `spec`: `group` and `name` (which charts move together, and which of them this is), `title`, `unit`, `format` of
 * values, `tick` of the y axis, `series` of `{run, kind, colour, dash, x, y, error, ends, low, high, joined, label}`, `zero`, `logX`, `logY`,
 * `domain` of x (else that of the series), `zoom`,
 * `pad` (a share of x to leave free on both sides), `onZoom`, `width`, `height`, `axis`, or `x` for another quantity than those of `AXES`,
 * with `xTicks`; `reading` of a series at an index as text. x is in the unit of the axis.
 */
function lineChart(spec) {
  const { width, height, series, axis } = spec;
  spec.x ??= AXES[axis];
  const all =
    spec.zoom ??
    spec.domain?.slice() ??
    extent(
      series.flatMap((s) => s.x),
      spec.logX,
    );
  if (all && spec.pad) {
    const [lo, hi] = all;
    const factor = (hi / lo) ** spec.pad;
    all.splice(0, 2, ...(spec.logX ? [lo / factor, hi * factor] : [lo - spec.pad * (hi - lo), hi + spec.pad * (hi - lo)]));
  }
  const values = all && extent(visible(series, all), spec.logY);
  const heading = el(
    "figcaption",
    null,
    el("span", { class: "chart-title" }, spec.title),
    spec.unit ? el("span", { class: "unit" }, ` ${spec.unit}`) : null,
    spec.extra ?? null,
  );
  if (!values)
    return el(
      "figure",
      { class: "chart", "data-chart": spec.name },
      heading,
      empty(spec.none ?? "nothing to show here"),
    );
  const atX = scale(...all, MARGIN.left, width - MARGIN.right, spec.logX);
  const nY = Math.max(2, Math.floor((height - MARGIN.top - MARGIN.bottom) / 40));
  const atY = scale(
    ...niceDomain(...values, nY, { log: spec.logY, zero: spec.zero }),
    height - MARGIN.bottom,
    MARGIN.top,
    spec.logY,
  );
  const clip = `clip-${spec.group}-${spec.name}`;
  const plot = {
    x: MARGIN.left,
    y: MARGIN.top,
    width: width - MARGIN.left - MARGIN.right,
    height: height - MARGIN.top - MARGIN.bottom,
  };
  const cross = svg("g", { class: "cross", visibility: "hidden" });
  const box = svg("rect", { class: "selection", y: plot.y, height: plot.height, visibility: "hidden" });
  const root = svg(
    "svg",
    {
      viewBox: `0 0 ${width} ${height}`,
      role: "img",
      tabindex: "0",
      "aria-label": described(spec),
      "data-key": `chart:${spec.group}:${spec.name}`,
    },
    svg(
      "clipPath",
      { id: clip },
      svg("rect", { x: plot.x - 5, y: plot.y - 5, width: plot.width + 10, height: plot.height + 10 }),
    ),
    yAxis(atY, { width, height, format: spec.tick ?? spec.format }),
    xAxis(atX, { width, height, axis, x: spec.x, xTicks: spec.xTicks, log: spec.logX }),
    svg(
      "g",
      { "clip-path": `url(#${clip})` },
      series.map((s) => drawSeries(s, atX, atY)),
      cross,
    ),
    box,
  );
  const chart = { spec, root, atX, atY, cross, plot, box };
  linked.set(`${spec.group}:${spec.name}`, chart);
  listen(chart);
  return el("figure", { class: "chart", "data-chart": spec.name }, heading, root);
}

/** What the chart says to those who cannot see it. */
function described({ title, unit, series, format, x }) {
  const last = series
    .filter((s) => s.kind !== "faint")
    .map((s) => {
      const y = s.y.filter((v) => v !== null);
      return `${data.runs[s.run]?.name ?? ""} ${s.label ?? ""} ends at ${format(y[y.length - 1])}`;
    });
  return `${title}${unit ? `, ${unit}` : ""}, over ${x.name}. ${last.slice(0, 8).join("; ")}. Arrow keys read values.`;
}

/** The pixel of the drawing under the pointer. */
function pixel(chart, event) {
  const box = chart.root.getBoundingClientRect();
  return ((event.clientX - box.left) / box.width) * chart.spec.width;
}

function listen(chart) {
  const { root, plot, spec } = chart;
  let start = null;
  const inside = (p) => p >= plot.x - 2 && p <= plot.x + plot.width + 2;
  const clamp = (p) => Math.max(plot.x, Math.min(plot.x + plot.width, p));
  root.addEventListener("pointermove", (event) => {
    const p = pixel(chart, event);
    if (start !== null) return select(chart, clamp(start), clamp(p));
    if (inside(p)) hover(chart, chart.atX.invert(clamp(p)), event.clientX, event.clientY);
    else leave(spec.group);
  });
  root.addEventListener("pointerleave", () => leave(spec.group));
  root.addEventListener("blur", () => leave(spec.group));
  root.addEventListener("keydown", (event) => step(chart, event));
  if (!spec.onZoom) return;
  root.classList.add("zooms");
  root.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || event.pointerType === "touch" || !inside(pixel(chart, event))) return;
    start = pixel(chart, event);
    root.setPointerCapture(event.pointerId);
  });
  root.addEventListener("pointerup", (event) => {
    if (start === null) return;
    const ends = [clamp(start), clamp(pixel(chart, event))].sort((a, b) => a - b);
    start = null;
    chart.box.setAttribute("visibility", "hidden");
    if (ends[1] - ends[0] > 6) spec.onZoom(ends.map(chart.atX.invert));
  });
  root.addEventListener("dblclick", () => spec.onZoom(null));
}

function select(chart, from, to) {
  leave(chart.spec.group);
  attributes(chart.box, { x: Math.min(from, to), width: Math.abs(to - from), visibility: "visible" });
}

/** The arrow keys move the crosshair by a pixel of data. */
function step(chart, event) {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (event.key === "Escape") return leave(chart.spec.group);
  if (!by) return;
  event.preventDefault();
  const { plot, atX, root } = chart;
  const stride = (event.shiftKey ? 40 : 8) * by;
  const from = chart.at === undefined ? (by > 0 ? plot.x - stride : plot.x + plot.width - stride) : atX(chart.at);
  const p = Math.max(plot.x, Math.min(plot.x + plot.width, from + stride));
  const box = root.getBoundingClientRect();
  hover(chart, atX.invert(p), box.left + (p / chart.spec.width) * box.width, box.top + 20);
}

/** Moves the crosshairs of the group to `x`, and shows the values of `chart` beside the pointer. */
function hover(chart, x, clientX, clientY) {
  for (const other of linked.values())
    if (other.spec.group === chart.spec.group && other.root.isConnected) crosshair(other, x);
  const rows = readings(chart, x);
  const { axis, x: shown } = chart.spec;
  const place = axis && axis !== "seconds" ? Math.round(x) : x;
  // Between the values of a parameter nothing was measured: the nearest one is read.
  const head = el("p", { class: "tip-head" }, shown.format(axis ? place : (rows[0]?.s.x[rows[0].i] ?? x)));
  showTip(clientX, clientY, [
    head,
    el(
      "table",
      null,
      rows.map(({ s, value, text }) =>
        el(
          "tr",
          null,
          el("td", null, swatch(s.colour, s.dash)),
          el("td", null, data.runs[s.run]?.name ?? ""),
          el("td", { class: "muted" }, s.label ?? ""),
          el("td", { class: "number" }, text ?? chart.spec.format(value)),
        ),
      ),
    ),
  ]);
}

/** What each series says at `x`: the nearest value, if it is near. */
function readings(chart, x) {
  const near = 24;
  return chart.spec.series
    .filter((s) => s.kind !== "faint" && s.x.length)
    .flatMap((s) => {
      const i = nearest(s.x, x);
      if (s.y[i] === null || Math.abs(chart.atX(s.x[i]) - chart.atX(x)) > near) return [];
      const error = s.error && isNumber(s.error[i]) ? percentError(s.y[i], s.error[i]) : null;
      const text = chart.spec.reading ? chart.spec.reading(s, i) : error;
      return [{ s, i, value: s.y[i], text }];
    });
}

function crosshair(chart, x) {
  const { cross, plot, atX, atY } = chart;
  chart.at = x;
  const p = atX(x);
  const outside = !(p >= plot.x - 1 && p <= plot.x + plot.width + 1);
  cross.setAttribute("visibility", outside ? "hidden" : "visible");
  if (outside) return;
  const dots = readings(chart, x)
    .filter(({ value }) => !(atY.log && value <= 0))
    .map(({ s, i, value }) =>
      svg("circle", { cx: atX(s.x[i]), cy: atY(value), r: 4, style: { "--colour": s.colour } }),
    );
  cross.replaceChildren(svg("line", { x1: p, x2: p, y1: plot.y, y2: plot.y + plot.height }), ...dots);
}

function leave(group) {
  hideTip();
  for (const chart of linked.values()) if (chart.spec.group === group) chart.cross.setAttribute("visibility", "hidden");
}
