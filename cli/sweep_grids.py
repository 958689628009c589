"""The grids of a sweep: from the tables of a file and the words of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from clinit.cli.config_file import commands_with_files, open_config
from clinit.cli.config_section import RUNS, Section, section_of
from clinit.errors import ConfigFileError, ExperimentError

if TYPE_CHECKING:
    from clinit.headtrain.sweep.grid import Choice, Grid

_NOT_OF_A_RUN = frozenset({"base", "new", "head", "out", "diagnose", "verbose"})
"""Options of train-head that are no settings of a run."""


def grids_of(path: Path | None, words: list[str]) -> list[dict[str, Choice]]:
    """Return the grids whose union is trained.

    The words overlay each table of the file, and each table the file's settings of train-head.

    Raises:
        ConfigFileError: If the file cannot be read, there is no grid in it nor in the words, or a
            grid in it holds what its fields do not take.
        ExperimentError: If the words do, a grid is empty, or there are too many combinations.
    """
    from clinit.headtrain.sweep.grid import check_size, grid_of, merge, parse_grid

    typed = parse_grid(words)
    if path is None:
        grids = [merge({}, typed)]
        check_size(grids)
        return grids
    file = open_config(path)
    if not (tables := file.grids) and not typed:
        raise ConfigFileError(
            f"{file.name} holds no grid",
            remedy='Write [[sweep.grid]] and below it lines such as lr = "1e-4..1e-2:log5", or'
            " give words such as seed=0:5.",
        )
    section = section_of(file, RUNS, commands_with_files())
    with _told_of(file.name):
        read = [grid_of(table) for table in tables]
    over = [merge(each, typed) for each in read] or [typed]
    grids = [grid for each in over for grid in _with_settings(section, each)]
    check_size(grids)
    return grids


def _with_settings(section: Section, over: Grid) -> list[dict[str, Choice]]:
    """Lay a grid over the settings of the file; one grid a method where these differ."""
    from clinit.headtrain.sweep.grid import merge

    choice = over.get("method")
    methods = list(map(str, choice)) if isinstance(choice, tuple) else [section.method]
    under = {method: _settings(section, method, over) for method in methods}
    if all(each == under[methods[0]] for each in under.values()):
        return [merge(under[methods[0]], over)]
    return [merge(under[method], {**over, "method": (method,)}) for method in methods]


def _settings(section: Section, method: str, over: Grid) -> dict[str, Choice]:
    from clinit.headtrain.sweep.fields import field_named
    from clinit.headtrain.sweep.grid import grid_of

    asked = [key for key in section.keys(method) if key not in _NOT_OF_A_RUN]
    with _told_of(section.file):
        free = [key for key in asked if field_named(key).name not in over]
    values = {key: section.get(key, method) for key in free}
    with _told_of(section.file):
        return grid_of({key: value for key, value in values.items() if value is not None})


@contextmanager
def _told_of(file: str) -> Iterator[None]:
    """Let errors in the grids of a file name it.

    Raises:
        ConfigFileError: Instead of an `ExperimentError`.
    """
    try:
        yield
    except ExperimentError as error:
        raise ConfigFileError(f"{file}: {error}", remedy=error.remedy) from error
