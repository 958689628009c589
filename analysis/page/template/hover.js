// Shows the values of the nearest runs at the pointer, or by the arrow keys.

const MOST_NAMED = 6;
let hovered = null;

/** Return the shown runs with a value under the cursor, the nearest to it first. */
function nearest(chart) {
  const found = [];
  data.runs.forEach((run, place) => {
    const at = chart.cursor.idxs[place + 1];
    const value = at == null ? null : chart.data[place + 1][at];
    if (value == null || !isShown(place)) return;
    const distance = Math.abs(chart.valToPos(value, "y") - chart.cursor.top);
    found.push({ run, place, value, x: chart.data[0][at], distance });
  });
  return found.sort((a, b) => a.distance - b.distance);
}

function showHover(chart) {
  const box = chart.hoverBox;
  if (!box) return;
  const found = chart === hovered && chart.cursor.left >= 0 ? nearest(chart) : [];
  box.hidden = !found.length;
  if (!found.length) return;
  const named = found.slice(0, MOST_NAMED).sort((a, b) => b.value - a.value);
  const { task, iteration } = placeOf(found[0].place, found[0].x);
  const lines = named.map((each) => {
    const value = numberText(each.value) + (chart.kind.isLoss ? "" : " %");
    const kind = each === found[0] ? "nearest" : null;
    const look = sample(data.looks[each.run.look]);
    return element("div", { class: kind }, look, element("span", {}, each.run.label), element("output", {}, value));
  });
  const more = found.length - named.length;
  if (more > 0) lines.push(element("p", {}, `and ${more} more`));
  box.replaceChildren(element("p", {}, `task ${task}, iteration ${iteration.toLocaleString("en")}`), ...lines);
  placeBox(chart, box);
}

/** Put the box beside the cursor, within the chart; below it where it is narrow. */
function placeBox(chart, box) {
  const [at, room, gap] = [chart.cursor.left, chart.over.clientWidth, 14];
  if (room < 440) {
    box.style.maxWidth = `${room}px`;
    box.style.left = `${chart.over.offsetLeft}px`;
    box.style.top = `${chart.over.offsetTop + chart.over.clientHeight + 4}px`;
    return;
  }
  const isRight = at < room / 2;
  box.style.maxWidth = `${Math.min(360, (isRight ? room - at : at) - gap)}px`;
  const left = isRight ? at + gap : at - gap - box.offsetWidth;
  const top = Math.min(chart.cursor.top + 10, Math.max(0, chart.over.clientHeight - box.offsetHeight));
  box.style.left = `${chart.over.offsetLeft + left}px`;
  box.style.top = `${chart.over.offsetTop + top}px`;
}

/** Move the cursor to a neighbouring point of the first shown run. */
function step(chart, direction) {
  const first = data.runs.findIndex((_, place) => isShown(place));
  if (first < 0) return;
  const values = chart.data[first + 1];
  let at = chart.cursor.idx ?? (direction > 0 ? -1 : values.length);
  do at += direction;
  while (at >= 0 && at < values.length && values[at] == null);
  if (at < 0 || at >= values.length) return;
  const [left, top] = [chart.valToPos(chart.data[0][at], "x"), chart.valToPos(values[at], "y")];
  chart.setCursor({ left, top });
}

function listenTo(chart, place) {
  chart.hoverBox = element("div", { class: "hover", hidden: true, role: "status" });
  place.append(chart.hoverBox);
  const enter = () => (hovered = chart);
  const leave = () => {
    if (hovered === chart) hovered = null;
    chart.hoverBox.hidden = true;
  };
  chart.over.addEventListener("mousemove", enter, true);
  chart.over.addEventListener("mouseleave", leave);
  place.onfocus = enter;
  place.onblur = leave;
  place.onkeydown = (event) => {
    enter();
    const act = { ArrowRight: () => step(chart, 1), ArrowLeft: () => step(chart, -1), Escape: leave }[event.key];
    const zoom = { "+": 0.5, "=": 0.5, "-": 2 }[event.key];
    if (zoom) zoomBy(chart, zoom);
    else if (event.key === "0") zoomTo();
    else if (act) act();
    else return;
    event.preventDefault();
  };
}
