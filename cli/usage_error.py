"""What is wrong with a word of the command line, in the words of clinit.

Typer hands on the messages of the library that converts values: `Value error, 'x' is not one of
'a', 'b'`, `Input should be a valid integer, unable to parse string as an integer`.
"""

from __future__ import annotations

import re
from typing import Any

from clinit.cli.help_entries import kind_of, names_of
from clinit.words import did_you_mean, listed

_EXPECTED = {
    "int_parsing": "an integer",
    "int_from_float": "an integer",
    "float_parsing": "a number",
    "bool_parsing": "true or false",
}
_JUDGED = ("dev", "eval", "test", "valid", "validation")
"""What others call the split that results are reported on."""
_LIMITS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("larger than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}


def usage_message(error: Any) -> str:
    """Return the message of a usage error of Typer."""
    if option := getattr(error, "option_name", None):
        return _about_option(error, option)
    parameter, details = getattr(error, "param", None), _details(error)
    if parameter is not None and hasattr(error, "param_type"):
        return f"{_entry(parameter)} is missing.\n{parameter.help or ''}".rstrip()
    if parameter is not None and details is not None:
        return f"{_name(parameter)} {_expectation(parameter, details)}"
    message = str(error.format_message()).removeprefix("Invalid value: ")
    if found := re.match("No such command '(.*?)'", message):
        question = did_you_mean(found[1], error.ctx.command.list_commands(error.ctx), lead=" ")
        return f"There is no command {found[1]}.{question}"
    if found := re.match(r"Got unexpected extra argument\(s\) \((.*)\)$", message):
        return f"Too many words at the end: {found[1]}"
    return message


def _about_option(error: Any, option: str) -> str:
    if not hasattr(error, "possibilities"):
        return f"{option} is given without its value."
    parameters = [] if error.ctx is None else error.ctx.command.params
    if (name := option.lstrip("-").upper()) in [_name(each) for each in parameters]:
        return f"There is no option {option}: {name} is given without it."
    known = [name for each in parameters for name in each.opts if name.startswith("--")]
    if error.ctx is not None and error.ctx.command.name == "sweep" and (field := _field(option)):
        return (
            f"There is no option {option}: what runs are to have is written {field}=VALUE, or"
            f" {field}=VALUE,VALUE for several."
        )
    question = did_you_mean(option, known, lead=" ")
    return f"There is no option {option}.{question}"


def _field(option: str) -> str | None:
    """Return the field of a grid that an option of the other commands sets; None for any other."""
    from clinit.headtrain.study import settings_of

    options = {field.option: name for name, field in settings_of(top=True).items()}
    return options.get(option)


def _entry(parameter: Any) -> str:
    """Return what is typed for a parameter: `--new FOLDER`, `MODEL`."""
    return f"{_name(parameter)} {kind_of(parameter)}".rstrip()


def _name(parameter: Any) -> str:
    name = names_of(parameter)[0].rstrip(".")
    return name[1:-1] if name.startswith("[") and name.endswith("]") else name


def _details(error: Any) -> dict[str, Any] | None:
    """Return what the library that converts values says of the first one it could not convert."""
    listing = getattr(error.__cause__, "errors", None)
    found: list[dict[str, Any]] = listing() if callable(listing) else []
    return found[0] if found else None


def _expectation(parameter: Any, details: dict[str, Any]) -> str:
    """Return what the value had to be, and what it is."""
    kind, value = details["type"], details["input"]
    choices = [str(getattr(c, "value", c)) for c in parameter.type_descriptor.choices or ()]
    if choices:
        question = did_you_mean(str(value), choices, lead=". ")
        if choices == ["train", "val"] and str(value) in _JUDGED:
            question = ". Results are reported on the split val, whatever its images are called"
        return f"must be {listed(choices, 'or')}, got {value!r}{question}"
    if kind in _LIMITS:
        words, key = _LIMITS[kind]
        return f"must be {words} {details['ctx'][key]:,}, got {value}"
    if kind in _EXPECTED:
        return f"takes {_EXPECTED[kind]}, got {value!r}"
    return f"does not take {value!r}: {details['msg'].removeprefix('Value error, ')}"
