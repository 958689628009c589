"""Which keyword arguments of `timm.create_model` a command line or a file may set.

What timm's own functions name is no architecture: files that they unpickle (`checkpoint_path`),
downloads (`pretrained_cfg`), other models, switches. Model files, caches and records come from
anywhere, so these are refused; all other names go to the constructor of the model. The values are
bounded too, because a small file could ask for a large network, and no text among them can be a
path with a suffix, or an address; how large a network may be beside its weights is checked in
`network_size`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from functools import cache
from inspect import signature
from typing import Any

from clinit.errors import BackboneError

MAX_TEXT = 4096
"""Characters of arguments that are written as text."""
MAX_INTEGER = 2**16
MAX_CLASSES = 2**22
"""Largest `num_classes`: every other integer is a width, a depth or a size in pixels."""
MAX_FLOAT = 1e6
MAX_LENGTH, MAX_NESTING = 128, 3
"""Of a list, and of lists within lists."""
_WORD = re.compile(r"[A-Za-z0-9_+-]{0,40}")
"""Strings choose a layer, a mode or a kind of pooling. No path and no address is one of these."""


def check_model_args(arguments: Mapping[str, Any]) -> None:
    """Check that keyword arguments of `timm.create_model` describe an architecture, within reason.

    Raises:
        ValueError: If a name is one of timm's own functions, or its value is not plain or beyond
            the bounds.
    """
    for name, value in arguments.items():
        if name in _of_timm():
            raise ValueError(
                f"the model argument {_short(name)} is none of those that describe an architecture,"
                " such as img_size, pad_type or depths: names of files, downloads and switches of"
                " timm are never taken"
            )
        problem = _problem(value, MAX_CLASSES if name == "num_classes" else MAX_INTEGER)
        if problem is not None:
            raise ValueError(f"the model argument {name} = {_short(value)} {problem}")


@cache
def _of_timm() -> frozenset[str]:
    """Return the names of timm's own functions; loading it takes seconds."""
    from timm.models import build_model_with_cfg, create_model

    named = {*signature(create_model).parameters, *signature(build_model_with_cfg).parameters}
    # Taken from their keyword arguments, so in no signature.
    more = {"device", "dtype", "feature_cls", "features_only", "out_indices", "pruned"}
    return frozenset(named | more)


def _problem(value: object, largest: int, nesting: int = 0) -> str | None:
    """Return what is wrong with the value of an argument, or None."""
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, int):
        return None if abs(value) <= largest else f"lies beyond {largest:,}"
    if isinstance(value, float):
        return None if abs(value) <= MAX_FLOAT else f"lies beyond {MAX_FLOAT:,.0f}"
    if isinstance(value, str):
        return None if _WORD.fullmatch(value) else "is not a word of letters, digits, _, + and -"
    if isinstance(value, dict) and all(type(key) is int for key in value):
        value = [*value, *value.values()]  # how many heads have a window of a size, in CoaT
    if not isinstance(value, tuple | list):
        return f"is of type {type(value).__name__}, expected numbers, words or lists of them"
    if len(value) > MAX_LENGTH or nesting == MAX_NESTING:
        return f"has more than {MAX_LENGTH} entries or more than {MAX_NESTING} levels"
    problems = (_problem(each, largest, nesting + 1) for each in value)
    return next((problem for problem in problems if problem is not None), None)


def read_model_args(text: object) -> dict[str, Any]:
    """Return the arguments that a file holds as a Python literal of a dict or of pairs, checked.

    Raises:
        ValueError: If the text is none, or `check_model_args` refuses what it says.
    """
    if not isinstance(text, str):
        raise ValueError(f"model_args is of type {type(text).__name__}, expected a text")
    found = read_literal(text)
    try:
        arguments = dict(found)
    except (TypeError, ValueError):
        arguments = {None: None}
    if not all(isinstance(name, str) for name in arguments):
        raise ValueError(f"model_args is {_short(text)}, expected names with values")
    check_model_args(arguments)
    return arguments


def parse_model_args(arguments: Sequence[str]) -> dict[str, Any]:
    """Turn `["pad_type=same", "depths=[1, 1, 2, 1]"]` into keyword arguments.

    A value that is a Python literal is read as one, any other is a string.

    Raises:
        BackboneError: If an argument is not `name=value`, or `check_model_args` refuses it.
    """
    parsed: dict[str, Any] = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        if not equals or not name.isidentifier():
            raise BackboneError(
                f"model argument {_short(argument)} is not of the form name=value",
                remedy="Write for example `--model-arg pad_type=same`.",
            )
        try:
            parsed[name] = read_literal(text)
        except ValueError:
            parsed[name] = text
    try:
        check_model_args(parsed)
    except ValueError as error:
        raise BackboneError(str(error), remedy="Correct or leave out `--model-arg`.") from error
    return parsed


def read_literal(text: str) -> Any:
    """Return the value of a Python literal.

    Raises:
        ValueError: If the text is none, or too long or too deep to be read safely.
    """
    if len(text) > MAX_TEXT:
        raise ValueError(f"a text of {len(text):,} characters, expected {MAX_TEXT:,} at most")
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError(f"{_short(text)} is not a Python literal") from error


def _short(value: object) -> str:
    """Return a value as it is written, cut where it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no integer of more than 4,300 digits
        text = "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:60]}…"
