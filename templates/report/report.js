// Putting it together: the sections, the legend, the theme, printing, and fresh data of a report that is served.

/** Every section: what it draws, and what of the data it shows, so that it is drawn again when that has changed. */
const SECTIONS = {
  sweep: { render: renderSweep, shows: () => [data.sweep, data.sweep && data.runs.map((r) => [r.id, r.curves.evals])] },
  overview: {
    render: renderOverview,
    shows: () =>
      data.runs.map((r) => [
        r.id,
        r.status,
        r.error,
        r.problems,
        r.wall_seconds,
        r.peak_rss,
        r.curves.last_step,
        r.curves.evals,
      ]),
  },
  curves: { render: renderCurves, shows: () => data.runs.map((r) => [r.id, r.curves]) },
  steptime: { render: renderStepTime, shows: () => data.runs.map((r) => [r.id, r.curves.phases, r.curves.medians]) },
  evaluation: { render: renderEvaluation, shows: () => data.runs.map((r) => [r.id, r.curves.evals]) },
  samples: { render: renderSamples, shows: () => data.runs.map((r) => [r.id, r.samples]) },
  timeline: { render: renderTimeline, shows: () => data.runs.map((r) => [r.id, r.plan.timeline, r.measured_timeline]) },
  memory: { render: renderMemory, shows: () => data.runs.map((r) => [r.id, r.memory]) },
  settings: { render: renderSettings, shows: () => [data.differences, data.runs.map((r) => [r.id, r.yaml])] },
  record: {
    render: renderRecord,
    shows: () => data.runs.map((r) => [r.id, r.status, r.manifest, r.checkpoints, r.final_hash]),
  },
};

const drawn = new Map();

/** Draws a section again; what had the keyboard's focus has it again. */
function redraw(id) {
  const host = byId(id).querySelector(".body");
  const width = Math.max(280, Math.floor(host.clientWidth));
  const focused = host.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  host.classList.remove("lifting");
  host.replaceChildren(...SECTIONS[id].render(width).flat().filter(Boolean));
  if (focused)
    [...host.querySelectorAll("[data-key]")]
      .find((node) => node.dataset.key === focused)
      ?.focus({ preventScroll: true });
}

function redrawAll() {
  hideTip();
  for (const id of Object.keys(SECTIONS)) if (!byId(id).hidden) redraw(id);
}

/** Draws the sections whose data is another than when they were last drawn. */
function refresh() {
  byId("sweep").hidden = !data.sweep;
  drawHeader();
  for (const [id, { shows }] of Object.entries(SECTIONS)) {
    const now = JSON.stringify(shows());
    if (drawn.get(id) === now || byId(id).hidden) continue;
    drawn.set(id, now);
    redraw(id);
  }
}

function drawHeader() {
  const ranks = data.runs.length === 1 ? layoutText(data.runs[0].manifest?.layout) : null;
  const parts = [
    data.sweep || data.runs.length !== 1 ? counted(data.runs.length, "run") : null,
    ranks,
    `made ${moment(data.made)}`,
  ];
  byId("subtitle").textContent = parts.filter(Boolean).join(" · ");
  byId("footer").textContent = `runner ${data.version}. All of this page is in this file.`;
  if (data.sweep?.ladder) byId("sweep-title").textContent = "Ladder";
  const links = Object.keys(SECTIONS).filter((id) => !byId(id).hidden);
  byId("nav").replaceChildren(
    ...links.map((id) =>
      el("li", null, el("a", { href: `#${id}`, "data-section": id }, byId(`${id}-title`).textContent)),
    ),
  );
  drawLegend();
}

/** A button a run, which switches it off and on everywhere. Drawn anew only when the runs are others. */
function drawLegend() {
  const legend = byId("legend");
  const now = JSON.stringify([data.runs.map((run) => [run.id, run.name, run.status]), [...state.hidden]]);
  if (legend.dataset.shows === now) return;
  legend.dataset.shows = now;
  const focused = legend.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  const change = (act) => {
    act();
    drawLegend();
    redrawAll();
  };
  const flip = (run) => () =>
    change(() => (state.hidden.has(run.id) ? state.hidden.delete(run.id) : state.hidden.add(run.id)));
  const only = (run) => () =>
    change(() => (state.hidden = new Set(data.runs.filter((r) => r !== run).map((r) => r.id))));
  const button = (run, index) =>
    el(
      "li",
      null,
      el(
        "button",
        {
          type: "button",
          class: "run",
          "aria-pressed": String(!state.hidden.has(run.id)),
          "data-key": run.id,
          title: `${fullName(run)}: ${run.status}. Double-click: this run alone`,
          on: { click: flip(run), dblclick: only(run) },
        },
        swatch(runColour(index), runDash(index)),
        el("span", null, run.name),
      ),
    );
  const all =
    data.runs.length > 2
      ? el(
          "div",
          { class: "legend-all" },
          el(
            "button",
            {
              type: "button",
              class: "quiet",
              "data-key": "all",
              on: { click: () => change(() => state.hidden.clear()) },
            },
            "all",
          ),
          el(
            "button",
            {
              type: "button",
              class: "quiet",
              "data-key": "none",
              on: { click: () => change(() => data.runs.forEach((run) => state.hidden.add(run.id))) },
            },
            "none",
          ),
        )
      : null;
  legend.replaceChildren(el("ul", null, data.runs.map(button)), ...(all ? [all] : []));
  if (focused)
    [...legend.querySelectorAll("[data-key]")]
      .find((node) => node.dataset.key === focused)
      ?.focus({ preventScroll: true });
}

// Theme: as the system has it, unless chosen.

const THEMES = ["", "light", "dark"];
const THEME_NAMES = { "": "theme: system", light: "theme: light", dark: "theme: dark" };

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  byId("theme").textContent = THEME_NAMES[theme];
  try {
    localStorage.setItem("theme", theme);
  } catch {
    // A page from a file may have no storage: the choice lasts as long as the page.
  }
}

/** Colours between the best and the worst of a sweep are computed, and others in the dark. */
function restyle() {
  if (!data.sweep) return;
  delete byId("legend").dataset.shows;
  drawLegend();
  redrawAll();
}

function startTheme() {
  let theme = "";
  try {
    theme = localStorage.getItem("theme") ?? "";
  } catch {
    // As above.
  }
  setTheme(THEMES.includes(theme) ? theme : "");
  byId("theme").addEventListener("click", () => {
    setTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme ?? "") + 1) % THEMES.length]);
    restyle();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", restyle);
}

/** Paper has no buttons: what is folded is printed unfolded. */
function startPrinting() {
  addEventListener("beforeprint", () => {
    printing.now = true;
    for (const details of document.querySelectorAll("details:not([open])")) {
      unfold(details);
      details.open = true;
    }
  });
  addEventListener("afterprint", () => {
    for (const details of document.querySelectorAll("details")) details.open = openOnScreen.get(details)();
    // The events of opening and closing come later.
    setTimeout(() => (printing.now = false));
  });
}

/** Charts fit the width of the page. */
function startResizing() {
  let width = byId("main").clientWidth;
  let timer = null;
  new ResizeObserver(() => {
    const now = byId("main").clientWidth;
    if (now === width || matchMedia("print").matches) return;
    width = now;
    clearTimeout(timer);
    timer = setTimeout(redrawAll, 80);
  }).observe(byId("main"));
}

/** Marks in the list of sections which one is being read. */
function startNavigation() {
  const watcher = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries) {
        byId("nav").querySelector(`[data-section="${target.id}"]`)?.classList.toggle("here", isIntersecting);
      }
    },
    { rootMargin: "-30% 0px -60% 0px" },
  );
  for (const id of Object.keys(SECTIONS)) watcher.observe(byId(id));
}

// A report that is served asks for fresh data; what the reader has chosen stays.

const POLL = 2000;
const POLL_ENDED = 10000;

function showLive(kind, text) {
  const live = byId("live");
  live.hidden = false;
  live.className = `live ${kind}`;
  if (live.textContent !== text) live.textContent = text;
}

async function poll(tag) {
  let next = tag;
  try {
    const answer = await fetch("data.json", { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
    if (answer.status === 200) {
      const fresh = await answer.json();
      if (fresh.format !== data.format) location.reload();
      data = fresh;
      next = answer.headers.get("ETag");
      refresh();
    } else if (answer.status !== 304) {
      throw new Error(`status ${answer.status}`);
    }
    const running = data.runs.filter((run) => run.status === "running").length;
    if (running) showLive("on", `live: ${counted(running, "run")} training`);
    else showLive("ended", "no run is training now");
  } catch {
    showLive("gone", `the server is gone; as of ${data.made.slice(11, 19)} UTC`);
  }
  const going = data.runs.some((run) => run.status === "running");
  setTimeout(poll, going ? POLL : POLL_ENDED, next);
}

chooseAtFirst();
startTheme();
refresh();
startPrinting();
startResizing();
startNavigation();
if (document.documentElement.hasAttribute("data-served")) poll(null);
