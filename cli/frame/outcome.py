"""What commands print of a model, and the words and options that they share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from clinit.cli.frame.console import note, out, say, warn
from clinit.cli.frame.options import described
from clinit.extract.dataset.names import in_words
from clinit.words import quoted

if TYPE_CHECKING:
    from clinit.headtrain.model.addition import Addition
    from clinit.headtrain.model.facts import ModelFacts
    from clinit.headtrain.model.storage import Written

HtmlFile = Annotated[
    Path | None,
    described(
        "Write a page into this .html file: photographs that the audit found, with thumbnails and"
        " boxes that make a list for --without."
    ),
]
SHOWN = 12
"""Maximum number of class names in one line."""
SAVING = "Putting backbone and head together …"
WHOLE = "No partial model is left: the model is written completely or not at all."


def tell_added(added: Addition, saved: Written, html: Path | None = None, *, as_json: bool) -> None:
    """Print the answer, what to look at, and the next command; write a page if it is wanted."""
    path = quoted(saved.path)
    for line in [] if as_json else added.lines(str(saved.path)):
        say(line)
    for text in added.audit.lines:
        warn(text)
    for text in added.notes(str(saved.path)):
        note(text)
    write_page(html, str(saved.path), added.model.facts)
    if html is None and added.audit.misfits and "images" in added.change.data:
        page = f"clinit model show {path} --html PAGE.html"
        note(f"`{page}` shows odd photographs, and how to move them or leave them out")
    if as_json:
        return
    for heads, lines in added.tables():
        print_table(heads, lines)
    what = "PHOTOGRAPH…" if added.model.engine is not None else "FEATURES…"
    say(f"Next: clinit predict {path} {what}")


def write_page(path: Path | None, title: str, facts: ModelFacts) -> None:
    """Write the page of photographs to look at, if it is wanted."""
    if path is None:
        return
    from clinit.analysis.page.page import save_page
    from clinit.analysis.page.photographs import model_page

    save_page(path, lambda: model_page(title, facts))
    note(f"the page is {path}")


def print_table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Print lines below headings; classes, images and rows are numbers, and origins are wrapped."""
    from clinit.analysis.report.table import Column, Kind, Table

    kinds: dict[str, Kind] = dict.fromkeys(("classes", "images", "rows"), "number")
    kinds["made of"] = "text"
    out.print(Table([Column(head, kinds.get(head, "name")) for head in heads], [lines]))


def listed(names: Sequence[str]) -> str:
    """Return the first names in words, and how many more there are."""
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(map(in_words, names[:SHOWN])) + more
