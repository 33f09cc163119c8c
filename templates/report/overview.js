// The runs in numbers: a card for each of a few, a table of many.

const CARDS = 4;

/** The numbers of a run: `[name, value, what it is compared with]`. */
function numbers(run) {
  const { curves } = run;
  const { medians } = curves;
  const last = [...curves.evals].reverse().find((e) => isNumber(e.val_loss));
  const best = curves.best_eval;
  const forecast = run.plan.forecast;
  const inherited = run.manifest?.continued_from?.step;
  const own = (text) => (isNumber(inherited) ? `${text} in this run` : null);
  const bestText =
    best && last && best.step !== last.step
      ? `best ${loss(best.val_loss)} at step ${count(best.step)}`
      : last
        ? `at step ${count(last.step)}`
        : "not evaluated";
  return [
    ["val loss", loss(last?.val_loss), bestText],
    isNumber(last?.val_tokens)
      ? ["measured on", `${count(last.val_tokens)} tokens`, isNumber(last.val_loss_se) ? `standard error ${significant(last.val_loss_se, 2)}` : last.val_rows === 1 ? "one row" : ""]
      : null,
    isNumber(last?.val_bits_per_byte) ? ["bits/byte", loss(last.val_bits_per_byte), bitsError(last) > 0 ? `standard error ${significant(bitsError(last), 2)}` : ""] : null,
    run.test
      ? ["test loss", loss(run.test.loss), `of step ${count(run.test.step)}, on ${count(run.test.tokens)} tokens${run.test.standard_error > 0 ? `, standard error ${significant(run.test.standard_error, 2)}` : ""}`]
      : null,
    ["train loss", loss(curves.final_loss), curves.steps ? `at step ${count(curves.last_step)}` : "no step yet"],
    [
      "steps",
      count(curves.last_step),
      [`of ${count(run.steps)}`, own(count(curves.last_step - inherited))].filter(Boolean).join(", "),
    ],
    [
      "tokens",
      large(run.tokens ?? curves.tokens),
      [
        own(large(run.own_tokens ?? curves.own_tokens)),
        isNumber(run.plan.parameters) ? `${large(run.plan.parameters)} params` : null,
      ]
        .filter(Boolean)
        .join(", "),
    ],
    [
      "tokens/s",
      large(medians.tokens_per_second),
      forecast ? `planned ${large(forecast.tokens_per_second)}` : "median",
    ],
    ["step", milliseconds(medians.step_ms), forecast ? `planned ${milliseconds(1e3 * forecast.step_seconds)}` : "median"],
    ["memory", bytes(run.peak_rss), isNumber(run.plan.memory_bytes) ? `planned ${bytes(run.plan.memory_bytes)}` : ""],
    [
      "time",
      duration(run.wall_seconds ?? curves.seconds),
      own(duration(run.own_wall_seconds ?? curves.own_seconds)) ?? (isNumber(run.wall_seconds) ? "all sessions" : "in steps"),
    ],
    isNumber(medians.mfu) ? ["MFU", percent(medians.mfu), "median"] : null,
  ].filter(Boolean);
}

function layoutText(mesh) {
  if (!mesh) return "";
  const { mode, stages, replicas } = mesh;
  const parts = [
    stages > 1 ? counted(stages, "stage") : null,
    replicas > 1 ? counted(replicas, "replica") : null,
  ].filter(Boolean);
  return parts.length ? `${mode}, ${parts.join(" × ")}` : mode;
}

/** A list of what is wrong; null if nothing is. */
const problemList = (lines) =>
  lines.length
    ? el(
        "ul",
        { class: "complaints" },
        lines.map((line) => el("li", null, line)),
      )
    : null;

/** What is wrong with a run, if anything is. */
const complaints = (run) =>
  problemList([run.error, ...run.problems].filter((line, i, all) => line && all.indexOf(line) === i));

function card(run, index) {
  const tile = ([name, value, more]) =>
    el(
      "div",
      { class: "tile" },
      el("dt", null, name),
      el("dd", null, el("strong", null, value), el("span", { class: "muted" }, more)),
    );
  const machine = run.manifest?.machine;
  const where = [
    layoutText(run.manifest?.layout),
    machine?.cpu ?? machine?.arch,
    run.manifest ? `started ${moment(run.manifest.started)}` : null,
  ];
  return el(
    "article",
    { class: "card", "data-run": index, style: { "--colour": runColour(index) } },
    el("header", null, el("h3", null, runName(index)), badge(runStatus(run))),
    el("p", { class: "muted" }, where.filter(Boolean).join(" · ")),
    complaints(run),
    el("dl", { class: "tiles" }, numbers(run).map(tile)),
  );
}

function overviewTable() {
  const tested = data.runs.some((run) => run.test);
  const rows = data.runs.map((run, index) => {
    const { medians, best_eval: best } = run.curves;
    const last = [...run.curves.evals].reverse().find((e) => isNumber(e.val_loss));
    return [
      el("span", { class: "run-name" }, runName(index)),
      badge(runStatus(run)),
      `${count(run.curves.last_step)} / ${count(run.steps)}`,
      loss(last?.val_loss),
      loss(best?.val_loss),
      loss(last?.val_bits_per_byte),
      ...(tested ? [loss(run.test?.loss)] : []),
      loss(run.curves.final_loss),
      large(run.tokens ?? run.curves.tokens),
      large(medians.tokens_per_second),
      milliseconds(medians.step_ms),
      bytes(run.peak_rss),
      duration(run.wall_seconds ?? run.curves.seconds),
    ];
  });
  const column = (name) => ({ name, number: true });
  const columns = [
    { name: "run" },
    { name: "status" },
    ...["steps", "val loss", "best", "bits/byte"].map(column),
    ...(tested ? [column("test loss")] : []),
    ...["train loss", "tokens", "tokens/s", "step", "memory", "time"].map(column),
  ];
  const forked = data.runs.some((run) => run.manifest?.continued_from);
  const totals = forked ? "; steps, tokens and time with those of the runs from whose checkpoints they started" : "";
  return table(`All runs: losses at the end, medians of speed${totals}`, columns, rows, { rowHeads: true, tall: true });
}

function renderOverview() {
  if (!data.runs.length) return [empty("There is no run yet.")];
  const incomparable = data.incomparable.length ? [problemList(data.incomparable)] : [];
  incomparable.push(...data.notes.map(note));
  if (data.runs.length <= CARDS) return [...incomparable, el("div", { class: "cards" }, data.runs.map(card))];
  const wrong = data.runs.map((run) => [run, complaints(run)]).filter(([, list]) => list);
  return [...incomparable, overviewTable(), ...wrong.map(([run, list]) => el("div", { class: "wrong" }, el("h3", null, fullName(run)), list))];
}
