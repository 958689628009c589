"""The grids of a sweep: from the tables of a file and the words of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from clinit.cli.config import RUNS, TOP_RUNS, Commands, Section, open_config, section_of
from clinit.errors import ConfigFileError, ExperimentError

if TYPE_CHECKING:
    from clinit.headtrain.sweep.grid import Choice, Grid


def grids_of(
    path: Path | None, words: list[str], commands: Commands, *, top: bool = False
) -> list[dict[str, Choice]]:
    """Return the grids whose union is trained.

    The words overlay each table of the file, and each table the file's settings of train-head,
    or of train-top. `commands` are those that take a file, with their options.

    Raises:
        ConfigFileError: If the file cannot be read, there is no grid in it nor in the words, or a
            grid in it holds what its fields do not take.
        ExperimentError: If the words hold what their fields do not take, no run reads a field of a
            grid, a grid is empty, or there are too many combinations.
    """
    from clinit.headtrain.sweep.grid import check_size, grid_of, merge, names_in, parse_grid
    from clinit.headtrain.sweep.plan import refuse_idle

    typed = parse_grid(words, top=top)
    if path is None:
        alone = [merge({}, typed)]
        refuse_idle(alone, names_in(typed), top=top)
        check_size(alone)
        return alone
    file = open_config(path)
    if not (tables := file.grids) and not typed:
        raise ConfigFileError(
            f"{file.name} holds no grid",
            remedy='Write [[sweep.grid]] and below it lines such as lr = "1e-4..1e-2:log5", or'
            " give words such as seed=0:5.",
        )
    section = section_of(file, TOP_RUNS if top else RUNS, commands)
    with _told_of(file.name):
        read = [grid_of(table, top=top) for table in tables]
    over = [merge(each, typed) for each in read] or [typed]
    grids: list[dict[str, Choice]] = []
    for table, each in zip(read or [{}], over, strict=True):
        laid = _with_settings(section, each, top=top)
        # What a section says for another method gives way to the grid.
        own = names_in(table) if "method" in names_in(each) else names_in(laid[0])
        with _told_of(file.name):
            refuse_idle(laid, [name for name in own if name not in names_in(typed)], top=top)
        grids += laid
    refuse_idle(grids, names_in(typed), top=top)
    check_size(grids)
    return grids


def _with_settings(section: Section, over: Grid, *, top: bool) -> list[dict[str, Choice]]:
    """Lay a grid over the settings of the file; one grid per method where these differ."""
    from clinit.headtrain.sweep.grid import merge, only, values_in

    methods = list(map(str, values_in(over, "method") or (section.method,)))
    under = {method: _settings(section, method, over, top=top) for method in methods}
    if all(each == under[methods[0]] for each in under.values()):
        return [merge(under[methods[0]], over)]
    return [merge(under[method], only(over, "method", method)) for method in methods]


def _settings(section: Section, method: str, over: Grid, *, top: bool) -> dict[str, Choice]:
    from clinit.headtrain.study import settings_of
    from clinit.headtrain.sweep.grid import field_named, grid_of, names_in

    settings = {field.key for field in settings_of(top=top).values()}
    asked = [key for key in section.keys(method) if key in settings]
    with _told_of(section.file):
        free = [key for key in asked if field_named(key, top=top).name not in names_in(over)]
    values = {key: section.get(key, method) for key in free}
    with _told_of(section.file):
        return grid_of({k: v for k, v in values.items() if v is not None}, top=top)


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
