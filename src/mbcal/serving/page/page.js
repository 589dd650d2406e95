// The operator's page: what /v1/stats, /v1/model and /v1/registry say, again every few seconds.
import { ask, badge, byId, bytes, clock, command, count, dash, date, duration, el, hasToken, interval, number, percent, share, signed, table, updateList, withdrawnList } from "./base.js";
import { dotChart, lineChart } from "./charts.js";
import { startRanking } from "./rank.js";

const REFRESH = 3000, REGISTRY_EVERY = 5;
const FEWEST = 5; // sessions of a point of the reward
const STATUSES = {
  400: "not a valid request", 401: "wrong or missing token", 403: "not allowed", 404: "no such path", 405: "wrong method", 408: "body too slow",
  409: "an id used for two requests", 411: "length missing", 413: "body too large", 415: "not JSON", 421: "wrong host", 422: "a field is wrong",
  429: "client above its rate", 431: "headers too large", 500: "error of the server", 503: "overloaded or not ready",
};
const timeTicks = (low, high, most) => {
  const step = [60, 120, 300, 600, 900, 1200, 1800].find((k) => (high - low) / k <= most) || 3600, values = [];
  for (let value = Math.ceil(low / step) * step; value <= high; value += step) values.push(value);
  return values;
};
const axis = { formatX: clock, ticksX: timeTicks, room: 30 };
const milliseconds = (seconds) => (seconds === null ? dash : duration(seconds));

function tile(name, value, more = "", kind = "") {
  return el("div", { class: `tile ${kind}` }, el("div", { class: "name" }, name), el("div", { class: "value" }, value), el("div", { class: "more" }, more));
}

function drawTiles(stats) {
  const recent = stats.recent, refused = Object.values(recent.refusals).reduce((sum, n) => sum + n, 0), none = recent.requests === 0;
  const failed = recent.refusals["500"] || 0, log = stats.log;
  const low = log && log.free !== null && (log.free < 2 ** 30 || log.free < 0.05 * log.disk);
  byId("tiles").replaceChildren(
    tile("requests per second", none ? dash : number(recent.per_second), `${count(recent.requests)} in ${duration(recent.seconds)}`),
    tile("time to answer, p50", milliseconds(recent.p50), `p99 ${milliseconds(recent.p99)}`),
    tile("refused or failed", none ? dash : count(refused), none ? "" : failed ? `${count(failed)} errors of the server` : `${share(refused, recent.requests)} of requests`, failed ? "bad" : ""),
    tile("unknown candidates", share(recent.unknown, recent.candidates), recent.candidates ? `${count(recent.unknown)} of ${count(recent.candidates)}` : "not in the catalogue"),
    tile("decisions with feedback", share(recent.with_feedback, recent.decisions), recent.decisions ? `${count(recent.with_feedback)} of ${count(recent.decisions)}` : ""),
    tile("feedback comes after", milliseconds(recent.delay_p50), recent.delay_p90 === null ? "" : `90% within ${duration(recent.delay_p90)}`),
    tile("decision log", log ? bytes(log.bytes) : "off", log ? `${bytes(log.free)} free on its disk${log.waiting ? `, ${count(log.waiting)} waiting` : ""}` : "nothing is logged", low || (log && log.bytes === null) ? "bad" : ""),
    tile("registry read", stats.registry_age === null ? "never" : stats.registry_age < 1 ? "just now" : `${duration(stats.registry_age)} ago`, "", stats.registry_age === null || stats.registry_age > 10 ? "bad" : ""),
  );
  byId("window").textContent = `Requests to rank and with feedback, of the last ${duration(recent.seconds)}. Times are UTC.` + (stats.workers > 1 ? ` All ${stats.workers} workers.` : "");
}

function drawTraffic(stats) {
  const series = stats.series, at = (k) => series.begin + (k + 0.5) * series.step;
  const points = (values, scale = 1) => values.map((value, k) => ({ x: at(k), y: value === null ? null : value / scale }));
  const rate = [{ name: "answered and refused", label: "all", colour: "var(--strong)", points: points(series.requests, series.step) }];
  if (series.refused.some(Boolean)) rate.push({ name: "refused", colour: "var(--bad)", label: "refused", points: points(series.refused, series.step) });
  lineChart(byId("rate"), series.requests.some(Boolean) ? rate : [], { ...axis, title: "requests per second", empty: "No requests in the last hour." });
  lineChart(byId("latency"), [
    { name: "p99", label: "p99", colour: "var(--second)", points: points(series.p99) },
    { name: "p50", label: "p50", colour: "var(--strong)", points: points(series.p50) },
  ], { ...axis, formatY: duration, title: "time to answer", empty: "No requests in the last hour." });
  const rows = Object.entries(stats.recent.refusals).map(([status, n]) => [status, STATUSES[status] || "", count(n), share(n, stats.recent.requests)]);
  byId("refusals").replaceChildren(...(rows.length ? [el("h3", {}, `Refusals and errors of the last ${duration(stats.recent.seconds)}`), table(["status", "reason", ["count", "number"], ["of requests", "number"]], rows)] : []));
}

const versionColour = (name, stats) => (name === stats.live ? "var(--strong)" : registry && name === registry.canary ? "var(--second)" : "var(--grey)");

function drawRewards(stats) {
  const now = Date.now() / 1000;
  const series = Object.entries(stats.rewards).map(([name, points]) => ({
    name, label: name, colour: versionColour(name, stats), dots: points.length < 20,
    points: points.flatMap((point, k) => {
      const after = k > 0 && point.begin - points[k - 1].begin > point.seconds * 1.5 ? [{ x: point.begin, y: null }] : []; // a gap
      return [...after, { x: point.begin + point.seconds / 2, y: point.sessions < FEWEST ? null : point.mean, low: point.low, high: point.high, loose: point.sessions < 10,
        open: now - point.begin - point.seconds < 120, note: `${count(point.sessions)} sessions` }];
    }),
  }));
  lineChart(byId("reward"), series, { ...axis, zero: false, height: 220, title: "reward per session by version",
    empty: series.length ? `No point yet: it takes ${FEWEST} sessions that began within some minutes.` : "No sessions in the last hour, of those that requests name." });
  const rows = Object.entries(stats.versions).sort().reverse().map(([name, one]) => [
    el("span", {}, name, " ", name === stats.live ? badge("live", "strong") : registry && name === registry.canary ? badge("canary", "second") : ""),
    count(one.decisions), count(one.sessions), count(one.feedback), one.feedback ? number(one.reward_per_session) : dash, one.feedback ? interval(one.low, one.high) || dash : dash,
  ]);
  const elsewhere = stats.elsewhere ? el("p", { class: "note" }, `${count(stats.elsewhere)} feedback belongs to sessions that began on another server, or before this one started; it is not in the chart, nor in the intervals.`) : null;
  byId("versions-served").replaceChildren(...[rows.length ? el("h3", {}, "Since the server started") : null, rows.length ? table([["version", "fixed"], ["decisions", "number"], ["sessions", "number"], ["feedback", "number"], ["reward per session", "number"], ["95% interval", "number"]], rows) : null, elsewhere].filter(Boolean));
}

function drawCanary(registry, stats) {
  if (!registry.canary) {
    byId("canary").replaceChildren(el("p", { class: "empty" }, "None: every session gets the live version."));
    return;
  }
  const here = stats.canary === registry.canary ? ` gets ${percent(stats.canary_share)} of users beside ${registry.live}.`
    : ` is the canary beside ${registry.live}, but gets no sessions from this server` + (stats.canary_share ? "." : ", which was started without --canary.");
  const content = [el("p", {}, badge(registry.canary, "second"), here)], look = registry.trial, compared = look && look.comparison;
  if (!look) content.push(el("p", { class: "note" }, "It has not been looked at yet."));
  else content.push(el("p", {}, `${date(look.time / 1e6)}: ${look.reason || look.action}`));
  const missing = compared && compared.sessions_missing;
  if (missing >= 1) content.push(el("p", {}, `Still needed: about ${number(missing, 2)} sessions, to see a difference of ${percent(compared.for_difference)}.`));
  if (look && look.ends) content.push(el("p", {}, `The trial ends ${date(look.ends / 1e6)} at the latest.`));
  if (compared) {
    const chart = el("div", { class: "chart" }), sides = [compared.a, compared.b];
    dotChart(chart, sides.map((side) => ({ name: side.version, ...side.reward, colour: side.version === registry.canary ? "var(--second)" : "var(--strong)" })), { title: "reward per session" });
    if (!look.reason || !look.reason.includes(compared.sentence)) content.push(el("p", { class: "note" }, compared.sentence));
    content.push(el("h3", {}, "Reward per session, finished sessions"), chart,
      table(["version", ["sessions", "number"], ["users", "number"], ["reward per session", "number"], ["95% interval", "number"], ["steps per session", "number"]], sides.map((side) =>
        [side.version, count(side.sessions), count(side.users), number(side.reward.mean), interval(side.reward.low, side.reward.high) || dash, number(side.length.mean)])),
      el("p", { class: "note" }, `Difference ${signed(compared.reward.value)} per session; ${interval(compared.reward.anytime_low, compared.reward.anytime_high) || "no interval yet"} is valid however often one looks.`));
  }
  byId("canary").replaceChildren(...content);
}

function drawUpdates(registry) {
  if (!registry.updates.length) {
    byId("updates").replaceChildren(el("p", { class: "empty" }, "None yet. ", el("code", {}, "mbcal update"), " learns a candidate from the decision log and judges it."));
    return;
  }
  const link = (update) => (update.page && !hasToken() ? el("a", { href: `updates/${update.page}` }, "details") : null);
  byId("updates").replaceChildren(...updateList(registry.updates, link));
}

function drawVersions(registry, model) {
  const before = registry.before.at(-1), refused = (model && model.refused) || {};
  const rows = registry.versions.slice().reverse().map((version) => {
    const name = version.version, live = name === registry.live;
    const state = live ? badge("live", "strong") : name === registry.canary ? badge("canary", "second") : version.state ? badge(version.state) : "";
    const problem = version.damaged || refused[name];
    const undo = live ? "" : el("span", {}, el("code", {}, name === before ? "mbcal registry rollback --registry ." : `mbcal registry activate ${name} --registry .`), version.withdrawn ? " (read below why it was withdrawn)" : "");
    return [el("span", {}, name, " ", state, problem ? badge("refused", "bad") : "", problem ? el("p", { class: "note break" }, problem) : null), version.agent || dash,
      version.published ? date(Date.parse(version.published) / 1000) : dash, version.parent || dash, undo];
  });
  const content = [];
  if (registry.problem) content.push(el("p", { class: "message bad" }, registry.problem));
  if (before) content.push(el("p", { class: "note" }, `To go back from ${registry.live} to ${before}, on the server's machine, in the registry's folder:`), command("mbcal registry rollback --registry ."));
  content.push(rows.length ? table([["version", "fixed"], "agent", ["published", "fixed"], "parent", ["to make it live, in that folder", "fixed"]], rows) : el("p", { class: "empty" }, "None is published yet."), ...withdrawnList(registry.versions));
  byId("versions").replaceChildren(...content);
}

function drawHeader(stats, model) {
  byId("state").replaceChildren(stats.live ? badge("serving", "good") : badge("not ready", "bad"));
  byId("live").textContent = model
    ? `${model.version} (${model.agent}) · ${count(model.items)} items · explores ${percent(model.epsilon)} of ranks · up ${duration(stats.seconds)}`
    : `No version is live: publish one with 'mbcal registry publish'. Up ${duration(stats.seconds)}.`;
  const problems = [];
  for (const [name, reason] of Object.entries((model && model.refused) || {})) problems.push(`${name} was refused: ${reason}`);
  if (stats.registry_age === null || stats.registry_age > 10) problems.push("The registry was not read for a while: new versions do not go live. The server's log says why.");
  if (stats.log && stats.log.bytes === null) problems.push("The decision log cannot be read.");
  byId("problems").replaceChildren(...problems.map((text) => el("p", { class: "message bad" }, text)));
}

let turn = 0, model = null, registry = null;
async function refresh() {
  try {
    const [stats, current] = await Promise.all([ask("v1/stats"), ask("v1/model").catch(() => null)]);
    if (current && (!model || model.version !== current.version)) startRanking(current);
    model = current;
    if (turn++ % REGISTRY_EVERY === 0) {
      const open = [...document.querySelectorAll("#updates details")].map((details) => details.open);
      registry = await ask("v1/registry");
      drawCanary(registry, stats);
      drawUpdates(registry);
      drawVersions(registry, model);
      document.querySelectorAll("#updates details").forEach((details, k) => { details.open = open[k] || false; });
    }
    drawHeader(stats, model);
    drawTiles(stats);
    drawTraffic(stats);
    drawRewards(stats);
    document.body.dataset.drawn = String(turn);
  } catch (error) {
    byId("state").replaceChildren(badge("no answer", "bad"));
    byId("problems").replaceChildren(el("p", { class: "message bad" }, `The server does not answer (${error.message}). The figures below are the last ones it gave.`));
  }
  setTimeout(refresh, REFRESH);
}
refresh();
