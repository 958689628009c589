"""What is wrong with a word of the command line, in the words of clinit.

Typer hands on the messages of the library that converts values: `Value error, 'x' is not one of
'a', 'b'`, `Input should be a valid integer, unable to parse string as an integer`.
"""

from __future__ import annotations

from typing import Any

from clinit.extract.did_you_mean import closest, did_you_mean
from clinit.headtrain.setting import listed

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
    if (option := getattr(error, "option_name", None)) and hasattr(error, "possibilities"):
        return _no_such_option(error, option)
    parameter, details = getattr(error, "param", None), _details(error)
    if parameter is None or details is None:
        return str(error.format_message()).removeprefix("Invalid value: ")
    name = parameter.opts[0] if parameter.param_type_name == "option" else parameter.name.upper()
    return f"{name} {_expectation(parameter, details)}"


def _no_such_option(error: Any, option: str) -> str:
    known = [] if error.ctx is None else [n for each in error.ctx.command.params for n in each.opts]
    found = closest(option, [name for name in known if name.startswith("--")])
    return f"There is no option {option}." + (f" Did you mean {found}?" if found else "")


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
