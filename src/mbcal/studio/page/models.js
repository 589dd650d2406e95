// Models, simulators, registries and decision logs.
import { ask, badge, bytes, command, count, dash, date, el, number, percent, plain, table, updateList, withdrawnList } from "./base.js";
import { lineChart } from "./charts.js";
import { wholeTicks } from "./stores.js";

const json = (title, value) => el("details", {}, el("summary", {}, title), el("pre", {}, JSON.stringify(value, null, 2)));

function files(view) {
  const damaged = view.files.filter((file) => file.problem);
  return [
    el("h2", {}, "Files"),
    damaged.length ? el("p", { class: "message bad" }, `Damaged: ${damaged.map((file) => file.problem).join("; ")}`) : el("p", { class: "note" }, "Every file was read and has the hash it should have."),
    table(["file", ["size", "number"], ""], view.files.map((file) => [file.name, bytes(file.bytes), file.problem ? badge("damaged", "bad") : badge("as written", "good")])),
  ];
}

// loss by epoch of every network, and how its training ended
function training(records) {
  const names = Object.keys(records);
  if (!names.length) return [el("p", { class: "empty" }, "This method trains no network.")];
  return names.flatMap((name) => {
    const record = records[name], chart = el("div", { class: "chart" }), curve = record.curve;
    const held = curve.filter((epoch) => typeof epoch.held_out === "number");
    const best = held.length ? curve.indexOf(held.reduce((low, epoch) => (epoch.held_out < low.held_out ? epoch : low))) + 1 : curve.length;
    const line = (key, label, colour) => ({ name: label, label, colour, points: curve.map((epoch, k) => ({ x: k + 1, y: epoch[key] ?? null })), dots: curve.length < 3 });
    const series = [line("loss", "training", "var(--grey)"), line("held_out", "held out", "var(--strong)")];
    if (typeof record.base_loss === "number") series.push({ name: "a constant", label: "constant", colour: "var(--second)", dashed: true, points: [1, curve.length].map((x) => ({ x, y: record.base_loss })) });
    lineChart(chart, series, { formatX: (x) => `epoch ${plain(x)}`, ticksX: wholeTicks, zero: false, title: `loss of ${name}`, empty: "No epoch was recorded." });
    const learned = typeof record.base_loss !== "number" || !held.length || curve[best - 1].held_out < record.base_loss * 0.999;
    return [
      el("h3", {}, name, " ", learned ? null : badge("learned nothing", "bad")),
      el("p", { class: "note" }, `${count(record.updates)} updates of ${count(record.batch)} sessions; epoch ${best} of ${curve.length} was kept` + (held.length ? `, held-out loss ${number(curve[best - 1].held_out)}` : "") + (typeof record.base_loss === "number" ? ` (a constant prediction has ${number(record.base_loss)})` : "") + (record.stopped ? `; ${record.stopped}` : "") + "."),
      chart,
    ];
  });
}

export async function modelPage(path, list) {
  const model = await ask(`api/model?path=${encodeURIComponent(path)}`), data = model.provenance.data;
  const store = list.artifacts.find((found) => found.kind === "store" && found.content && found.content === data);
  return [
    el("p", {}, `${model.agent}: sessions of up to ${model.horizon} steps after a history of up to ${model.history}; written by mbcal ${model.mbcal}.`),
    ...model.warnings.map((text) => el("p", { class: "message warn" }, text)),
    el("p", {}, "Fitted on ", store ? el("a", { href: `#/store/${encodeURIComponent(store.path)}` }, store.path) : data ? `data ${data.slice(0, 16)}, which is not in this folder` : "data it does not name", ". ",
      store ? el("a", { href: `#/why?model=${encodeURIComponent(path)}&store=${encodeURIComponent(store.path)}` }, "Why this item?") : ""),
    el("h2", {}, "Training"), ...training(model.training),
    el("h2", {}, "Settings"), json("Settings of the fit", model.config), json("Provenance", model.provenance),
    ...files(model),
  ];
}

const CARD = [
  ["nll", "negative log likelihood of the logged behaviour", number], ["baseline_nll", "the same for the frequencies of behaviours, which a simulator must beat", number],
  ["accuracy", "most likely behaviour is the logged one", percent], ["rmse", "error of the expected reward (RMSE)", number], ["ece", "calibration error", percent], ["drift", "drift: largest gap at a step between simulated and logged reward, as a share of the reward of a step", percent], ["sessions", "held-out sessions it was measured on", count],
];

// bins of probability with the share of steps that were as predicted; on the dashed line both are equal
function calibration(bins) {
  const chart = el("div", { class: "chart" });
  const points = bins.count.flatMap((n, k) => (n ? [{ x: bins.confidence[k], y: bins.accuracy[k], note: `${count(n)} steps` }] : []));
  const [low, high] = [Math.min(...points.map((point) => point.x)), Math.max(...points.map((point) => point.x))];
  const series = [{ name: "logged", label: "logged", colour: "var(--strong)", points, dots: true }, { name: "equal", label: "equal", colour: "var(--grey)", dashed: true, points: [low, high].map((x) => ({ x, y: x })) }];
  lineChart(chart, series, { formatX: percent, formatY: percent, zero: false, title: "calibration", empty: "No step was predicted." });
  return chart;
}

export async function simulatorPage(path) {
  const simulator = await ask(`api/simulator?path=${encodeURIComponent(path)}`), { report_card: card, trust } = simulator, content = [];
  content.push(el("p", {}, `${simulator.config.family} simulator, temperature ${number(simulator.temperature)}; written by mbcal ${simulator.mbcal}.`), el("h2", {}, "Report card"),
    el("p", { class: `message ${trust.is_low ? "warn" : ""}` }, trust.sentence));
  if (card) {
    const chart = el("div", { class: "chart" });
    const line = (key, label, colour) => ({ name: label, label, colour, points: card[key].map((y, k) => ({ x: k + 1, y, low: key === "simulated" ? y - 1.96 * card.error[k] : undefined, high: key === "simulated" ? y + 1.96 * card.error[k] : undefined })) });
    lineChart(chart, [line("real", "logged", "var(--grey)"), line("simulated", "simulated", "var(--strong)")], { formatX: (x) => `step ${plain(x)}`, ticksX: wholeTicks, zero: false, title: "reward by step" });
    content.push(table(["", ["value", "number"]], CARD.map(([key, text, format]) => [text, format(key in card ? card[key] : trust[key])])), el("h3", {}, "Mean reward by step, logged items"), chart,
      el("h3", {}, "Calibration: how often the most likely behaviour was the logged one, by its probability"), calibration(card.reliability));
  }
  return [...content, el("h2", {}, "Training"), ...training(simulator.training), el("h2", {}, "Settings"), json("Settings of the fit", simulator.config), ...files(simulator)];
}

const STATES = { live: "strong", canary: "second", withdrawn: "bad" };

export async function registryPage(path) {
  const registry = await ask(`api/registry?path=${encodeURIComponent(path)}`), before = registry.before.at(-1);
  const metrics = (version) => Object.entries(version.metrics || {}).filter(([, value]) => typeof value === "number").map(([name, value]) => `${name} ${number(value)}`).join(", ");
  const versions = registry.versions.slice().reverse().map((version) => [
    el("span", {}, version.version, " ", version.state ? badge(version.state, STATES[version.state]) : "", version.damaged ? badge("damaged", "bad") : ""),
    version.agent || dash, version.published ? date(Date.parse(version.published) / 1000) : dash, version.parent || dash, version.damaged || metrics(version) || dash]);
  const link = (update) => (update.page ? el("a", { href: `update?path=${encodeURIComponent(path)}&name=${update.page}` }, "page") : null);
  return [
    el("p", {}, registry.live ? `${registry.live} is live.` : "No version is live.", registry.canary ? ` ${registry.canary} is the canary.` : ""),
    before ? command(`mbcal registry rollback --registry ${path}`) : null,
    el("h2", {}, "Versions"), versions.length ? table([["version", "fixed"], "agent", ["published", "fixed"], "parent", "metrics"], versions) : el("p", { class: "empty" }, "None."),
    ...withdrawnList(registry.versions),
    el("h2", {}, "Updates"), ...(registry.updates.length ? updateList(registry.updates, link) : [el("p", { class: "empty" }, "None yet.")]),
  ].filter(Boolean);
}

export async function logPage(path) {
  const log = await ask(`api/log?path=${encodeURIComponent(path)}`);
  return [el("p", { class: "note" }, "Records are not read here; ", el("code", {}, `mbcal log show ${path}`), " does."), table(["segment", ["size", "number"], ["written", "fixed"]], log.segments.map((one) => [one.name, bytes(one.bytes), date(one.changed)]))];
}
