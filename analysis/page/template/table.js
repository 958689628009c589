// Tables that sort after a click or Enter on a heading.

/** Return the order of two cells; what is not there comes last in either direction. */
function compared(one, other, sign) {
  const [a, b] = [one[1], other[1]];
  if (a == null || b == null) return (a == null) - (b == null);
  const isNumber = typeof a === "number" && typeof b === "number";
  return sign * (isNumber ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
}

/** Return the direction in which a heading sorts when it is chosen: the better values first. */
function nextDirection(heading, column) {
  const first = column.number && column.better !== "low" ? "descending" : "ascending";
  const other = first === "ascending" ? "descending" : "ascending";
  return heading.getAttribute("aria-sort") === first ? other : first;
}

function headingOf(column) {
  const words = element("button", { type: "button", title: column.meaning || null }, column.heading);
  if (column.mark) words.append(" ", element("span", { class: "mark" }, column.mark));
  const kind = column.number ? "number" : "text";
  return element("th", { scope: "col", "aria-sort": "none", class: kind }, words);
}

function cellOf(cell, column, isFirst, line) {
  const kind = (column.number ? "number" : "text") + (cell[2] ? " best" : "");
  const made = element("td", { class: kind });
  if (isFirst) {
    const link = element("a", { href: `#run-${line.run + 1}`, class: "name" }, cell[0]);
    made.append(sample(data.looks[data.runs[line.run].look]), link);
  } else if (column.number) made.append(cell[0].replace(" ±", "\n±")); // deviations below, so that the table fits
  else made.append(element("span", { class: "name" }, cell[0]));
  return made;
}

function sortable(table) {
  const headings = table.columns.map(headingOf);
  const body = element("tbody");
  const lines = table.lines.map((line) => {
    const cells = line.cells.map((cell, place) => cellOf(cell, table.columns[place], place === 0, line));
    return { cells: line.cells, row: element("tr", {}, ...cells) };
  });
  body.append(...lines.map((line) => line.row));
  headings.forEach((heading, place) => {
    heading.firstChild.addEventListener("click", () => {
      const direction = nextDirection(heading, table.columns[place]);
      headings.forEach((each) => each.setAttribute("aria-sort", each === heading ? direction : "none"));
      const sign = direction === "ascending" ? 1 : -1;
      const sorted = [...lines].sort((a, b) => compared(a.cells[place], b.cells[place], sign));
      body.append(...sorted.map((line) => line.row));
    });
  });
  const head = element("thead", {}, element("tr", {}, ...headings));
  const made = element("table", { class: "results" }, element("caption", {}, table.title), head, body);
  const frame = { class: "scroll", tabindex: 0, role: "region", "aria-label": table.title };
  return element("div", {}, element("div", frame, made), element("p", { class: "small" }, table.caption));
}

/** Show the tables, and below them what their columns mean, each once. */
function showTables() {
  byId("tables").append(...data.tables.map(sortable));
  const meanings = new Map();
  for (const table of data.tables) {
    for (const column of table.columns) if (column.meaning) meanings.set(column.heading, column.meaning);
  }
  describe(byId("meanings"), [...meanings, ...data.terms]);
  reveal("results");
}
