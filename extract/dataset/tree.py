"""List the files under a root, fast and never outside of the root.

`os.scandir` distinguishes files from folders without a system call per entry; only the size of an
image needs one. A symbolic link is followed if its target is under the root; otherwise it is an
error, so that nobody can trick a manifest into listing other files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from clinit.errors import ManifestError
from clinit.files.paths import exists, instead_of, is_file, is_folder
from clinit.words import counted, printable

HEIC_SUFFIXES, HEIC_READER = (".heic", ".heif"), "`pip install pillow-heif`"
READS_HEIC = find_spec("pillow_heif") is not None
IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".avif"),
    *(".jpe", ".jfif"),
    *(HEIC_SUFFIXES if READS_HEIC else ()),
)
"""Suffixes of image files, in upper or lower case. Others are left out, because clinit cannot
decode them, or not on every machine."""

UNREAD_SUFFIXES = (
    *(() if READS_HEIC else HEIC_SUFFIXES),
    *(".jxl", ".jp2", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf"),
    *(".raf", ".rw2", ".psd"),
)
"""Suffixes of photographs that are left out, and that messages name."""

_LEFT_BY_OTHERS = re.compile(
    r"\.(?!\.?$).+|@eadir|#recycle|#snapshot|@recycle|@recently-snapshot|\$recycle\.bin|recycler"
    r"|system volume information|network trash folder|temporary items|lost\+found|__macosx"
    r"|thumbs\.db|ehthumbs\w*\.db|desktop\.ini|picasa\.ini|zbthumbnail\.info|pspbrwse\.jbf|@tmp"
    r"|.*\.lrdata|__pycache__|icon\r|lost\.dir|found\.\d{3}",
    re.IGNORECASE,
)
"""Files and folders that are hidden, or that file servers (Synology, QNAP), desktops (macOS,
Windows) and photo programs (Picasa, Lightroom) leave among images."""

LEFT = "hidden files, and files and folders of other programs (thumbnails, bins), left out"


def is_left_by_others(name: str) -> bool:
    """Return whether other programs leave a file or folder of this name, such as thumbnails."""
    return _LEFT_BY_OTHERS.fullmatch(name) is not None


SCAN_THREADS = 8
"""Folders read at a time, which hides the latency of network disks."""


@dataclass(frozen=True, slots=True)
class FolderContents:
    """The contents of one folder. All paths are relative to the root, with `/`."""

    paths: list[str] = field(default_factory=list)
    """The image files, in no particular order."""
    sizes: list[int] = field(default_factory=list)
    """Sizes of the image files in bytes; 0 for a broken link."""
    others: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    """The broken links among `paths`."""
    folders: list[str] = field(default_factory=list)
    """Sub-folders that were not entered."""
    left: list[str] = field(default_factory=list)
    """Files and folders of other programs (`is_left_by_others`)."""


def file_warnings(found: Sequence[FolderContents]) -> tuple[str, ...]:
    """Return warnings about files that are no images, and about broken links."""
    every = [path for images in found for path in images.others]
    unread = [path for path in every if path.lower().endswith(UNREAD_SUFFIXES)]
    others = [path for path in every if not path.lower().endswith(UNREAD_SUFFIXES)]
    kinds = ", ".join(sorted({path.rpartition(".")[2].upper() for path in unread}))
    are_heic = all(path.lower().endswith(HEIC_SUFFIXES) for path in unread)
    need = f"that {HEIC_READER} lets clinit read" if are_heic else "to be converted to JPEG"
    broken = [path for images in found for path in images.broken]
    return (
        *counted(unread, f"photographs left out, {need} ({kinds})"),
        *counted(others, "files left out, not images by their names"),
        *counted(broken, "images that are broken links"),
    )


@dataclass(frozen=True, slots=True)
class Tree:
    """A root folder, with methods to list what is under it."""

    root: Path
    """The root as the user gave it."""
    real: Path
    """The root without symbolic links."""

    @classmethod
    def at(cls, root: Path) -> Tree:
        """Open the tree at `root`, which may itself be a symbolic link.

        Raises:
            ManifestError: If `root` is not a folder.
        """
        if not is_folder(root):
            found = "a file" if exists(root) else "nothing"
            raise ManifestError(
                f"no folder at {printable(root)}: found {found}",
                remedy=instead_of(
                    root, "Give the folder of the images; check that it is mounted.", is_folder
                ),
            )
        return cls(root, root.resolve())

    def has_folder(self, relative: str) -> bool:
        """Return whether `relative` is a folder, or a link to one under the root."""
        folder = self.root / relative
        return is_folder(folder) and bool(self._resolve(folder))

    def top(self) -> list[str]:
        """Return the visible names directly under the root, sorted; folders end with `/`."""
        with _reading(self.root), os.scandir(self.root) as entries:
            return sorted(e.name + "/" * e.is_dir() for e in entries if _is_visible(e))

    def file(self, relative: str) -> Path | None:
        """Return the path of the file `relative`; None if it does not exist."""
        path = self.root / relative
        return path if is_file(path) else None

    def facts(self, relative: str) -> os.stat_result:
        """Return size and times of the file `relative`.

        Raises:
            ManifestError: If the file does not exist, or the storage refuses to describe it.
        """
        path = self.root / relative
        with _reading(path):
            return path.stat()

    def folders(self, relative: str) -> list[str]:
        """Return the names of the visible sub-folders of `relative`, sorted."""
        folder = self.root / relative
        with _reading(folder), os.scandir(folder) as entries:
            found = [e for e in entries if _is_visible(e) and e.is_dir()]
        for entry in found:
            if entry.is_symlink():
                self._resolve(Path(entry.path))
        return sorted(entry.name for entry in found)

    def images(self, relative: str, *, deep: bool) -> FolderContents:
        """List the visible files in the folder `relative`; if `deep`, also in sub-folders."""
        found = FolderContents()
        real = self._resolve(self.root / relative)
        self._collect(relative, frozenset({real}) if deep else None, found)
        return found

    def images_of_all(self, relatives: list[str]) -> list[FolderContents]:
        """List the files of each folder and its sub-folders, in the order of `relatives`."""
        with ThreadPoolExecutor(SCAN_THREADS) as pool:
            return list(pool.map(lambda relative: self.images(relative, deep=True), relatives))

    def has_image(self, relative: str) -> bool:
        """Return whether a folder directly contains a photograph, of whatever format."""
        folder = self.root / relative
        with _reading(folder), os.scandir(folder) as entries:
            names = (e.name.lower() for e in entries if _is_visible(e))
            return any(name.endswith(IMAGE_SUFFIXES + UNREAD_SUFFIXES) for name in names)

    def _collect(self, relative: str, past: frozenset[Path] | None, found: FolderContents) -> None:
        """Add files to `found`; `past`: real folders on the way, None to skip sub-folders."""
        prefix = "" if relative in ("", ".") else f"{relative}/"
        folder = self.root / relative
        below: list[tuple[str, os.DirEntry[str]]] = []
        with _reading(folder), os.scandir(folder) as entries:
            for entry in entries:
                path = prefix + entry.name
                if not _is_visible(entry):
                    found.left.append(path)
                    continue
                if entry.is_symlink():
                    self._resolve(Path(entry.path))
                if entry.is_dir():
                    below.append((path, entry))
                    continue
                is_broken = entry.is_symlink() and not os.path.exists(entry.path)  # noqa: PTH110
                if entry.name.lower().endswith(IMAGE_SUFFIXES) and (is_broken or entry.is_file()):
                    found.paths.append(path)
                    found.sizes.append(0 if is_broken else entry.stat().st_size)
                    found.broken.extend([path] * is_broken)
                else:
                    found.others.append(path)
        if past is None:
            found.folders.extend(path for path, _ in below)
            return
        for path, entry in below:
            if not entry.is_symlink():
                self._collect(path, past, found)
                continue
            real = self._resolve(Path(entry.path))
            above = self._resolve(Path(entry.path).parent)
            if real in past or above.is_relative_to(real):
                raise ManifestError(
                    f"{printable(self.root / path)} links back to a folder above it",
                    remedy="Remove this link; clinit would follow it for ever.",
                )
            self._collect(path, past | {real}, found)

    def _resolve(self, path: Path) -> Path:
        with _reading(path):
            real = path.resolve()
        if not real.is_relative_to(self.real):
            raise ManifestError(
                f"{printable(path)} is a link to {printable(real)}, outside of the root"
                f" {printable(self.root)}",
                remedy="clinit follows links only under the root. Copy or mount the files there, or"
                " give a folder that contains both the link and its target.",
            )
        return real


def _is_visible(entry: os.DirEntry[str]) -> bool:
    return not is_left_by_others(entry.name)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, before Python 3.13
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ManifestError(
            f"cannot read {printable(path)}: {reason}",
            remedy="Check that the disk is mounted and that you may read this folder"
            " (`ls -ld` shows its permissions), then run the same command again.",
        ) from error
