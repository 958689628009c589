// The page from top to bottom.

function showAsked() {
  const { data: facts, varying, settings } = data.asked;
  describe(byId("facts"), [...facts, ...varying.map(([name, values]) => [`varies: ${name}`, values])]);
  describe(byId("shared").querySelector("dl"), settings, { grouped: true });
  byId("shared").hidden = !settings.length;
  reveal("asked");
}

function showNotes() {
  byId("notes").querySelector("ul").append(...data.notes.map((note) => element("li", {}, element("span", {}, note))));
  if (data.notes.length) reveal("notes");
}

function chooseTheme(event) {
  if (event.target.value) document.documentElement.dataset.theme = event.target.value;
  else delete document.documentElement.dataset.theme;
  drawCharts();
}

function showMeans() {
  const words = "Means over seeds of loss and accuracy, with bands from the least to the greatest seed";
  byId("means").append(...data.means.map((src) => element("img", { src, alt: words, title: words })));
}

showAsked();
showTables();
showNotes();
showMeans();
showCurves();
showMatrices();
showRecords();
byId("theme").addEventListener("change", chooseTheme);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCharts);
