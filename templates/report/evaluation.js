// Multiple choice over the steps, and every evaluation as a table.

const CHOICES = [
  ["hellaswag_acc_norm", "acc_norm", "loss per token"],
  ["hellaswag_acc_norm_chars", "acc_norm_chars", "loss per character"],
  ["hellaswag_acc", "acc", "loss"],
];

/** The standard error of a share of `n`. */
const standardError = (p, n) => (isNumber(p) && n > 0 ? Math.sqrt((p * (1 - p)) / n) : null);

/** The items that were longer than the context, if there are any. */
const cutItems = (e) => (e.hellaswag_cut > 0 ? `, ${count(e.hellaswag_cut)} cut` : "");

function choiceSeries({ run, index }, metric) {
  const evals = run.curves.evals.filter((e) => isNumber(e[metric]));
  if (!evals.length) return [];
  const last = evals[evals.length - 1];
  const label = `of ${count(last.hellaswag_n)}${cutItems(last)}`;
  return [
    {
      run: index,
      kind: "points",
      colour: runColour(index),
      dash: runDash(index),
      label,
      x: evals.map((e) => place(run, e.step)),
      y: evals.map((e) => e[metric]),
      error: evals.map((e) => standardError(e[metric], e.hellaswag_n)),
    },
  ];
}

function evaluationTable(scored) {
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
      isNumber(e.val_loss_se) ? `${loss(e.val_loss)} ± ${significant(e.val_loss_se, 2)}` : loss(e.val_loss),
      isNumber(e.val_tokens) ? count(e.val_tokens) : null,
      significant(e.val_perplexity, 4),
      loss(e.val_bits_per_byte),
      percentError(e.hellaswag_acc, standardError(e.hellaswag_acc, e.hellaswag_n)),
      percentError(e.hellaswag_acc_norm, standardError(e.hellaswag_acc_norm, e.hellaswag_n)),
      percentError(e.hellaswag_acc_norm_chars, standardError(e.hellaswag_acc_norm_chars, e.hellaswag_n)),
      isNumber(e.hellaswag_n) ? count(e.hellaswag_n) + cutItems(e) : null,
    ]),
  );
  const columns = [
    { name: "run" },
    ...["step", "val loss", "tokens", "perplexity", "bits/byte", "acc", "acc_norm", "acc_norm_chars", "items"].map((name) => ({ name, number: true })),
  ];
  const used = (cells) => cells.slice(many ? 0 : 1, scored ? undefined : 6);
  return table("Every evaluation; ± is one standard error, over rows or items", used(columns), rows.map(used), { tall: rows.length > 14 });
}

function renderEvaluation(width) {
  if (!data.runs.some((run) => run.curves.evals.length)) {
    return [empty("The record has no evaluation.")];
  }
  if (!shown().length) return [empty(nothingShown())];
  const scored = data.runs.some((run) => run.curves.evals.some((e) => isNumber(e.hellaswag_acc)));
  const columns = width < 640 ? 1 : 2;
  const each = Math.floor((width - 20 * (columns - 1)) / columns);
  const measured = CHOICES.filter(([metric]) => data.runs.some((run) => run.curves.evals.some((e) => isNumber(e[metric]))));
  const chart = ([metric, name, measure]) =>
    lineChart({
      group: "choice",
      name,
      title: `HellaSwag ${name}`,
      unit: `share right by the smallest ${measure}; bars ± 1 standard error`,
      axis: state.axis,
      pad: 0.03,
      width: each,
      height: 240,
      format: (v) => percent(v),
      tick: (v) => percent(v, 0),
      series: shown().flatMap((entry) => choiceSeries(entry, metric)),
      none: "these runs were not scored",
    });
  return [
    scored
      ? el("div", { class: `grid of-${columns}` }, measured.map(chart))
      : note("The record has no multiple choice (HellaSwag)."),
    evaluationTable(scored),
  ];
}
