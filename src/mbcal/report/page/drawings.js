// The drawings of the report: gaps to the baseline, curves by round, and the curves of a simulator's report card.

const MARK = "(!)", LOG = "the log";
const RELATIONS = {
  level: "level: the interval contains zero", untrusted: "too small for this judge (within its own error)", unjudged: "not judged: a simulator's gap to the log may be further off", ahead: "ahead", behind: "behind", baseline: "the baseline",
};

// the gap of every method to the baseline with its paired interval; a grey zone is what the judge cannot be trusted for
function drawGaps(protocol, judge) {
  const container = byId("gap-chart"), entries = (data.gaps[protocol] || {})[judge] || [], { trusted, warning, title } = data.judges[judge];
  container.replaceChildren();
  byId("gap-warning").replaceChildren(...(warning ? [make("p", { class: "warning" }, warning)] : []));
  byId("gap-note").textContent = `Reward per session minus that of ${data.baseline}, in the same test sessions with the same candidates and noise, judged by ${title}. ` +
    "Lines are 95% intervals, paired and clustered by user: one that crosses zero is no difference." +
    ` A hollow mark: not distinguishable from ${data.baseline}. The log is what was logged in these sessions.` +
    (trusted ? ` The grey zone is the simulator's own error (±${trusted.toPrecision(3)}): it cannot be trusted for gaps between methods inside; its gaps to the log may be further off.` : "") +
    (warning ? ` ${MARK} marks ${trusted ? "gaps inside" : "its numbers"}.` : "");
  const doubted = (mean) => warning && (!trusted || Math.abs(mean) < trusted);
  if (!entries.length) return;
  const width = widthOf(container), narrow = width < 520, row = narrow ? 40 : 30, left = narrow ? 8 : 128, right = narrow ? 16 : 172, top = 8;
  const bottom = top + entries.length * row, ends = entries.flatMap((e) => [e.low ?? e.mean, e.high ?? e.mean, 0]);
  const low = Math.min(...ends), high = Math.max(...ends), room = (high - low || 1) * 0.04;
  const x = scale(low - room, high + room, left, width - right), svg = newChart(container, width, bottom + 26, "gap to the baseline by method");
  xAxis(svg, x, ticks(low, high, narrow ? 4 : 7), top, bottom, (value) => (value ? signed(value, Number.isInteger(value) ? 0 : 1) : "0"));
  if (trusted) {
    const from = Math.max(x(-trusted), left), to = Math.min(x(trusted), width - right);
    svg.append(make("rect", { x: from, y: top, width: to - from, height: bottom - top, class: "zone" }));
  }
  svg.append(make("line", { x1: x(0), x2: x(0), y1: top, y2: bottom, class: "axis" }));
  entries.forEach((entry, k) => {
    const style = data.styles[entry.agent], colour = colourOf(style.role), y = top + k * row + (narrow ? 27 : row / 2);
    const amount = entry.relation === "baseline" ? "baseline" : `${signed(entry.mean)} [${signed(entry.low ?? -Infinity)}, ${signed(entry.high ?? Infinity)}]${doubted(entry.mean) ? " " + MARK : ""}`;
    const bold = style.role === "mbcal" ? " strong" : "";
    if (narrow) {
      svg.append(make("rect", { x: 0, y: y - 26, width, height: 18, class: "paper" })); // no line runs through the words
      svg.append(make("text", { x: left, y: y - 12, class: "label" + bold }, shortName(entry.agent)));
      svg.append(make("text", { x: width - 4, y: y - 12, "text-anchor": "end" }, amount));
    } else {
      svg.append(make("text", { x: left - 10, y: y + 4, "text-anchor": "end", class: "label" + bold }, shortName(entry.agent)));
      svg.append(make("text", { x: width - right + 14, y: y + 4 }, amount));
    }
    const hollow = ["level", "untrusted", "unjudged"].includes(entry.relation);
    if (entry.low !== null && entry.relation !== "baseline") {
      const [from, to] = [x(entry.low), x(entry.high)];
      svg.append(make("path", { d: `M${from},${y - 7}v14M${to},${y - 7}v14M${from},${y}H${to}`, stroke: colour, "stroke-width": 2, fill: "none", class: "interval" }));
    }
    svg.append(make("circle", { cx: x(entry.mean), cy: y, r: 4, fill: hollow ? "var(--paper)" : colour, stroke: colour, "stroke-width": 2, "data-agent": entry.agent, "data-relation": entry.relation }));
    const area = make("rect", { x: 0, y: top + k * row, width, height: row, fill: "transparent" });
    const spread = entry.spread === null ? "" : `, ± ${entry.spread.toFixed(2)} over trainings`;
    const marked = warning && !trusted && entry.agent !== LOG ? " " + MARK : "";
    addTooltip(area, `${entry.agent}: ${amount}\n${RELATIONS[entry.relation]}\nreward per session ${entry.reward.toFixed(2)}${spread}${marked}`);
    svg.append(area);
  });
}

// reward by round with bands over trainings, labels at the ends, and lines for the oracle, a random policy and the log
function drawCurves(hidden) {
  const container = byId("curve");
  container.replaceChildren();
  const shown = Object.entries(data.curves).filter(([agent]) => !hidden.has(agent)), references = data.references;
  if (!shown.length) return;
  const width = widthOf(container), height = width < 520 ? 340 : 400, left = 46, right = 104, top = 12, bottom = height - 40;
  const rounds = Math.max(...shown.map(([, curve]) => curve.mean.length));
  const values = [...shown.flatMap(([, curve]) => [...curve.low, ...curve.high]), ...references.map((line) => line.value)];
  const low = Math.min(...values), high = Math.max(...values);
  const x = scale(1, Math.max(rounds, 2), left, width - right), y = scale(low, high, bottom, top);
  const svg = newChart(container, width, height, "reward by round");
  yAxis(svg, y, ticks(low, high), left, width - right);
  for (const k of ticks(1, Math.max(rounds, 2), Math.min(rounds, 10)).filter(Number.isInteger)) svg.append(make("text", { x: x(k), y: bottom + 18, "text-anchor": "middle" }, k));
  svg.append(make("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, "round"));
  const labels = [];
  for (const line of references) {
    svg.append(make("line", { x1: left, x2: width - right, y1: y(line.value), y2: y(line.value), stroke: "var(--reference)", "stroke-dasharray": "2 4", class: "reference", "data-name": line.name }));
    labels.push({ y: y(line.value), text: line.name, colour: "var(--soft)" });
  }
  const order = { baseline: 0, reference: 0, ours: 1, mbcal: 2 };
  for (const [agent, curve] of shown.sort(([a], [b]) => order[data.styles[a].role] - order[data.styles[b].role])) {
    const { role, dash } = data.styles[agent], colour = colourOf(role), at = (list) => list.map((value, k) => [x(k + 1), y(value)]);
    lineWithBand(svg, at(curve.mean), [...at(curve.high), ...at(curve.low).reverse()], colour, { class: "curve", "data-agent": agent, "stroke-dasharray": dash, "stroke-width": role === "mbcal" ? 3 : 2 });
    labels.push({ y: y(curve.mean.at(-1)), text: shortName(agent, 13), colour, strong: role === "mbcal" });
    curve.mean.forEach((value, k) => {
      const dot = make("circle", { cx: x(k + 1), cy: y(value), r: 4, fill: colour });
      addTooltip(dot, `${agent}, round ${k + 1}: ${value.toFixed(2)}\ntrainings from ${curve.low[k].toFixed(2)} to ${curve.high[k].toFixed(2)}`);
      svg.append(dot);
    });
  }
  endLabels(svg, labels, width - right + 8, top, bottom);
}

// the 95% interval of a share (Wilson's), of `count` independent steps
const shareInterval = (share, count) => {
  const z = 1.96, centre = share + z * z / (2 * count), half = z * Math.sqrt(share * (1 - share) / count + z * z / (4 * count * count));
  return [centre - half, centre + half].map((end) => end / (1 + z * z / count));
};

// calibration of a simulator: how often it is right, by the probability that it gives
function drawCalibration(container, card) {
  const { confidence, accuracy, count } = card.reliability, total = count.reduce((sum, value) => sum + value, 0);
  const bins = confidence.map((value, k) => ({ value, accuracy: accuracy[k], share: count[k] / total, count: count[k] })).filter((bin) => bin.count);
  const most = Math.min(1, Math.max(...bins.flatMap((bin) => [bin.value, bin.share, shareInterval(bin.accuracy, bin.count)[1]])) * 1.05), size = 300, left = 44, top = 26, bottom = 250;
  const box = make("div"), svg = newChart(box, size + 20, 290, "calibration");
  const x = scale(0, most, left, size), y = scale(0, most, bottom, top);
  svg.append(make("text", { x: left, y: 14, class: "label" }, "Is it as often right as it says?"));
  yAxis(svg, y, ticks(0, most), left, size, (value) => Math.round(value * 100) + "%");
  xAxis(svg, x, ticks(0, most), bottom, bottom, (value) => Math.round(value * 100) + "%");
  svg.append(make("text", { x: size, y: bottom + 34, "text-anchor": "end" }, "probability of the most likely behaviour"));
  svg.append(make("line", { x1: x(0), x2: x(most), y1: y(0), y2: y(most), class: "axis", "stroke-dasharray": "3 3" }));
  for (const bin of bins) svg.append(make("rect", { x: x(bin.value) - 4, y: y(bin.share), width: 8, height: bottom - y(bin.share), class: "zone" }));
  lineWithBand(svg, bins.map((bin) => [x(bin.value), y(bin.accuracy)]), null, "var(--mbcal)", { class: "calibration" });
  for (const bin of bins) {
    const [low, high] = shareInterval(bin.accuracy, bin.count);
    svg.append(make("line", { x1: x(bin.value), x2: x(bin.value), y1: y(low), y2: y(high), stroke: "var(--mbcal)", "stroke-width": 2, opacity: 0.5, class: "interval" }));
    const dot = make("circle", { cx: x(bin.value), cy: y(bin.accuracy), r: 4, fill: "var(--mbcal)" });
    addTooltip(dot, `probability ${(bin.value * 100).toFixed(0)}%, right ${(bin.accuracy * 100).toFixed(0)}% [${(low * 100).toFixed(0)}, ${(high * 100).toFixed(0)}]\n${bin.count.toLocaleString("en")} steps (${(bin.share * 100).toFixed(0)}%)`);
    svg.append(dot);
  }
  box.append(make("p", { class: "note" }, "On the dashed line it is right as often as it says. Upright lines: 95% intervals, steps taken as independent. Grey bars: the share of steps."));
  container.append(box);
}

// drift of a simulator: mean reward by step, as logged and of the simulator on its own behaviours
function drawDrift(container, card) {
  const { real, simulated, error } = card, upper = simulated.map((value, k) => value + 1.96 * error[k]), lower = simulated.map((value, k) => value - 1.96 * error[k]);
  const low = Math.min(...real, ...lower), high = Math.max(...real, ...upper), width = 420, left = 44, right = 84, top = 26, bottom = 250;
  const box = make("div"), svg = newChart(box, width, 290, "drift by step");
  const x = scale(1, Math.max(real.length, 2), left, width - right), y = scale(low, high, bottom, top);
  svg.append(make("text", { x: left, y: 14, class: "label" }, "Mean reward by step, logged items"));
  yAxis(svg, y, ticks(low, high, 4), left, width - right);
  for (const k of ticks(1, Math.max(real.length, 2), 6).filter(Number.isInteger)) svg.append(make("text", { x: x(k), y: bottom + 16, "text-anchor": "middle" }, k));
  svg.append(make("text", { x: width - right, y: bottom + 34, "text-anchor": "end" }, "step of the session"));
  const at = (list) => list.map((value, k) => [x(k + 1), y(value)]);
  lineWithBand(svg, at(simulated), [...at(upper), ...at(lower).reverse()], "var(--mbcal)", { class: "drift" });
  lineWithBand(svg, at(real), null, "var(--ink)", { class: "drift" });
  endLabels(svg, [{ y: y(simulated.at(-1)), text: "simulator", colour: "var(--mbcal)" }, { y: y(real.at(-1)), text: "logged", colour: "var(--ink)" }], width - right + 6, top, bottom);
  real.forEach((value, k) => {
    const area = make("rect", { x: x(k + 1) - 6, y: top, width: 12, height: bottom - top, fill: "transparent" });
    addTooltip(area, `step ${k + 1}: logged ${value.toFixed(2)}, simulated ${simulated[k].toFixed(2)} ± ${(1.96 * error[k]).toFixed(2)}`);
    svg.append(area);
  });
  container.append(box);
}
