// One run, and several runs side by side.
import { ask, badge, dash, el, interval, number, plain, signed, table } from "./base.js";
import { dotChart, lineChart } from "./charts.js";
import { wholeTicks } from "./stores.js";

// MBCAL has the strong colour, its variants and methods from files the second one, baselines are grey
export const agentColour = (agent) => (agent === "mbcal" ? "var(--strong)" : agent.startsWith("mbcal") || agent.includes(":") ? "var(--second)" : "var(--grey)");
const reportLink = (path) => el("a", { href: `report?path=${encodeURIComponent(path)}` }, "report");
const JUDGES = { truth: "the truth", world: "the world", lstm: "a simulator (LSTM)", transformer: "a simulator (transformer)" };
const judgeOf = (one) => JUDGES[one.judge] || one.judge;
const group = (one) => `${one.protocol}, judged by ${judgeOf(one)}`;
const groups = (results) => [...new Set(results.map(group))];
const unclustered = () => el("p", { class: "message warn" }, "The data is outside of this folder and was not read: intervals take sessions as independent, which makes them too narrow where users have several.");

export async function runPage(path) {
  const run = await ask(`api/run?path=${encodeURIComponent(path)}`), content = [];
  if (run.headline) content.push(el("p", { class: "title" }, run.headline[0]), el("p", { class: "note" }, run.headline.slice(1).join(" ")));
  const done = run.cells - run.missing.length;
  content.push(el("p", {}, `${done} of ${run.cells} results. `, run.report ? el("span", {}, "See the ", reportLink(path), " of this run. ") : "Write its report with 'mbcal report'. ", el("a", { href: `#/compare?run=${encodeURIComponent(path)}` }, "Compare with others")));
  if (run.missing.length) content.push(el("details", {}, el("summary", {}, `${run.missing.length} results are missing`), el("p", { class: "note" }, run.missing.join(", "))));
  if (!run.clustered) content.push(unclustered());
  for (const title of groups(run.results)) {
    const chart = el("div", { class: "chart" }), results = run.results.filter((one) => group(one) === title), judge = results[0].judge;
    const warning = run.results.find((one) => one.judge === judge) === results[0] ? run.warnings[judge] : null; // once for each judge
    dotChart(chart, results.map((one) => ({ ...one, name: one.agent, colour: agentColour(one.agent) })), { title });
    content.push(el("h2", {}, `Reward per session: ${title}`), warning ? el("p", { class: "message warn" }, warning) : null, chart);
  }
  if (run.results.length) content.push(el("p", { class: "note" }, "Each interval is of one method alone, over test users. Differences between methods, which meet the same users, are surer than these intervals look: the report has them, paired."));
  if (Object.keys(run.curves).length) {
    const chart = el("div", { class: "chart" });
    lineChart(chart, Object.entries(run.curves).map(([agent, curve]) => ({ name: agent, label: agent, colour: agentColour(agent), points: curve.mean.map((y, k) => ({ x: k + 1, y, low: curve.low[k], high: curve.high[k] })) })),
      { formatX: (x) => `round ${plain(x)}`, ticksX: wholeTicks, zero: false, height: 260, title: "reward by round" });
    const banded = Object.values(run.curves).some((curve) => curve.low.some((low, k) => low < curve.high[k]));
    content.push(el("h2", {}, "Reward by round of Growing Batch-RL"), banded ? el("p", { class: "note" }, "Bands go from the lowest to the highest seed.") : null, chart);
  }
  return [...content.filter(Boolean), el("h2", {}, "Settings"), el("details", {}, el("summary", {}, "All settings"), el("pre", {}, JSON.stringify(run.settings, null, 2)))];
}

export async function comparePage(list, parameters) {
  const runs = list.artifacts.filter((found) => found.kind === "run" && !found.problem), chosen = parameters.getAll("run").filter((path) => runs.some((run) => run.path === path));
  if (!runs.length) return [el("p", { class: "empty" }, "There are no runs here. ", el("code", {}, "mbcal experiment newsfeed --out run"), " makes one.")];
  const go = (paths) => { location.hash = `#/compare?${paths.map((path) => `run=${encodeURIComponent(path)}`).join("&")}`; };
  const buttons = runs.map((run) => el("button", { type: "button", "aria-pressed": String(chosen.includes(run.path)), onclick: () => go(chosen.includes(run.path) ? chosen.filter((path) => path !== run.path) : [...chosen, run.path]) }, run.path));
  const content = [el("p", { class: "note" }, "Choose runs; differences are to the one chosen first."), el("div", { class: "choices", id: "chosen" }, buttons)];
  if (!chosen.length) return content;
  const view = await ask(`api/compare?${chosen.map((path) => `path=${encodeURIComponent(path)}`).join("&")}`);
  if (!view.clustered) content.push(unclustered());
  const name = (path) => short(view.runs, view.runs.findIndex((run) => run.path === path));
  content.push(...view.differences.filter((difference) => difference.problem).map((difference) => el("p", { class: "message warn" }, `${name(difference.path)} ${difference.problem}. It is shown apart.`)));
  content.push(table(["run", "data", ""], view.runs.map((run) => [el("a", { href: `#/run/${encodeURIComponent(run.path)}` }, run.path), run.data, run.report ? reportLink(run.path) : ""])));
  for (const title of groups(view.runs.flatMap((run) => run.results))) {
    const inTitle = view.runs.map((run) => ({ ...run, name: name(run.path), results: run.results.filter((one) => group(one) === title) })).filter((run) => run.results.length);
    const together = inTitle.filter((run) => run.comparable.includes(run.results[0].judge)), apart = inTitle.filter((run) => !together.includes(run));
    for (const runs of [together, ...apart.map((run) => [run])].filter((some) => some.length)) content.push(...resultsOf(title, runs));
  }
  for (const difference of view.differences.filter((one) => one.rows.length)) {
    content.push(el("h2", {}, `${name(difference.path)} minus ${name(view.runs[0].path)}, session by session`));
    content.push(table(["protocol", "judge", "method", ["difference", "number"], ["95% interval", "number"], ""], difference.rows.filter((row) => row.difference.low !== null).map((row) => {
      const gap = row.difference, clear = gap.low > 0 || gap.high < 0;
      return [row.protocol, judgeOf(row), row.agent, signed(gap.mean), interval(gap.low, gap.high), clear ? badge(gap.mean > 0 ? "higher" : "lower", gap.mean > 0 ? "good" : "bad") : badge("level")];
    })));
  }
  return content;
}

// the results of runs that can be compared under one judge, as a chart and a table
function resultsOf(title, runs) {
  const chart = el("div", { class: "chart" }), agents = [...new Set(runs.flatMap((run) => run.results.map((one) => one.agent)))];
  const rows = agents.flatMap((agent) => runs.flatMap((run) => run.results.filter((one) => one.agent === agent).map((one) => ({ ...one, name: `${agent} · ${run.name}`, colour: agentColour(agent) }))));
  dotChart(chart, rows, { title });
  return [
    el("h2", {}, `Reward per session: ${title}`), el("p", { class: "note" }, runs.map((run) => run.name).join(", ")), chart,
    table(["method", ...runs.map((run) => [run.name, "number"])], agents.map((agent) => [el("span", {}, agent === "mbcal" ? badge(agent, "strong") : agent), ...runs.map((run) => {
      const one = run.results.find((result) => result.agent === agent);
      return one ? el("span", {}, number(one.mean, 4), " ", el("span", { class: "interval" }, interval(one.low, one.high))) : dash;
    })])),
  ];
}

// the shortest end of its path that tells a run from the others
function short(runs, k) {
  const parts = runs[k].path.split("/");
  for (let n = 1; n < parts.length; n++) {
    const end = parts.slice(-n).join("/");
    if (runs.filter((run) => run.path === end || run.path.endsWith(`/${end}`)).length === 1) return end;
  }
  return runs[k].path;
}
