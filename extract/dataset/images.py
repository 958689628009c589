"""Read the content of images by row number, from image files or from containers.

The code that decodes images need not know which of the two it reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import polars as pl

from clinit.errors import ImageError, ManifestError
from clinit.extract.dataset import decode
from clinit.extract.dataset.manifest import Container, is_contained
from clinit.extract.dataset.parquet import ParquetImages
from clinit.extract.dataset.tar import read_member


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """Images that are files."""

    root: Path
    paths: Sequence[str]
    sizes: Sequence[int] | None = None
    """Sizes in bytes; 0 means that a size is unknown, None that all sizes are unknown."""
    need_rights: bool = True
    """See `read_image_file`."""

    def place(self, row: int) -> Path:
        """Return the path of an image."""
        return self.root / self.paths[row]

    def read(self, row: int) -> bytes:
        """Return the content of an image.

        Raises:
            ClinitError: See `read_image_file`.
        """
        size = None if self.sizes is None else self.sizes[row] or None
        return decode.read_image_file(
            self.place(row), self.root, size=size, need_rights=self.need_rights
        )


_PLACE = ("path", "size_bytes", "container", "column", "position", "container_bytes")


class ContainedImages:
    """Images in tar and Parquet files.

    Args:
        root: The folder that the paths start from.
        table: Rows of a manifest with the columns `CONTAINED_SCHEMA`, in any order.
    """

    def __init__(self, root: Path, table: pl.DataFrame) -> None:
        self._root, self._rows = root, table.select(_PLACE).rechunk()
        self._parquet, self._container = ParquetImages(), cache(self._checked)

    def _checked(self, name: str, size_bytes: int, column: str) -> Container:
        found = Container(self._root / name, self._root, size_bytes, column)
        found.check_place()
        return found

    def place(self, row: int) -> Path:
        """Return the path of an image for messages, as if its container were a folder."""
        path: str = self._rows["path"][row]
        return self._root / path

    def read(self, row: int) -> bytes:
        """Return the content of an image.

        Raises:
            ImageError: If this one image is empty, absent, too large or damaged.
            ManifestError: If a file differs from the manifest.
            MachineError: If the machine cannot read the file. No row may be marked invalid for
                that.
        """
        path, size, name, column, position, container_bytes = self._rows.row(row)
        container = self._container(name, container_bytes, column)
        decode.check_bytes(size)
        try:
            if container.column:
                content = self._parquet.read(container, position)
            else:
                content = read_member(container, path.removeprefix(f"{name}/"), position, size)
        except FileNotFoundError as error:
            raise ManifestError(
                f"there is no file {container.path}, which contains images of the manifest",
                remedy="Give the folder that the paths of the manifest start from with `--root`.",
            ) from error
        except MemoryError as error:
            raise decode.memory_error(container.path) from error
        except OSError as error:
            raise decode.read_error(container.path, error) from error
        if not content:
            raise ImageError(decode.EMPTY, remedy="Replace the image, or leave its row invalid.")
        return content


Images = ImageFiles | ContainedImages
"""Images by row number; several threads may read at the same time."""


def images_of(table: pl.DataFrame, root: Path) -> Images:
    """Return the images of rows of a manifest, in any order; their paths start from `root`."""
    if is_contained(table):
        return ContainedImages(root, table)
    return ImageFiles(root, table["path"].to_list(), table["size_bytes"].to_list())
