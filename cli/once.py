"""Settings that some commands take several values of are given once where one is taken.

`clinit train-head --init random --init lda` trains two heads. Where one value is taken, Typer would
drop the first in silence; so it does with options that mean the same everywhere, where the last one
is to win: those of a script, with another behind them.
"""

from __future__ import annotations

from collections import Counter
from functools import wraps
from typing import Any

import typer


def take_once(command: Any) -> None:
    """Let a command, or all commands below it where it is a group, refuse a repeated setting."""
    below = getattr(command, "commands", None)
    if below is None:
        command.make_parser = _checked(command.make_parser)
        return
    for each in below.values():
        take_once(each)


def _checked(make_parser: Any) -> Any:
    @wraps(make_parser)
    def made(context: Any) -> Any:
        parser = make_parser(context)
        parse = parser.parse_args

        def parsed(args: list[str]) -> tuple[dict[str, Any], list[str], list[Any]]:
            values, rest, order = parse(args=args)
            if not context.resilient_parsing:  # not while a shell completes the line
                _refuse_repeated(order, context)
            return values, rest, order

        parser.parse_args = parsed
        return parser

    return made


def _refuse_repeated(order: list[Any], context: Any) -> None:
    """Refuse an option that occurs more often than it has values."""
    names = [each.name for each in order if not getattr(each, "multiple", True)]
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if not repeated:
        return
    from clinit.cli.study_options import SEVERAL

    for name in repeated:
        if name in SEVERAL:
            raise typer.BadParameter(
                f"--{name} is given more than once; it takes one value here", context
            )
