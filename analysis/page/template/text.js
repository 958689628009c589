// The only ways to insert data into the document: as text, and as values of attributes.

const data = JSON.parse(document.getElementById("data").textContent);

function byId(id) {
  return document.getElementById(id);
}

/** Return an element with attributes and children; strings become text. */
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, String(value));
  }
  made.append(...children);
  return made;
}

/** Fill a list of names and texts: `pairs` of both. */
function describe(list, pairs, { grouped = false } = {}) {
  for (const [name, text] of pairs) {
    const parts = [element("dt", {}, name), element("dd", {}, text)];
    if (grouped) list.append(element("div", {}, ...parts));
    else list.append(...parts);
  }
  return list;
}

/** Show what is hidden until it is filled. */
function reveal(id) {
  byId(id).hidden = false;
}
