// All charts: the runs, iterations and scales that they show.

const KINDS = [
  { name: "loss", title: "Training loss, every step", axis: "Loss", isLoss: true },
  { name: "acc_new", title: "A_new: accuracy on the current task", axis: "Accuracy, %" },
  { name: "acc_old", title: "A_old: accuracy on the base and earlier tasks", axis: "Accuracy, %" },
  { name: "acc_all", title: "A_all: accuracy on all classes seen", axis: "Accuracy, %" },
];
const NEW_LOSS = { name: "loss_new", title: "L_new: loss on the current task", axis: "Loss", isLoss: true };
const off = new Set();
const isLog = { ...data.curves.log };
let charts = [];

function isShown(place) {
  return data.runs[place].choices.every((value, field) => value == null || !off.has(`${field}:${value}`));
}

function lastEnd() {
  return Math.max(1, ...data.curves.ends.flat());
}

/** Zoom all charts to these iterations; without them, out to all. */
function zoomTo(min = 0, max = lastEnd()) {
  for (const chart of charts) chart.batch(() => chart.setScale("x", { min, max }));
}

function zoomBy(chart, factor) {
  const { min, max } = chart.scales.x;
  const middle = chart.cursor.left >= 0 ? chart.posToVal(chart.cursor.left, "x") : (min + max) / 2;
  const half = ((max - min) * factor) / 2;
  zoomTo(Math.max(0, middle - half), Math.min(lastEnd(), middle + half));
}

function showRuns() {
  for (const chart of charts) {
    chart.batch(() => {
      data.runs.forEach((_, place) => chart.setSeries(place + 1, { show: isShown(place) }));
    });
  }
  const seen = new Set(data.runs.filter((_, place) => isShown(place)).map((run) => run.look));
  const entries = data.looks.map((look, place) => [look, place]).filter(([, place]) => seen.has(place));
  byId("legend").replaceChildren(
    ...entries.map(([look]) => element("li", {}, sample(look), element("span", { title: look.label }, look.label))),
  );
}

/** Return whether the values of a field are the looks, so that its switches are the legend. */
function looksAreOf(field) {
  const labels = data.looks.map((look) => look.label);
  return String(labels) === String(field.values);
}

function switchesOf(field, place) {
  const labels = field.values.map((text, value) => {
    const box = element("input", { type: "checkbox", checked: true });
    box.addEventListener("change", () => {
      if (box.checked) off.delete(`${place}:${value}`);
      else off.add(`${place}:${value}`);
      showRuns();
    });
    const look = looksAreOf(field) ? [sample(data.looks[value])] : [];
    return element("label", { title: text }, box, " ", ...look, text);
  });
  return element("fieldset", {}, element("legend", {}, field.name.replaceAll("_", " ")), ...labels);
}

/** Return the choice of a task to zoom into; with a keyboard or a finger too. */
function taskChoice() {
  const ends = data.curves.ends.reduce((a, b) => (b.length > a.length ? b : a));
  const options = ends.map((_, task) => element("option", { value: task }, `task ${task + 1}`));
  const select = element("select", {}, element("option", { value: "" }, "all tasks"), ...options);
  select.addEventListener("change", () => {
    const task = Number(select.value);
    if (select.value === "") zoomTo();
    else zoomTo(task ? ends[task - 1] : 0, ends[task]);
  });
  const reset = element("button", { type: "button" }, "Zoom out");
  reset.addEventListener("click", () => {
    select.value = "";
    drawCharts();
  });
  return [element("label", {}, "Show ", select), reset];
}

/** Return the caption of the loss, which chooses the loss and its scale. */
function lossCaption(kind) {
  const losses = [KINDS[0], NEW_LOSS].map((each) =>
    element("option", { value: each.name, selected: each.name === kind.name }, each.title),
  );
  const select = element("select", { "aria-label": "Which loss" }, ...losses);
  select.addEventListener("change", () => {
    KINDS.splice(0, 1, NEW_LOSS.name === select.value ? NEW_LOSS : LOSS);
    drawCharts();
    byId("charts").querySelector("select").focus();
  });
  const box = element("input", { type: "checkbox", checked: isLog[kind.name] });
  box.addEventListener("change", () => {
    isLog[kind.name] = box.checked;
    drawCharts();
    byId("charts").querySelector("input").focus();
  });
  const values = data.curves.of[kind.name].flat().flatMap(([, found]) => found);
  box.disabled = !values.some((value) => value > 0);
  return [select, element("label", {}, box, " logarithmic")];
}
const LOSS = KINDS[0];

function drawCharts() {
  hovered = null;
  readInks();
  charts.forEach((chart) => chart.destroy());
  const frames = KINDS.map((kind) => {
    const caption = kind.isLoss ? lossCaption(kind) : [kind.title];
    const words = `${kind.title} over iterations, one curve a run. Arrow keys read values, + and - zoom, 0 zooms out.`;
    const plot = element("div", { class: "plot", tabindex: 0, role: "application", "aria-label": words });
    return [kind, plot, element("figure", { class: "chart" }, element("figcaption", {}, ...caption), plot)];
  });
  byId("charts").replaceChildren(...frames.map(([, , frame]) => frame));
  charts = frames.map(([kind, plot]) => chartOf(kind, plot, isLog[kind.name])).filter((chart) => chart);
  showRuns();
}

function fitCharts() {
  for (const chart of charts) {
    const width = Math.max(240, chart.root.parentElement.clientWidth);
    if (width !== chart.width) chart.setSize({ width, height: chart.height });
  }
}

function showCurves() {
  document.documentElement.classList.add("scripted");
  byId("switches").append(...data.fields.map(switchesOf), ...taskChoice());
  const thinned = data.curves.thinned
    ? " Of spans of steps the lowest and the highest value are drawn."
    : "";
  const hint = "Drag to zoom, double-click to zoom out; vertical lines are task switches.";
  byId("hint").textContent = hint + thinned;
  ["switches", "charts", "hint"].forEach(reveal);
  if (!data.fields.some(looksAreOf)) reveal("legend");
  drawCharts();
  new ResizeObserver(fitCharts).observe(byId("charts"));
}
