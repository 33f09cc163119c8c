// In what runs differ, and the whole resolved experiment of each.

const SCALAR = /^(true|false|null|[-+]?(\d[\d_]*)?\.?\d+([eE][-+]?\d+)?)$/;

/** A line of YAML as nodes: keys, numbers, text, comments. */
function yamlLine(line) {
  const part = (kind, text) => (text ? el("span", { class: `y-${kind}` }, text) : null);
  const comment = /^\s*#/.test(line);
  if (comment) return [part("comment", line)];
  const [, indent, dash, rest] = /^(\s*)((?:- )*)(.*)$/.exec(line);
  const pair = /^([^\s:'"#][^:]*|"[^"]*"|'[^']*')(:)(\s.*|)$/.exec(rest);
  const [name, colon, value] = pair ? pair.slice(1) : ["", "", rest];
  const kind = SCALAR.test(value.trim()) ? "number" : "text";
  return [indent, part("mark", dash), part("key", name), part("mark", colon), part(kind, value)];
}

/** The text with its keys and values in colours. */
const yaml = (text) =>
  el(
    "pre",
    { class: "yaml", tabindex: "0" },
    el(
      "code",
      null,
      text.split("\n").flatMap((line, i) => [i ? "\n" : null, ...yamlLine(line)]),
    ),
  );

/** More runs than this are rows, and settings columns. */
const MOST_COLUMNS = 6;

function differenceTable() {
  const text = (value) => (value === null ? "–" : el("code", null, value));
  const caption = "Settings in which the runs differ";
  if (data.runs.length > MOST_COLUMNS) {
    const settings = data.differences.map(({ key: name }) => ({ name: el("code", null, name) }));
    const rows = data.runs.map((_, i) => [
      el("span", { class: "run-name" }, runName(i)),
      ...data.differences.map(({ values }) => text(values[i])),
    ]);
    return table(caption, [{ name: "run" }, ...settings], rows, { rowHeads: true, tall: true });
  }
  const columns = [
    { name: "setting" },
    ...data.runs.map((run, i) => ({ name: el("span", { class: "run-name" }, swatch(runColour(i), runDash(i)), run.id) })),
  ];
  const rows = data.differences.map(({ key: name, values }) => [el("code", null, name), ...values.map(text)]);
  return table(caption, columns, rows, { rowHeads: true, tall: rows.length > 20 });
}

function renderSettings() {
  const parts = [];
  if (data.runs.length > 1) {
    parts.push(data.differences.length ? differenceTable() : note("The runs do not differ in any setting."));
  }
  for (const [index, run] of data.runs.entries()) {
    const name = el("span", { class: "run-name" }, runName(index), el("span", { class: "muted" }, " resolved.yaml"));
    if (run.yaml) parts.push(fold(`yaml:${run.id}`, name, () => yaml(run.yaml), false));
    else parts.push(note(`${fullName(run)}: its resolved.yaml cannot be read.`));
  }
  return parts.length ? parts : [empty("There is no run yet.")];
}
