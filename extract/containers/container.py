"""A container as a manifest names it, and whether it is still that one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from clinit.errors import ManifestError

BUILD_AGAIN = (
    "Put the old file back; or build the manifest again with `clinit manifest build` and extract"
    " into a new folder."
)


@dataclass(frozen=True, slots=True)
class Container:
    """A file that holds images."""

    path: Path
    root: Path
    """The folder that a link may not leave."""
    size_bytes: int
    """Size of the file when the manifest was built."""
    column: str
    """Column of the images in a Parquet file; empty for a tar file."""

    def check_place(self) -> None:
        """Check that the file is under its root.

        Raises:
            ManifestError: If it is a link that leaves it.
        """
        if not Path(os.path.realpath(self.path)).is_relative_to(os.path.realpath(self.root)):
            raise ManifestError(
                f"{self.path} is a link that leaves {self.root}",
                remedy="Give a folder that holds both ends of the link.",
            )

    def check_size(self, found: int) -> None:
        """Check that the file has the size that it had.

        Raises:
            ManifestError: If it has another one.
        """
        if found != self.size_bytes:
            raise ManifestError(
                f"{self.path} has {found:,} bytes, the manifest says {self.size_bytes:,}: it was"
                " changed",
                remedy=BUILD_AGAIN,
            )
