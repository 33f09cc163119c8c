// Memory by category: what the plan says beside what was measured, rank by rank.

const CATEGORIES = ["weights", "gradients", "optimizer", "activations", "workspace", "communication", "checkpoint", "context"];
const categoryColour = (name) => `var(--mem-${name})`;

/** What a process held in the step that was watched; the step is activations, workspace and messages together. */
const heldParts = (held) => [
  ...["weights", "gradients", "optimizer"].map((name) => [name, held[name], categoryColour(name)]),
  ["in the step: activations, workspace, messages", held.step ?? 0, categoryColour("step")],
];
const heldSum = (held) => heldParts(held).reduce((sum, [, value]) => sum + value, 0);

const memoryParts = (categories) => CATEGORIES.map((name) => [name, categories[name] ?? 0, categoryColour(name)]);
const memorySum = (categories) => CATEGORIES.reduce((sum, name) => sum + (categories[name] ?? 0), 0);

/** How far what is held in tensors is from what was planned of them. */
const abovePlan = ({ above_plan: share }) =>
  isNumber(share) ? ` (${share < 0 ? "−" : "+"}${percent(Math.abs(share), 1)})` : "";

/** `stage 1, replica 0`, as far as the run has several. */
function rankPlace(rank, ranks) {
  const several = (what) => ranks.some((other) => other[what] !== ranks[0][what]);
  return ["stage", "replica"]
    .filter(several)
    .map((what) => `${what} ${rank[what]}`)
    .join(", ");
}

function rankBars(rank, most, ranks) {
  const single = ranks.length === 1;
  const name = single ? "the process" : `rank ${rank.rank}`;
  const place = single ? rank.device : rankPlace(rank, ranks);
  const planned = memorySum(rank.planned);
  const rows = [
    el("span", { class: "bar-name first" }, name, el("span", { class: "muted" }, ` ${place}`)),
    stackedBar(memoryParts(rank.planned), most, bytes, `${name}, planned`),
    el("span", { class: "bar-value" }, `${bytes(planned)} planned`),
  ];
  if (rank.measured)
    rows.push(
      el("span"),
      stackedBar(heldParts(rank.measured), most, bytes, `${name}, held in a step`),
      el("span", { class: "bar-value" }, `${bytes(heldSum(rank.measured))} held${abovePlan(rank)}`),
    );
  const share = isNumber(rank.peak_rss) && planned > 0 ? ` (${percent(rank.peak_rss / planned, 0)})` : "";
  const peak = isNumber(rank.peak_rss)
    ? stackedBar([["peak resident", rank.peak_rss, "var(--mem-rss)"]], most, bytes, `${name}, measured`)
    : el("div", { class: "bar none" });
  rows.push(
    el("span"),
    el("div", { class: "peak" }, peak),
    el(
      "span",
      { class: "bar-value" },
      isNumber(rank.peak_rss) ? `${bytes(rank.peak_rss)} peak${share}` : "peak not measured",
    ),
  );
  return rows;
}

function renderMemory() {
  const runs = shown().filter(({ run }) => run.memory.ranks.length);
  if (!runs.length) return [empty(shown().length ? "These runs have no plan that can be read." : nothingShown())];
  const ranks = runs.flatMap(({ run }) => run.memory.ranks);
  const most = Math.max(
    ...ranks.map((r) => Math.max(memorySum(r.planned), r.peak_rss ?? 0, r.measured ? heldSum(r.measured) : 0)),
    1,
  );
  const block = ({ run, index }) =>
    el(
      "div",
      { class: "memory" },
      data.runs.length > 1 ? el("h3", null, runName(index)) : null,
      el(
        "div",
        { class: "bars pairs" },
        run.memory.ranks.flatMap((rank) => rankBars(rank, most, run.memory.ranks)),
      ),
      run.memory.ranks_left_out ? note(`${counted(run.memory.ranks_left_out, "rank")} more are not shown.`) : null,
    );
  return [
    key([
      ...CATEGORIES.filter((name) => ranks.some((r) => r.planned[name] || r.measured?.[name])).map((name) => [
        name,
        categoryColour(name),
      ]),
      ...(ranks.some((r) => r.measured)
        ? [["in the step, measured: activations, workspace, messages", categoryColour("step")]]
        : []),
      ["peak resident, measured", "var(--mem-rss)"],
    ]),
    ...runs.map(block),
    note(
      "The whole process includes the program itself and what its allocator keeps; what is held is counted in one step.",
    ),
  ];
}
