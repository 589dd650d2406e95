// What a store holds.
import { ask, count, dash, el, number, percent, plain, share, table } from "./base.js";
import { barList, lineChart } from "./charts.js";

export async function storePage(path) {
  const store = await ask(`api/store?path=${encodeURIComponent(path)}`);
  const steps = el("div", { class: "chart" }), lengths = Object.entries(store.lengths).map(([length, n]) => [Number(length), n]);
  const points = store.reward_by_step.map((reward, k) => ({ x: k + 1, y: reward }));
  lineChart(steps, [{ name: "mean reward", colour: "var(--strong)", points }], { formatX: (x) => `step ${plain(x)}`, ticksX: wholeTicks, zero: false, title: "mean reward by step" });
  const rejected = Object.entries(store.rejected || {}).filter(([, n]) => typeof n === "number" && n > 0);
  return [
    el("p", {}, `${count(store.rows)} steps of ${count(store.users)} users with ${count(store.items)} items: ${count(store.sessions)} sessions of up to ${store.horizon} steps after a history of up to ${store.history}. Source: ${store.source}. Every file was read and has the hash it should have.`),
    el("h2", {}, "Behaviours"),
    barList(store.behaviours.map((one) => ({ name: `${one.name} (reward ${plain(one.reward)})`, value: one.count, text: `${count(one.count)}, ${percent(one.share)}` }))),
    el("div", { class: "columns" },
      el("div", {}, el("h2", {}, "Mean reward by step"), steps),
      el("div", {}, el("h2", {}, "Session lengths"), barList(lengths.slice(-25).map(([length, n]) => ({ name: `${length} steps`, value: n, text: `${count(n)}, ${share(n, store.sessions)}` }))))),
    el("h2", {}, "Parts"),
    table(["part", ["sessions", "number"], ["users", "number"], ["reward per session", "number"]], Object.entries(store.parts).map(([part, one]) => [part, count(one.sessions), count(one.users), number(one.reward_per_session)])),
    el("h2", {}, "Most popular items"),
    el("p", { class: "note" }, `Half of all steps go to ${count(store.popularity.half)} of ${count(store.items)} items; a median item is shown ${plain(store.popularity.median)} times; the Gini coefficient is ${number(store.popularity.gini)} (0: all equally often, 1: one item only).`),
    barList(store.popularity.top.map((one) => ({ name: one.title === one.item ? one.item : `${one.title} (${one.item})`, value: one.count, text: count(one.count) }))),
    el("h2", {}, "Features of items"),
    Object.keys(store.features).length ? table(["feature", "kind", ["values", "number"], ["items without", "number"]], Object.entries(store.features).map(([name, one]) => [name, one.kind, featureValues(one), count(one.items_without)])) : el("p", { class: "empty" }, "None: items are ids alone."),
    el("h2", {}, "Rejected rows"),
    rejected.length ? table(["reason", ["rows", "number"]], rejected.map(([reason, n]) => [reason, count(n)])) : el("p", { class: "empty" }, "None."),
    el("h2", {}, "Options"),
    el("details", {}, el("summary", {}, `content ${(store.content_hash || dash).slice(0, 16)}`), el("pre", {}, JSON.stringify({ options: store.options, source_hashes: store.source_hashes }, null, 2))),
  ];
}

function featureValues(feature) {
  if (feature.kind === "vector") return `${count(feature.length)} numbers each`;
  if (feature.kind === "number") return feature.lowest === undefined ? dash : `${plain(feature.lowest)} to ${plain(feature.highest)}`;
  return count(feature.values);
}

export function wholeTicks(low, high, most) {
  const step = [1, 2, 5, 10, 20, 50, 100, 200, 500].find((k) => (high - low) / k <= most) || 1000, values = [];
  for (let value = Math.ceil(low / step) * step; value <= high; value += step) values.push(value);
  return values;
}
