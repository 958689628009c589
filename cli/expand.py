"""Options of a command that are made from something else than its signature."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Command = TypeVar("Command", bound=Callable[..., Any])


def expand(
    name: str,
    options: Mapping[str, Any],
    defaults: Mapping[str, Any],
    build: Callable[[Mapping[str, Any]], Any],
) -> Callable[[Command], Command]:
    """Replace a parameter with options; `build` makes its value from all that was given."""

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)

        @functools.wraps(command)
        def wrapper(**values: Any) -> Any:
            built = build(values)
            own = {key: value for key, value in values.items() if key not in options}
            return command(**own, **{name: built})

        parameters: list[inspect.Parameter] = []
        for parameter in signature.parameters.values():
            if parameter.name == name:
                parameters += [
                    inspect.Parameter(
                        key,
                        inspect.Parameter.KEYWORD_ONLY,
                        default=defaults[key],
                        annotation=options[key],
                    )
                    for key in options
                ]
            else:
                parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
        wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {each.name: each.annotation for each in parameters}
        del wrapper.__wrapped__  # Typer would look through it
        return wrapper  # type: ignore[return-value]

    return decorate
