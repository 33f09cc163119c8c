// Multiple choice over the steps, and every evaluation as a table.

/** By which loss of an answer a score chooses. */
const SMALLEST = { acc: "loss", acc_norm: "loss per token", acc_norm_chars: "loss per character" };

/** The scores of tasks that some run has. */
const scores = () => data.measures.filter((measure) => measure.form === "share");
const tasks = () => [...new Set(scores().map((score) => score.task))];

/** The standard error of a share of `n`. */
const standardError = (p, n) => (isNumber(p) && n > 0 ? Math.sqrt((p * (1 - p)) / n) : null);

/** `text` with a standard error, if it is known. */
const withError = (text, error) => (error > 0 ? `${text} ± ${significant(error, 2)}` : text);

/** The standard error of the bits per byte of an evaluation. */
const bitsError = (e) => (e.val_loss_se / e.val_loss) * e.val_bits_per_byte;

/** The items of `task` that were longer than the context, if there are any. */
const cutItems = (e, task) => (e[`${task}_cut`] > 0 ? `, ${count(e[`${task}_cut`])} cut` : "");

function choiceSeries({ run, index }, { key, task }) {
  const evals = run.curves.evals.filter((e) => isNumber(e[key]));
  if (!evals.length) return [];
  const last = evals[evals.length - 1];
  const label = `of ${count(last[`${task}_n`])}${cutItems(last, task)}`;
  return [
    {
      run: index,
      kind: "points",
      colour: runColour(index),
      dash: runDash(index),
      label,
      x: evals.map((e) => place(run, e.step)),
      y: evals.map((e) => e[key]),
      error: evals.map((e) => standardError(e[key], e[`${task}_n`])),
    },
  ];
}

function evaluationTable() {
  const many = data.runs.length > 1;
  const rows = shown().flatMap(({ run, index }) =>
    run.curves.evals.map((e) => [
      many ? el("span", { class: "run-name" }, runName(index)) : null,
      el(
        "span",
        null,
        count(e.step),
        e.step === run.curves.best_eval?.step ? el("span", { class: "best" }, "best") : null,
      ),
      withError(loss(e.val_loss), e.val_loss_se),
      isNumber(e.val_tokens) ? count(e.val_tokens) : null,
      withError(significant(e.val_perplexity, 4), e.val_loss_se * e.val_perplexity),
      withError(loss(e.val_bits_per_byte), bitsError(e)),
      ...tasks().flatMap((task) => [
        ...scores().filter((score) => score.task === task).map(({ key }) => percentError(e[key], standardError(e[key], e[`${task}_n`]))),
        isNumber(e[`${task}_n`]) ? count(e[`${task}_n`]) + cutItems(e, task) : null,
      ]),
    ]),
  );
  const prefix = (task) => (tasks().length > 1 ? `${task} ` : "");
  const scored = tasks().flatMap((task) => [
    ...scores().filter((score) => score.task === task).map(({ label }) => prefix(task) + label),
    `${prefix(task)}items`,
  ]);
  const columns = [
    { name: "run" },
    ...["step", "val loss", "tokens", "perplexity", "bits/byte", ...scored].map((name) => ({ name, number: true })),
  ];
  const used = (cells) => cells.slice(many ? 0 : 1);
  return table("Every evaluation; ± is one standard error, over rows or items", used(columns), rows.map(used), { tall: rows.length > 14 });
}

function renderEvaluation(width) {
  if (!data.runs.some((run) => run.curves.evals.length)) {
    return [empty("The record has no evaluation.")];
  }
  if (!shown().length) return [empty(nothingShown())];
  const columns = width < 640 ? 1 : 2;
  const each = Math.floor((width - 20 * (columns - 1)) / columns);
  const chart = (score) =>
    lineChart({
      group: "choice",
      name: score.key,
      title: `${score.task} ${score.label}`,
      unit: `share right by the smallest ${SMALLEST[score.label]}; bars ± 1 standard error`,
      axis: state.axis,
      pad: 0.03,
      width: each,
      height: 240,
      format: (v) => percent(v),
      tick: (v) => percent(v, 0),
      series: shown().flatMap((entry) => choiceSeries(entry, score)),
      none: "these runs were not scored",
    });
  return [
    scores().length
      ? el("div", { class: `grid of-${columns}` }, scores().map(chart))
      : note("The record has no task of multiple choice."),
    evaluationTable(),
  ];
}
