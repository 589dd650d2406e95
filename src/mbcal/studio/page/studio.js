// What is here, and the way to everything else. Pages are named by the part of the address after #.
import { ask, badge, byId, bytes, date, el, table } from "./base.js";
import { logPage, modelPage, registryPage, simulatorPage } from "./models.js";
import { comparePage, runPage } from "./runs.js";
import { storePage } from "./stores.js";
import { whyPage } from "./why.js";

const PAGES = { store: storePage, model: modelPage, simulator: simulatorPage, run: runPage, registry: registryPage, "decision log": logPage };
const TITLES = { store: "Stores", run: "Runs", model: "Models", simulator: "Simulators", registry: "Registries", "decision log": "Decision logs" };
const link = (found) => `#/${found.kind}/${encodeURIComponent(found.path)}`;
// a path breaks after its slashes
const name = (found) => (found.path === "." ? ["this folder"] : found.path.split("/").flatMap((part, k) => (k ? ["/", el("wbr"), part] : [part])));

function listPage(list) {
  const content = [];
  if (!list.complete) content.push(el("p", { class: "message warn" }, "There are too many folders here to look into all of them; start the studio in a smaller folder."));
  const damaged = list.artifacts.filter((found) => found.problem);
  if (damaged.length) content.push(el("p", { class: "message bad" }, `${damaged.length} of ${list.artifacts.length} cannot be read; the reason stands beside each.`));
  for (const [kind, title] of Object.entries(TITLES)) {
    const all = list.artifacts.filter((found) => found.kind === kind), own = all.filter((found) => !found.run), inside = all.filter((found) => found.run);
    if (!all.length) continue;
    const rows = (founds) => founds.map((found) => [
      found.problem ? el("span", { class: "break" }, name(found)) : el("a", { href: link(found), class: "break" }, name(found)),
      found.problem ? el("span", {}, badge("damaged", "bad"), el("span", { class: "break" }, ` ${found.problem}`)) : el("span", { class: "break" }, found.summary),
      bytes(found.bytes), date(found.changed),
    ]);
    const columns = ["path", "what it holds", ["size", "number"], ["written", "fixed"]];
    content.push(el("h2", {}, title));
    if (own.length) content.push(table(columns, rows(own)));
    if (inside.length) content.push(el("details", { class: own.length ? "inside" : null }, el("summary", {}, `${inside.length} in runs`), table(columns, rows(inside))));
  }
  if (!list.artifacts.length) content.push(el("p", { class: "empty" }, "Nothing here was written by mbcal. Make a store with ", el("code", {}, "mbcal prepare newsfeed --out feed"), ", and reload."));
  return content;
}

let turn = 0;
async function show() {
  const mine = ++turn, [address, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [page, encoded] = address.split("/"), parameters = new URLSearchParams(query), main = byId("main");
  byId("nav").replaceChildren(...[["", "What is here"], ["compare", "Compare runs"], ["why", "Why this item"]].map(([target, text]) =>
    el("a", { href: `#/${target}`, "aria-current": decodeURIComponent(page) === target ? "page" : null }, text)));
  main.replaceChildren(el("p", { class: "spinner" }, "Reading …"));
  delete document.body.dataset.shown;
  try {
    const list = await ask("api/list");
    byId("folder").textContent = list.folder;
    const kind = decodeURIComponent(page), path = encoded ? decodeURIComponent(encoded) : null;
    const content = kind === "" ? listPage(list) : kind === "compare" ? await comparePage(list, parameters) : kind === "why" ? await whyPage(list, parameters)
      : PAGES[kind] ? await PAGES[kind](path, list) : [el("p", { class: "message bad" }, "There is no such page.")];
    if (mine !== turn) return; // another page was opened meanwhile
    const head = path === null ? [] : [el("p", { class: "crumb note" }, kind), el("p", { class: "title" }, path)];
    main.replaceChildren(...head, ...content);
  } catch (error) {
    if (mine === turn) main.replaceChildren(el("p", { class: "message bad" }, error.message));
  }
  document.body.dataset.shown = location.hash || "#/";
}
addEventListener("hashchange", () => { scrollTo(0, 0); show(); });
show();
