"use strict";
const data = JSON.parse(document.getElementById("findings").textContent);
const make = (tag, attributes = {}, text) => {
  const svg = ["svg", "path", "line", "circle", "text", "rect", "g"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
};
const tip = document.getElementById("tip");
const explain = (element, text) => {
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
const ticks = (low, high, count = 5) => {
  const rough = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= rough);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + 1e-9; value += step) found.push(+value.toFixed(10));
  return found;
};
const button = (text, pressed, colour, act) => {
  const made = make("button", { type: "button", "aria-pressed": pressed });
  if (colour) made.append(make("span", { class: "dot", style: "background:" + colour }));
  made.append(text);
  made.addEventListener("click", () => act(made));
  return made;
};

function drawBars(judge) {
  const entries = data.rewards[judge] || [], place = document.getElementById("bars");
  place.replaceChildren();
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
    const over = make("rect", { x: 0, y: y - row / 2, width, height: row, fill: "transparent" });
    explain(over, `${entry.agent}: ${entry.mean.toFixed(3)} [${entry.low.toFixed(3)}, ${entry.high.toFixed(3)}]`);
    svg.append(over);
  });
  place.append(svg);
}

function drawCurves(hidden) {
  const place = document.getElementById("curve");
  place.replaceChildren();
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
      explain(dot, `${agent}, round ${k + 1}: ${value.toFixed(3)} [${curve.low[k].toFixed(3)}, ${curve.high[k].toFixed(3)}]`);
      svg.append(dot);
    });
  }
  place.append(svg);
}

function bar(value, most, colour, signed) {
  const made = make("div", { class: "bar" }), share = Math.min(Math.abs(value) / (most || 1), 1);
  const from = signed ? (value < 0 ? 50 - 50 * share : 50) : 0;
  made.append(make("i", { style: `left:${from}%;width:${(signed ? 50 : 100) * share}%;background:${colour};opacity:.55` }));
  made.append(make("span", {}, (signed && value >= 0 ? "+" : "") + value.toFixed(2)));
  return made;
}

function drawSession(number) {
  const place = document.getElementById("steps"), session = data.xray[number];
  place.replaceChildren();
  if (!session) return;
  const widest = Math.max(...session.steps.flatMap((step) => [step.future, ...step.rivals.map((r) => r.future)].map(Math.abs)), 0.01);
  session.steps.forEach((step, k) => {
    const details = make("details", { class: "step" }), summary = make("summary");
    summary.append(make("span", { class: "number" }, k + 1), make("span", {}, step.item));
    const now = bar(step.instant, data.most, "var(--now)", false);
    const later = bar(step.future, widest, step.future < 0 ? "var(--bad)" : "var(--good)", true);
    explain(now, "expected reward of this step");
    explain(later, "future advantage: what it is held to change in the rest of the session");
    summary.append(now, later, make("span", {}, "→ " + step.behaviour));
    details.append(summary);
    const inside = make("div", { class: "inside" });
    if (step.changed.length) {
      const most = Math.max(...step.changed.map(Math.abs), 1e-6), width = 360, height = 64, each = width / step.changed.length;
      const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, style: "max-width:24rem" });
      svg.append(make("line", { x1: 0, x2: width, y1: height / 2, y2: height / 2, class: "grid" }));
      step.changed.forEach((value, j) => {
        const size = Math.abs(value) / most * (height / 2 - 4);
        const column = make("rect", {
          x: j * each + 1, width: Math.max(each - 2, 1), y: value < 0 ? height / 2 : height / 2 - size, height: size,
          fill: value < 0 ? "var(--bad)" : "var(--good)", opacity: 0.6,
        });
        explain(column, `step ${k + 2 + j}: ${value >= 0 ? "+" : ""}${value.toFixed(3)} expected reward because of this item`);
        svg.append(column);
      });
      const sum = step.changed.reduce((total, value, j) => total + value * data.gamma ** (j + 1), 0);
      inside.append(make("p", {}, `Masked, the steps that follow would change so (discounted sum ${sum >= 0 ? "+" : ""}${sum.toFixed(3)}):`), svg);
    }
    if (step.rivals.length) {
      const table = make("table"), head = make("tr");
      for (const name of ["would please now", "instant", "future", "total"]) head.append(make("th", {}, name));
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
    place.append(details);
  });
}

const hide = (id) => { document.getElementById(id).hidden = true; };
const judges = document.getElementById("judges"), hidden = new Set();
for (const judge of Object.keys(data.rewards).filter((name) => data.rewards[name].length)) {
  judges.append(button("judged by " + judge, judge === data.judge, null, (made) => {
    for (const other of judges.children) other.setAttribute("aria-pressed", other === made);
    drawBars(judge);
  }));
}
if (judges.children.length) drawBars(data.judge); else hide("rewards");
const toggles = document.getElementById("toggles");
for (const agent of Object.keys(data.curves)) {
  toggles.append(button(agent, true, data.colours[agent], (made) => {
    if (hidden.has(agent)) hidden.delete(agent); else hidden.add(agent);
    made.setAttribute("aria-pressed", !hidden.has(agent));
    drawCurves(hidden);
  }));
}
if (toggles.children.length) drawCurves(hidden); else hide("curves");
const sessions = document.getElementById("sessions");
data.xray.forEach((session, number) => {
  sessions.append(button("session " + (number + 1), number === 0, null, (made) => {
    for (const other of sessions.children) other.setAttribute("aria-pressed", other === made);
    drawSession(number);
  }));
});
if (data.xray.length) drawSession(0); else hide("xray");
