"""What the places, metrics and verdicts of the paper's tables are called."""

from __future__ import annotations

from collections.abc import Sequence

from clinit.analysis.paper.numbers import Budget, Place
from clinit.analysis.paper.reproduction import Effect, Line, Reproduction
from clinit.analysis.paper.settings import Setting
from clinit.analysis.paper.tables import METHODS
from clinit.words import number_of

LOSSES = {"ce": "Cross entropy", "sqen": "Squentropy", "mse": "Squared error"}
SHORT = {"ce": "CE", "sqen": "SQEN", "mse": "MSE"}
HEADINGS = {
    "loss_new": "L_new",
    "acc_pre": "A_pre",
    "acc_pre_alone": "alone",
    "acc_new": "A_new",
    "acc_old": "A_old",
    "acc_all": "A_all",
    "acc_fw": "A_fw",
    "gain": "gain",
    "d_ls": "D_LS",
    "d_ls_relative": "D_LS rel.",
    "minutes_total": "minutes",
    "minutes_init": "start",
    "overhead": "share",
    **{f"nc{number}": f"NC{number}" for number in (1, 2, 3, 4)},
    **{f"probe_task{number}": f"task {number}" for number in (2, 3, 4, 5)},
}
MEANINGS = {
    "loss_new": "L_new: loss on training images of the current task",
    "acc_pre": "A_pre: accuracy (%) on base classes",
    "acc_pre_alone": "alone: the same among base classes only, as by the pretrained head's rows",
    "acc_new": "A_new: on those of the current task",
    "acc_old": "A_old: on all before it",
    "acc_all": "A_all: on all seen",
    "acc_fw": "A_fw: mean of linear probes on the next task's classes (%)",
    "gain": "gain: random's iterations over the start's, both to 95 % of random's best A_new",
    "d_ls": "D_LS: distance of the pretrained head from least squares",
    "d_ls_relative": "relative: as a share of the size of its outputs",
    "minutes_total": "minutes of a run",
    "minutes_init": "start: minutes of all initialisations",
    "overhead": "share: these in % of the run with random rows",
    "probe_task2": "task t: top-1 (%) of a linear probe on its classes before it is learnt",
}
_VERDICTS = {
    "holds": "holds",
    "open": "open",
    "opposite": "other way round",
    "-": "not known",
}


def group_title(place: Place, budget: Budget | None) -> str:
    """Return what the lines of a group share, with the budget of our runs where it differs."""
    words = [METHODS[place.method]] if place.method in METHODS else []
    words.append(LOSSES[place.loss])
    if place.iterations:
        words.append(budget_words((place.iterations, place.buffer)))
        if budget is not None and not same_budget(place, budget):
            words.append(f"(here {budget_words(budget)})")
    return ", ".join(words).replace(", (", " (")


def title_of(found: Reproduction, group: Sequence[Line]) -> str:
    """Return the title of lines that are compared with each other."""
    if not is_printed(group):
        return f"{group_title(group[0].place, None)} (the paper has no such budget)"
    budgets = [found.budgets[line.place] for line in group if line.place in found.budgets]
    return group_title(group[0].place, budgets[0] if budgets else None)


def is_printed(lines: Sequence[Line]) -> bool:
    """Return whether the paper has any number of these lines."""
    return any(line.printed is not None for line in lines)


def same_budget(place: Place, budget: Budget) -> bool:
    """Return whether a budget is that of the paper, as far as the paper has one."""
    return budget[0] == place.iterations and place.buffer in (None, budget[1])


def budget_words(budget: Budget) -> str:
    """Return a budget in words."""
    iterations, buffer = budget
    kept = "" if buffer is None else f", buffer {buffer:,}"
    return f"{iterations:,} iterations{kept}"


def number(value: float | None, metric: str) -> str:
    """Return a number as the paper prints it."""
    if value is None:
        return "-"
    if metric in ("minutes_total", "minutes_init"):
        return f"{value:.0f}" if value >= 10 else f"{value:.3f}"
    return f"{value:.2f}" if abs(value) < 1000 else f"{value:,.0f}"


def printed_words(line: Line) -> str:
    """Return the paper's number, with its deviation where it prints one."""
    if line.printed is None:
        return "-"
    text, deviation = number(line.printed.value, line.metric), line.printed.deviation
    return text if deviation is None else f"{text} ±{number(deviation, line.metric)}"


def mean_words(line: Line) -> str:
    """Return our mean, with the deviation where there are several seeds."""
    text = number(line.mean, line.metric)
    return text if line.deviation is None else f"{text} ±{number(line.deviation, line.metric)}"


def short_title(place: Place) -> str:
    """Return a group in a few letters."""
    words = [METHODS.get(place.method, SHORT[place.loss])]
    return ", ".join([*words, f"{place.iterations:,}"] if place.iterations else words)


def signed(value: float | None) -> str:
    """Return a difference with its sign."""
    return "-" if value is None else f"{value:+.2f}"


def verdict_words(effect: Effect) -> str:
    """Return whether an effect holds, in words."""
    if effect.mean is not None and effect.half_width is None:
        return "one seed: no interval"
    if effect.mean is not None and effect.paper is None:
        return "not in the paper"
    return _VERDICTS[effect.verdict]


def evidence_words(effect: Effect, *, with_p: bool = True) -> str:
    """Return what an effect is tested over: `5 seeds`, `2,500 images, p = 0.003`."""
    if not effect.number:
        return "-"
    words = number_of(effect.number, "image" if effect.over == "images" else "seed")
    if effect.adjusted is None or not with_p:
        return words
    return f"{words}, p {'< 0.001' if effect.adjusted < 0.001 else f'= {effect.adjusted:.3f}'}"


def effect_words(effect: Effect) -> str:
    """Return our effect with its interval, in points."""
    width = "" if effect.half_width is None else f" ±{effect.half_width:.2f}"
    return signed(effect.mean) + width


def caption(found: Reproduction) -> str:
    """Return what the columns mean."""
    known = [MEANINGS[name] for name in found.table.metrics if name in MEANINGS]
    where = (
        "before any training"
        if found.table.name == "first-task"
        else "means over the evaluation points"
    )
    has_accuracies = any(name.startswith("acc_") for name in found.table.metrics)
    tail = f"; {where}" if has_accuracies and found.table.name != "forward-transfer" else ""
    return "; ".join(known) + tail + "."


def effect_caption(found: Reproduction) -> str:
    """Return what the effects are."""
    count = sum(each.effect.adjusted is not None for each in found.comparisons)
    words = (
        "The first start less the second, in points, ± half of the 95 % interval of this one"
        f" comparison. open: p is 0.05 or more, adjusted by Holm for the {count} tests of this"
        " page (paired t-tests over seeds, McNemar's exact test over images)."
    )
    if not any(each.effect.over == "images" for each in found.comparisons):
        return words
    when = (
        "before training"
        if found.table.name == "first-task"
        else "A_new at the end of each task and A_all at the end of the last"
    )
    return f"{words} Images: {when}, not the mean over evaluation points as in the table."


def order_words(found: Reproduction) -> list[str]:
    """Return the starts from the worst to the best, for each group that has runs."""
    return [
        f"{short_title(place)}: {ours}"
        + (", as in the paper" if ours == theirs else f" (paper: {theirs or 'no such budget'})")
        for place, theirs, ours in found.orders
        if ours
    ]


def open_words(found: Reproduction) -> list[str]:
    """Return what the paper leaves open, and how it is here."""
    return [
        " ".join(filter(None, (f"{each.name}: {here_words(each)}.", each.note)))
        for each in found.settings
        if each.is_open
    ]


def here_words(setting: Setting) -> str:
    """Return a setting of the runs, with the paper's where it has one."""
    if not setting.paper:
        return setting.here
    is_same = setting.here == setting.paper
    return setting.here + (", as in the paper" if is_same else f" (paper: {setting.paper})")
