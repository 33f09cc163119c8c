// What the checks ask a page. Put into it by the browser's debugger, so that the page's own policy has no say in it.

globalThis.probe = (() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const one = (selector) => document.querySelector(selector);
  const chart = (name) => `#curves [data-chart=${name}]`;

  /** How many points the longest line of a chart has. */
  const points = (name) => {
    const lines = all(`${chart(name)} .series path:not(.error)`);
    return Math.max(0, ...lines.map((p) => p.getAttribute("d").split(/[ML]/).length - 1));
  };

  /** How many runs have a line in a chart, and how many lines a run has in all charts. */
  const runsIn = (name) => new Set(all(`${chart(name)} .series`).map((s) => s.dataset.run)).size;
  const linesOf = (run) => all(`#curves .series[data-run="${run}"]`).length;

  /** The ticks of the x axis of the loss. */
  const ticks = () => all(`${chart("loss")} .tick-text[text-anchor=middle]`).map((t) => Number(t.textContent));

  /** Presses a button by what it says. */
  const press = (text, within = "main") => all(`${within} button`).find((b) => b.textContent === text).click();

  const says = (selector, text) => one(selector).textContent.includes(text);
  const box = (selector) => {
    const { x, y, width, height } = one(selector).getBoundingClientRect();
    return { x: x + scrollX, y: y + scrollY, width, height };
  };
  /** The same in the window. */
  const place = (selector) => {
    const { x, y, width, height } = one(selector).getBoundingClientRect();
    return [x, y, width, height];
  };
  const background = () => getComputedStyle(document.body).backgroundColor;

  /** The runs that the tooltip names. */
  const tipRuns = () => (one("#tip").hidden ? 0 : new Set(all("#tip td:nth-child(2)").map((t) => t.textContent)).size);
  const crossed = () => all("#curves .cross").every((c) => c.getAttribute("visibility") === "visible");
  const broken = () => all("path").some((p) => /NaN|Infinity/.test(p.getAttribute("d") ?? ""));
  const silent = () => all(".part:not([hidden]) .body").filter((b) => !b.textContent.trim()).length;
  const bars = (which, what) => all(`#timeline [data-chart=${which}] .do.${what}`).length;
  const axis = (which) => {
    const tracks = all(`#timeline [data-chart=${which}] .track`);
    return tracks.map((r) => [r.getAttribute("x"), r.getAttribute("width")]);
  };

  /** Labels of one chart that lie over each other. */
  function overlaps() {
    const found = [];
    for (const drawing of all("figure svg")) {
      const boxes = all("text", drawing).map((t) => [t.textContent, t.getBoundingClientRect()]);
      const seen = boxes.filter(([, b]) => b.width > 0);
      for (const [i, [a, p]] of seen.entries()) {
        for (const [b, q] of seen.slice(i + 1)) {
          const x = Math.min(p.right, q.right) - Math.max(p.left, q.left);
          const y = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
          if (x > 1 && y > 3) found.push(`${drawing.closest("figure").dataset.chart}: ${a} | ${b}`);
        }
      }
    }
    return found;
  }

  const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });

  /** Red, green, blue, alpha of any colour of CSS. */
  function rgb(colour) {
    paint.clearRect(0, 0, 1, 1);
    paint.fillStyle = colour;
    paint.fillRect(0, 0, 1, 1);
    return [...paint.getImageData(0, 0, 1, 1).data];
  }

  /** Relative luminance, as WCAG has it. */
  function luminance(colour) {
    const shares = colour.slice(0, 3).map((v) => v / 255);
    const linear = shares.map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  }

  function behind(node) {
    for (let at = node; at; at = at.parentElement) {
      const colour = rgb(getComputedStyle(at).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255, 255];
  }

  /** Text whose contrast with what is behind it is less than 4.5 to 1 (WCAG 2, level AA). */
  function faint() {
    const found = new Set();
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const node = walker.currentNode.parentElement;
      const apart = node.closest("script, style, svg, [hidden], .skip, noscript, :disabled");
      if (apart || !walker.currentNode.textContent.trim() || !node.getClientRects().length) continue;
      const [a, b] = [luminance(rgb(getComputedStyle(node).color)), luminance(behind(node))];
      const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      if (ratio < 4.5) found.add(`${node.tagName}.${node.className}: ${ratio.toFixed(2)}`);
    }
    return [...found];
  }

  return {
    ...{ all, one, points, runsIn, linesOf, ticks, press, says, box, place, background },
    ...{ tipRuns, crossed, broken, silent, bars, axis, overlaps, faint },
  };
})();
