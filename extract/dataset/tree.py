"""The files under a root: listed fast, never outside of it.

`os.scandir` tells files from folders without a system call each; only the size of an image
costs one. A symbolic link is followed when what it points to lies under the root, and is an
error otherwise, so that a manifest cannot be made to reach files that were not meant.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from clinit.errors import ManifestError
from clinit.words import printable

IMAGE_SUFFIXES = (
    ".jpg",
    ".jpeg",
    ".png",
    ".gif",
    ".bmp",
    ".webp",
    ".tif",
    ".tiff",
    ".ppm",
    ".pgm",
)
"""Endings, in any case, of the files that are taken."""

UNTAKEN_SUFFIXES = (".heic", ".heif", ".avif", ".jxl", ".jp2")
"""Endings, in any case, of images that are not taken: whether they can be decoded depends on the
machine (HEIC on libheif), and rows must not."""

SCAN_THREADS = 8
"""Folders read at a time. Hides the latency of network disks; costs nothing on local ones."""


@dataclass(frozen=True, slots=True)
class Images:
    """What one folder holds. All paths are relative to the root, with `/`."""

    paths: list[str] = field(default_factory=list)
    """The image files, in the order of the disk."""
    sizes: list[int] = field(default_factory=list)
    """Their sizes in bytes; 0 for a broken link."""
    others: list[str] = field(default_factory=list)
    """Files that are not images."""
    broken: list[str] = field(default_factory=list)
    """Those of `paths` that are links to nothing."""
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
        try:
            if not root.is_dir():
                found = "a file" if root.exists() else "nothing"
                raise ManifestError(
                    f"no folder at {printable(root)}: found {found}",
                    remedy="Give the folder that holds the images; check that it is mounted.",
                )
            return cls(root, root.resolve())
        except OSError as error:
            raise _unreadable(root, error) from error

    def has_folder(self, relative: str) -> bool:
        """Return whether there is a folder at `relative`, following links under the root."""
        folder = self.root / relative
        try:
            if not folder.is_dir():
                return False
        except OSError as error:
            raise _unreadable(folder, error) from error
        self._resolve(folder)
        return True

    def top(self) -> list[str]:
        """Return the visible names directly under the root, sorted; folders end with `/`."""
        try:
            with os.scandir(self.root) as entries:
                names = [e.name + "/" * e.is_dir() for e in entries if e.name[0] != "."]
        except OSError as error:
            raise _unreadable(self.root, error) from error
        return sorted(names)

    def file(self, relative: str) -> Path | None:
        """Return the path of the file at `relative`, or None if there is none."""
        path = self.root / relative
        try:
            return path if path.is_file() else None
        except OSError as error:
            raise _unreadable(path, error) from error

    def facts(self, relative: str) -> os.stat_result:
        """Return size and times of the file at `relative`.

        Raises:
            ManifestError: If there is none, or it cannot be looked at.
        """
        path = self.root / relative
        try:
            return path.stat()
        except OSError as error:
            raise _unreadable(path, error) from error

    def folders(self, relative: str) -> list[str]:
        """Return the names of the visible sub-folders of `relative`, sorted."""
        folder = self.root / relative
        try:
            with os.scandir(folder) as entries:
                found = [e for e in entries if e.name[0] != "." and e.is_dir()]
        except OSError as error:
            raise _unreadable(folder, error) from error
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
        """Return whether an image lies directly in the folder `relative`."""
        folder = self.root / relative
        try:
            with os.scandir(folder) as entries:
                return any(_is_image_name(entry.name) for entry in entries)
        except OSError as error:
            raise _unreadable(folder, error) from error

    def _collect(self, relative: str, entered: frozenset[Path] | None, found: Images) -> None:
        """Add the files of `relative` to `found`; `entered`: real folders on the way, if deep."""
        prefix = "" if relative in ("", ".") else f"{relative}/"
        folder = self.root / relative
        below: list[tuple[str, os.DirEntry[str]]] = []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    name = entry.name
                    if name[0] == ".":
                        continue
                    path = prefix + name
                    if entry.is_symlink():
                        self._collect_link(entry, path, below, found)
                    elif entry.is_dir():
                        below.append((path, entry))
                    elif name.lower().endswith(IMAGE_SUFFIXES) and entry.is_file():
                        found.paths.append(path)
                        found.sizes.append(entry.stat().st_size)
                    else:
                        found.others.append(path)
        except OSError as error:
            raise _unreadable(folder, error) from error
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

    def _collect_link(
        self,
        entry: os.DirEntry[str],
        path: str,
        below: list[tuple[str, os.DirEntry[str]]],
        found: Images,
    ) -> None:
        self._resolve(Path(entry.path))
        image = _is_image_name(entry.name)
        try:
            size = entry.stat().st_size
        except FileNotFoundError:
            size = 0
            if image:
                found.broken.append(path)
        else:
            if entry.is_dir():
                below.append((path, entry))
                return
            image = image and entry.is_file()
        if image:
            found.paths.append(path)
            found.sizes.append(size)
        else:
            found.others.append(path)

    def _resolve(self, path: Path) -> Path:
        try:
            real = path.resolve()
        except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, until 3.12
            raise _unreadable(path, error) from error
        if not real.is_relative_to(self.real):
            raise ManifestError(
                f"{printable(path)} is a link to {printable(real)}, outside of the root"
                f" {printable(self.root)}",
                remedy="Links are followed under the root only. Copy or mount the files there, or"
                " give a folder that holds both ends of the link.",
            )
        return real


def _is_image_name(name: str) -> bool:
    return name[0] != "." and name.lower().endswith(IMAGE_SUFFIXES)


def _unreadable(path: Path, error: OSError | RuntimeError) -> ManifestError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return ManifestError(
        f"cannot read {printable(path)}: {reason}",
        remedy="Check that the disk is mounted and that you may read this folder"
        " (`ls -ld` shows its permissions), then run the same command again.",
    )
