"""The folder that the Hugging Face Hub downloads a data set to, `datasets--OWNER--NAME`.

`snapshots/REVISION/` has the files of a revision, as links to `blobs/`; several revisions may lie
side by side, with links to the same blobs.

Source: "Understand caching", the documentation of the library huggingface_hub.
"""

from __future__ import annotations

from collections.abc import Sequence

from clinit.errors import ManifestError
from clinit.extract.tree import Tree
from clinit.words import printable

_SNAPSHOTS = "snapshots"


def snapshot(tree: Tree) -> str | None:
    """Return the folder of the one revision under a root; None where it is no such download.

    Raises:
        ManifestError: If there are several revisions.
    """
    if not (tree.has_folder("blobs") and tree.has_folder(_SNAPSHOTS)):
        return None
    revisions = tree.folders(_SNAPSHOTS)
    if len(revisions) > 1:
        raise ManifestError(
            f"{printable(tree.root)} holds {len(revisions):,} revisions of a data set"
            f" ({_listed(revisions)}): its images would be taken once from each",
            remedy="Remove all but one: `hf cache prune` keeps those that a branch or a tag names,"
            " `hf cache rm REVISION` removes another. Or load one into a folder of its own with"
            " `hf download --repo-type dataset OWNER/NAME --revision REVISION --local-dir FOLDER`.",
        )
    return f"{_SNAPSHOTS}/{revisions[0]}" if revisions else None


def _listed(revisions: Sequence[str]) -> str:
    return ", ".join(map(printable, revisions[:3])) + ", …" * (len(revisions) > 3)
