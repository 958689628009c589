// Colours and dashes of runs. M. Okabe, K. Ito, "Color universal design", 2008; blue and black are lighter in the dark scheme.

const COLOURS = ["#d55e00", "var(--blue)", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "var(--ink)"];

/** Return a colour of the style sheet as the browser resolves it. */
function styled(colour) {
  const probe = element("i", { hidden: true });
  probe.style.color = colour;
  document.body.append(probe);
  const resolved = getComputedStyle(probe).color;
  probe.remove();
  return resolved;
}

/** What canvases are drawn with; they do not follow the style sheet by themselves. */
let inks = {};

function readInks() {
  inks = Object.fromEntries(["ink", "faint", "line", "shade"].map((name) => [name, styled(`var(--${name})`)]));
}

function colourOf(look) {
  return styled(COLOURS[look.colour]);
}

/** Return a short line that looks like the curve. */
function sample(look) {
  const space = "http://www.w3.org/2000/svg";
  const drawn = document.createElementNS(space, "svg");
  const line = document.createElementNS(space, "line");
  const places = { x1: 0, y1: 5, x2: 34, y2: 5, "stroke-width": 2.5, "stroke-dasharray": look.dash.join(" ") };
  for (const [name, value] of Object.entries(places)) line.setAttribute(name, value);
  line.style.stroke = COLOURS[look.colour];
  drawn.setAttribute("class", "sample");
  drawn.setAttribute("viewBox", "0 0 34 10");
  drawn.setAttribute("aria-hidden", "true");
  drawn.append(line);
  return drawn;
}
