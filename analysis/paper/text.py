"""A reproduced table for people: in the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from clinit.analysis.paper.numbers import Budget, Place
from clinit.analysis.paper.reproduction import Effect, Line, Reproduction
from clinit.analysis.paper.settings import Setting
from clinit.analysis.paper.tables import METHODS
from clinit.analysis.report.table import Cell, Cells, Column, Table
from clinit.words import escaped, number_of

LOSSES = {"ce": "Cross entropy", "sqen": "Squentropy", "mse": "Squared error"}
SHORT = {"ce": "CE", "sqen": "SQEN", "mse": "MSE"}
_METRICS = {
    "loss_new": ("L_new", "L_new: loss on training images of the current task"),
    "acc_pre": ("A_pre", "A_pre: accuracy (%) on base classes"),
    "acc_pre_alone": ("alone", "alone: accuracy (%) on base classes, predicted among only these"),
    "acc_new": ("A_new", "A_new: on classes of the current task"),
    "acc_old": ("A_old", "A_old: on all earlier classes"),
    "acc_all": ("A_all", "A_all: on all classes seen"),
    "acc_fw": ("A_fw", "A_fw: mean of linear probes on the next task's classes (%)"),
    "gain": ("gain", "gain: iterations of random / of the start, to 95 % of random's best A_new"),
    "d_ls": ("D_LS", "D_LS: distance of the pretrained head from least squares"),
    "d_ls_relative": ("D_LS rel.", "relative: D_LS / size of the head's outputs"),
    "minutes_total": ("minutes", "minutes of a run"),
    "minutes_init": ("start", "start: minutes of all initialisations"),
    "overhead": ("share", "share: minutes of initialisations in % of the run with random rows"),
    "probe_task2": ("task 2", "task t: top-1 (%) of a linear probe on its classes, before"),
    **{f"probe_task{number}": (f"task {number}", "") for number in (3, 4, 5)},
    **{f"nc{number}": (f"NC{number}", "") for number in (1, 2, 3, 4)},
}
"""Heading and meaning of each metric."""
HEADINGS = {name: heading for name, (heading, _) in _METRICS.items()}
_VERDICTS = {"holds": "holds", "open": "open", "opposite": "other way round", "-": "not known"}
_COLOURS = {"holds": "green", "opposite": "red", "open": "yellow", "-": ""}
_SLIPS = "Contradictions within the paper"
_REDUCED = "A reduced setting: the numbers are not expected to equal the paper's."


def terminal(found: Reproduction) -> RenderableType:
    """Return the table, the effects and the differences from the paper."""
    parts: list[RenderableType] = [Text(f"\n{_heading(found)}", style="bold")]
    if found.is_reduced:
        parts.append(Text(_REDUCED, style="yellow"))
    for group in found.groups:
        parts += [Text(f"\n{_title(found, group)}", style="bold"), _numbers(found, group)]
    parts.append(Text(_caption(found), style="dim"))
    if found.effects:
        heading = "Do the paper's effects hold? Least-square minus random rows"
        main = [e for e in found.effects if (e.better, e.other) == ("least-square", "random")]
        parts += [Text(f"\n{heading}", style="bold"), _effects(main, is_whole=False).rich()]
        others = " The other pairs of starts are in the files."
        parts.append(Text(_effect_caption(found) + others, style="dim"))
    if differing := [each for each in found.settings if each.differs]:
        parts += [Text("\nDifferences from the paper", style="bold")]
        parts.append(_settings_table(differing).rich())
    if found.table.slips:
        parts.append(Text(f"\n{_SLIPS}", style="bold"))
        parts += [Text(f"* {each}") for each in found.table.slips]
    parts.append(Text(f"\n{_open(found)}"))
    return Group(*parts)


def as_markdown(found: Reproduction) -> str:
    """Return the tables, the effects and the lists."""
    parts = [f"## {_heading(found)}", *([_REDUCED] if found.is_reduced else [])]
    for group in found.groups:
        parts.append(f"**{_title(found, group)}**")
        parts.append(_numbers(found, group).markdown())
    parts.append(_caption(found))
    if found.effects:
        parts.append(_effects(found.effects, is_whole=True).markdown())
        parts.append(escaped(_effect_caption(found)))
    known = [each for each in found.settings if each.paper]
    for title, settings in (
        ("Differences from the paper", [each for each in known if each.differs]),
        ("As in the paper", [each for each in known if not each.differs]),
    ):
        if settings:
            parts += [f"**{title}**", _settings_table(settings).markdown()]
    if found.table.slips:
        slips = [f"* {escaped(each)}" for each in found.table.slips]
        parts.append("\n".join([f"**{_SLIPS}**", "", *slips]))
    return "\n\n".join([*parts, _open(found)]) + "\n"


def _open(found: Reproduction) -> str:
    return f"Open points of the paper: clinit recipe show {found.table.recipe}"


def _heading(found: Reproduction) -> str:
    number = f"Table {found.table.number}: " if found.table.number else ""
    return number + found.table.title


def _title(found: Reproduction, group: Sequence[Line]) -> str:
    if not any(line.printed for line in group):
        return f"{_group_title(group[0].place, None)} (the paper has no such budget)"
    budgets = [found.budgets[line.place] for line in group if line.place in found.budgets]
    return _group_title(group[0].place, budgets[0] if budgets else None)


def _group_title(place: Place, budget: Budget | None) -> str:
    words = [METHODS[place.method]] if place.method in METHODS else []
    words.append(LOSSES[place.loss])
    if place.iterations:
        words.append(_budget(place.iterations, place.buffer))
    title = ", ".join(words)
    if budget is None or not place.iterations:
        return title
    is_same = budget[0] == place.iterations and place.buffer in (None, budget[1])
    return title if is_same else f"{title} (here {_budget(*budget)})"


def _budget(iterations: int, buffer: int | None) -> str:
    return f"{iterations:,} iterations" + ("" if buffer is None else f", buffer {buffer:,}")


def _numbers(found: Reproduction, group: Sequence[Line]) -> Table:
    """Return the numbers of a group of comparable lines, the paper's below ours."""
    sections: list[list[Cells]] = []
    is_printed = any(line.printed for line in group)
    for place in dict.fromkeys(line.place for line in group):
        lines = [line for line in group if line.place == place]
        ours = [_cell(line.mean, line.deviation, line.metric) for line in lines]
        sections.append([[place.init or "here", *ours]])
        if is_printed:
            printed: list[Cell | str] = []
            for line in lines:
                theirs = line.printed
                cell = _cell(theirs.value, theirs.deviation, line.metric) if theirs else "-"
                printed.append(cell)
            sections[-1].append(["paper", *printed])
        if is_printed and not found.is_reduced:
            sections[-1].append(["difference", *(_signed(line.difference) for line in lines)])
    headings = [HEADINGS[name] for name in found.table.metrics]
    columns = [Column(heading, "number", need=n) for n, heading in enumerate(headings)]
    return Table([Column(""), *columns], sections, beside=True)


def _cell(mean: float | None, deviation: float | None, metric: str) -> Cell:
    texts: list[str | None] = []
    for value in (mean, deviation):
        if value is None:
            texts.append(None)
        elif metric in ("minutes_total", "minutes_init"):
            texts.append(f"{value:.0f}" if value >= 10 else f"{value:.3f}")
        else:
            texts.append(f"{value:.2f}" if abs(value) < 1000 else f"{value:,.0f}")
    return Cell(texts[0], texts[1])


def _effects(effects: Sequence[Effect], *, is_whole: bool) -> Table:
    """Return the table of effects; the whole table also has starts and p-values."""
    lines: list[Cells] = []
    for each in effects:
        p_value = "" if each.adjusted is None else f", p = {each.adjusted:.3f}"
        starts = [f"{each.better} less {each.other}"] if is_whole else []
        *cells, verdict = _evidence(each, p_value if is_whole else "")
        marked = Text(verdict, style=_COLOURS[each.verdict])
        lines.append([_short_title(each.place), HEADINGS[each.metric], *starts, *cells, marked])
    columns = [Column(""), Column(""), *([Column("starts", "number")] if is_whole else [])]
    numbers = (Column(name, "number") for name in ("paper", "here"))
    words = (Column(name, "number" if is_whole else "name") for name in ("over", "the effect"))
    return Table([*columns, *numbers, *words], [lines])


def _evidence(effect: Effect, p_value: str) -> list[str]:
    """Return the paper's effect, our effect with its interval, its basis and the verdict."""
    width = "" if effect.half_width is None else f" ±{effect.half_width:.2f}"
    unit = "image" if effect.over == "images" else "seed"
    over = number_of(effect.number, unit) + p_value if effect.number else "-"
    verdict = _VERDICTS[effect.verdict]
    if effect.mean is not None and effect.half_width is None:
        verdict = "one seed: no interval"
    elif effect.mean is not None and effect.paper is None:
        verdict = "not in the paper"
    return [_signed(effect.paper), _signed(effect.mean) + width, over, verdict]


def _settings_table(settings: Sequence[Setting]) -> Table:
    columns = [Column(""), Column("paper", "setting"), Column("here", "setting")]
    return Table(columns, [[[each.name, each.paper, each.here] for each in settings]])


def _short_title(place: Place) -> str:
    words = [METHODS.get(place.method, SHORT[place.loss])]
    return ", ".join([*words, f"{place.iterations:,}"] if place.iterations else words)


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"


def _caption(found: Reproduction) -> str:
    table = found.table
    known = [meaning for name in table.metrics if (meaning := _METRICS[name][1])]
    if any(name.startswith("acc_") for name in table.metrics) and table.name != "forward-transfer":
        is_first = table.name == "first-task"
        known.append("before any training" if is_first else "means over the evaluation points")
    return "; ".join(known) + "."


def _effect_caption(found: Reproduction) -> str:
    count = sum(each.adjusted is not None for each in found.effects)
    words = (
        "The first start minus the second, in points, ± half of the 95 % interval of this one"
        f" comparison. open: p is 0.05 or more, adjusted by Holm for the {count} tests of this"
        " page (paired t-tests over seeds, McNemar's exact test over images)."
    )
    if any(each.over == "images" for each in found.effects):
        when = "A_new at the end of each task and A_all at the end of the last"
        when = "before training" if found.table.name == "first-task" else when
        words += f" Images: {when}, not the mean over evaluation points as in the table."
    return words
