"""A reproduced table in the terminal and as files: JSON and Markdown; and the figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Group, RenderableType
from rich.text import Text

from clinit.analysis.paper.commands import Places
from clinit.analysis.paper.numbers import GROUP, MEASURES
from clinit.analysis.paper.reproduction import Effect, Reproduction, recorded_runs
from clinit.analysis.paper.settings import PaperSetting
from clinit.analysis.paper.tables import METHODS, PaperTable, table_named
from clinit.analysis.report.compare import FEWEST, p_text, signed
from clinit.analysis.report.measures import captions
from clinit.analysis.report.table import Cell, Cells, Column, Table
from clinit.analysis.runs import runs_of
from clinit.files.commit import commit_file
from clinit.headtrain.protocol.record.format import finite
from clinit.headtrain.protocol.study.study import Study
from clinit.words import escaped, number_of

LOSSES = {"ce": "Cross entropy", "sqen": "Squentropy", "mse": "Squared error"}
SHORT = {"ce": "CE", "sqen": "SQEN", "mse": "MSE"}
_VERDICTS = {
    "holds": ("holds", "green"),
    "opposite": ("other way round", "red"),
    "open": ("open", "yellow"),
    "within noise": ("within the paper's noise", ""),
    "too few seeds": (f"fewer than {FEWEST} seeds", ""),
    "-": ("-", ""),
}
"""Words and colour of each verdict."""
_REDUCED = "A reduced setting: the numbers are not expected to equal the paper's."
_HEADS = "on the training images of the base cache, classes weigh the same, every image counts"


def terminal(found: Reproduction) -> RenderableType:
    """Return the table, the effects and the differences from the paper."""
    parts: list[RenderableType] = [Text(f"\n{_heading(found)}", style="bold")]
    parts += [Text(_REDUCED, style="yellow")] if found.is_reduced else []
    for title, table, words in _parts(found, is_whole=False):
        parts += [Text(f"\n{title}", style="bold")] if title else []
        parts += [] if table is None else [table]
        parts += [Text(f"* {each}" if title else each, style="dim") for each in words]
    return Group(*parts)


def as_markdown(found: Reproduction) -> str:
    """Return the tables, the effects and the lists."""
    parts = [f"## {_heading(found)}", *([_REDUCED] if found.is_reduced else [])]
    for title, table, words in _parts(found, is_whole=True):
        parts += [f"**{title}**"] if title else []
        parts += [] if table is None else [table.markdown()]
        lines = [f"* {escaped(each)}" if title else escaped(each) for each in words]
        parts += ["\n".join(lines)] if lines else []
    return "\n\n".join(parts) + "\n"


_SAME = "As in the paper"


def _parts(
    found: Reproduction, *, is_whole: bool
) -> Iterator[tuple[str, Table | None, Sequence[str]]]:
    """Yield titles, tables and sentences in their order; sentences below a title are a list."""
    for group in found.groups:
        yield _title(group), _numbers(found, group), []
    measures = [MEASURES[name] for name in found.table.metrics]
    words = captions(measures, found.runs, statistics="" if found.runs else _HEADS)
    words += " All before any training." if found.table.name == "first-task" else ""
    yield "", None, [words]
    if found.effects:
        main = [e for e in found.effects if (e.better, e.other) == ("least-square", "random")]
        shown = found.effects if is_whole else main
        which, others = "", ""
        if not is_whole:
            which = " Least-square minus random rows"
            others = " The other pairs of starts are in the files."
        yield f"Do the paper's effects hold?{which}", _effects(shown, is_whole=is_whole), []
        yield "", None, [_effect_caption(found) + others]
    for title, settings in {
        "Differences from the paper": [each for each in found.settings if each.differs],
        _SAME: [each for each in found.settings if each.paper and not each.differs],
        "Chosen by us": [each for each in found.settings if each.why],
    }.items():
        if settings and (is_whole or title != _SAME):
            yield title, _settings_table(settings), []
    if found.table.slips:
        yield "Contradicted in the paper", None, found.table.slips
    yield "", None, [f"Open points of the paper: clinit recipe show {found.table.recipe}"]


def _heading(found: Reproduction) -> str:
    return (f"Table {found.table.number}: " if found.table.number else "") + found.table.title


def _title(group: pl.DataFrame) -> str:
    place = group.row(0, named=True)
    words = [METHODS[place["method"]]] if place["method"] in METHODS else []
    words.append(LOSSES[place["loss"]])
    if not place["iterations"]:
        return ", ".join(words)
    theirs = place["iterations"], place["buffer"]
    title = ", ".join([*words, _budget(*theirs)])
    if not group["paper"].count():
        return f"{title} (the paper has no such budget)"
    ours = group.drop_nulls("our_iterations").select("our_iterations", "our_buffer").rows()
    is_same = not ours or (ours[0][0] == theirs[0] and theirs[1] in (None, ours[0][1]))
    return title if is_same else f"{title} (here {_budget(*ours[0])})"


def _budget(iterations: int, buffer: int | None) -> str:
    return f"{iterations:,} iterations" + ("" if buffer is None else f", buffer {buffer:,}")


def _numbers(found: Reproduction, group: pl.DataFrame) -> Table:
    """Return the numbers of a group of comparable lines, the paper's below ours."""
    sections: list[list[Cells]] = []
    for (init,), part in group.group_by("init", maintain_order=True):
        lines = part.to_dicts()
        ours = [_cell(each["ours"], each["deviation"], each["metric"]) for each in lines]
        sections.append([[str(init) or "here", *ours]])
        if group["paper"].count():
            theirs = [(each["paper"], each["paper_deviation"], each["metric"]) for each in lines]
            paper = [_cell(*each) for each in theirs]
            sections[-1].append(["paper", *paper])
            if not found.is_reduced:
                less = [signed(each["difference"], MEASURES[each["metric"]]) for each in lines]
                sections[-1].append(["difference", *less])
    headings = [MEASURES[name].heading for name in found.table.metrics]
    columns = [Column(heading, "number", need=n) for n, heading in enumerate(headings)]
    return Table([Column(""), *columns], sections, beside=True)


def _cell(mean: float | None, deviation: float | None, metric: str) -> Cell:
    texts: list[str | None] = []
    for value in (mean, deviation):
        if value is not None and metric in ("minutes_total", "minutes_init"):
            texts.append(f"{value:.0f}" if value >= 10 else f"{value:.3f}")
        else:
            texts.append(None if value is None else f"{value:,.{2 if abs(value) < 1000 else 0}f}")
    return Cell(texts[0], texts[1])


def _effects(effects: Sequence[Effect], *, is_whole: bool) -> Table:
    """Return the table of effects; the whole table also has starts and p-values."""
    lines: list[Cells] = []
    for each in effects:
        ours, measure, place = each.ours, MEASURES[each.metric], each.place
        words, colour = _VERDICTS[each.verdict]
        if ours.mean is not None and each.paper is None:
            words = "not in the paper"
        where = [METHODS.get(place["method"], SHORT[place["loss"]])]
        where += [f"{place['iterations']:,}"] if place["iterations"] else []
        over = number_of(ours.number, "seed") if ours.number else "-"
        half = None if ours.half_width is None else measure.text(ours.half_width)
        line: list[str | Text | Cell] = [", ".join(where), measure.heading]
        line += [f"{each.better} less {each.other}"] * is_whole
        line += [signed(each.paper, measure), Cell(signed(ours.mean, measure), half), over]
        lines.append([*line, *([p_text(ours.adjusted)] * is_whole), Text(words, style=colour)])
    names = [*(["starts"] if is_whole else []), "paper", "here", "over"]
    names += [*(["p"] if is_whole else []), "the effect"]
    columns = [Column(n, "number" if is_whole or n != "the effect" else "name") for n in names]
    return Table([Column(""), Column(""), *columns], [lines], beside=True)


def _settings_table(settings: Sequence[PaperSetting]) -> Table:
    if any(each.why for each in settings):
        names = ("here", "why, other readings")
        lines = [[each.name, each.here, each.why] for each in settings]
    else:
        names = ("paper", "here")
        lines = [[each.name, each.paper, each.here] for each in settings]
    return Table([Column(""), *(Column(name, "setting") for name in names)], [lines])


def _effect_caption(found: Reproduction) -> str:
    count = sum(each.ours.adjusted is not None for each in found.effects)
    return (
        "The first start minus the second in the numbers above, seed by seed, ± half of the 95 %"
        " interval of this one comparison. open: p is 0.05 or more, by paired t-tests adjusted by"
        f" Holm ({number_of(count, 'test')}); the rounding of one test image is part of the"
        " variance. Effects of the paper below the deviation of its own numbers (Table 6) are"
        " within its noise."
    )


def as_json(found: Reproduction) -> str:
    """Return the content of the JSON file; values that do not exist are None."""
    content = {
        "name": found.table.name,
        "table": found.table.number,
        "title": found.table.title,
        "reduced": found.is_reduced,
        "lines": [_line(line) for line in found.lines.to_dicts()],
        "effects": [_effect(each) for each in found.effects],
        "settings": [{**asdict(each), "why": each.why} for each in found.settings],
        "slips": list(found.table.slips),
        "runs": [str(run.path) for run in found.runs],
    }
    return json.dumps(finite(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


FORMATS: Mapping[str, Callable[[Reproduction], str]] = {"json": as_json, "md": as_markdown}
"""Writers by the ending of the file."""
PICTURES = ("png", "pdf", "svg")
_OF_TABLES = (
    ("2", "last-layer", "mse"),
    ("3", "last-layer", "sqen"),
    ("4", "top-layers", "ce"),
    ("5", "top-layers", "sqen"),
    ("6", "top-layers", "mse"),
)
"""Number of each figure, and the table and loss from which it is drawn."""


def write_table(found: Reproduction, folder: Path) -> str:
    """Write a table below a folder; return the names of its files."""
    for ending, text in FORMATS.items():
        file = folder / f"{found.table.name}.{ending}"
        commit_file(file, partial(Path.write_text, data=text(found), encoding="utf-8"))
    return f"{folder / found.table.name}.{{{','.join(FORMATS)}}}"


def write_figures(
    where: Places, studies_of: Callable[[PaperTable], Sequence[Study]]
) -> Iterator[str]:
    """Write the figures, and yield their names and files.

    Figure 1 has its own runs; figures 2 to 6 are drawn from runs with the smaller budget.

    Args:
        where: Paths of the reproduction.
        studies_of: Returns the runs of a table.
    """
    table = table_named("figures")
    runs = recorded_runs(table, where, studies_of(table))
    alone = [run for run in runs if run.config.get("stop_after") == 1]
    longer = [run for run in runs if run not in alone]
    pictures = {"figure1ab": ("curves", longer), "figure1c": ("efficiency", alone)}
    for number, name, loss in _OF_TABLES:
        table = table_named(name)
        studies = [each for each in studies_of(table) if each.training.loss == loss]
        least = min((each.stream.iterations for each in studies), default=0)
        smaller = [each for each in studies if each.stream.iterations == least]
        if found := recorded_runs(table, where, smaller):
            pictures[f"figure{number}"] = ("curves", [*found])
        else:
            yield (
                f"figure {number} is drawn from the runs of table {table.number}: give {name} too,"
                f" `clinit reproduce {name} figures …`"
            )
    folder = where.out / "figures"
    for file, (name, members) in pictures.items():
        if members:
            report = runs_of([run.record for run in members])
            for ending in PICTURES:
                report.save_figure(folder / f"{file}.{ending}", name)
            yield f"{name}: {folder / file}.{{{','.join(PICTURES)}}}"


def _line(line: dict[str, Any]) -> dict[str, Any]:
    seeds, values = line.pop("seeds"), line.pop("values")
    return {**line, "seeds": dict(zip(seeds or (), values or (), strict=True))}


def _effect(effect: Effect) -> dict[str, Any]:
    ours, names = effect.ours, ("metric", "better", "other", "paper")
    row = {name: effect.place[name] for name in GROUP}
    row |= {name: getattr(effect, name) for name in names} | {"paper_noise": effect.noise}
    row |= {"ours": ours.mean, "half_width": ours.half_width, "num_seeds": ours.number}
    return row | {"p_value": ours.p_value, "p_adjusted": ours.adjusted, "verdict": effect.verdict}
