"use strict";
const data = JSON.parse(document.getElementById("data").textContent);

// create an HTML or SVG element
const make = (tag, attributes = {}, text) => {
  const svg = ["svg", "path", "line", "circle", "text", "rect", "g"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
};

// show a tooltip while the pointer is over an element
const tip = document.getElementById("tip");
const addTooltip = (element, text) => {
  const show = (event) => {
    tip.textContent = text;
    tip.hidden = false;
    tip.style.left = Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 4) + "px";
    tip.style.top = event.clientY + 14 + "px";
  };
  element.addEventListener("pointermove", show);
  element.addEventListener("pointerenter", show);
  element.addEventListener("pointerleave", () => { tip.hidden = true; });
};

// about `count` round numbers between low and high
const ticks = (low, high, count = 5) => {
  const rough = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= rough);
  const values = [];
  for (let value = Math.ceil(low / step) * step; value <= high + 1e-9; value += step) values.push(+value.toFixed(10));
  return values;
};

const makeButton = (text, pressed, colour, onClick) => {
  const button = make("button", { type: "button", "aria-pressed": pressed });
  if (colour) button.append(make("span", { class: "dot", style: "background:" + colour }));
  button.append(text);
  button.addEventListener("click", () => onClick(button));
  return button;
};

// reward and interval of every agent
function drawBars(judge) {
  const entries = data.rewards[judge] || [], container = document.getElementById("bars");
  container.replaceChildren();
  if (!entries.length) return;
  const width = 760, row = 26, left = 120, right = 70, height = entries.length * row + 34;
  const low = Math.min(...entries.map((e) => e.low)), high = Math.max(...entries.map((e) => e.high));
  const x = (value) => left + (width - left - right) * (value - low) / (high - low || 1);
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "reward per session by method" });
  for (const value of ticks(low, high)) {
    svg.append(make("line", { x1: x(value), x2: x(value), y1: 0, y2: height - 24, class: "grid" }));
    svg.append(make("text", { x: x(value), y: height - 8, "text-anchor": "middle" }, value));
  }
  entries.forEach((entry, k) => {
    const y = k * row + row / 2 + 2, colour = data.colours[entry.agent];
    svg.append(make("text", { x: left - 10, y: y + 4, "text-anchor": "end", class: "label" }, entry.agent));
    svg.append(make("line", { x1: x(entry.low), x2: x(entry.high), y1: y, y2: y, stroke: colour, "stroke-width": 6, opacity: 0.35 }));
    svg.append(make("circle", { cx: x(entry.mean), cy: y, r: 5, fill: colour }));
    svg.append(make("text", { x: width - right + 12, y: y + 4 }, entry.mean.toFixed(2)));
    const area = make("rect", { x: 0, y: y - row / 2, width, height: row, fill: "transparent" });
    addTooltip(area, `${entry.agent}: ${entry.mean.toFixed(3)} [${entry.low.toFixed(3)}, ${entry.high.toFixed(3)}]`);
    svg.append(area);
  });
  container.append(svg);
}

// reward by round, with a band from the lowest to the highest seed
function drawCurves(hidden) {
  const container = document.getElementById("curve");
  container.replaceChildren();
  const shown = Object.entries(data.curves).filter(([agent]) => !hidden.has(agent));
  if (!shown.length) return;
  const width = 760, height = 380, left = 52, right = 16, top = 10, bottom = 34;
  const rounds = Math.max(...shown.map(([, curve]) => curve.mean.length));
  const low = Math.min(...shown.flatMap(([, curve]) => curve.low)), high = Math.max(...shown.flatMap(([, curve]) => curve.high));
  const x = (k) => left + (width - left - right) * (rounds > 1 ? k / (rounds - 1) : 0.5);
  const y = (value) => top + (height - top - bottom) * (high - value) / (high - low || 1);
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "reward by round" });
  for (const value of ticks(low, high)) {
    svg.append(make("line", { x1: left, x2: width - right, y1: y(value), y2: y(value), class: "grid" }));
    svg.append(make("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, value));
  }
  for (const k of ticks(1, rounds, Math.min(rounds - 1 || 1, 10)).filter(Number.isInteger)) {
    svg.append(make("text", { x: x(k - 1), y: height - 10, "text-anchor": "middle" }, k));
  }
  for (const [agent, curve] of shown) {
    const colour = data.colours[agent];
    const line = (values) => values.map((value, k) => `${x(k).toFixed(1)},${y(value).toFixed(1)}`);
    svg.append(make("path", { d: "M" + line(curve.high).concat(line(curve.low).reverse()).join("L") + "Z", fill: colour, opacity: 0.12 }));
    svg.append(make("path", { d: "M" + line(curve.mean).join("L"), fill: "none", stroke: colour, "stroke-width": 2, class: "curve", "data-agent": agent }));
    curve.mean.forEach((value, k) => {
      const dot = make("circle", { cx: x(k), cy: y(value), r: 7, fill: colour, "fill-opacity": 0.02 });
      addTooltip(dot, `${agent}, round ${k + 1}: ${value.toFixed(3)} [${curve.low[k].toFixed(3)}, ${curve.high[k].toFixed(3)}]`);
      svg.append(dot);
    });
  }
  container.append(svg);
}

// a horizontal bar; signed values start in the middle
function makeBar(value, most, colour, signed) {
  const bar = make("div", { class: "bar" }), share = Math.min(Math.abs(value) / (most || 1), 1);
  const from = signed ? (value < 0 ? 50 - 50 * share : 50) : 0;
  bar.append(make("i", { style: `left:${from}%;width:${(signed ? 50 : 100) * share}%;background:${colour};opacity:.55` }));
  bar.append(make("span", {}, (signed && value >= 0 ? "+" : "") + value.toFixed(2)));
  return bar;
}

// the steps of one session, each with its details
function drawSession(number) {
  const container = document.getElementById("steps"), session = data.xray[number];
  container.replaceChildren();
  if (!session) return;
  const widest = Math.max(...session.steps.flatMap((step) => [step.future, ...step.rivals.map((r) => r.future)].map(Math.abs)), 0.01);
  session.steps.forEach((step, k) => {
    const details = make("details", { class: "step" }), summary = make("summary");
    summary.append(make("span", { class: "number" }, k + 1), make("span", {}, step.item));
    const now = makeBar(step.instant, data.most, "var(--now)", false);
    const later = makeBar(step.future, widest, step.future < 0 ? "var(--bad)" : "var(--good)", true);
    addTooltip(now, "expected reward of this step");
    addTooltip(later, "future advantage: the change in later rewards attributed to this item");
    summary.append(now, later, make("span", {}, "→ " + step.behaviour));
    details.append(summary);
    const inside = make("div", { class: "inside" });
    if (step.changed.length) {
      const most = Math.max(...step.changed.map(Math.abs), 1e-6), width = 360, height = 64, columnWidth = width / step.changed.length;
      const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, style: "max-width:24rem" });
      svg.append(make("line", { x1: 0, x2: width, y1: height / 2, y2: height / 2, class: "grid" }));
      step.changed.forEach((value, j) => {
        const size = Math.abs(value) / most * (height / 2 - 4);
        const column = make("rect", {
          x: j * columnWidth + 1, width: Math.max(columnWidth - 2, 1), y: value < 0 ? height / 2 : height / 2 - size, height: size,
          fill: value < 0 ? "var(--bad)" : "var(--good)", opacity: 0.6,
        });
        addTooltip(column, `step ${k + 2 + j}: ${value >= 0 ? "+" : ""}${value.toFixed(3)} expected reward because of this item`);
        svg.append(column);
      });
      const sum = step.changed.reduce((total, value, j) => total + value * data.gamma ** (j + 1), 0);
      inside.append(make("p", {}, `Expected reward of each later step, minus the same with this item masked (discounted sum ${sum >= 0 ? "+" : ""}${sum.toFixed(3)}):`), svg);
    }
    if (step.rivals.length) {
      const table = make("table"), head = make("tr");
      for (const name of ["item", "instant", "future", "total"]) head.append(make("th", {}, name));
      table.append(head);
      for (const rival of [{ ...step, item: step.item + " (shown)" }, ...step.rivals]) {
        const row = make("tr");
        row.append(make("td", {}, rival.item));
        for (const value of [rival.instant, rival.future, rival.instant + rival.future]) row.append(make("td", { class: "number" }, value.toFixed(3)));
        table.append(row);
      }
      inside.append(table);
    }
    details.append(inside);
    container.append(details);
  });
}

const hide = (id) => { document.getElementById(id).hidden = true; };
const judges = document.getElementById("judges"), hidden = new Set();
for (const judge of Object.keys(data.rewards).filter((name) => data.rewards[name].length)) {
  judges.append(makeButton("judged by " + judge, judge === data.judge, null, (pressed) => {
    for (const button of judges.children) button.setAttribute("aria-pressed", button === pressed);
    drawBars(judge);
  }));
}
if (judges.children.length) drawBars(data.judge); else hide("rewards");
const toggles = document.getElementById("toggles");
for (const agent of Object.keys(data.curves)) {
  toggles.append(makeButton(agent, true, data.colours[agent], (button) => {
    if (hidden.has(agent)) hidden.delete(agent); else hidden.add(agent);
    button.setAttribute("aria-pressed", !hidden.has(agent));
    drawCurves(hidden);
  }));
}
if (toggles.children.length) drawCurves(hidden); else hide("curves");
const sessions = document.getElementById("sessions");
data.xray.forEach((session, number) => {
  sessions.append(makeButton("session " + (number + 1), number === 0, null, (pressed) => {
    for (const button of sessions.children) button.setAttribute("aria-pressed", button === pressed);
    drawSession(number);
  }));
});
if (data.xray.length) drawSession(0); else hide("xray");
