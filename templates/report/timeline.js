// What each stage or rank does when, in one step: the plan's timeline above the measured one, on the same axis.

const ACTIVITIES = {
  forward: ["forward", "F"],
  backward: ["backward", "B"],
  input: ["input gradients", "I"],
  weight: ["weight gradients", "W"],
  update: ["norm and update", "U"],
  reduce: ["all-reduce", "R"],
  collective: ["collective", "C"],
  wait: ["sending, receiving, waiting", ""],
};
const activityColour = (what) => `var(--do-${what})`;
const ROW = 26;
const LANE = 7;
const LEFT = 116;
const RIGHT = 66;

/** `F3`; on the second chunk `F3'`, from the fourth on `F3:3`. */
function barLabel({ what, mb, chunk = 0 }) {
  const tail = chunk === 0 ? "" : chunk < 3 ? "'".repeat(chunk) : `:${chunk}`;
  return `${ACTIVITIES[what ?? "wait"][1]}${mb ?? ""}${tail}`;
}

function rowName({ stage, rank, replica }, replicas) {
  if (rank === null) return `stage ${stage}`;
  if (stage === null) return `rank ${rank}`;
  return replicas > 1 ? `rank ${rank} (${stage}.${replica})` : `rank ${rank}`;
}

/** A picture of `gantt`; `end` is where its axis ends, and `stretch` what its times are drawn with. */
function ganttChart(gantt, { title, width, end, stretch, replicas, axis, labelled }) {
  const pitch = ROW + LANE + 8;
  const top = 6;
  const bottom = top + gantt.rows.length * pitch;
  const height = bottom + (labelled ? 36 : 4);
  const at = scale(0, end, LEFT, width - RIGHT, false);
  const bars = new WeakMap();
  const rows = gantt.rows.map((row, i) => {
    const y = top + i * pitch;
    const draw = (bar) => {
      const beside = bar.what === "reduce";
      const [from, to] = [at(bar.start * stretch), at(bar.end * stretch)];
      const what = bar.what ?? "wait";
      const place = {
        x: from,
        y: beside ? y + ROW + 1 : y,
        width: Math.max(0.4, to - from),
        height: beside ? LANE - 1 : ROW,
      };
      const rect = svg("rect", {
        class: `do ${what}`,
        ...place,
        rx: to - from > 6 ? 2 : 0,
        style: { "--colour": activityColour(what), fill: bar.what ? "var(--colour)" : `url(#${hatchId(title)})` },
      });
      bars.set(rect, [bar, row]);
      const label = barLabel(bar);
      const fits = !beside && bar.what && to - from > 7.2 * label.length + 4;
      return fits
        ? [
            rect,
            svg("text", { class: "do-text", x: (from + to) / 2, y: y + ROW / 2 + 4, "text-anchor": "middle" }, label),
          ]
        : [rect];
    };
    return [
      svg(
        "text",
        { class: "row-name", x: LEFT - 10, y: y + ROW / 2 + 4, "text-anchor": "end" },
        rowName(row, replicas),
      ),
      ...row.bars.flatMap(draw),
      svg(
        "text",
        { class: "row-idle", x: width - RIGHT + 8, y: y + ROW / 2 + 4 },
        isNumber(row.idle) ? percent(row.idle) : "",
      ),
    ];
  });
  const tracks = gantt.rows.map((_, i) =>
    svg("rect", { class: "track", x: LEFT, y: top + i * pitch, width: width - LEFT - RIGHT, height: ROW }),
  );
  const ticks = linearTicks(0, end * axis.factor, Math.floor((width - LEFT - RIGHT) / 90));
  const mark = (value) => {
    const x = at(value / axis.factor);
    const line = svg("line", { class: "grid", x1: x, x2: x, y1: top, y2: bottom - 4 });
    return !labelled
      ? [line]
      : [line, svg("text", { class: "tick-text", x, y: bottom + 14, "text-anchor": "middle" }, significant(value, 4))];
  };
  const root = svg(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": ganttText(title, gantt, replicas) },
    hatching(title),
    tracks,
    ticks.flatMap(mark),
    rows.flat(),
    labelled
      ? svg(
          "text",
          { class: "axis-label", x: (LEFT + width - RIGHT) / 2, y: bottom + 30, "text-anchor": "middle" },
          axis.label,
        )
      : null,
  );
  tipped(root, (target) => {
    const found = bars.get(target);
    return found ? barTip(...found, gantt) : null;
  });
  return el(
    "figure",
    { class: "chart gantt", "data-chart": title.split(" ")[0].toLowerCase() },
    el("figcaption", null, el("span", { class: "chart-title" }, title), el("span", { class: "unit right" }, "idle")),
    root,
  );
}

const hatchId = (title) => `hatch-${title.toLowerCase().replace(/[^a-z0-9]+/g, "-")}`;

/** What waiting is filled with: it is no work, and must not look like it where there are no colours. */
const hatching = (title) =>
  svg(
    "defs",
    null,
    svg(
      "pattern",
      { id: hatchId(title), width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      svg("rect", { width: 6, height: 6, style: { fill: "var(--soft)" } }),
      svg("rect", { width: 2, height: 6, style: { fill: "var(--do-wait)" } }),
    ),
  );

const ganttText = (title, gantt, replicas) =>
  `${title}. ${gantt.rows
    .slice(0, 16)
    .map((row) => `${rowName(row, replicas)}: ${counted(row.bars.length, "part")}, idle ${percent(row.idle)}`)
    .join("; ")}`;

function barTip(bar, row, { in_seconds: inSeconds }) {
  const [name] = ACTIVITIES[bar.what ?? "wait"];
  const time = (v) => (inSeconds ? milliseconds(1e3 * v) : significant(v, 3));
  const of = isNumber(bar.mb) ? `, micro-batch ${bar.mb}${bar.chunk ? `, chunk ${bar.chunk}` : ""}` : "";
  const unit = inSeconds ? "" : " units of a forward";
  return [
    el("p", { class: "tip-head" }, swatch(activityColour(bar.what ?? "wait")), `${name}${of}`),
    el("p", null, `${rowName(row, 1)}: ${time(bar.start)} to ${time(bar.end)}, ${time(bar.end - bar.start)}${unit}`),
  ];
}

/** What was left out of a picture, in words. */
function leftOut(gantt, name) {
  const parts = [
    gantt.rows_left_out ? `${counted(gantt.rows_left_out, "row")} of ${name} left out` : null,
    gantt.shown < gantt.end ? `the first ${percent(gantt.shown / gantt.end, 0)} of ${name} shown` : null,
  ].filter(Boolean);
  return parts.length ? note(`Too much to draw: ${parts.join(", ")}..`) : null;
}

/** Both pictures of a run. */
function timelines(run, width) {
  const { timeline: plan } = run.plan;
  const { measured_timeline: measured } = run;
  const replicas = run.manifest?.layout?.replicas ?? 1;
  const used = new Set(
    [plan, measured].filter(Boolean).flatMap((g) => g.rows.flatMap((row) => row.bars.map((bar) => bar.what ?? "wait"))),
  );
  const legend = key(
    Object.entries(ACTIVITIES)
      .filter(([what]) => used.has(what))
      .map(([what, [name]]) => [name, activityColour(what), what === "wait"]),
  );
  const inTime = plan?.in_seconds || measured;
  const end = Math.max(plan?.in_seconds ? plan.shown : 0, measured?.shown ?? 0) || plan?.shown;
  const axis = inTime
    ? { factor: 1e3, label: "ms since the step began" }
    : { factor: 1, label: "units of a chunk's forward" };
  // A plan without known speeds has no time of its own: it is drawn as long as what was measured.
  const stretch = plan && !plan.in_seconds && measured ? measured.end / plan.end : 1;
  const common = { width, end, replicas, axis };
  return el(
    "div",
    null,
    legend,
    plan
      ? ganttChart(plan, { ...common, title: "Planned", stretch, labelled: !measured })
      : empty("The plan has no timeline: it cannot be read, or has too many parts."),
    measured
      ? ganttChart(measured, {
          ...common,
          title: `Measured in step ${count(measured.step)}`,
          stretch: 1,
          labelled: true,
        })
      : note("No step of this run was watched, so there is no measurement to compare with the plan."),
    stretch !== 1
      ? note(
          "The plan does not know the speeds of these devices (runner calibrate measures them), so it counts in \
           units of a forward, drawn here as long as the measured step.",
        )
      : null,
    plan ? leftOut(plan, "the plan") : null,
    measured ? leftOut(measured, "the step") : null,
  );
}

function renderTimeline(width) {
  const runs = shown().filter(({ run }) => run.plan.timeline || run.measured_timeline);
  if (!runs.length) return [empty(shown().length ? "These runs have no plan that can be read." : nothingShown())];
  if (data.runs.length === 1) return [timelines(runs[0].run, width)];
  const most = runs.findIndex(({ run }) => run.measured_timeline || (run.manifest?.layout?.stages ?? 1) > 1);
  return runs.map(({ run, index }, i) =>
    fold(
      `timeline:${run.id}`,
      el(
        "span",
        { class: "run-name" },
        runName(index),
        el("span", { class: "muted" }, ` ${layoutText(run.manifest?.layout)}`),
      ),
      () => timelines(run, width - 2),
      i === Math.max(0, most),
    ),
  );
}
