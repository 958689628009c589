"use strict";
// Ticked photographs become commands: each is moved to the class that it is nearer to, or left out.
const boxes = [...document.querySelectorAll("input.chosen")];
const place = document.getElementById("chosen");
const given = JSON.parse(document.getElementById("given").textContent);

function quoted(word) {
  return /^[\w./:=@%+-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

function moveBox(box) {
  return box.closest("figure").querySelector("input.to");
}

function show() {
  const chosen = new Map(boxes.filter((box) => box.checked).map((box) => [box.value, ""]));
  for (const box of boxes) {
    if (box.checked && moveBox(box)?.checked) chosen.set(box.value, moveBox(box).value);
  }
  const dropped = [...given.without, ...[...chosen].filter(([, to]) => !to).map(([file]) => file)];
  // Cameras use a name in every folder, and `mv -n` is silent about a name that is taken.
  const folders = [...new Set([...chosen.values()].filter((to) => to))].map((to) => `mkdir -p ${quoted(`${given.root}/${to}`)}`);
  const moves = [...chosen].filter(([, to]) => to).map(([file, to]) =>
    `mv -n ${[file, `${to}/${file.replaceAll("/", "-")}`].map((each) => quoted(`${given.root}/${each}`)).join(" ")}`);
  const command = given.command.map(quoted).join(" ");
  const list = ["cat > without.txt <<'END OF LIST'", ...dropped, "END OF LIST", `${command} --without without.txt`];
  place.hidden = chosen.size === 0;
  document.getElementById("of-add").hidden = given.command[1] !== "add";
  place.querySelector("output").value = chosen.size;
  document.getElementById("script").textContent = [...folders, ...moves, ...(dropped.length ? list : [command])].join("\n");
}

// A photograph may be in several sections: it is ticked in all, and moved to one class at most.
function alike(box) {
  for (const other of boxes.filter((each) => each.value === box.value)) {
    other.checked = box.checked;
  }
}

for (const box of boxes) {
  box.addEventListener("change", () => {
    alike(box);
    show();
  });
  moveBox(box)?.addEventListener("change", (event) => {
    for (const other of boxes.filter((each) => each.value === box.value).map(moveBox)) {
      if (other && other !== event.target) {
        other.checked = event.target.checked && other.value === event.target.value;
      }
    }
    show();
  });
}
for (const button of document.querySelectorAll("button.all")) {
  button.addEventListener("click", () => {
    const own = [...button.closest("section").querySelectorAll("input.chosen")];
    const wanted = own.some((box) => !box.checked);
    for (const box of own) {
      box.checked = wanted;
      alike(box);
    }
    show();
  });
}
show();
