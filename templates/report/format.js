// Numbers as people read them, with their units.

const MISSING = "–";
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** `1,234,567`. */
const count = (value) => (isNumber(value) ? Math.round(value).toLocaleString("en-US") : MISSING);

/** `digits` significant digits, without the zeros that say nothing; very small and very large ones as powers. */
function significant(value, digits = 4) {
  if (!isNumber(value)) return MISSING;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e7)
    return value
      .toExponential(digits - 1)
      .replace(/\.?0+e/, "e")
      .replace("e+", "e");
  const places = Math.max(0, Math.min(12, digits - 1 - Math.floor(Math.log10(size))));
  const text = value.toFixed(places);
  const short = places > 0 ? text.replace(/\.?0+$/, "") : text;
  return size >= 1e4 ? Number(short).toLocaleString("en-US") : short;
}

/** A loss: four places, so that they stand under each other. */
const loss = (value) => (isNumber(value) ? value.toFixed(4) : MISSING);

/** `12.3k`, `4.57M`, `1.2B`. */
function large(value, digits = 3) {
  if (!isNumber(value)) return MISSING;
  for (const [size, letter] of [
    [1e12, "T"],
    [1e9, "B"],
    [1e6, "M"],
    [1e3, "k"],
  ]) {
    if (Math.abs(value) >= size) return `${significant(value / size, digits)}${letter}`;
  }
  return significant(value, digits);
}

/** Bytes in binary units. */
function bytes(value) {
  if (!isNumber(value)) return MISSING;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (value >= 999.5 && unit + 1 < units.length) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? value : significant(value, 3)} ${units[unit]}`;
}

/** `0.43 s`, `12 s`, `3m 05s`, `2h 03m`, `1d 04h`. */
function duration(seconds) {
  if (!isNumber(seconds)) return MISSING;
  const two = (n) => String(Math.floor(n)).padStart(2, "0");
  if (seconds < 60) return `${significant(seconds, seconds < 10 ? 2 : 3)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m ${two(seconds % 60)}s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)}h ${two((seconds / 60) % 60)}m`;
  return `${Math.floor(seconds / 86400)}d ${two((seconds / 3600) % 24)}h`;
}

const milliseconds = (value) => (isNumber(value) ? `${significant(value, 3)} ms` : MISSING);
const percent = (value, digits = 1) => (isNumber(value) ? `${(100 * value).toFixed(digits)} %` : MISSING);

/** A share with its standard error. */
const percentError = (value, error) =>
  isNumber(value) ? `${(100 * value).toFixed(1)}${isNumber(error) ? ` ± ${(100 * error).toFixed(1)}` : ""} %` : MISSING;

/** `2026-01-31 09:08 UTC`. */
const moment = (text) => (text ? `${String(text).slice(0, 10)} ${String(text).slice(11, 16)} UTC` : MISSING);

/** The beginning of a hash, the whole of which is its title. */
const hash = (text) => (text ? el("code", { title: text }, String(text).slice(0, 12)) : MISSING);

/** `1 run`, `2 runs`. */
const counted = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;
