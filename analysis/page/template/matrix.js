// The accuracy matrix of a run as a table, next to the matrix of another run.

function matrixTable(run) {
  const { tasks, on, cells } = run.matrix;
  const head = on.map((words) => element("th", { scope: "col" }, words));
  const corner = element("th", { scope: "col" }, "after ↓ on →");
  const rows = cells.map((line, place) => {
    const made = line.map((value) => {
      const cell = element("td", { class: value == null ? "none" : null }, value == null ? "" : value.toFixed(1));
      // Squared, because most accuracies are near the top.
      if (value != null) cell.style.setProperty("--share", value ** 2 / 100);
      return cell;
    });
    return element("tr", {}, element("th", { scope: "row" }, `task ${tasks[place]}`), ...made);
  });
  const parts = [element("thead", {}, element("tr", {}, corner, ...head)), element("tbody", {}, ...rows)];
  return element("table", { class: "matrix" }, ...parts);
}

function matrixChoice(chosen, name) {
  const options = data.runs.map((run, place) =>
    element("option", { value: place, selected: place === chosen }, run.label.slice(0, 200)),
  );
  const select = element("select", { "aria-label": name }, ...options);
  const place = element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `${name}: matrix` });
  const words = element("p", { class: "small" });
  const show = () => {
    const run = data.runs[Number(select.value)];
    place.replaceChildren(matrixTable(run));
    const { incremental, forgetting } = run.matrix;
    words.textContent = [
      "Accuracy in %",
      incremental && `average incremental accuracy ${incremental}`,
      forgetting && `forgetting ${forgetting}`,
    ].filter((part) => part).join(", ");
  };
  select.addEventListener("change", show);
  show();
  return element("div", {}, select, place, words);
}

/** Show the matrix of the first run, and beside it that of the run with the best A_all on its data. */
function showMatrices() {
  const table = data.tables.find((each) => each.of === "runs");
  const column = table.columns.findIndex((each) => each.heading === "A_all");
  const values = table.lines.map((line) => line.cells[column]?.[1] ?? -1);
  const best = values.indexOf(Math.max(...values));
  const runs = table.lines.map((line) => line.run);
  const chosen = runs.length < 2 ? runs : [runs[best ? 0 : 1], runs[best]];
  byId("matrix-pair").append(...chosen.map((run, place) => matrixChoice(run, `Run ${place + 1} of the comparison`)));
  reveal("matrices");
}
