// The session X-ray: each item of a session with its reward now, its change later, and the items it was chosen over.

const effectColour = (value) => (value < 0 ? "var(--bad)" : "var(--good)");
const effectWord = (value) => (Math.abs(value) < 0.005 ? "no change" : value < 0 ? "costs later" : "pays later");

// a number and a horizontal bar beside it; a signed one starts in the middle
function makeBar(value, low, high, isSigned) {
  const cell = make("div", { class: "bar" }), bar = make("div", { class: "track" });
  if (isSigned) {
    const share = 50 * Math.min(Math.abs(value) / (high || 1), 1);
    bar.append(make("i", { style: `left:${value < 0 ? 50 - share : 50}%;width:${share}%;background:${effectColour(value)}` }), make("b"));
  } else {
    bar.append(make("i", { style: `left:0;width:${100 * (value - low) / (high - low || 1)}%;background:var(--mbcal)` }));
  }
  cell.append(make("span", { class: "number" }, isSigned ? signed(value) : value.toFixed(2)), bar);
  return cell;
}

// the heading of the steps, with the scales of the bars
function stepHead(widest) {
  const head = make("div", { class: "step-head" }), [low, high] = data.range;
  const withScale = (title, ...ends) => {
    const cell = make("span", {}, title), line = make("span", { class: "scale" });
    for (const end of ends) line.append(make("span", {}, end));
    cell.append(line);
    return cell;
  };
  head.append(make("span", {}, "#"), make("span", {}, "item shown"), withScale("reward now", low, high),
    withScale("change later", signed(-widest), "0", signed(widest)), make("span", { class: "number" }, "sum"), make("span", {}, "the user did"));
  return head;
}

// the change of the expected reward at each later step
function drawChanges(inside, step, number) {
  const most = Math.max(...step.changed.map(Math.abs), 1e-6), width = 420, left = 46, bottom = 100, count = step.changed.length;
  const sum = step.changed.reduce((total, value, k) => total + value * data.gamma ** (k + 1), 0);
  const words = sum < 0 ? "lowers" : "raises", less = data.gamma < 1 ? `, later steps counting less (gamma ${(+data.gamma).toPrecision(3)})` : "";
  inside.append(make("p", {}, `By the model of users, this item ${words} the rewards of later steps by ${Math.abs(sum).toFixed(2)} in all${less}. ` +
    `The advantage network, which is fast enough to rank by, expects ${signed(step.future)}. Step by step, by the model of users:`));
  const svg = newChart(inside, width, 122, "change of later rewards by step"), y = scale(-most, most, bottom, 8), x = scale(0, count, left, width);
  yAxis(svg, y, [-most, 0, most], left, width, (value) => (value ? signed(value) : "0"));
  step.changed.forEach((value, k) => {
    const column = make("rect", {
      x: x(k) + 1, width: Math.max(x(1) - x(0) - 2, 1), y: Math.min(y(value), y(0)), height: Math.abs(y(value) - y(0)), fill: effectColour(value), opacity: 0.7, class: "change",
    });
    addTooltip(column, `step ${number + 1 + k}: ${signed(value, 3)} expected reward because of this item`);
    svg.append(column);
  });
  svg.append(make("text", { x: x(0.5), y: 118, "text-anchor": "middle" }, `step ${number + 1}`));
  if (count > 1) svg.append(make("text", { x: x(count - 0.5), y: 118, "text-anchor": "middle" }, number + count));
}

// what the table of rivals shows, by the numbers
function rivalWords(step) {
  const more = step.rivals.filter((rival) => rival.instant > step.instant).length;
  if (!more) return "No other candidate has a higher reward now. The next best:";
  return `${more === 1 ? "A candidate has" : more + " candidates have"} a higher reward now; the sum decides. The candidates with the highest reward now:`;
}

// the items with a high reward now beside the one that was shown
function rivalTable(step) {
  const scroll = make("div", { class: "scroll" }), table = make("table"), head = make("tr");
  for (const name of ["candidate", "reward now", "change later", "sum"]) head.append(make("th", name === "candidate" ? {} : { class: "number" }, name));
  table.append(head);
  for (const rival of [{ ...step, item: step.item + " (shown)" }, ...step.rivals]) {
    const row = make("tr");
    row.append(make("td", {}, rival.item), make("td", { class: "number" }, rival.instant.toFixed(2)),
      make("td", { class: "number", style: `color:${effectColour(rival.future)}` }, signed(rival.future)), make("td", { class: "number" }, (rival.instant + rival.future).toFixed(2)));
    table.append(row);
  }
  scroll.append(table);
  return scroll;
}

// the steps of one session, each with its details
function drawSession(number) {
  const container = byId("steps"), session = data.xray[number];
  container.replaceChildren();
  if (!session) return;
  const widest = Math.max(...session.steps.flatMap((step) => [step.future, ...step.rivals.map((rival) => rival.future)].map(Math.abs)), 0.01);
  container.append(stepHead(widest));
  session.steps.forEach((step, k) => {
    const details = make("details", { class: "step" }), summary = make("summary");
    const now = makeBar(step.instant, ...data.range, false), later = makeBar(step.future, -widest, widest, true);
    addTooltip(now, `expected reward of this step: ${step.instant.toFixed(2)}`);
    addTooltip(later, `${effectWord(step.future)}: ${signed(step.future)} in later rewards`);
    const did = make("span", {}, `${step.behaviour} (${+step.reward.toFixed(2)})`);
    const sum = make("span", { class: "number" }, (step.instant + step.future).toFixed(2));
    sum.prepend(make("small", { class: "caption" }, "sum "));
    did.prepend(make("small", { class: "caption" }, "user: "));
    summary.append(make("span", { class: "number" }, k + 1), make("span", { class: "item" }, step.item), now, later, sum, did);
    const inside = make("div", { class: "inside" });
    if (step.changed.length) drawChanges(inside, step, k + 1);
    if (step.rivals.length) inside.append(make("p", {}, rivalWords(step)), rivalTable(step));
    details.append(summary, inside);
    container.append(details);
  });
}
