// Where runs come from and what they ran on: the manifest, checkpoints, sessions.

function ancestry(m) {
  const lines = [];
  if (m.continued_from) {
    const { id, step, omitted_evaluations: omitted = [] } = m.continued_from;
    const without = omitted.length ? `, without its ${omitted.join(" and ")}` : "";
    lines.push(`continues ${id} after step ${count(step)}${without}`);
  }
  const { fork, reproduction } = m.origin ?? {};
  if (fork) lines.push(`forked from ${fork.id}${isNumber(fork.step) ? ` after step ${count(fork.step)}` : ""}`);
  if (reproduction) lines.push(`reproduces ${reproduction.id}`);
  if (m.sweep) lines.push(`point ${m.sweep.point} of the sweep ${m.sweep.id}`);
  if (m.template) lines.push(`rendered from ${m.template.file} with ${JSON.stringify(m.template.vars)}`);
  return lines.length ? lines.join("; ") : null;
}

function facts(run) {
  const m = run.manifest;
  const git = m.git
    ? el("span", null, hash(m.git.commit), m.git.dirty ? " with changes that are not committed" : "")
    : null;
  const machine = [
    m.machine.cpu ?? m.machine.arch,
    counted(m.machine.cores, "core"),
    isNumber(m.machine.memory_bytes) ? bytes(m.machine.memory_bytes) : null,
    m.machine.memory_limit
      ? `limited to ${bytes(m.machine.memory_limit.bytes)} by ${m.machine.memory_limit.source}`
      : null,
    m.machine.os,
  ];
  const devices = [...new Set(m.devices)]
    .map((d) => (m.devices.length > 1 ? `${m.devices.filter((x) => x === d).length} × ${d}` : d))
    .join(", ");
  const data_ = ["train", "validation", "choice", "tokenizer"].filter((name) => m.data[name]);
  return [
    ["plan", hash(m.plan_hash)],
    ["comes from", ancestry(m)],
    ["file", el("code", null, m.experiment_file)],
    ["flags", m.overrides.length ? el("code", null, m.overrides.map((s) => `--set ${s}`).join(" ")) : null],
    [
      "environment",
      Object.keys(m.environment).length
        ? el(
            "code",
            null,
            Object.entries(m.environment)
              .map(([k, v]) => `${k}=${v}`)
              .join(" "),
          )
        : null,
    ],
    ["started", moment(m.started)],
    ["ended", m.ended ? moment(m.ended) : null],
    ["program", `runner ${m.version}`],
    ["git", git],
    ["machine", machine.filter(Boolean).join(", ")],
    ["devices", `${devices}, ${counted(m.threads, "thread")}`],
    ["layout", layoutText(m.layout)],
    [
      "data",
      el(
        "span",
        { class: "hashes" },
        data_.map((name) => el("span", null, `${name} `, hash(m.data[name]))),
      ),
    ],
    ["FLOPs a step", isNumber(run.plan.flops_per_step) ? large(run.plan.flops_per_step, 4) : null],
    ["final state", run.final_hash ? hash(run.final_hash) : null],
    [
      "notes",
      run.plan.notes.length
        ? el(
            "ul",
            null,
            run.plan.notes.map((n) => el("li", null, n)),
          )
        : null,
    ],
  ].filter(([, value]) => value !== null && value !== undefined);
}

function checkpointTable(run) {
  if (!run.checkpoints.length) return note("There is no checkpoint yet.");
  const columns = [
    { name: "step", number: true },
    { name: "val loss", number: true },
    { name: "size", number: true },
    { name: "weights" },
  ];
  const rows = run.checkpoints.map((c) => [
    el("span", null, count(c.step), c.best ? el("span", { class: "best" }, "best") : null),
    loss(c.val_loss),
    bytes(c.bytes),
    c.weights_hash ? hash(c.weights_hash) : null,
  ]);
  return table("Checkpoints kept", columns, rows, { tall: rows.length > 12 });
}

function sessionTable(run) {
  const columns = [
    { name: "session", number: true },
    { name: "started" },
    { name: "steps" },
    { name: "threads", number: true },
    { name: "version" },
    { name: "git" },
  ];
  const rows = run.manifest.sessions.map((s, i) => [
    i + 1,
    moment(s.started),
    `${count(s.from_step)} to ${isNumber(s.to_step) ? count(s.to_step) : "…"}${s.restarts ? `, ${counted(s.restarts, "restart")}` : ""}`,
    s.threads,
    s.version,
    s.commit ? hash(s.commit) : null,
  ]);
  return rows.length
    ? table("Processes that worked on the run", columns, rows)
    : note("No process has worked on it yet.");
}

function record(run) {
  if (!run.manifest) return empty("Its manifest cannot be read.");
  const row = ([name, value]) => [el("dt", null, name), el("dd", null, value)];
  return el(
    "div",
    { class: "record" },
    el("dl", { class: "facts" }, facts(run).flatMap(row)),
    el("div", { class: "grid of-2 lists" }, checkpointTable(run), sessionTable(run)),
  );
}

function renderRecord() {
  if (!data.runs.length) return [empty("There is no run yet.")];
  if (data.runs.length === 1) return [record(data.runs[0])];
  return data.runs.map((run, index) =>
    fold(
      `record:${run.id}`,
      el("span", { class: "run-name" }, runName(index), badge(runStatus(run))),
      () => record(run),
      false,
    ),
  );
}
