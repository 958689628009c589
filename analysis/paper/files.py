"""A reproduced table as files: JSON and CSV for programs, Markdown and LaTeX for people."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import polars as pl

from clinit.analysis.paper import words
from clinit.analysis.paper.reproduction import Comparison, Line, Reproduction
from clinit.analysis.paper.settings import Setting
from clinit.analysis.report.table import latex_text
from clinit.headtrain.record.format import finite
from clinit.words import escaped as escaped_markdown
from clinit.words import lines_of_table

_REDUCED = "A reduced setting: its numbers are not expected to be the paper's."


def as_json(found: Reproduction) -> str:
    """Return everything by name; null where there is no value."""
    content = {
        "name": found.table.name,
        "table": found.table.number,
        "title": found.table.title,
        "reduced": found.is_reduced,
        "lines": [_line(found, line) for line in found.lines],
        "effects": [_effect(each) for each in found.comparisons],
        "orders": [
            {
                "method": place.method,
                "loss": place.loss,
                "iterations": place.iterations,
                "metric": found.table.effects[0],
                "paper": theirs or None,
                "ours": ours or None,
            }
            for place, theirs, ours in found.orders
        ],
        "settings": [{**asdict(each), "note": each.note} for each in found.settings],
        "slips": list(found.table.slips),
        "runs": [str(run.path) for run in found.runs],
    }
    return json.dumps(finite(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def as_csv(found: Reproduction) -> str:
    """Return one line per place and metric."""
    rows = [{k: v for k, v in _line(found, line).items() if k != "seeds"} for line in found.lines]
    return pl.DataFrame(rows, infer_schema_length=None).write_csv()


def as_markdown(found: Reproduction) -> str:
    """Return the tables, the effects and the lists."""
    table = found.table
    heading = f"Table {table.number}: {table.title}" if table.number else table.title
    parts = [f"## {heading}", _REDUCED] if found.is_reduced else [f"## {heading}"]
    for group in found.groups:
        heads = ["", *(words.HEADINGS[name] for name in table.metrics)]
        lines = lines_of_table(heads, _rows(found, group), numbers=len(heads) - 1)
        parts += [f"**{words.title_of(found, group)}**", "\n".join(lines)]
    parts.append(words.caption(found))
    if found.comparisons:
        heads = ["", "", "starts", "paper", "here", "over", "the effect"]
        parts.append("\n".join(lines_of_table(heads, _effects(found), numbers=6)))
        parts.append(escaped_markdown(words.effect_caption(found)))
    for title, settings in _settings(found).items():
        cells = [[escaped_markdown(x) for x in (s.name, s.paper, s.here)] for s in settings]
        parts += [f"**{title}**", "\n".join(lines_of_table(["", "paper", "here"], cells))]
    lists = {
        "The starts in their order": words.order_words(found),
        "What the paper leaves open, and how it is here": words.open_words(found),
        "Where the paper slips": found.table.slips,
    }
    for title, sentences in lists.items():
        if sentences:
            listed = [
                f"{count}. {escaped_markdown(each)}" for count, each in enumerate(sentences, 1)
            ]
            parts.append("\n".join([f"**{title}**", "", *listed]))
    return "\n\n".join(parts) + "\n"


def as_latex(found: Reproduction) -> str:
    """Return a `tabular` with booktabs: ours, and the paper's in the line below."""
    metrics, escaped = found.table.metrics, latex_text
    width = 1 + len(metrics)
    lines = [
        r"% \usepackage{booktabs}",
        *([f"% {_REDUCED}"] if found.is_reduced else []),
        f"% {words.caption(found)}",
        *(f"% {each.name}: {words.here_words(each)}" for each in found.settings if each.differs),
        rf"\begin{{tabular}}{{l{'r' * len(metrics)}}}",
        r"  \toprule",
        *([rf"  \multicolumn{{{width}}}{{l}}{{{_REDUCED}}} \\", r"  \midrule"] * found.is_reduced),
        f"  & {' & '.join(escaped(words.HEADINGS[name]) for name in metrics)} \\\\",
    ]
    for group in found.groups:
        title = escaped(words.title_of(found, group))
        lines += [r"  \midrule", rf"  \multicolumn{{{width}}}{{l}}{{\emph{{{title}}}}} \\"]
        for cells in _rows(found, group):
            told = [escaped(cell).replace("±", r"$\pm$") for cell in cells]
            lines.append(f"  {' & '.join(told)} \\\\")
    return "\n".join([*lines, r"  \bottomrule", r"\end{tabular}", ""])


FORMATS: Mapping[str, Callable[[Reproduction], str]] = {
    "json": as_json,
    "csv": as_csv,
    "md": as_markdown,
    "tex": as_latex,
}
"""By the ending of the file."""


def _rows(found: Reproduction, group: list[Line]) -> list[list[str]]:
    rows = []
    for place in dict.fromkeys(line.place for line in group):
        lines = [line for line in group if line.place == place]
        rows.append([place.init or "here", *map(words.mean_words, lines)])
        if words.is_printed(group):
            rows.append(["paper", *map(words.printed_words, lines)])
    return rows


def _effects(found: Reproduction) -> list[list[str]]:
    return [
        [
            words.group_title(each.place, found.budgets.get(each.place)),
            words.HEADINGS[each.effect.metric],
            f"{each.effect.better} less {each.effect.other}",
            words.signed(each.effect.paper),
            words.effect_words(each.effect),
            words.evidence_words(each.effect),
            words.verdict_words(each.effect),
        ]
        for each in found.comparisons
    ]


def _settings(found: Reproduction) -> dict[str, list[Setting]]:
    """Return those with a value of the paper: what differs, and the others."""
    known = [each for each in found.settings if each.paper]
    parts = {
        "What differs from the paper here": [each for each in known if each.differs],
        "As in the paper": [each for each in known if not each.differs and not each.is_open],
    }
    return {title: settings for title, settings in parts.items() if settings}


def _line(found: Reproduction, line: Line) -> dict[str, Any]:
    place, budget = line.place, found.budgets.get(line.place)
    return {
        **asdict(place),
        "our_iterations": budget[0] if budget else None,
        "our_buffer": budget[1] if budget else None,
        "metric": line.metric,
        "paper": line.printed.value if line.printed else None,
        "paper_deviation": line.printed.deviation if line.printed else None,
        "ours": line.mean,
        "deviation": line.deviation,
        "num_seeds": len(line.ours),
        "difference": None if found.is_reduced else line.difference,
        "reduced": found.is_reduced,
        "seeds": {str(seed): value for seed, value in line.ours.items()},
    }


def _effect(each: Comparison) -> dict[str, Any]:
    effect, place = each.effect, each.place
    return {
        **dict(zip(("method", "loss", "iterations", "buffer"), place.group, strict=True)),
        "metric": effect.metric,
        "better": effect.better,
        "other": effect.other,
        "paper": effect.paper,
        "ours": effect.mean,
        "half_width": effect.half_width,
        "over": effect.over,
        "moment": "ends of the tasks" if effect.over == "images" else "as in the table",
        "number": effect.number,
        "p_value": effect.p_value,
        "p_adjusted": effect.adjusted,
        "verdict": effect.verdict,
    }
