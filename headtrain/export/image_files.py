"""The images that files and folders name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from clinit.errors import ImageError
from clinit.extract.dataset.tree import IMAGE_SUFFIXES
from clinit.words import printable


def find_images(
    paths: Iterable[Path],
    on_left_out: Callable[[Sequence[str]], object] = lambda files: None,
) -> list[Path]:
    """Return the files among `paths`, and the images in the folders among them, sorted.

    A file is taken whatever its name; in a folder and those below it, files whose names end as
    those of images do and begin with no dot.

    Args:
        paths: Files and folders.
        on_left_out: Called with the other files of a folder that has some.

    Raises:
        ImageError: If a folder holds no image or cannot be read.
    """
    found: list[Path] = []
    for path in paths:
        if not os.path.isdir(path):  # noqa: PTH112  (False for a name that is too long, too)
            found.append(path)
            continue
        visible = _files_in(path)
        images = [each for each in visible if each.name.lower().endswith(IMAGE_SUFFIXES)]
        if len(images) < len(visible):
            taken = set(images)
            on_left_out([printable(each) for each in visible if each not in taken])
        found += images
        if not images:
            raise ImageError(
                f"no image in {printable(path)}",
                remedy=f"Files that end in {', '.join(IMAGE_SUFFIXES)} are looked for; any other"
                " file can be given by its name.",
            )
    return found


def _files_in(folder: Path) -> list[Path]:
    found: list[Path] = []
    for name, below, files in os.walk(folder, onerror=_refuse):
        below[:] = sorted(each for each in below if not each.startswith("."))
        found += (Path(name, file) for file in sorted(files) if not file.startswith("."))
    return found


def _refuse(error: OSError) -> None:
    raise ImageError(
        f"cannot read the folder {printable(error.filename)}: {error.strerror}",
        remedy="Check that you may read it, or give the files by their names.",
    ) from error
