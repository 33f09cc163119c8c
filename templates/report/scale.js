// From values to pixels, and the ticks between.

/** A scale from `[lo, hi]` to the pixels `[from, to]`. */
function scale(lo, hi, from, to, log) {
  if (!(hi > lo)) [lo, hi] = log ? [lo / 2, hi * 2] : [lo - (Math.abs(lo) / 2 || 1), hi + (Math.abs(hi) / 2 || 1)];
  const bend = log ? Math.log : (v) => v;
  const back = log ? Math.exp : (v) => v;
  const [a, b] = [bend(lo), bend(hi)];
  const at = (value) => from + ((bend(value) - a) / (b - a)) * (to - from);
  at.invert = (pixel) => back(a + ((pixel - from) / (to - from)) * (b - a));
  at.domain = [lo, hi];
  at.log = log;
  return at;
}

/** The distance of about `n` ticks from `lo` to `hi`: 1, 2 or 5 times a power of ten. */
function tickStep(lo, hi, n) {
  const raw = (hi - lo) / Math.max(1, n);
  const power = 10 ** Math.floor(Math.log10(raw));
  const lead = raw / power;
  return power * (lead < 1.5 ? 1 : lead < 3.5 ? 2 : lead < 7.5 ? 5 : 10);
}

/** Round numbers from `lo` to `hi`, about `n` of them. */
function linearTicks(lo, hi, n) {
  if (!(hi > lo)) return [lo];
  const step = tickStep(lo, hi, n);
  const ticks = [];
  for (let i = Math.ceil(lo / step - 1e-9); i * step <= hi + step * 1e-9; i += 1)
    ticks.push(Number((i * step).toPrecision(12)));
  return ticks;
}

/** Powers of ten, and twos and fives between them where there is room; over less than that, round numbers. */
function logTicks(lo, hi, n) {
  const decades = Math.log10(hi / lo);
  if (decades < 0.7) return linearTicks(lo, hi, n).filter((v) => v > 0);
  const leads = decades * 3 <= n * 1.5 ? [1, 2, 5] : [1];
  const skip = Math.max(1, Math.ceil(decades / n));
  const ticks = [];
  for (let power = Math.floor(Math.log10(lo)); power <= Math.ceil(Math.log10(hi)); power += 1) {
    if (leads.length === 1 && power % skip !== 0) continue;
    for (const lead of leads) {
      const tick = Number((lead * 10 ** power).toPrecision(12));
      if (tick >= lo * 0.999 && tick <= hi * 1.001) ticks.push(tick);
    }
  }
  return ticks.length > 1 ? ticks : linearTicks(lo, hi, n).filter((v) => v > 0);
}

const ticksOf = (at, n) => (at.log ? logTicks : linearTicks)(...at.domain, n);

/** `[lo, hi]` widened to round numbers, from zero if `zero`. */
function niceDomain(lo, hi, n, { log, zero }) {
  if (log) return [lo / 1.08, hi * 1.08];
  if (zero) lo = Math.min(0, lo);
  if (!(hi > lo)) return [lo - (Math.abs(lo) * 0.1 || 0.5), hi + (Math.abs(hi) * 0.1 || 0.5)];
  // Widening may make another distance between ticks the right one: once more, so that both ends are ticks.
  for (let round = 0; round < 2; round += 1) {
    const step = tickStep(lo, hi, n);
    [lo, hi] = [Math.floor(lo / step + 1e-9) * step, Math.ceil(hi / step - 1e-9) * step];
  }
  return [lo, hi];
}

/** The index of the element of the ascending `xs` that is nearest to `x`. */
function nearest(xs, x) {
  let [lo, hi] = [0, xs.length - 1];
  while (hi - lo > 1) {
    const middle = (lo + hi) >> 1;
    if (xs[middle] < x) lo = middle;
    else hi = middle;
  }
  return Math.abs(xs[lo] - x) <= Math.abs(xs[hi] - x) ? lo : hi;
}

/** The value at `x` of the line through (xs, ys), which ends do not extend. */
function interpolate(xs, ys, x) {
  if (!xs.length) return x;
  if (x <= xs[0]) return ys[0];
  let [lo, hi] = [0, xs.length - 1];
  if (x >= xs[hi]) return ys[hi];
  while (hi - lo > 1) {
    const middle = (lo + hi) >> 1;
    if (xs[middle] <= x) lo = middle;
    else hi = middle;
  }
  return ys[lo] + ((x - xs[lo]) / (xs[hi] - xs[lo])) * (ys[hi] - ys[lo]);
}
