// A sweep: parallel coordinates, what mattered, and the table of points.

const RAMPS = {
  light: ["#d3b48c", "#7fae9a", "#2f7f9d", "#1b4a86", "#2a1a5e"],
  dark: ["#5b4636", "#4f6f6a", "#3f9bb0", "#7fd0c0", "#f4f0a6"],
};

/** A colour between the worst (0) and the best (1). */
function ramp(share) {
  const stops = RAMPS[isDark() ? "dark" : "light"];
  const at = Math.max(0, Math.min(1, share)) * (stops.length - 1);
  const i = Math.min(stops.length - 2, Math.floor(at));
  const part = (hex, k) => parseInt(hex.slice(1 + 2 * k, 3 + 2 * k), 16);
  const mix = [0, 1, 2].map((k) =>
    Math.round(part(stops[i], k) + (at - i) * (part(stops[i + 1], k) - part(stops[i], k))),
  );
  return `rgb(${mix.join(" ")})`;
}

const valueText = (value) =>
  value === null || value === undefined
    ? MISSING
    : isNumber(value)
      ? significant(value, 5)
      : typeof value === "string"
        ? value
        : JSON.stringify(value);

/** Columns that can be sorted by: name, whether it is a number, and the value of a row. */
function sweepColumns({ parameters, metric }) {
  const parameter = (name) => ({
    name,
    id: `p:${name}`,
    get: (row) => row.values[name],
    text: (row) => valueText(row.values[name]),
  });
  return [
    { name: "point", id: "point", get: (row) => row.point, text: (row) => String(row.point) },
    ...parameters.map(parameter),
    { name: metric, id: "objective", get: (row) => row.objective, text: (row) => significant(row.objective, 6) },
    { name: "status", id: "status", get: (row) => row.status, text: (row) => badge(row.diverged ? "diverged" : row.status) },
    { name: "steps", id: "steps", get: (row) => row.steps, text: (row) => count(row.steps) },
    { name: "time", id: "seconds", get: (row) => row.seconds, text: (row) => duration(row.seconds) },
    { name: "run", id: "run", get: (row) => row.run, text: (row) => row.run ?? MISSING },
  ];
}

/** Rows as sorted; what has no value is last either way. */
function sorted(sweep, columns) {
  if (state.sort.column === "size") return sweep.rows;
  const column = columns.find((c) => c.id === state.sort.column) ?? columns[0];
  const sign = state.sort.down ? -1 : 1;
  const compare = (a, b) =>
    isNumber(a) && isNumber(b) ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  return [...sweep.rows].sort((a, b) => {
    const [x, y] = [column.get(a), column.get(b)].map((v) => v ?? null);
    if (x === null || y === null) return (x === null) - (y === null);
    return sign * compare(x, y) || a.point - b.point;
  });
}

/** How good each row is, from 0 to 1; null without an objective. */
function grades({ rows, minimize }) {
  const known = rows.map((row) => row.objective).filter(isNumber);
  const [lo, hi] = [Math.min(...known), Math.max(...known)];
  const grade = (v) => (hi > lo ? (v - lo) / (hi - lo) : 1);
  return new Map(
    rows.map((row) => [
      row.point,
      isNumber(row.objective) ? (minimize && hi > lo ? 1 - grade(row.objective) : grade(row.objective)) : null,
    ]),
  );
}

function sweepTable(sweep, passes) {
  const columns = sweepColumns(sweep);
  const sort = (id) => {
    state.sort = {
      column: id,
      down: state.sort.column === id ? !state.sort.down : id === "objective" && !sweep.minimize,
    };
    redraw("sweep");
  };
  const order = (c) => (state.sort.column === c.id ? (state.sort.down ? "descending" : "ascending") : "none");
  const numeric = (c) => sweep.rows.some((row) => isNumber(c.get(row)));
  const head = columns.map((c) =>
    el(
      "th",
      { scope: "col", class: numeric(c) ? "number" : null, "aria-sort": order(c) },
      el(
        "button",
        { type: "button", class: "sort", "data-key": `sort:${c.id}`, on: { click: () => sort(c.id) } },
        c.name,
      ),
    ),
  );
  const row = (r) =>
    el(
      "tr",
      {
        class: passes(r) ? null : "dim",
        "data-point": r.point,
        tabindex: "0",
        on: {
          pointerenter: () => lift(r.point),
          pointerleave: () => lift(null),
          focus: () => lift(r.point),
          blur: () => lift(null),
        },
      },
      columns.map((c) =>
        el(
          "td",
          { class: numeric(c) ? "number" : null },
          c.text(r),
          c.id === "objective" && sweep.best.includes(r.point) ? el("span", { class: "best" }, "best") : null,
        ),
      ),
    );
  const rows = sorted(sweep, columns);
  return el(
    "div",
    {
      class: rows.length > 16 ? "scroll tall" : "scroll",
      tabindex: "0",
      role: "region",
      "aria-label": "Points of the sweep",
    },
    el(
      "table",
      { class: "points" },
      el("caption", null, `Points of the sweep; a heading sorts by its column`),
      el("thead", null, el("tr", null, head)),
      el("tbody", null, rows.map(row)),
    ),
  );
}

/** Brings the line and the row of a point to the front. */
function lift(point) {
  const body = byId("sweep").querySelector(".body");
  body.classList.toggle("lifting", point !== null);
  for (const node of body.querySelectorAll("[data-point]"))
    node.classList.toggle("lifted", node.dataset.point === String(point));
  const line = body.querySelector(".parallel path.lifted");
  if (line) line.parentNode.append(line);
}

/** An axis of the parallel coordinates: `{id, name, get, at, ticks}`, from `bottom` to `top`. */
function coordinate({ id, name, get, rows, top, bottom, flip }) {
  const values = rows.map(get).filter((v) => v !== null && v !== undefined);
  const numeric = values.length > 0 && values.every(isNumber);
  const [from, to] = flip ? [top, bottom] : [bottom, top];
  if (!numeric) {
    const kinds = [...new Set(values.map(valueText))].sort();
    const at = (v) =>
      kinds.length > 1 ? from + (kinds.indexOf(valueText(v)) / (kinds.length - 1)) * (to - from) : (from + to) / 2;
    return { id, name, get, at, ticks: kinds.map((kind) => [at(kind), kind]) };
  }
  const [lo, hi] = [Math.min(...values), Math.max(...values)];
  const log = lo > 0 && hi / lo >= 8 && id !== "objective";
  const place = lo === hi ? () => (from + to) / 2 : scale(lo, hi, from, to, log);
  const distinct = [...new Set(values)].sort((a, b) => a - b);
  const few = distinct.length <= 7 && id !== "objective";
  const candidates = few || lo === hi ? distinct : (log ? logTicks : linearTicks)(lo, hi, 5);
  // Labels that would touch are left out.
  const ticks = [];
  for (const value of candidates) {
    const y = place(value);
    if (ticks.every(([other]) => Math.abs(other - y) > 13)) ticks.push([y, significant(value, 4)]);
  }
  return { id, name: log ? `${name} (log)` : name, get, at: place, ticks };
}

const known = (value) => value !== null && value !== undefined;

/** Lines that meet in one value are a few pixels apart, the best on top, so that each can be followed. */
function spread(axis, rows, quality) {
  const meeting = Map.groupBy(
    rows.filter((row) => known(axis.get(row))),
    (row) => valueText(axis.get(row)),
  );
  const shifts = new Map();
  for (const group of meeting.values()) {
    const order = [...group].sort((a, b) => (quality.get(b.point) ?? -1) - (quality.get(a.point) ?? -1));
    const gap = Math.min(3.5, 20 / order.length);
    order.forEach((row, i) => shifts.set(row.point, (i - (order.length - 1) / 2) * gap));
  }
  return shifts;
}

/** A path that leaves and meets each axis at a right angle. */
function curvedPath(points) {
  let path = "";
  points.forEach(([x, y], i) => {
    if (y === null) return;
    const before = points[i - 1];
    if (!before || before[1] === null) path += `M${x.toFixed(1)},${y.toFixed(1)}`;
    else
      path += `C${((x + before[0]) / 2).toFixed(1)},${before[1].toFixed(1)} ${((x + before[0]) / 2).toFixed(1)},${y.toFixed(1)} ${x.toFixed(1)},${y.toFixed(1)}`;
  });
  return path;
}

function parallel(sweep, width, passes) {
  const height = 340;
  const [top, bottom] = [52, height - 22];
  const specs = [
    ...sweep.parameters.map((name) => ({ id: `p:${name}`, name, get: (row) => row.values[name] })),
    { id: "objective", name: sweep.label, get: (row) => row.objective, flip: sweep.minimize },
  ];
  const axes = specs.map((s) => coordinate({ ...s, rows: sweep.rows, top, bottom }));
  const [left, right] = [64, width - 84];
  const x = (i) => (axes.length > 1 ? left + (i / (axes.length - 1)) * (right - left) : left);
  const quality = grades(sweep);
  const apart = axes.map((axis) => spread(axis, sweep.rows, quality));
  const line = (row) => {
    const points = axes.map((axis, i) => [
      x(i),
      known(axis.get(row)) ? axis.at(axis.get(row)) + (apart[i].get(row.point) ?? 0) : null,
    ]);
    const grade = quality.get(row.point);
    const path = svg("path", {
      d: curvedPath(points),
      class: `${grade === null ? "unknown" : ""} ${passes(row) ? "" : "dim"}`,
      "data-point": row.point,
      style: { "--colour": grade === null ? "var(--muted)" : ramp(grade) },
    });
    path.addEventListener("pointerenter", () => lift(row.point));
    path.addEventListener("pointerleave", () => lift(null));
    return tipped(path, () => [
      el("p", { class: "tip-head" }, `point ${row.point}, ${row.diverged ? "diverged" : row.status}`),
      el(
        "table",
        null,
        specs.map((s) => el("tr", null, el("td", null, s.name), el("td", { class: "number" }, valueText(s.get(row))))),
      ),
    ]);
  };
  const order = [...sweep.rows].sort((a, b) => (quality.get(a.point) ?? -1) - (quality.get(b.point) ?? -1));
  return el(
    "figure",
    { class: "chart parallel", "data-chart": "parallel" },
    el(
      "figcaption",
      null,
      el("span", { class: "chart-title" }, "Parallel coordinates"),
      el(
        "span",
        { class: "unit" },
        `a line a point; darker towards the best ${sweep.label}; drag along an axis to choose`.replace(
          "darker",
          isDark() ? "brighter" : "darker",
        ),
      ),
    ),
    svg(
      "svg",
      {
        viewBox: `0 0 ${width} ${height}`,
        role: "img",
        "aria-label": `Parallel coordinates of ${counted(sweep.rows.length, "point")} over ${sweep.parameters.join(", ")} and ${sweep.label}; the table below has the values`,
      },
      svg("g", { class: "lines" }, order.map(line)),
      axes.map((axis, i) =>
        drawCoordinate(axis, x(i), { top, bottom, last: i === axes.length - 1, first: i === 0, gap: x(1) - x(0) }),
      ),
    ),
  );
}

/** The name of a coordinate, or the last key of its path if the whole path is wider than `gap` pixels. */
const coordinateName = ({ name }, gap) => (name.length * 7.5 > gap ? name.split(".").at(-1) : name);

function drawCoordinate(axis, x, { top, bottom, last, first, gap }) {
  const side = last ? { x: x + 9, "text-anchor": "start" } : { x: x - 9, "text-anchor": "end" };
  const range = state.brushes.get(axis.id);
  const zone = svg("rect", { class: "brush-zone", x: x - 14, y: top - 6, width: 28, height: bottom - top + 12 });
  const chosen = svg("rect", {
    class: "brush",
    x: x - 6,
    width: 12,
    y: range ? range[0] : 0,
    height: range ? range[1] - range[0] : 0,
    visibility: range ? "visible" : "hidden",
  });
  brush(zone, chosen, axis);
  return svg(
    "g",
    { class: "coordinate" },
    svg("line", { x1: x, x2: x, y1: top, y2: bottom }),
    axis.ticks
      .map(([y, text]) => [
        svg("line", { x1: x - 3, x2: x + 3, y1: y, y2: y }),
        svg("text", { class: "tick-text", y: y + 4, ...side }, text.length > 12 ? `${text.slice(0, 11)}…` : text),
      ])
      .flat(),
    svg(
      "text",
      {
        class: "axis-name",
        x: first ? 6 : last ? x + 78 : x,
        y: 18,
        "text-anchor": first ? "start" : last ? "end" : "middle",
      },
      coordinateName(axis, gap),
    ),
    chosen,
    zone,
  );
}

/** Dragging along an axis lets through what lies in the range; a click lets all through. */
function brush(zone, chosen, axis) {
  let start = null;
  const y = (event) => {
    const root = zone.ownerSVGElement;
    const box = root.getBoundingClientRect();
    return ((event.clientY - box.top) / box.height) * root.viewBox.baseVal.height;
  };
  zone.addEventListener("pointerdown", (event) => {
    start = y(event);
    zone.setPointerCapture(event.pointerId);
  });
  zone.addEventListener("pointermove", (event) => {
    if (start === null) return;
    const ends = [start, y(event)].sort((a, b) => a - b);
    attributes(chosen, { y: ends[0], height: ends[1] - ends[0], visibility: "visible" });
  });
  zone.addEventListener("pointerup", (event) => {
    const ends = [start, y(event)].sort((a, b) => a - b);
    start = null;
    if (ends[1] - ends[0] > 4) state.brushes.set(axis.id, [...ends, axis]);
    else state.brushes.delete(axis.id);
    redraw("sweep");
  });
}

/** Whether a row lies in every chosen range. */
const passesBrushes = (row) =>
  [...state.brushes.values()].every(([from, to, axis]) => {
    const value = axis.get(row);
    if (!known(value)) return false;
    const y = axis.at(value);
    return y >= from - 1 && y <= to + 1;
  });

/** The settings of a row that differ from those of the row before it. */
function changedSettings(row, before) {
  const names = Object.keys(row.values).filter((name) =>
    before ? valueText(row.values[name]) !== valueText(before.values[name]) : known(row.values[name]),
  );
  return names.map((name) => `${name} ${valueText(row.values[name])}`).join(", ");
}

/** Bars of the values of `name`, one for each point that has one. */
function speedBars(sweep, name, title, format) {
  const most = Math.max(...sweep.rows.map((row) => row[name]).filter(isNumber), Number.MIN_VALUE);
  const bars = sweep.rows.map((row, i) => {
    if (!isNumber(row[name])) return [];
    const settings = changedSettings(row, sweep.rows[i - 1]);
    return [
      el("span", { class: "bar-name" }, `${row.point}`, settings ? el("span", { class: "muted" }, ` ${settings}`) : null),
      stackedBar([[`point ${row.point}`, row[name], "var(--accent)"]], most, format, title),
      el("span", { class: "bar-value" }, format(row[name])),
    ];
  });
  return [el("h4", null, title), el("div", { class: "bars", "data-bars": name }, bars.flat())];
}

/** Tokens per second and MFU of each point. */
function speed(sweep) {
  if (!sweep.rows.some((row) => isNumber(row.tokens_per_second))) return null;
  const unknown = "MFU is unknown, because the peak FLOP/s of the device are; set them for new runs, for example \
      RUNNER_PEAK_FLOPS=400e9.";
  return el(
    "div",
    null,
    el(
      "h3",
      null,
      "Speed",
      el("span", { class: "unit" }, " medians over the steps; beside each point, what differs from the point before it"),
    ),
    speedBars(sweep, "tokens_per_second", "Tokens per second", (v) => large(v)),
    sweep.rows.some((row) => isNumber(row.mfu))
      ? speedBars(sweep, "mfu", "MFU", (v) => percent(v))
      : note(unknown),
  );
}

function renderSweep(width) {
  const { sweep } = data;
  if (!sweep.rows.length) return [problemList(sweep.problems), empty("The sweep has no points.")];
  const finished = sweep.rows.filter((row) => isNumber(row.objective)).length;
  const passing = sweep.rows.filter(passesBrushes).length;
  const clear = () => {
    state.brushes.clear();
    redraw("sweep");
  };
  if (sweep.ladder)
    return [
      ...ladderResults(sweep, width),
      problemList(sweep.problems),
      el("p", { class: "muted" }, `${counted(sweep.rows.length, "point")}, ${count(finished)} with ${sweep.label}.`),
      sweepTable(sweep, () => true),
    ];
  return [
    conclusion(sweep),
    problemList(sweep.problems),
    axisCharts(sweep, width),
    settingCurves(sweep, width),
    settingsTable(sweep),
    el(
      "p",
      { class: "muted" },
      `${counted(sweep.rows.length, "point")}, ${count(finished)} with ${sweep.label}; ${sweep.minimize ? "less" : "more"} is better.`,
      state.brushes.size
        ? el(
            "button",
            { type: "button", class: "quiet", "data-key": "unbrush", on: { click: clear } },
            `${count(passing)} chosen: show all`,
          )
        : null,
    ),
    parallel(sweep, width, passesBrushes),
    sweepTable(sweep, passesBrushes),
    sweep.metric === "tokens_per_second" ? speed(sweep) : null,
  ];
}
