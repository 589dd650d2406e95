// DOM, formats and requests. Text goes into pages as text nodes only, so that names and titles are harmless.

export const dash = "–";

// el("td", {class: "number", title: "…", onclick: f}, child, "text", …); attributes that are null or undefined are left out
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}
export const byId = (id) => document.getElementById(id);
export const badge = (text, kind = "") => el("span", { class: `badge ${kind}` }, text);

// columns: [name, …] or [[name, "number"], …]; rows: lists of texts and elements
export function table(columns, rows) {
  const kinds = columns.map((column) => (Array.isArray(column) ? column[1] : ""));
  const names = columns.map((column) => (Array.isArray(column) ? column[0] : column));
  const head = el("tr", {}, names.map((name, k) => el("th", { class: kinds[k] || null, scope: "col" }, name)));
  const body = rows.map((row) => el("tr", {}, row.map((cell, k) => el("td", { class: kinds[k] || null }, cell))));
  return el("div", { class: "scroll", tabindex: "0" }, el("table", {}, el("thead", {}, head), el("tbody", {}, body)));
}

// a command to copy
export function command(text) {
  const button = el("button", { type: "button", class: "small" }, "copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "copied";
    } catch {
      button.textContent = "select and copy";
    }
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  });
  return el("div", { class: "command" }, el("code", {}, text), button);
}

// why versions were withdrawn, newest first; nothing if none was
export function withdrawnList(versions) {
  const rows = versions.filter((version) => version.withdrawn).map((version) => el("li", { class: "break" }, `${version.version}: ${version.withdrawn}`)).reverse();
  return rows.length ? [el("h3", {}, "Why versions were withdrawn"), el("ul", { class: "note" }, rows)] : [];
}

// updates, newest first, with their reasons and checks below; link: update -> element or null
const ANSWERS = { worse: "bad", "no worse": "good", "cannot tell": "warn" }, ACTIONS = { refused: "bad", published: "good", canary: "second" };
export const updateList = (updates, link) => updates.map((update) => {
  const head = el("p", {}, `${update.number} `, link(update), ` ${date(update.time)} `);
  if (update.problem) return el("div", { class: "update" }, head, badge(update.problem, "bad"));
  head.append(badge(update.answer, ANSWERS[update.answer]), " ", badge(update.action, ACTIONS[update.action]), update.version ? ` ${update.version}` : "");
  const [lead, reasons] = reasonsOf(update.reason);
  return el("div", { class: "update" }, head, el("details", { class: "why" },
    el("summary", {}, el("span", { class: "short" }, update.reason), el("span", { class: "lead" }, lead)), el("ul", {}, reasons.map((reason) => el("li", {}, reason))),
    el("ul", { class: "checks" }, update.checks.map((check) => el("li", {}, badge(check.answer, ANSWERS[check.answer]), `by the ${check.name}: ${check.detail}`)))));
});
// "the log cannot tell: one; another" -> ["the log cannot tell:", ["one", "another"]]
function reasonsOf(text) {
  const parts = text.split("; "), at = parts[0].indexOf(": ");
  return parts.length > 1 && at > 0 ? [parts[0].slice(0, at + 1), [parts[0].slice(at + 2), ...parts.slice(1)]] : [text, []];
}

// ---- formats: null is unknown and becomes a dash

const known = (value) => typeof value === "number" && Number.isFinite(value);
export const count = (value) => (known(value) ? value.toLocaleString("en") : dash);
// three significant digits, or more, without an exponent: 0.0123, 1.23, 12.3, 1,234
export function number(value, significant = 3) {
  if (!known(value)) return dash;
  if (value === 0) return "0";
  const digits = Math.max(0, Math.min(6, significant - 1 - Math.floor(Math.log10(Math.abs(value)))));
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}
// the same without zeros at the end, for axes
export const plain = (value) => (known(value) ? String(+value.toPrecision(4)) : dash);
// a fixed number of digits, so that numbers below each other can be compared
export const fixed = (value, digits = 3) => (known(value) ? value.toFixed(digits).replace("-", "−") : dash);
export const fixedSigned = (value, digits = 3) => (known(value) && value >= 0 ? "+" : "") + fixed(value, digits);
export const signed = (value) => (known(value) ? (value < 0 ? "−" : value > 0 ? "+" : "") + number(Math.abs(value)) : dash);
const text = (value) => number(value).replace("-", "−");
export const interval = (low, high) => (known(low) && known(high) ? `[${text(low)}, ${text(high)}]` : "");
export const share = (part, whole) => (known(part) && known(whole) && whole > 0 ? percent(part / whole) : dash);
export const percent = (value) => (known(value) ? `${+(100 * value).toPrecision(3)}%` : dash);
export function bytes(value) {
  if (!known(value)) return dash;
  const power = Math.min(Math.max(Math.floor(Math.log2(Math.max(value, 1)) / 10), 0), 4);
  return power === 0 ? `${value} B` : `${number(value / 1024 ** power)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}
// 0.0004 -> 0.4 ms, 75 -> 75 s, 300 -> 5 min, 7200 -> 2 h
export function duration(seconds) {
  if (!known(seconds)) return dash;
  if (seconds < 1) return `${+(seconds * 1000).toPrecision(3)} ms`;
  if (seconds < 120) return `${+seconds.toPrecision(3)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}
// times are UTC, as in logs and reports: 14:05, and 2027-01-31 14:05 UTC
const iso = (seconds) => new Date(seconds * 1000).toISOString();
export const clock = (seconds) => iso(seconds).slice(11, 16);
export const date = (seconds) => (known(seconds) ? `${iso(seconds).slice(0, 10)} ${clock(seconds)} UTC` : dash);

// ---- requests: a token is asked for when the server wants one, and kept in memory only

let token = null, asking = null;
export const hasToken = () => token !== null;

function askForToken(wrong) {
  const input = el("input", { type: "password", autocomplete: "off", required: true, "aria-label": "token" });
  const form = el("form", { id: "token", class: "message warn" },
    el("p", {}, wrong ? "This token is wrong." : "This server requires a token. It is kept in this page's memory only."),
    el("div", { class: "choices" }, input, el("button", { class: "primary" }, "Continue")));
  document.querySelector(".page").prepend(form);
  input.focus();
  return new Promise((done) => form.addEventListener("submit", (event) => {
    event.preventDefault();
    token = input.value;
    form.remove();
    done();
  }));
}

// GET, or POST if there is a body; the parsed answer, or an Error with the server's sentence
export async function ask(path, body) {
  const headers = token === null ? {} : { authorization: `Bearer ${token}` }, sent = token;
  if (body !== undefined) headers["content-type"] = "application/json";
  const response = await fetch(path, { method: body === undefined ? "GET" : "POST", headers, body: body === undefined ? undefined : JSON.stringify(body), cache: "no-store" });
  if (response.status === 401) {
    if (sent === token) {
      asking = asking || askForToken(token !== null).finally(() => { asking = null; });
      await asking;
    }
    return ask(path, body);
  }
  const answer = await response.json().catch(() => null);
  if (!response.ok) throw new Error((answer && answer.error) || `${response.status} ${response.statusText}`);
  return answer;
}
