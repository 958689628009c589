"""Checks of types without the cost of checks of shapes, where a function has no arrays.

`--jaxtyping-packages` wraps every function so that the names of dimensions agree within a call.
This binds the arguments of each call, five times what beartype takes to check them: it was half
the time of tests that read many small values. A function that names no array is checked by
beartype alone, with the same result.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable
from types import FunctionType
from typing import Any

import jaxtyping
from beartype import beartype

_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*")


def names_arrays(function: FunctionType) -> bool:
    """Return whether an annotation has a type of jaxtyping, or a name not yet known."""
    known = vars(builtins) | function.__globals__
    names = {
        name for hint in function.__annotations__.values() for name in _NAME.findall(str(hint))
    }
    return any(name not in known or "jaxtyping." in _shown(known[name]) for name in names)


def _shown(value: object) -> str:
    return f"{getattr(value, '__module__', '')}. {value!r}"


def install() -> None:
    """Replace the decorator that jaxtyping writes, before clinit is imported."""
    check_shapes = jaxtyping.jaxtyped

    def check(*, typechecker: Any) -> Callable[[Any], Any]:
        def decorate(checked: Any) -> Any:
            if isinstance(checked, FunctionType) and not names_arrays(checked):
                return beartype(checked)
            return check_shapes(typechecker=typechecker)(checked)

        return decorate

    jaxtyping.jaxtyped = check
