// Elements. Text from runs goes in as text nodes alone; markup is never parsed.

const SVG = "http://www.w3.org/2000/svg";

/** Sets attributes; `style` is an object, `on` are listeners, and what is null or false is left out. */
function attributes(node, given) {
  for (const [name, value] of Object.entries(given ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "style") for (const [key, v] of Object.entries(value)) node.style.setProperty(key, v);
    else if (name === "on") for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  return node;
}

/** An element; children are nodes, text, or lists of them. */
function el(tag, given, ...children) {
  const node = attributes(document.createElement(tag), given);
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** An SVG element. */
function svg(tag, given, ...children) {
  const node = attributes(document.createElementNS(SVG, tag), given);
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

const byId = (id) => document.getElementById(id);

/** What is shown where there is nothing to show. */
const empty = (text) => el("p", { class: "empty" }, text);

const note = (text) => el("p", { class: "note" }, text);

/** A square of a colour, for legends. */
const swatch = (colour, dashed) =>
  el("span", { class: dashed ? "swatch dashed" : "swatch", style: { "--colour": colour }, "aria-hidden": "true" });

/** The legend of a chart of categories: `[name, colour, hatched]`. */
function key(entries) {
  const item = ([name, colour, hatched]) =>
    el("li", null, el("span", { class: hatched ? "swatch hatched" : "swatch", style: { "--colour": colour } }), name);
  return el("ul", { class: "key" }, entries.map(item));
}

/**
 * A table. `columns`: `{name, number, unit}`; `rows`: lists of cells, each text or a node. A table that is wider than the page
 * scrolls by itself.
 */
function table(caption, columns, rows, options = {}) {
  const head = columns.map((c) =>
    el(
      "th",
      { scope: "col", class: c.number ? "number" : null },
      c.name,
      c.unit ? el("span", { class: "unit" }, ` ${c.unit}`) : null,
    ),
  );
  const cell = (content, i) => {
    const tag = i === 0 && options.rowHeads ? "th" : "td";
    return el(tag, { scope: tag === "th" ? "row" : null, class: columns[i].number ? "number" : null }, content ?? "–");
  };
  const body = rows.map((row) => el("tr", null, row.map(cell)));
  return el(
    "div",
    { class: options.tall ? "scroll tall" : "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", null, el("caption", null, caption), el("thead", null, el("tr", null, head)), el("tbody", null, body)),
  );
}

/** Buttons of which one is pressed. */
function choice(label, options, chosen, choose) {
  const button = ([value, text]) =>
    el(
      "button",
      {
        type: "button",
        "aria-pressed": String(value === chosen),
        "data-key": `${label}:${value}`,
        on: { click: () => choose(value) },
      },
      text,
    );
  return el("div", { class: "choice", role: "group", "aria-label": label }, options.map(button));
}

/** A button that is on or off. */
function toggle(text, on, act) {
  return el(
    "button",
    { type: "button", class: "toggle", "aria-pressed": String(on), "data-key": `toggle:${text}`, on: { click: act } },
    text,
  );
}

/** What was unfolded or folded by hand stays so when its section is drawn again. */
const unfolded = new Map();
const unbuilt = new WeakMap();
/** For each `details`, whether it is open while the page is not printed. */
const openOnScreen = new WeakMap();
/** While the page is printed all is unfolded, also what is drawn again meanwhile; nobody chose that. */
const printing = { now: false };

/** A part that can be folded; its content is built when it is first open. */
function fold(name, summary, build, open) {
  const isOpenOnScreen = () => unfolded.get(name) ?? open;
  const details = el(
    "details",
    { open: printing.now || isOpenOnScreen(), "data-key": `fold:${name}` },
    el("summary", { "data-key": `sum:${name}` }, summary),
  );
  unbuilt.set(details, build);
  openOnScreen.set(details, isOpenOnScreen);
  if (details.open) unfold(details);
  details.addEventListener("toggle", () => {
    if (!printing.now) unfolded.set(name, details.open);
    if (details.open) unfold(details);
  });
  return details;
}

/** Builds what `details` hides. */
function unfold(details) {
  const build = unbuilt.get(details);
  unbuilt.delete(details);
  if (build) details.append(build());
}

// The one tooltip of the page.

/** Shows `content` beside the point (x, y) of the window. */
function showTip(x, y, content) {
  const tip = byId("tip");
  tip.replaceChildren(...[content].flat());
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = x + 16 + width > innerWidth ? x - 16 - width : x + 16;
  tip.style.setProperty("left", `${Math.max(4, left)}px`);
  tip.style.setProperty("top", `${Math.max(4, Math.min(y + 12, innerHeight - height - 4))}px`);
}

const hideTip = () => (byId("tip").hidden = true);

/** Shows a tooltip over `node`, with what `content` makes of the element that is pointed at; null: none. */
function tipped(node, content) {
  node.addEventListener("pointermove", (event) => {
    const made = content(event.target, event);
    if (made) showTip(event.clientX, event.clientY, made);
    else hideTip();
  });
  node.addEventListener("pointerleave", hideTip);
  return node;
}
