// One chart: curves of all runs over iterations, task switches drawn behind them.

const HEIGHT = 280;

function numberText(value) {
  if (value == null) return "–";
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e5) ? value.toExponential(2) : String(+value.toPrecision(4));
}

/** Return the places of points that have no neighbour: no line shows them. */
function lonely(values) {
  const known = [];
  values.forEach((value, place) => value !== undefined && known.push(place));
  const isThere = (place) => known[place] !== undefined && values[known[place]] != null;
  return known.filter((_, place) => isThere(place) && !isThere(place - 1) && !isThere(place + 1));
}

/** Widen the gaps at task switches to what can be seen; both ends stay where they are. */
function gapsOf(chart, series, first, last, gaps) {
  const half = 1.5 * devicePixelRatio;
  const [xs, ys] = [chart.data[0], chart.data[series]];
  for (let place = first; place <= last; place++) {
    if (ys[place] !== null) continue;
    const at = chart.valToPos(xs[place], "x", true);
    gaps.push([at - half, at + half]);
  }
  return gaps.sort((a, b) => a[0] - b[0]);
}

function seriesOf(run, place, values) {
  const look = data.looks[run.look];
  const alone = lonely(values);
  return {
    label: run.label,
    stroke: colourOf(look),
    width: data.runs.length > 12 ? 1.25 : 1.75,
    dash: look.dash,
    show: isShown(place),
    gaps: gapsOf,
    points: { show: alone.length > 0, size: 5, fill: colourOf(look), filter: () => alone },
  };
}

/** Draw every second task on a shade, a line at each switch, and the numbers of the tasks. */
function drawTasks(chart) {
  const shown = data.runs.map((_, place) => place).filter(isShown);
  const { ctx, bbox } = chart;
  const ends = [...new Set(shown.flatMap((run) => data.curves.ends[run]))].sort((a, b) => a - b);
  const alike = shown.every((run) => String(data.curves.ends[run]) === String(data.curves.ends[shown[0]]));
  const at = (x) => Math.min(Math.max(chart.valToPos(x, "x", true), bbox.left), bbox.left + bbox.width);
  const spans = ends.map((end, place) => [at(place ? ends[place - 1] : 0), at(end)]);
  ctx.save();
  ctx.fillStyle = inks.shade;
  spans.forEach(([left, right], place) => alike && place % 2 && ctx.fillRect(left, bbox.top, right - left, bbox.height));
  ctx.fillStyle = inks.faint;
  ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.textAlign = "center";
  spans.forEach(([left, right], place) => {
    const width = (right - left) / devicePixelRatio;
    const words = width > 54 ? `task ${place + 1}` : String(place + 1);
    if (alike && width > 16) ctx.fillText(words, (left + right) / 2, bbox.top - 6 * devicePixelRatio);
    const isSwitch = place < ends.length - 1 && right > bbox.left && right < bbox.left + bbox.width;
    if (isSwitch) ctx.fillRect(Math.round(right), bbox.top, Math.max(1, Math.round(devicePixelRatio)), bbox.height);
  });
  ctx.restore();
}

function axisOf(label, extra) {
  const { ink, line } = inks;
  const font = "12px system-ui, sans-serif";
  const ticks = { stroke: line, width: 1, size: 5 };
  return { label, labelFont: font, labelSize: 20, font, stroke: ink, ticks, grid: { stroke: line, width: 1 }, ...extra };
}

/** Return powers of ten; where few of them are seen, their double and their fivefold too. */
function logTicks(_chart, _axis, min, max) {
  const [first, last] = [Math.floor(Math.log10(min)), Math.ceil(Math.log10(max))];
  const every = Math.ceil((last - first) / 7);
  const factors = max / min > 300 ? [1] : [1, 2, 5];
  const ticks = [];
  for (let power = first; power <= last; power += every) {
    ticks.push(...factors.map((factor) => Number(`${factor}e${power}`)));
  }
  return ticks.filter((tick) => tick >= min && tick <= max);
}

function axesOf(kind, isLog) {
  const numbers = (_chart, ticks) => ticks.map((tick) => (tick == null ? "" : numberText(tick)));
  const iterations = (_chart, ticks) => ticks.map((tick) => (tick % 1 ? "" : tick.toLocaleString("en")));
  const vertical = axisOf(kind.axis, { size: 48, values: numbers });
  if (isLog) Object.assign(vertical, { splits: logTicks, filter: (_chart, ticks) => ticks });
  // No grid of iterations: the vertical lines are task switches.
  return [axisOf("Iterations over all tasks", { size: 34, values: iterations, grid: { show: false } }), vertical];
}

function scaleOf(kind, isLog) {
  if (!kind.isLoss) return { range: () => [-1, 101] };
  if (isLog) return { distr: 3, range: (_chart, low, high) => (low == null ? [0.1, 1] : [low / 1.2, high * 1.2]) };
  return { range: (_chart, low, high) => (low == null ? [0, 1] : [Math.min(0, low), high === low ? high + 1 : high * 1.04]) };
}

/** Return the chart of a curve in `place`, or null where no run has a value. */
function chartOf(kind, place, isLog) {
  const tables = data.runs.map((_, run) => decoded(run, kind.name));
  if (!tables.some(([, ys]) => ys.some((y) => y != null))) {
    place.replaceChildren(element("p", { class: "empty" }, "No run has a value here."));
    return null;
  }
  const last = lastEnd();
  const joined = uPlot.join(tables);
  const options = {
    width: Math.max(240, place.clientWidth),
    height: HEIGHT,
    padding: [18, 20, 0, 0],
    legend: { show: false },
    scales: { x: { time: false, range: (_chart, low, high) => [low ?? 0, high ?? last] }, y: scaleOf(kind, isLog) },
    series: [{}, ...data.runs.map((run, at) => seriesOf(run, at, joined[at + 1]))],
    axes: axesOf(kind, isLog),
    cursor: {
      y: false,
      sync: { key: "curves", setSeries: false },
      focus: { prox: 24 },
      points: { one: true, size: 7 },
      drag: { x: true, y: true, uni: 40 },
    },
    focus: { alpha: 0.25 },
    hooks: { drawClear: [drawTasks], setCursor: [showHover] },
  };
  place.replaceChildren();
  const chart = new uPlot(options, joined, place);
  chart.kind = kind;
  chart.setScale("x", { min: 0, max: last });
  listenTo(chart, place);
  return chart;
}
