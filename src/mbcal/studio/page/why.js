// Why this item: a logged session, step by step, with the parts of every candidate's score.
import { ask, badge, count, el, fixed, fixedSigned, number, plain } from "./base.js";
import { lineChart, partsHead, partsNumbers, partsOf, partsRow } from "./charts.js";
import { wholeTicks } from "./stores.js";

const option = (value, text, chosen) => { const one = new Option(text, value); one.selected = value === chosen; return one; };

export async function whyPage(list, parameters) {
  const models = list.artifacts.filter((found) => found.kind === "model" && !found.problem), stores = list.artifacts.filter((found) => found.kind === "store" && !found.problem);
  if (!models.length || !stores.length) return [el("p", { class: "empty" }, "A model and a store are needed; one of them is not here.")];
  const model = parameters.get("model") || (models.find((found) => found.summary === "mbcal") || models[0]).path;
  const data = models.find((found) => found.path === model)?.content;
  const store = parameters.get("store") || (stores.find((found) => found.content === data) || stores[0]).path;
  const part = parameters.get("part") || "test", session = parameters.get("session") || "0";
  const pickModel = el("select", { id: "model" }, models.map((found) => option(found.path, `${found.path} (${found.summary})`, model)));
  const pickStore = el("select", { id: "store" }, stores.map((found) => option(found.path, found.path, store)));
  const pickPart = el("select", { id: "part" }, ["test", "train", "simulator"].map((name) => option(name, `${name} users`, part)));
  const pickSession = el("input", { id: "session", type: "number", min: "0", step: "1", value: session });
  const form = el("form", { class: "pick" }, el("label", {}, "model", pickModel), el("label", {}, "store", pickStore), el("label", {}, "part", pickPart), el("label", {}, "session, counted from 0", pickSession), el("button", { class: "primary" }, "Explain"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    location.hash = `#/why?${new URLSearchParams({ model: pickModel.value, store: pickStore.value, part: pickPart.value, session: pickSession.value, asked: "1" })}`;
  });
  if (!parameters.has("asked")) return [el("p", { class: "note" }, "How a model ranks the candidates at every step of a logged session, and why: what an item is expected to earn now (instant), and how it changes what later items earn (future)."), form];
  const result = el("div", { id: "result" });
  try {
    const view = await ask(`api/why?${new URLSearchParams({ model, store, part, session })}`);
    result.replaceChildren(...explain(view));
  } catch (error) {
    result.replaceChildren(el("p", { class: "message bad" }, error.message));
  }
  return [form, result];
}

function explain(view) {
  const place = el("div", { id: "step" });
  const buttons = view.steps.map((step, k) => {
    const button = el("button", { type: "button", "aria-pressed": "false" }, el("span", { class: "soft" }, `step ${k + 1}: ${step.behaviour}`), el("span", {}, step.item), el("span", { class: "soft" }, step.rank === null ? "not a candidate" : `ranked ${step.rank} of ${step.of}`));
    button.addEventListener("click", () => {
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
      place.replaceChildren(...drawStep(view, k));
    });
    return button;
  });
  const history = view.history.map((one) => `${one.item}: ${one.behaviour}`);
  const content = [
    el("p", { class: "note" }, `User ${view.user}; one of ${count(view.sessions)} sessions. ${view.sampled ? "The log has no candidates: the session's own items and as many popular ones of other sessions stand in." : "Candidates are those of the log."} The log, not this model, chose what was shown.`),
    history.length ? el("details", {}, el("summary", {}, `What the user did before: ${count(history.length)} steps`), el("p", { class: "note break" }, history.join(" · "))) : el("p", { class: "note" }, "The log has nothing of this user before the session."),
    el("h2", {}, "What was shown"), el("div", { class: "steps", tabindex: "0" }, buttons), place,
  ];
  if (buttons.length) buttons[0].click();
  return content;
}

function drawStep(view, k) {
  const step = view.steps[k], chosen = step.candidates.find((one) => one.shown), best = step.candidates[0];
  const content = [el("h2", {}, `Step ${k + 1}: how ${view.agent} ranks the candidates`), el("p", {}, sentence(step, chosen, best))];
  const { names, bars, scale, legend } = partsOf(step.candidates.map((one) => one.parts));
  content.push(el("p", {}, legend), partsHead(names, scale, "candidate"));
  step.candidates.forEach((one, place) => {
    content.push(partsRow(names, { class: `candidate ${one.shown ? "shown" : ""}` }, el("span", { class: "rank number" }, String(one.rank)), el("span", { class: "item break" }, one.item, one.shown ? " (shown)" : "", one.seen ? "" : el("span", {}, " ", badge("unseen", "warn"))),
      bars[place], partsNumbers(names, one.parts, one.score)));
  });
  if (step.of > step.candidates.length) content.push(el("p", { class: "note" }, `${count(step.of - step.candidates.length)} further candidates are not listed.`));
  if (step.changed && step.changed.length) {
    const chart = el("div", { class: "chart" });
    lineChart(chart, [{ name: "change", colour: "var(--second)", points: step.changed.map((y, j) => ({ x: k + 2 + j, y })), dots: true }], { formatX: (x) => `step ${plain(x)}`, ticksX: wholeTicks, zero: true, height: 150, title: "change by step" });
    content.push(el("h3", {}, `What ${step.item} changed later`), el("p", { class: "note" }, "By the environment model: expected reward of each later step of this session, minus the same with this item masked."), chart);
  }
  return content;
}

function sentence(step, chosen, best) {
  const earned = `The log showed ${step.item}; the user's behaviour was ${step.behaviour} (reward ${number(step.reward)}).`;
  if (!chosen) return `${earned} It is not among the candidates.`;
  if (chosen === best) return `${earned} The model, too, puts it first.`;
  const gaps = Object.keys(best.parts).map((name) => `${fixedSigned(best.parts[name] - chosen.parts[name])} ${name}`);
  return `${earned} The model puts it at rank ${step.rank} of ${step.of}: ${best.item} scores ${fixed(best.score - chosen.score)} more (${gaps.join(", ")}).`;
}
