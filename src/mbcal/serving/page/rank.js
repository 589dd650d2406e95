// Rank by hand: a session of its own, item by item, with the parts of every score as numbers and bars.
import { ask, badge, byId, el, fixed, fixedSigned, percent } from "./base.js";
import { partsBars, partsLegend } from "./charts.js";

const lines = (id) => byId(id).value.split("\n").map((text) => text.trim()).filter(Boolean);
const newName = () => `by-hand-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;
let model = null, session = null, shown = [];

export function startRanking(live) {
  const first = model === null;
  model = live;
  if (!first) return;
  byId("fill").addEventListener("click", () => {
    byId("candidates").value = model.examples.join("\n");
    byId("history").value = model.examples.slice(0, 2).map((item, k) => `${item}:${model.behaviours[k % model.behaviours.length]}`).join("\n");
  });
  byId("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    session = newName();
    shown = [];
    rank();
  });
}

function row(rank, item, parts, score, bar, act, marks = []) {
  const names = Object.keys(parts), other = names.filter((name) => name !== "instant");
  const value = (label, text) => el("span", { class: "number" }, el("span", { class: "label" }, label), text);
  return el("div", { class: "step" }, el("span", { class: "rank number" }, String(rank)), el("span", { class: "item break" }, item, ...marks),
    bar, value("instant", fixed(parts.instant)), value(other[0] || "future", other.length ? other.map((name) => fixedSigned(parts[name])).join(" ") : "–"), value("score", fixed(score)), el("span", { class: "act" }, act));
}
const head = (last) => el("div", { class: "step head" }, ["", "item", partsLegend(), "instant", "future", "score", last].map((text, k) => el("span", { class: k > 2 && k < 6 ? "number" : null }, text)));

async function rank() {
  byId("ask-problem").replaceChildren();
  try {
    const history = lines("history").map((text) => { const at = text.lastIndexOf(":"); return [text.slice(0, at), text.slice(at + 1)]; });
    const candidates = lines("candidates");
    const answer = await ask("v1/rank", { history, candidates, k: Math.min(50, candidates.length), session });
    const bars = partsBars(answer.items.map((item) => item.parts));
    drawShown();
    byId("ranked").replaceChildren(el("h3", {}, shown.length ? "What to show next" : "What to show first"),
      el("p", { class: "note" }, `Ranked by ${answer.version}; each rank is a random item in ${percent(answer.epsilon)} of cases. Say how the user behaved to go on.`), head("user's behaviour"),
      ...answer.items.map((item, k) => {
        const act = el("select", { "aria-label": `behaviour towards ${item.item}` });
        act.append(new Option("choose …", ""), ...model.behaviours.map((name) => new Option(name, name)));
        act.addEventListener("change", () => give(answer.decision, { ...item, bar: bars[k].cloneNode(true) }, act.value));
        return row(k + 1, item.item, item.parts, item.score, bars[k], act, item.known ? [] : [" ", badge("unseen", "warn")]);
      }));
  } catch (error) {
    byId("ask-problem").replaceChildren(el("p", { class: "message bad" }, error.message));
  }
}

async function give(decision, item, behaviour) {
  try {
    await ask("v1/feedback", { decision, behaviour, item: item.item });
    shown.push({ ...item, behaviour });
    await rank();
  } catch (error) {
    byId("ask-problem").replaceChildren(el("p", { class: "message bad" }, error.message));
  }
}

function drawShown() {
  const rows = shown.map((step, k) => row(k + 1, step.item, step.parts, step.score, step.bar, step.behaviour));
  byId("shown").replaceChildren(...(rows.length ? [el("h3", {}, "The session so far"), head("behaviour"), ...rows] : []));
}
