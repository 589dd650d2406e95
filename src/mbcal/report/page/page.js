// Put the page together: choices, toggles, explanations of columns.
const data = JSON.parse(byId("data").textContent);
const hideSection = (id) => {
  byId(id).hidden = true;
  document.querySelector(`nav a[href="#${id}"]`).hidden = true;
};

// gaps: a protocol and a judge
const protocols = Object.entries(data.protocols).filter(([name]) => Object.keys(data.gaps[name]).length);
if (protocols.length) {
  const chosen = { protocol: protocols[0][0], judge: Object.keys(data.judges)[0] };
  const redraw = () => drawGaps(chosen.protocol, chosen.judge);
  makeChoice(byId("gap-protocols"), protocols, chosen.protocol, (name) => { chosen.protocol = name; redraw(); });
  const judges = Object.entries(data.judges).map(([name, judge]) => [name, "judged by " + judge.title]);
  makeChoice(byId("gap-judges"), judges, chosen.judge, (name) => { chosen.judge = name; redraw(); });
  redraw();
  addEventListener("resize", redraw);
} else {
  byId("gap-chart").textContent = "There is no baseline to compare with: add gru4rec, popular or random to the methods.";
}

// the curves of the simulators' report cards
for (const container of document.querySelectorAll("[data-card]")) {
  const { card } = data.judges[container.dataset.card];
  drawCalibration(container, card);
  drawDrift(container, card);
}

// curves: every method can be switched off
const hidden = new Set();
for (const agent of Object.keys(data.curves)) {
  byId("toggles").append(makeButton(shortName(agent, 40), true, colourOf(data.styles[agent].role), (button) => {
    if (hidden.has(agent)) hidden.delete(agent); else hidden.add(agent);
    button.setAttribute("aria-pressed", !hidden.has(agent));
    drawCurves(hidden);
  }));
}
if (Object.keys(data.curves).length) {
  drawCurves(hidden);
  addEventListener("resize", () => drawCurves(hidden));
} else {
  hideSection("curves");
}

// the session X-ray
if (data.xray.length) {
  makeChoice(byId("sessions"), data.xray.map((_, number) => [String(number), `session ${number + 1}`]), "0", (number) => drawSession(+number));
  drawSession(0);
} else {
  hideSection("xray");
}

// the meaning of a column by a tap; another tap anywhere closes it
document.addEventListener("click", (event) => {
  const button = event.target.closest(".explain");
  if (!button) { if (!event.target.closest("svg, .bar")) hideTip(); return; }
  const box = button.getBoundingClientRect();
  showTip(button.dataset.meaning, box.left - 12, box.bottom - 8);
});

// a table that is wider than the text uses the margins; where it is wider than the page, too, it says so
const markWide = () => {
  for (const box of document.querySelectorAll(".scroll")) {
    box.classList.remove("out");
    for (const name of ["out", "wide"]) box.classList.toggle(name, box.scrollWidth > box.clientWidth + 1);
  }
};
markWide();
addEventListener("resize", markWide);
