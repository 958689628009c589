// Settings, versions and commands of each run, folded at first.

function recordOf(run, place) {
  const { record } = run;
  const summary = element("summary", {}, sample(data.looks[run.look]), element("span", {}, run.label));
  const details = element("details", { id: `run-${place + 1}` }, summary);
  const parts = [];
  const command = (words, text) =>
    text && parts.push(element("h4", {}, words), element("pre", { tabindex: 0, "aria-label": words }, text));
  const list = (words, pairs, grouped = true) => {
    const made = describe(element("dl", { class: grouped ? "facts columns" : "facts" }), pairs, { grouped });
    if (pairs.length) parts.push(element("h4", {}, words), made);
  };
  command("The command it was trained with", record.command);
  list("Settings", record.settings);
  list("Versions", record.versions);
  list("Record", record.path ? [["path", record.path], ...record.about] : record.about, false);
  details.addEventListener("toggle", () => details.open && parts.length && details.append(...parts.splice(0)));
  return details;
}

/** Open the record that the address names. */
function openNamed() {
  const named = document.getElementById(location.hash.slice(1));
  if (named && named.tagName === "DETAILS") {
    named.open = true;
    named.querySelector("summary").focus();
  }
}

function showRecords() {
  byId("record-list").append(...data.runs.map(recordOf));
  reveal("records");
  addEventListener("hashchange", openNamed);
  openNamed();
}
