"""What the help of a command says, as values: its panels, and an entry for each parameter.

Typer's own help cuts names of options at 80 columns, and calls a choice of several words
`<list[...]>`. What is said here is read by the help on the terminal and by the reference alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

from clinit.words import listed

ARGUMENTS, OPTIONS, COMMANDS = "Arguments", "Options", "Commands"
_FIRST = (ARGUMENTS, "Data")
_LAST = ("Evaluation", "Output", OPTIONS)
"""Panels that follow those of studies and commands, which stand where their last entry does."""
_SHOWN_LETTERS = 25
"""Longest list of choices in the place of a type; a longer one is told behind the help."""
_NO_LIMIT = 10**6
"""Upper limits from here on guard against slips of the keyboard, and are not told."""
_KINDS = {"int": "INTEGER", "float": "NUMBER", "str": "TEXT", "Path": "PATH"}


@dataclass(frozen=True, slots=True)
class Entry:
    """A parameter or a command."""

    names: tuple[str, ...]
    """`--verbose`, `-v`; the name of an argument or of a command."""
    kind: str
    """What the option takes; empty for a flag."""
    text: str
    """The help, with choices, default and range."""

    @property
    def head(self) -> str:
        """Names and kind, as they are typed."""
        return f"{', '.join(self.names)} {self.kind}".rstrip()


@dataclass(frozen=True, slots=True)
class Panel:
    """Entries of one subject."""

    title: str
    entries: tuple[Entry, ...]


def usage(command: Any, context: Any) -> str:
    """Return how a command is called, what it cannot do without by name."""
    shown = [each for each in command.get_params(context) if not getattr(each, "hidden", False)]
    options = [each for each in shown if _is_option(each)]
    words = [context.command_path]
    words += [f"{names_of(each)[0]} {kind_of(each)}" for each in options if each.required]
    words += ["[OPTIONS]"] if any(not each.required for each in options) else []
    for each in (each for each in shown if not _is_option(each)):
        name = names_of(each)[0]
        words.append(name if each.required else f"[{name.strip('[]')}]")
    if hasattr(command, "commands"):
        words.append("COMMAND ...")
    return " ".join(words)


def panels_of(command: Any, context: Any) -> list[Panel]:
    """Return the panels of a command, in the order of its help."""
    found: dict[str, list[Entry]] = {}
    for each in command.get_params(context):
        if not getattr(each, "hidden", False):
            panel = each.rich_help_panel if hasattr(each, "rich_help_panel") else None
            title = panel or (OPTIONS if _is_option(each) else ARGUMENTS)
            found[title] = [*found.pop(title, []), _entry(each, context)]
    if hasattr(command, "commands"):
        found[COMMANDS] = list(_below(command, context))
    titles = [*_FIRST, *(each for each in found if each not in (*_FIRST, *_LAST)), *_LAST]
    return [Panel(title, tuple(found[title])) for title in titles if title in found]


def paragraphs(command: Any) -> list[str]:
    """Return the paragraphs of the help of a command, one line each."""
    return [" ".join(each.split()) for each in (command.help or "").split("\n\n")]


def names_of(parameter: Any) -> tuple[str, ...]:
    """Return the long names of an option first; the name of an argument as the help has it."""
    if _is_option(parameter):
        long_first = sorted(parameter.opts, key=lambda name: not name.startswith("--"))
        return (*long_first, *parameter.secondary_opts)
    name = parameter.metavar or parameter.name.rstrip("_").upper().replace("_", "-")
    return (name if parameter.nargs == 1 or parameter.metavar else f"{name}...",)


def kind_of(parameter: Any) -> str:
    """Return what an option takes, in one word or as its few choices; nothing for a flag."""
    if not _is_option(parameter) or parameter.is_flag:
        return ""
    if parameter.metavar:
        return str(parameter.metavar)
    if choices := _choices(parameter):
        joined = "|".join(choices)
        return joined if len(joined) <= _SHOWN_LETTERS else "WORD"
    return _KINDS[_type(parameter).__name__]


def _below(command: Any, context: Any) -> Iterator[Entry]:
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        if not child.hidden:
            yield Entry((name,), "", paragraphs(child)[0])


def _entry(parameter: Any, context: Any) -> Entry:
    help_text = getattr(parameter, "help", None) or ""
    choices, facts = _choices(parameter), []
    if choices and "|".join(choices) != kind_of(parameter):
        missing = [each for each in choices if each not in help_text]
        help_text += f" One of {listed(choices, 'or')}." if missing else ""
    if parameter.required and _is_option(parameter):
        facts.append("required")
    if default := _default(parameter, context):
        facts.append(f"default: {default}")
    if limits := _limits(parameter):
        facts.append(limits)
    told = f" [{'; '.join(facts)}]" if facts else ""
    return Entry(names_of(parameter), kind_of(parameter), f"{help_text}{told}".strip())


def _is_option(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "option")


def _type(parameter: Any) -> Any:
    described = parameter.type_descriptor
    return get_args(described.annotation)[0] if described.is_list else described.annotation


def _choices(parameter: Any) -> list[str]:
    choices = parameter.type_descriptor.choices or ()
    return [str(getattr(each, "value", each)) for each in choices]


def _default(parameter: Any, context: Any) -> str:
    """Return the default in words; empty where there is none, or none that is told."""
    if isinstance(parameter.show_default, str):
        return str(parameter.show_default)
    value = parameter._extract_default_help_str(ctx=context)
    if value is None or not parameter.show_default or value is False:
        return ""
    if value is True:
        return str(parameter.opts[0])
    if isinstance(value, float):
        return f"{value:g}"
    text = parameter._get_default_string(
        ctx=context, show_default_is_str=False, default_value=value
    )
    return str(text)


def _limits(parameter: Any) -> str:
    """Return the range of a number, where it is not plain."""
    taken = parameter.type_descriptor.parameter_info
    least, most = taken.min, taken.max
    if most is not None and most < _NO_LIMIT:
        return f"at most {most:,}" if least is None else f"{least:,} to {most:,}"
    return f"at least {least:,}" if least is not None and least > 1 else ""
