"""Names shortened to the room that there is."""

from __future__ import annotations

from rich.cells import cell_len, chop_cells, set_cell_size


def shortened(name: str, width: int) -> str:
    """Return a name in at most `width` columns, with an ellipsis where something is left out."""
    if cell_len(name) <= width:
        return name
    return chop_cells(name, max(1, width - 1))[0] + "…" if width > 1 else "…"[:width]


def fitted(name: str, width: int, *, right: bool = False) -> str:
    """Return a name in exactly `width` columns: shortened, or filled with blanks."""
    short = shortened(name, width)
    if right:
        return " " * (width - cell_len(short)) + short
    return set_cell_size(short, width)
