// Rank by hand: a trial that the server neither logs nor counts as traffic, item by item, with the parts of every score.
import { ask, badge, byId, el } from "./base.js";
import { partsHead, partsNumbers, partsOf, partsRow } from "./charts.js";

const lines = (id) => byId(id).value.split("\n").map((text) => text.trim()).filter(Boolean);
let model = null, shown = [];

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
    rank([]);
  });
}

const row = (names, rank, { item, parts, score }, bar, act, marks = []) => partsRow(names, { class: "step" }, el("span", { class: "rank number" }, String(rank)),
  el("span", { class: "item break" }, item, ...marks), bar, partsNumbers(names, parts, score), el("span", { class: "act" }, act));

async function rank(steps) {
  byId("ask-problem").replaceChildren();
  try {
    const history = lines("history").map((text) => { const at = text.lastIndexOf(":"); return [text.slice(0, at), text.slice(at + 1)]; });
    const candidates = lines("candidates");
    const answer = await ask("v1/try", { history, candidates, shown: steps.map((step) => [step.item, step.behaviour]), k: Math.min(50, candidates.length) });
    shown = steps;
    const { names, bars, scale, legend } = partsOf([...shown, ...answer.items].map((item) => item.parts));
    drawShown(names, bars.splice(0, shown.length), scale.cloneNode(true));
    byId("ranked").replaceChildren(el("h3", {}, shown.length ? "What to show next" : "What to show first"),
      el("p", { class: "note" }, `Ranked by ${answer.version}, without random items. Say how the user behaved to go on.`),
      el("p", {}, legend), partsHead(names, scale, "step", "user's behaviour"),
      ...answer.items.map((item, k) => {
        const act = el("select", { "aria-label": `behaviour towards ${item.item}` });
        act.append(new Option("choose …", ""), ...model.behaviours.map((name) => new Option(name, name)));
        act.addEventListener("change", () => rank([...shown, { ...item, behaviour: act.value }]));
        return row(names, k + 1, item, bars[k], act, item.known ? [] : [" ", badge("unseen", "warn")]);
      }));
  } catch (error) {
    byId("ask-problem").replaceChildren(el("p", { class: "message bad" }, error.message));
  }
}

function drawShown(names, bars, scale) {
  const rows = shown.map((step, k) => row(names, k + 1, step, bars[k], step.behaviour));
  byId("shown").replaceChildren(...(rows.length ? [el("h3", {}, "The session so far"), partsHead(names, scale, "step", "behaviour"), ...rows] : []));
}
