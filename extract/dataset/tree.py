"""The files under a root: listed fast, never outside of it.

`os.scandir` separates files from folders without a system call each; only the size of an image
costs one. A symbolic link is followed if its target is under the root, and is an
error otherwise, so that a manifest cannot be made to reach files that were not meant.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from clinit.errors import ManifestError
from clinit.words import printable

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
"""Endings, in any case, of the files that are taken. Whether others, such as HEIC, can be decoded
depends on the machine, and rows must not."""

SCAN_THREADS = 8
"""Folders read at a time. Hides the latency of network disks; costs nothing on local ones."""


@dataclass(frozen=True, slots=True)
class Images:
    """The contents of one folder. All paths are relative to the root, with `/`."""

    paths: list[str] = field(default_factory=list)
    """The image files, in the order of the disk."""
    sizes: list[int] = field(default_factory=list)
    """Their sizes in bytes; 0 for a broken link."""
    others: list[str] = field(default_factory=list)
    """Files that are not images."""
    broken: list[str] = field(default_factory=list)
    """The broken links among `paths`."""
    folders: list[str] = field(default_factory=list)
    """Sub-folders that were not entered."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A root folder and what may be read under it."""

    root: Path
    """The root as it was given."""
    real: Path
    """The root without symbolic links."""

    @classmethod
    def at(cls, root: Path) -> Tree:
        """Open the tree at `root`, which may itself be a symbolic link.

        Raises:
            ManifestError: If there is no folder at `root`.
        """
        with _reading(root):
            if not root.is_dir():
                found = "a file" if root.exists() else "nothing"
                raise ManifestError(
                    f"no folder at {printable(root)}: found {found}",
                    remedy="Give the folder that holds the images; check that it is mounted.",
                )
            return cls(root, root.resolve())

    def has_folder(self, relative: str) -> bool:
        """Return whether there is a folder at `relative`, following links under the root."""
        folder = self.root / relative
        with _reading(folder):
            return folder.is_dir() and bool(self._resolve(folder))

    def top(self) -> list[str]:
        """Return the visible names directly under the root, sorted; folders end with `/`."""
        with _reading(self.root), os.scandir(self.root) as entries:
            return sorted(e.name + "/" * e.is_dir() for e in entries if e.name[0] != ".")

    def file(self, relative: str) -> Path | None:
        """Return the path of the file at `relative`, or None if there is none."""
        path = self.root / relative
        with _reading(path):
            return path if path.is_file() else None

    def facts(self, relative: str) -> os.stat_result:
        """Return size and times of the file at `relative`.

        Raises:
            ManifestError: If there is none, or it cannot be looked at.
        """
        path = self.root / relative
        with _reading(path):
            return path.stat()

    def folders(self, relative: str) -> list[str]:
        """Return the names of the visible sub-folders of `relative`, sorted."""
        folder = self.root / relative
        with _reading(folder), os.scandir(folder) as entries:
            found = [e for e in entries if e.name[0] != "." and e.is_dir()]
        for entry in found:
            if entry.is_symlink():
                self._resolve(Path(entry.path))
        return sorted(entry.name for entry in found)

    def images(self, relative: str, *, deep: bool) -> Images:
        """List the visible files in the folder `relative`; `deep`: in its sub-folders too."""
        found = Images()
        real = self._resolve(self.root / relative)
        self._collect(relative, frozenset({real}) if deep else None, found)
        return found

    def others(self) -> list[str]:
        """List the visible files that are not images, in all folders, sorted."""
        return sorted(self.images(".", deep=True).others)

    def images_of_all(self, relatives: list[str]) -> list[Images]:
        """List the files of many folders and their sub-folders, in the order given."""
        with ThreadPoolExecutor(SCAN_THREADS) as pool:
            return list(pool.map(lambda relative: self.images(relative, deep=True), relatives))

    def has_image(self, relative: str) -> bool:
        """Return whether an image is directly in the folder `relative`."""
        folder = self.root / relative
        with _reading(folder), os.scandir(folder) as entries:
            return any(e.name[0] != "." and _is_image_name(e.name) for e in entries)

    def _collect(self, relative: str, entered: frozenset[Path] | None, found: Images) -> None:
        """Add the files of `relative` to `found`; `entered`: real folders on the way, if deep."""
        prefix = "" if relative in ("", ".") else f"{relative}/"
        folder = self.root / relative
        below: list[tuple[str, os.DirEntry[str]]] = []
        with _reading(folder), os.scandir(folder) as entries:
            for entry in entries:
                path = prefix + entry.name
                if entry.name[0] == ".":
                    continue
                if entry.is_symlink():
                    self._resolve(Path(entry.path))
                if entry.is_dir():
                    below.append((path, entry))
                    continue
                is_broken = entry.is_symlink() and not os.path.exists(entry.path)  # noqa: PTH110
                if _is_image_name(entry.name) and (is_broken or entry.is_file()):
                    found.paths.append(path)
                    found.sizes.append(0 if is_broken else entry.stat().st_size)
                    found.broken.extend([path] * is_broken)
                else:
                    found.others.append(path)
        if entered is None:
            found.folders.extend(path for path, _ in below)
            return
        for path, entry in below:
            if not entry.is_symlink():
                self._collect(path, entered, found)
                continue
            real = self._resolve(Path(entry.path))
            above = self._resolve(Path(entry.path).parent)
            if real in entered or above.is_relative_to(real):
                raise ManifestError(
                    f"{printable(self.root / path)} links back to a folder above it",
                    remedy="Remove this link; it would be followed for ever.",
                )
            self._collect(path, entered | {real}, found)

    def _resolve(self, path: Path) -> Path:
        with _reading(path):
            real = path.resolve()
        if not real.is_relative_to(self.real):
            raise ManifestError(
                f"{printable(path)} is a link to {printable(real)}, outside of the root"
                f" {printable(self.root)}",
                remedy="Links are followed under the root only. Copy or mount the files there, or"
                " give a folder that holds both ends of the link.",
            )
        return real


def _is_image_name(name: str) -> bool:
    return name.lower().endswith(IMAGE_SUFFIXES)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, until 3.12
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ManifestError(
            f"cannot read {printable(path)}: {reason}",
            remedy="Check that the disk is mounted and that you may read this folder"
            " (`ls -ld` shows its permissions), then run the same command again.",
        ) from error
