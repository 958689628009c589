"""Photographs to look at, as one HTML page that loads nothing.

After `clinit add`, and of a model: the photographs that the audit found. After `clinit evaluate`:
photographs of the most frequently confused pairs, and all that only the other model classifies
correctly. Each has its name and two scores, of its own class and of the other one. Ticked
photographs become commands: those that seem to belong to another class of the folder move there,
unless the box next to it is cleared; the others become a list of files to leave out. Names of
classes and files come from data, so they are escaped.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from PIL import Image

from clinit.analysis.page.page import escaped_json, fill, policy, read
from clinit.errors import ImageError
from clinit.extract.dataset.decode import decode_with_pillow, read_whole
from clinit.extract.dataset.names import in_words
from clinit.headtrain.model.audit import UNIT, repeats_in_words
from clinit.headtrain.model.evaluation import Evaluation, cells_of
from clinit.headtrain.model.facts import ModelFacts
from clinit.words import number_of, visible

PAIRS, IMAGES, MOST = 12, 12, 240
"""Maximum number of pairs, of thumbnails per pair, and of thumbnails per section."""
SIDE = 112
"""Largest side of a thumbnail in pixels."""
KEPT = "kept: the others repeat it"
SCORES = {
    UNIT: ("nearer to", "distance", "from"),
    "probability": ("taken for", "probability", "of"),
}


@dataclass(frozen=True, slots=True)
class Shot:
    """A photograph, and what is to be seen of it."""

    image: str
    """Its path below the folder of the images."""
    words: str = ""
    nearest: str | None = None
    """The class that it seems to belong to; None if it cannot move there."""
    moves: bool = True
    """Whether moving it there is the better guess; if not, leaving it out."""
    has_box: bool = True
    """Whether it can be ticked."""

    @property
    def to(self) -> str:
        """The folder of the class `nearest`; empty if class folders do not name the classes."""
        path = Path(self.image)
        is_flat = self.nearest is None or not path.parent.name
        return "" if is_flat else str(path.parent.with_name(str(self.nearest)))


Sections = Mapping[str, Sequence[Shot]]


def evaluation_page(
    title: str, found: Evaluation, root: Path | None, command: Sequence[str] = ()
) -> str:
    """Return the page of an evaluation.

    Args:
        title: Heading of the page.
        found: Predictions of a model, possibly compared with another model.
        root: Folder of the images; None for features, which have no thumbnails.
        command: The words of the command that evaluates.
    """
    of_image = {line["image"]: line for line in found.known.iter_rows(named=True)}

    def shot(image: str) -> Shot:
        line = of_image[image]
        scores = (line["answer"], line["probability"]), (line["class"], line["own"])
        words = ", ".join(f"{in_words(name)} {100 * score:.1f} %" for name, score in scores)
        # Not moved there unasked: the label is seldom wrong.
        return Shot(image, f"probability: {words}", line["answer"], moves=False)

    shots: dict[str, list[Shot]] = {}
    if "change" in found.table.columns and len(lost := found.changed("lost")):
        shots["Lost"] = [*map(shot, lost["image"])]
    for name, answer, count, files in found.confused.head(PAIRS).iter_rows():
        above = f"{in_words(name)} taken for {in_words(answer)}: {count:,}"
        shots[above] = [shot(image) for image in files[:IMAGES]]
    tables = {**found.tables, "All classes": found.classes}
    return _page(
        title, found.summary, shots, root, tables=tables, command=command, maker="evaluate --html"
    )


def model_page(title: str, facts: ModelFacts) -> str:
    """Return the page of the photographs that the last audit of a model found.

    Thumbnails are made if the photographs have not moved.
    """
    audited = [each for each in facts.history if each.data.get("audit")]
    told = {"model": f"{facts.name}, {number_of(facts.num_classes, 'class')}"}
    if not audited:
        told["photographs"] = "the model was made by no `clinit add`, which looks for odd ones"
        return _page(title, told, {}, None)
    data = audited[-1].data
    root = Path(data["images"]) if data.get("images") else None
    told |= {"photographs": str(root or data.get("features", "features"))}
    shots = {above: shots for above, shots in _of_audit(data["audit"]).items() if shots}
    unit = "0 like the average photograph of a class, 1 and more unlike it (squared, of features)"
    told |= {"distance": unit} if shots else {"found": "nothing odd"}
    without = data.get("without", {}).get("images", ())
    return _page(title, told, shots, root, command=data.get("command", ()), without=without)


def _of_audit(audit: Mapping[str, Any]) -> Sections:
    """Return the photographs of an audit by section."""
    repeats: dict[str, list[Shot]] = {}
    copies: dict[str, Shot] = {}
    odd = {each["image"] for each in audit["misfits"]}
    for each in audit["repeated"]:
        names = each["images"]
        given = names[-each["given"] :]  # those that the model has already come first
        stays = names[0] if len(given) < len(names) else min(given, key=odd.__contains__)
        shots = {name: Shot(name, f"like {stays}") for name in given}
        shots |= {stays: Shot(stays, KEPT, has_box=False)} if stays in shots else {}
        copies |= shots if "across" in each["where"] else {}
        above = repeats_in_words(each["where"]).capitalize()
        repeats.setdefault(above, []).extend(shots.values())

    def compared(each: Mapping[str, Any]) -> Shot:
        copy = copies.get(each["image"])
        if copy is not None and copy.has_box:  # the other class has it: at most to be left out
            return copy
        nearest, (verb, unit, of) = each["nearest"], SCORES[each["unit"]]
        words = f"{verb} {in_words(nearest)}" if nearest else "like no class"
        names = map(in_words, (each["class"], nearest or "the nearest other"))
        told = [f"{n:.2f} {of} {name}" for n, name in zip(each["scores"], names, strict=True)]
        # Not to a class of the old model: `clinit add` refuses a folder of its name.
        to = nearest if each["unit"] == UNIT else None
        return Shot(each["image"], f"{words}: {unit} {', '.join(told)}", to)

    found = {"May not belong to their class, oddest first": [*map(compared, audit["misfits"])]}
    for pair in audit["alike"]:
        alike = f"{' and '.join(map(in_words, pair['classes']))} look alike"
        found[alike] = [*map(compared, pair["files"])]
    blank = [Shot(each["image"], each["why"]) for each in audit["odd"]]
    return found | repeats | {"Hardly show anything": blank}


def _page(
    title: str,
    facts: Mapping[str, str],
    shots: Sections,
    root: Path | None,
    *,
    tables: Mapping[str, pl.DataFrame] = {},
    command: Sequence[str] = (),
    without: Sequence[str] = (),
    maker: str = "add --html",
) -> str:
    style = read("template/page.css") + read("template/photographs.css")
    has_boxes = root is not None and any(shots.values())
    script = read("template/photographs.js") if has_boxes else ""
    words = list(_anew(command))
    facts = {**facts, **({"command": " ".join(words)} if words else {})}
    told = [f"<dt>{_text(name)}</dt><dd>{_text(each)}</dd>" for name, each in facts.items()]
    main = {
        "facts": f'<dl class="facts">{"".join(told)}</dl>',
        "shots": "".join(_section(*each, root) for each in shots.items()),
    }
    given: Any = {"command": words, "without": [*without], "root": str(root or "")}
    parts = {
        "policy": policy([script], [style]),
        "title": _text(title),
        "style": style,
        "main": fill("template/ticks.html", main) if has_boxes else "".join(main.values()),
        "tables": "".join(f"<h2>{above}</h2>{_table(rows)}" for above, rows in tables.items()),
        "maker": f"clinit {maker}",
        "given": escaped_json(given),
        "script": script,
    }
    return fill("template/photographs.html", parts)


def _anew(command: Sequence[str]) -> Iterable[str]:
    """Yield the words of a command that is given again, without its list of left-out images."""
    words = iter(command)
    for word in words:
        if word == "--without":
            next(words, None)
        elif not word.startswith("--without="):
            yield word
    if any(word.partition("=")[0] == "--out" for word in command) and "--overwrite" not in command:
        yield "--overwrite"


def _text(text: str) -> str:
    return html.escape(visible(text))


def _table(rows: pl.DataFrame) -> str:
    kinds = [' class="number"' if kind.is_numeric() else "" for kind in rows.dtypes]

    def line(cells: Sequence[str], tag: str) -> str:
        told = map(_text, cells)
        inside = "".join(f"<{tag}{k}>{t}</{tag}>" for k, t in zip(kinds, told, strict=True))
        return f"<tr>{inside}</tr>"

    lines = "".join(line(cells, "td") for cells in cells_of(rows))
    head = f"<thead>{line(rows.columns, 'th')}</thead>"
    return f'<table class="results">{head}<tbody>{lines}</tbody></table>'


def _section(above: str, shots: Sequence[Shot], root: Path | None) -> str:
    if root is None:  # features
        told = "".join(f"<li>{_text(f'{each.image}: {each.words}')}</li>" for each in shots[:MOST])
        return f"<section><h2>{_text(above)}</h2><ul>{told}</ul></section>"
    figures = "".join(_figure(root, each) for each in shots[:MOST])
    more = f"<p>{len(shots) - MOST:,} more.</p>" if len(shots) > MOST else ""
    button = '<button type="button" class="all">tick all, or none</button>'
    return f"<section><h2>{_text(above)}</h2>{button}<div>{figures}</div>{more}</section>"


def _figure(root: Path, shot: Shot) -> str:
    """Return an embedded thumbnail, `data:image/jpeg;base64,…`, with its name and a box to tick."""
    name, path = _text(shot.image), html.escape(shot.image)
    told, move = f"{name}<br>{_text(shot.words)}", ""
    if shot.has_box and "\n" not in shot.image:  # a line of the list
        told = f'<input type="checkbox" class="chosen" value="{path}"> {told}'
    if shot.nearest is not None and shot.to:
        box = f'<input type="checkbox" class="to" value="{html.escape(shot.to)}"'
        box += " checked>" if shot.moves else ">"
        move = f'<label class="move">{box} to {_text(in_words(shot.nearest))}</label>'
    picture = _thumbnail(root / shot.image, name)
    return f"<figure><label>{picture}<figcaption>{told}</figcaption></label>{move}</figure>"


def _thumbnail(path: Path, name: str) -> str:
    try:
        small, content = Image.fromarray(decode_with_pillow(read_whole(path))), io.BytesIO()
    except (OSError, ImageError):
        return f"<p>{name} cannot be read.</p>"
    small.thumbnail((SIDE, SIDE))
    small.save(content, "JPEG", quality=80)
    source = f"data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}"
    return f'<img src="{source}" alt="{name}">'
