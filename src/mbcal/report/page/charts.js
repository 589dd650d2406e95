"use strict";
// Building blocks of the charts: elements, scales, tooltips, axes. All charts are SVG, so that text can be selected and searched.

const SVG_TAGS = ["svg", "path", "line", "circle", "text", "rect", "g"];

// create an HTML or SVG element
const make = (tag, attributes = {}, text) => {
  const element = SVG_TAGS.includes(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
};

const byId = (id) => document.getElementById(id);
const signed = (value, digits = 2) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(digits);
// the name of a method as a label: without folders, and cut if it is long
const shortName = (name, most = 16) => {
  const last = name.split("/").at(-1);
  return last.length > most ? last.slice(0, most - 1) + "…" : last;
};
const colourOf = (role) => `var(--${role})`;

// a tooltip at a point of the window
const tip = byId("tip");
const showTip = (text, x, y) => {
  tip.textContent = text;
  tip.hidden = false;
  tip.style.left = Math.max(4, Math.min(x + 12, innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = (y + 14 + tip.offsetHeight > innerHeight ? y - tip.offsetHeight - 10 : y + 14) + "px";
};
const hideTip = () => { tip.hidden = true; };

// show a tooltip while the pointer is over an element; a tap shows it, too
const addTooltip = (element, text) => {
  const show = (event) => showTip(text, event.clientX, event.clientY);
  for (const name of ["pointermove", "pointerenter", "pointerdown"]) element.addEventListener(name, show);
  element.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") hideTip(); });
};

// about `count` round numbers between low and high
const ticks = (low, high, count = 5) => {
  const rough = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= rough * 0.999);
  const values = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + 1e-9 * step; value += step) values.push(+value.toFixed(10));
  return values;
};

// a linear scale from values to pixels
const scale = (low, high, from, to) => (value) => from + (to - from) * (value - low) / (high - low || 1);

// the width in pixels that a chart has in its container; text keeps its size on a phone
const widthOf = (container) => Math.round(Math.max(300, Math.min(container.clientWidth || 760, 900)));

const newChart = (container, width, height, label) => {
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  svg.style.maxWidth = width + "px";
  container.append(svg);
  return svg;
};

// vertical grid lines with numbers below; `format` writes the numbers
const xAxis = (svg, x, values, top, bottom, format = String) => {
  for (const value of values) {
    svg.append(make("line", { x1: x(value), x2: x(value), y1: top, y2: bottom, class: "grid" }));
    svg.append(make("text", { x: x(value), y: bottom + 16, "text-anchor": "middle" }, format(value)));
  }
};

// horizontal grid lines with numbers at the left
const yAxis = (svg, y, values, left, right, format = String) => {
  for (const value of values) {
    svg.append(make("line", { x1: left, x2: right, y1: y(value), y2: y(value), class: "grid" }));
    svg.append(make("text", { x: left - 7, y: y(value) + 4, "text-anchor": "end" }, format(value)));
  }
};

const path = (points) => "M" + points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join("L");

// a line with a band around it
const lineWithBand = (svg, points, band, colour, attributes = {}) => {
  if (band) svg.append(make("path", { d: path(band) + "Z", fill: colour, opacity: 0.13 }));
  svg.append(make("path", { d: path(points), fill: "none", stroke: colour, "stroke-width": 2, ...attributes }));
};

// labels at the right ends of lines, moved apart so that none covers another; each is {y, text, colour, strong}
const endLabels = (svg, labels, x, top, bottom, gap = 15) => {
  const ordered = [...labels].sort((a, b) => a.y - b.y);
  let last = top - gap;
  for (const label of ordered) { label.at = Math.max(label.y, last + gap); last = label.at; }
  let next = bottom + gap;
  for (const label of ordered.reverse()) { label.at = Math.min(label.at, next - gap); next = label.at; }
  for (const label of labels) {
    if (Math.abs(label.at - label.y) > 3) svg.append(make("line", { x1: x - 8, x2: x - 1, y1: label.y, y2: label.at, stroke: label.colour, opacity: 0.5 }));
    svg.append(make("text", { x: x + 2, y: label.at + 4, style: `fill:${label.colour}`, class: label.strong ? "strong" : "" }, label.text));
  }
};

// a button of a group of which one is chosen, or which each switch something on and off
const makeButton = (text, pressed, colour, onClick) => {
  const button = make("button", { type: "button", "aria-pressed": pressed });
  if (colour) button.append(make("span", { class: "dot", style: "background:" + colour }));
  button.append(text);
  button.addEventListener("click", () => onClick(button));
  return button;
};

// buttons of which one is chosen; `names` maps values to titles
const makeChoice = (container, names, chosen, onChange) => {
  for (const [value, title] of names) {
    const button = makeButton(title, value === chosen, null, (pressed) => {
      for (const other of container.children) other.setAttribute("aria-pressed", other === pressed);
      onChange(value);
    });
    button.dataset.value = value;
    container.append(button);
  }
  container.hidden = names.length < 2;
};
