"""Whether the storage can be written, and locked against a second process."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from clinit.errors import ClinitError
from clinit.extract.doctor.disk import nearest
from clinit.extract.doctor.finding import Finding, fault, ok, warning
from clinit.files.lock import claim_file


def check_storage(folder: Path) -> Iterator[Finding]:
    """Write, rename and lock a file in the nearest folder that exists; it is removed again."""
    there, notes = folder, list[str]()
    try:
        there = nearest(folder)
        with tempfile.TemporaryDirectory(prefix=".clinit-doctor-", dir=there) as draft:
            place = Path(draft) / "file"
            with claim_file(place, on_unlocked=notes.append):
                (Path(draft) / "draft").write_bytes(b"clinit")
                (Path(draft) / "draft").replace(place)
    except (OSError, ClinitError) as error:
        reason = getattr(error, "strerror", None) or error
        yield fault(
            "storage",
            f"nothing can be written at {there}: {reason}",
            "Choose a folder that you can write to with `--out`.",
        )
        return
    if notes:
        yield warning(
            "storage",
            f"{there} cannot lock files: two commands on one cache would not notice each other",
            "Run one command on a cache at a time, or choose a local disk with `--out`.",
        )
    else:
        yield ok("storage", f"{there} can be written and locked")
