// Charts in SVG, drawn in pixels of their container, so that texts keep their size on a phone.
import { el, fixed, fixedSigned, number, plain, signed } from "./base.js";

const svgNode = (tag, attributes = {}, text) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
};
// colours are CSS variables: they cannot be presentation attributes
const coloured = (node, property, colour) => { node.style[property] = colour; return node; };

// about `most` round numbers between low and high, and no fewer than two
export function ticks(low, high, most = 5) {
  const rough = (high - low) / most || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((k) => k * power).find((k) => k >= rough * 0.999);
  const values = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) values.push(+(k * step).toPrecision(12));
  return values.length < 2 && low < high && most < 20 ? ticks(low, high, most + 1) : values;
}

// call draw(width) now and whenever the container's width changes
const observers = new WeakMap();
function onWidth(container, draw) {
  observers.get(container)?.disconnect();
  let last = 0;
  const observer = new ResizeObserver(() => {
    const width = Math.floor(container.clientWidth);
    if (width > 40 && width !== last) { last = width; draw(width); }
  });
  observers.set(container, observer);
  observer.observe(container);
}

// series: [{name, colour, points: [{x, y, low, high, open, loose, note}], label, dashed}]; y may be null (a gap); open points are dashed
// options: {height, from, formatX, formatY, zero: the axis includes 0, room: what is shown on each side of a single x, title}
export function lineChart(container, series, options) {
  onWidth(container, (width) => drawLines(container, width, series, { height: 190, zero: true, room: 0.5, formatY: number, formatTick: options.formatY || plain, ...options }));
}

function drawLines(container, width, series, options) {
  const drawn = series.filter((one) => one.points.some((point) => point.y !== null));
  if (!drawn.length) {
    container.replaceChildren(el("p", { class: "empty" }, options.empty || "Nothing yet."));
    return;
  }
  const points = drawn.flatMap((one) => one.points.filter((point) => point.y !== null));
  const xs = series.flatMap((one) => one.points.map((point) => point.x));
  let [left, right] = [Math.min(...xs, options.from ?? Infinity), Math.max(...xs, options.to ?? -Infinity)];
  if (left === right) { left -= options.room; right += options.room; }
  let [low, high] = scaleOf(points);
  if (options.zero) low = Math.min(0, low);
  if (low === high) { low -= low ? Math.abs(low) * 0.1 : 0; high += high ? Math.abs(high) * 0.1 : 1; }
  const marks = ticks(low, high, 4), labels = marks.map(options.formatTick);
  high = Math.max(high, marks.at(-1)); low = Math.min(low, marks[0]);
  const ends = drawn.some((one) => one.label) ? 8 + 7 * Math.max(...drawn.map((one) => (one.label || "").length)) : 8;
  const margin = { left: 10 + 7 * Math.max(...labels.map((label) => label.length)), right: ends, top: 8, bottom: 24 };
  const height = options.height;
  const x = (value) => margin.left + (width - margin.left - margin.right) * (value - left) / (right - left);
  const y = (value) => margin.top + (height - margin.top - margin.bottom) * (high - Math.min(Math.max(value, low), high)) / (high - low);
  const isCut = (value) => typeof value === "number" && (value < low || value > high);
  const svg = svgNode("svg", { height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": options.title || "" });
  marks.forEach((value, k) => {
    svg.append(svgNode("line", { x1: margin.left, x2: width - margin.right, y1: y(value), y2: y(value), class: value === 0 ? "axis" : "grid" }));
    svg.append(svgNode("text", { x: margin.left - 7, y: y(value) + 4, "text-anchor": "end" }, labels[k]));
  });
  for (const value of (options.ticksX || ticks)(left, right, Math.max(2, Math.floor((width - margin.left) / 90)))) {
    svg.append(svgNode("text", { x: x(value), y: height - 6, "text-anchor": "middle" }, options.formatX(value)));
  }
  for (const one of drawn) drawSeries(svg, one, x, y, isCut);
  placeLabels(svg, drawn, x, y, height - margin.bottom);
  container.replaceChildren(svg);
  addCursor(container, svg, drawn, x, margin, width, height, options);
}

// The scale holds all values and their intervals. Those of open and loose points may be very wide: what of them is beyond
// twice the span of the rest is cut, and an arrow says so.
function scaleOf(points) {
  const solid = points.filter((point) => !point.open && !point.loose);
  const ends = (from) => from.flatMap((point) => [point.low ?? point.y, point.high ?? point.y]);
  const all = ends(points), kept = [...ends(solid.length ? solid : points), ...points.map((point) => point.y)];
  const low = Math.min(...kept), high = Math.max(...kept), span = high - low;
  return span ? [Math.max(Math.min(...all), low - span / 2), Math.min(Math.max(...all), high + span / 2)] : [Math.min(...all), Math.max(...all)];
}

// runs of points without gaps
function runs(points) {
  const all = [[]];
  for (const point of points) {
    if (point.y === null) all.push([]); else all.at(-1).push(point);
  }
  return all.filter((run) => run.length);
}

function drawSeries(svg, one, x, y, isCut) {
  const path = (points, value) => points.map((point) => `${x(point.x).toFixed(1)},${y(value(point)).toFixed(1)}`);
  for (const run of runs(one.points)) {
    const banded = run.filter((point) => typeof point.low === "number" && typeof point.high === "number");
    if (banded.length > 1) {
      const outline = [...path(banded, (point) => point.high), ...path(banded, (point) => point.low).reverse()];
      svg.append(coloured(svgNode("path", { d: `M${outline.join("L")}Z`, class: "band" }), "fill", one.colour));
    }
    for (const point of one.dots || run.length === 1 ? run : []) {
      if (typeof point.low === "number") svg.append(coloured(svgNode("line", { x1: x(point.x), x2: x(point.x), y1: y(point.low), y2: y(point.high), "stroke-width": 2, opacity: 0.35 }), "stroke", one.colour));
      svg.append(coloured(svgNode("circle", { cx: x(point.x), cy: y(point.y), r: 3, opacity: point.open ? 0.45 : 1 }), "fill", one.colour));
    }
    for (const point of run) {
      for (const [end, up] of [[point.low, 1], [point.high, -1]]) {
        if (isCut(end)) svg.append(coloured(svgNode("path", { d: `M${x(point.x) - 4},${y(end) - 6 * up}h8l-4,${6 * up}Z`, class: "cut" }), "fill", one.colour));
      }
    }
    const closed = run.filter((point) => !point.open), open = run.filter((point, k) => point.open || run[k + 1]?.open);
    for (const [points, dashes] of [[closed, one.dashed ? "5 4" : null], [open, "2 4"]]) {
      if (points.length < 2) continue;
      const line = coloured(svgNode("path", { d: `M${path(points, (point) => point.y).join("L")}`, class: "line", "data-name": one.name }), "stroke", one.colour);
      if (dashes) line.setAttribute("stroke-dasharray", dashes);
      svg.append(line);
    }
  }
}

// names at the ends of the lines, moved apart where they would overlap
function placeLabels(svg, drawn, x, y, bottom) {
  const labels = drawn.filter((one) => one.label).map((one) => {
    const end = one.points.filter((point) => point.y !== null).at(-1);
    return { one, x: x(end.x) + 6, y: y(end.y) };
  }).sort((a, b) => a.y - b.y);
  labels.forEach((label, k) => { if (k) label.y = Math.max(label.y, labels[k - 1].y + 14); });
  for (let k = labels.length - 1, most = bottom; k >= 0; k--, most -= 14) labels[k].y = Math.min(labels[k].y, most);
  for (const label of labels) svg.append(coloured(svgNode("text", { x: label.x, y: label.y + 4, class: "end" }, label.one.label), "fill", label.one.colour));
}

// a vertical line and the values under the pointer
function addCursor(container, svg, drawn, x, margin, width, height, options) {
  const cursor = svgNode("line", { y1: margin.top, y2: height - margin.bottom, class: "cursor", visibility: "hidden" });
  const tip = el("div", { class: "tip", hidden: true });
  svg.append(cursor);
  container.append(tip);
  const xs = [...new Set(drawn.flatMap((one) => one.points.filter((point) => point.y !== null).map((point) => point.x)))];
  const show = (event) => {
    const at = event.clientX - svg.getBoundingClientRect().left;
    const nearest = xs.reduce((best, value) => (Math.abs(x(value) - at) < Math.abs(x(best) - at) ? value : best), xs[0]);
    cursor.setAttribute("x1", x(nearest));
    cursor.setAttribute("x2", x(nearest));
    cursor.setAttribute("visibility", "visible");
    const lines = drawn.flatMap((one) => one.points.filter((point) => point.x === nearest && point.y !== null).map((point) =>
      `${one.name} ${options.formatY(point.y)}${typeof point.low === "number" ? ` [${options.formatY(point.low)}, ${options.formatY(point.high)}]` : ""}${point.note ? `, ${point.note}` : ""}`));
    tip.textContent = [options.formatX(nearest), ...lines].join("\n");
    tip.hidden = false;
    tip.style.left = `${Math.max(0, Math.min(x(nearest) + 10, width - tip.offsetWidth))}px`;
  };
  svg.addEventListener("pointermove", show);
  svg.addEventListener("pointerdown", show);
  svg.addEventListener("pointerleave", () => { tip.hidden = true; cursor.setAttribute("visibility", "hidden"); });
}

// a mean with its interval per row. rows: [{name, mean, low, high, colour, note}]
export function dotChart(container, rows, options = {}) {
  onWidth(container, (width) => drawDots(container, width, rows, { row: 26, ...options }));
}

function drawDots(container, width, rows, options) {
  if (!rows.length) {
    container.replaceChildren(el("p", { class: "empty" }, "Nothing yet."));
    return;
  }
  const longest = Math.max(...rows.map((row) => row.name.length));
  const left = Math.min(14 + 7.2 * longest, width * 0.42), right = 62, height = rows.length * options.row + 26;
  let low = Math.min(...rows.map((row) => row.low ?? row.mean), options.zero ? 0 : Infinity), high = Math.max(...rows.map((row) => row.high ?? row.mean), options.zero ? 0 : -Infinity);
  if (low === high) { low -= 1; high += 1; }
  const x = (value) => left + (width - left - right) * (value - low) / (high - low);
  const svg = svgNode("svg", { height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": options.title || "" });
  for (const value of ticks(low, high, Math.max(2, Math.floor((width - left - right) / 80)))) {
    svg.append(svgNode("line", { x1: x(value), x2: x(value), y1: 0, y2: height - 20, class: options.zero && value === 0 ? "axis" : "grid" }));
    svg.append(svgNode("text", { x: x(value), y: height - 5, "text-anchor": "middle" }, plain(value)));
  }
  const most = Math.floor((left - 14) / 6.8);
  rows.forEach((row, k) => {
    const y = k * options.row + options.row / 2;
    const name = row.name.length > most ? `${row.name.slice(0, most - 1)}…` : row.name;
    const label = svgNode("text", { x: left - 12, y: y + 4, "text-anchor": "end", class: "label" }, name);
    label.append(svgNode("title", {}, row.name));
    svg.append(label);
    if (typeof row.low === "number") svg.append(coloured(svgNode("line", { x1: x(row.low), x2: x(row.high), y1: y, y2: y, "stroke-width": 6, opacity: 0.35, "stroke-linecap": "round" }), "stroke", row.colour));
    svg.append(coloured(svgNode("circle", { cx: x(row.mean), cy: y, r: 5, class: "mean" }), "fill", row.colour));
    svg.append(svgNode("text", { x: width - right + 14, y: y + 4 }, number(row.mean, 4)));
  });
  container.replaceChildren(svg);
}

// horizontal bars with counts. rows: [{name, value, text}]
export function barList(rows) {
  const most = Math.max(...rows.map((row) => row.value), 1e-12);
  return el("div", { class: "bars" }, rows.map((row) => {
    const fill = el("i", { class: "other" });
    fill.style.left = "0";
    fill.style.width = `${100 * row.value / most}%`;
    return el("div", { class: "bar-row" }, el("span", { class: "break" }, row.name), el("div", { class: "parts" }, fill), el("span", { class: "number" }, row.text));
  }));
}

// The parts of scores, as many as the model has: names in its order, bars one below the other from a common zero line, with
// their sign, the scale that all of them share, and a legend.
const MEANINGS = { instant: "expected reward now", future: "change of later rewards", residual: "what logged rewards add to this change", value: "expected reward from now on", bonus: "for what is little known" };
const OTHERS = ["other", "third", "fourth"];

export function partsOf(items) {
  const names = [...new Set(items.flatMap((parts) => Object.keys(parts)))], others = names.filter((name) => name !== "instant" && name !== "future");
  const kind = (name) => (others.includes(name) ? OTHERS[others.indexOf(name) % OTHERS.length] : name);
  const values = items.flatMap((parts) => Object.values(parts));
  const low = Math.min(0, ...values), high = Math.max(low + 1e-9, 0, ...values);
  const legend = el("span", { class: "legend" }, names.map((name) => el("span", {}, el("i", { class: `key ${kind(name)}` }), name in MEANINGS ? `${name}: ${MEANINGS[name]}` : name)));
  return { names, bars: items.map((parts) => partsBar(parts, names, kind, low, high)), scale: partsScale(low, high), legend };
}

function partsBar(parts, names, kind, low, high) {
  const bar = el("div", { class: "parts" }), percent = (value) => `${100 * value / (high - low)}%`;
  names.forEach((name, k) => {
    if (!(name in parts)) return;
    const value = parts[name], piece = el("i", { class: kind(name), title: `${name} ${signed(value)}` });
    piece.style.left = percent(Math.min(value, 0) - low);
    piece.style.width = percent(Math.abs(value));
    piece.style.top = `${100 * k / names.length}%`;
    piece.style.bottom = `${100 * (names.length - 1 - k) / names.length}%`;
    bar.append(piece);
  });
  const zero = el("i", { class: "zero" });
  zero.style.left = percent(-low);
  bar.append(zero);
  return bar;
}

// the numbers at the ends of the scale, and 0 where it is apart from them
function partsScale(low, high) {
  const scale = el("span", { class: "parts-scale" });
  for (const value of [low, 0, high].filter((value, k) => k !== 1 || (-low > 0.15 * (high - low) && high > 0.15 * (high - low)))) {
    const mark = el("span", {}, value === 0 ? "0" : signed(value));
    mark.style.left = `${100 * (value - low) / (high - low)}%`;
    if (value === low || value === high) mark.className = value === low ? "first" : "last";
    scale.append(mark);
  }
  return scale;
}

// the numbers of a row, a column each: the parts, and the score
export function partsNumbers(names, parts, score) {
  const value = (label, text) => el("span", { class: "number" }, el("span", { class: "label" }, label), text);
  return [...names.map((name) => value(name, (name === "instant" ? fixed : fixedSigned)(parts[name]))), value("score", fixed(score))];
}

// a row of a grid with this many columns of numbers
export function partsRow(names, attributes, ...cells) {
  const row = el("div", attributes, ...cells);
  row.style.setProperty("--numbers", names.length + 1);
  return row;
}

// the heading of such rows: before, item, the scale of the bars, names of the parts, score, after
export const partsHead = (names, scale, kind, ...last) => partsRow(names, { class: `${kind} head` }, el("span"), el("span", {}, "item"), el("span", { class: "parts-head" }, scale),
  [...names, "score"].map((text) => el("span", { class: "number" }, text)), last.map((text) => el("span", {}, text)));
