"""An evaluation as one HTML page that loads nothing and runs no script.

It contains thumbnails of the most frequently confused pairs, and of the images that only the other
model classifies correctly. Names of classes and files come from data, so they are escaped.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from pathlib import Path

import polars as pl
from PIL import Image

from clinit.analysis.page.page import fill, policy, read
from clinit.extract.dataset.decode import decode, read_whole
from clinit.extract.dataset.names import in_words
from clinit.headtrain.model.evaluation import Evaluation, cells_of
from clinit.words import visible

PAIRS, IMAGES, LOST = 12, 6, 24
"""Maximum number of pairs, of thumbnails per pair, and of thumbnails of lost images."""
SIDE = 112
"""Largest side of a thumbnail in pixels."""


def evaluation_page(title: str, found: Evaluation, root: Path | None) -> str:
    """Return the page.

    Args:
        title: Heading of the page.
        found: Predictions of a model, possibly compared with another model.
        root: Folder of the images; None for features, which have no thumbnails.
    """
    shots: dict[str, Sequence[str]] = {}
    if (lost := found.tables.get("Lost")) is not None:
        shots["Lost"] = lost["image"].head(LOST).to_list()
    for name, answer, count, files in found.confused.head(PAIRS).iter_rows():
        shots[f"{in_words(name)} taken for {in_words(answer)}: {count:,}"] = files[:IMAGES]
    style = read("template/page.css") + read("template/evaluation.css")
    facts = [
        f"<dt>{_text(name)}</dt><dd>{_text(each)}</dd>" for name, each in found.summary.items()
    ]
    tables = {**found.tables, "All classes": found.classes}
    parts = {
        "policy": policy([], [style]),
        "title": _text(title),
        "style": style,
        "facts": "".join(facts),
        "shots": ""
        if root is None
        else "".join(
            f"<h2>{_text(above)}</h2>{''.join(_figure(root, image) for image in images)}"
            for above, images in shots.items()
        ),
        "tables": "".join(f"<h2>{above}</h2>{_table(rows)}" for above, rows in tables.items()),
    }
    return fill("template/evaluation.html", parts)


def _text(text: str) -> str:
    return html.escape(visible(text))


def _table(rows: pl.DataFrame) -> str:
    kinds = [' class="number"' if kind.is_numeric() else "" for kind in rows.dtypes]

    def line(cells: Sequence[str], tag: str) -> str:
        told = [_text(in_words(cell)) for cell in cells]
        inside = "".join(f"<{tag}{k}>{t}</{tag}>" for k, t in zip(kinds, told, strict=True))
        return f"<tr>{inside}</tr>"

    lines = "".join(line(cells, "td") for cells in cells_of(rows))
    head = f"<thead>{line(rows.columns, 'th')}</thead>"
    return f'<table class="results">{head}<tbody>{lines}</tbody></table>'


def _figure(root: Path, image: str) -> str:
    """Return an embedded thumbnail, `data:image/jpeg;base64,…`, with its name."""
    pixels = decode(read_whole(root / image))
    small, content = Image.fromarray(pixels.permute(1, 2, 0).numpy()), io.BytesIO()
    small.thumbnail((SIDE, SIDE))
    small.save(content, "JPEG", quality=80)
    source = f"data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}"
    name = _text(image)
    return f'<figure><img src="{source}" alt="{name}"><figcaption>{name}</figcaption></figure>'
