"""Checks of types without the cost of checks of shapes, where a function has no arrays.

`--jaxtyping-packages` wraps every function so that the names of dimensions agree within a call.
This binds the arguments of each call, five times what beartype takes to check them: it was half
the time of tests that read many small values. A function that names no array is checked by
beartype alone, with the same result. One that names arrays is checked in its first calls of each
test: training calls the same few thousands of times.
"""

from __future__ import annotations

import builtins
import functools
import re
from collections import Counter
from collections.abc import Callable
from types import FunctionType
from typing import Any

import jaxtyping
from beartype import beartype

CALLS = 10
"""So many calls of a function that names arrays are checked in a test."""
CHECKED: Counter[Any] = Counter()
"""Calls that were checked, by function; cleared before each test."""
_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*")


def names_arrays(function: Any) -> bool:
    """Return whether an annotation has a type of jaxtyping, or a name not yet known."""
    known = vars(builtins) | function.__globals__
    names = {
        name for hint in function.__annotations__.values() for name in _NAME.findall(str(hint))
    }
    return any(name not in known or "jaxtyping." in _shown(known[name]) for name in names)


def _shown(value: object) -> str:
    return f"{getattr(value, '__module__', '')}. {value!r}"


def first_calls(plain: Callable[..., Any], checked: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is `checked` in its first calls of a test, then `plain`."""

    @functools.wraps(checked)
    def called(*args: Any, **kwargs: Any) -> Any:
        if CHECKED[plain] < CALLS:
            CHECKED[plain] += 1
            return checked(*args, **kwargs)
        return plain(*args, **kwargs)

    return called


def install() -> None:
    """Replace the decorator that jaxtyping writes, before clinit is imported."""
    check_shapes = jaxtyping.jaxtyped

    def check(*, typechecker: Any) -> Callable[[Any], Any]:
        def decorate(checked: Any) -> Any:
            if isinstance(checked, FunctionType) and not names_arrays(checked):
                return beartype(checked)
            with_shapes = check_shapes(typechecker=typechecker)(checked)
            return (
                first_calls(checked, with_shapes)
                if isinstance(checked, FunctionType)
                else with_shapes
            )

        return decorate

    jaxtyping.jaxtyped = check  # type: ignore[assignment]
