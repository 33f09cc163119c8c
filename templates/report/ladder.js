// The results of a ladder: the law, its check, its forecast, and the rungs. Rungs of different size do not compete.

/** The law, its check and its forecasts in words. */
const ladderWords = (paragraphs) =>
  el(
    "dl",
    { class: "ladder" },
    paragraphs.flatMap(({ subject, lines }) => [
      el("dt", null, subject),
      el(
        "dd",
        null,
        lines.map((line) => el("p", null, line)),
      ),
    ]),
  );

/** The loss against the FLOPs: the rungs, the forecasts, and the law with its interval: a line, or values at the rungs if it is one of parameters
 * and tokens. */
function lawChart(fit, width) {
  const ends = ({ interval }) => [interval.low, interval.high];
  const { measured, curve } = fit;
  const predictions = fit.predictions.filter((prediction) => prediction.loss);
  const law = {
    kind: "line",
    colour: "var(--run-0)",
    label: "law",
    x: curve.map((point) => point.flops),
    y: curve.map((point) => point.value),
    low: curve.map((point) => point.interval.low),
    high: curve.map((point) => point.interval.high),
  };
  const ofRungs = {
    kind: "points",
    colour: "var(--run-0)",
    label: "law at a rung",
    x: measured.map((rung) => rung.flops),
    y: measured.map((rung) => rung.law.value),
    ends: measured.map((rung) => ends(rung.law)),
  };
  const rungs = {
    kind: "points",
    colour: "var(--run-1)",
    label: "measured",
    x: measured.map((rung) => rung.flops),
    y: measured.map((rung) => rung.loss),
  };
  const forecast = {
    kind: "points",
    colour: "var(--run-2)",
    label: "forecast",
    x: predictions.map((prediction) => prediction.flops),
    y: predictions.map((prediction) => prediction.loss.value),
    ends: predictions.map((prediction) => ends(prediction.loss)),
  };
  const series = [curve.length ? law : ofRungs, rungs, ...(predictions.length ? [forecast] : [])];
  return el(
    "div",
    { class: "axis-chart" },
    lineChart({
      group: "answer",
      name: "law",
      title: `${fit.metric} against FLOPs`,
      unit: "means of the rungs; band and bars: 95% intervals",
      x: { name: "FLOPs", label: "FLOPs", format: (v) => `FLOPs ${significant(v, 4)}`, tick: (v) => significant(v, 3) },
      logX: true,
      pad: 0.06,
      format: loss,
      tick: (v) => significant(v, 4),
      reading: (s, i) => {
        const [low, high] = s.ends?.[i] ?? [s.low?.[i], s.high?.[i]];
        return loss(s.y[i]) + (isNumber(low) ? ` (${loss(low)} to ${loss(high)})` : "");
      },
      series,
      width,
      height: 320,
    }),
    key(series.map((s) => [s.label, s.colour])),
  );
}

/** The rungs with what they measured and what the law gives them. */
function rungsTable({ metric, measured }) {
  const columns = [
    { name: "parameters", number: true },
    { name: "tokens", number: true },
    { name: "FLOPs", number: true },
    { name: "runs", number: true },
    { name: metric, unit: "mean", number: true },
    { name: "range", number: true },
    { name: "law", unit: "95% interval", number: true },
  ];
  const rows = measured.map((rung) => [
    count(rung.parameters),
    count(rung.tokens),
    significant(rung.flops, 4),
    count(rung.runs),
    loss(rung.loss),
    `${loss(rung.lowest)} to ${loss(rung.highest)}`,
    `${loss(rung.law.value)} (${loss(rung.law.interval.low)} to ${loss(rung.law.interval.high)})`,
  ]);
  return table("Rungs, from the smallest to the largest", columns, rows);
}

/** What a ladder shows. */
const ladderResults = ({ ladder, ladder_text: text }, width) => [
  el("div", { class: "answer", "data-conclusion": "rungs" }, ladderWords(text)),
  ladder.fit ? lawChart(ladder.fit, width) : null,
  ladder.fit ? rungsTable(ladder.fit) : null,
];
