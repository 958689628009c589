"use strict";
// Ticked photographs become a list of files, and the commands that leave them out or move them.
const boxes = [...document.querySelectorAll("figure input")];
const place = document.getElementById("chosen");
const given = JSON.parse(document.getElementById("given").textContent);

function quoted(word) {
  return /^[\w./:=@%+-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

function show(changed) {
  for (const box of boxes) {
    if (changed && box.value === changed.value) box.checked = changed.checked;
  }
  const chosen = new Map(boxes.filter((box) => box.checked).map((box) => [box.value, box.dataset.to]));
  const command = given.command.map(quoted).join(" ");
  const list = [...given.without, ...chosen.keys()].join("\n");
  // Cameras use a name in every folder, and `mv -n` is silent about a name that is taken.
  const moves = [...chosen].filter(([, to]) => to).map(([file, to]) =>
    `mv -n ${[file, `${to}/${file.replaceAll("/", "-")}`].map((each) => quoted(`${given.root}/${each}`)).join(" ")}`);
  place.hidden = chosen.size === 0;
  place.querySelector("output").value = chosen.size;
  document.getElementById("drop").textContent =
    `cat > without.txt <<'END OF LIST'\n${list}\nEND OF LIST\n${command} --without without.txt`;
  document.getElementById("move").textContent = moves.join("\n");
  document.getElementById("moves").hidden = moves.length === 0;
}

for (const box of boxes) box.addEventListener("change", () => show(box));
for (const button of document.querySelectorAll("button.all")) {
  button.addEventListener("click", () => {
    const own = [...button.closest("section").querySelectorAll("input")];
    const wanted = own.some((box) => !box.checked);
    for (const box of own) {
      box.checked = wanted;
      show(box);
    }
  });
}
show();
