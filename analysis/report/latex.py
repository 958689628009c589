"""The table of means over seeds in LaTeX: a `tabular` with the rules of booktabs.

No floating environment is around it: the author's own has the label and the caption. What a
caption has to say is in comments above.
"""

from __future__ import annotations

import textwrap

from clinit.analysis.report.measures import Better, Measure
from clinit.analysis.report.paper_table import Entry, PaperTable
from clinit.words import visible

_ESCAPES = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "[": "{[}",  # after the end of a line it would be its extra space
    "]": "{]}",
    "*": "{*}",  # the same
    "`": "{`}",  # no ligatures
    "'": "{'}",
    "·": r"$\cdot$",
    "×": r"$\times$",
    "±": r"$\pm$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "…": r"\ldots{}",
    "→": r"$\to$",
    "−": "$-$",
    "λ": r"$\lambda$",
    "σ": r"$\sigma$",
}
_ARROWS: dict[Better, str] = {"high": r" $\uparrow$", "low": r" $\downarrow$", "neither": ""}


def latex(table: PaperTable) -> str:
    """Return the comments and the `tabular`; the best numbers in bold."""
    heads = [*map(escaped, table.names), "seeds", *map(_heading, table.measures)]
    columns = "l" * len(table.names) + "r" * (1 + len(table.measures))
    lines = [
        [*map(escaped, names), str(count), *map(_entry, entries)]
        for names, count, entries in table.lines()
    ]
    return "\n".join(
        [
            r"% \usepackage{booktabs}, and \usepackage[T1]{fontenc} for quotation marks in names",
            *_comment(table.title),
            *_comment(table.caption),
            rf"\begin{{tabular}}{{{columns}}}",
            r"  \toprule",
            f"  {_row(heads)}",
            r"  \midrule",
            *(f"  {_row(cells)}" for cells in lines),
            r"  \bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def escaped(text: str) -> str:
    """Return text that LaTeX sets letter by letter."""
    letters = "".join(_ESCAPES.get(letter, letter) for letter in visible(text))
    return letters.replace("--", "-{}-").replace("--", "-{}-")  # no dashes


def _row(cells: list[str]) -> str:
    return f"{' & '.join(cells)} \\\\"


def _comment(text: str) -> list[str]:
    return [f"% {line}" for line in textwrap.wrap(visible(text), 96, break_long_words=False)]


def _heading(measure: Measure) -> str:
    unit = f" ({escaped(measure.unit)})" if measure.unit else ""
    return f"{measure.latex}{unit}{_ARROWS[measure.better]}"


def _entry(entry: Entry) -> str:
    if entry.mean is None:
        return "--"
    mean = escaped(entry.mean.replace("-", "−"))
    mean = rf"\textbf{{{mean}}}" if entry.is_best else mean
    star = r"\textsuperscript{*}" if entry.is_partial else ""
    return mean + star if entry.deviation is None else rf"{mean}{star} $\pm$ {entry.deviation}"
