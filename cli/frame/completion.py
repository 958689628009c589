"""What a shell proposes for a word of the command line that is being typed.

Each function is the `autocompletion` of an option or an argument. The shell starts a process for
every press of its key, so nothing here loads a library that computes. If nothing is proposed, the
shell completes the names of files and folders.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from clinit.cli.frame.recipes import names

_ARCHITECTURE = re.compile(r"^@register_model\s+def (\w+)\(", re.MULTILINE)
_PRETRAINED = re.compile(r"""^\s+['"](\w+\.\w+)['"]\s*:""", re.MULTILINE)


def backbones(incomplete: str) -> list[str]:
    """Propose names of timm's networks, with the tags of their weights.

    They are read from the source of the timm that is installed: to import it takes seconds.
    """
    found = find_spec("timm")
    if found is None or found.origin is None:
        return []
    names: set[str] = set()
    for path in Path(found.origin).parent.glob("models/*.py"):
        source = path.read_text(encoding="utf-8")
        names.update(_ARCHITECTURE.findall(source), _PRETRAINED.findall(source))
    return beginning((name for name in names if not name.endswith(".untrained")), incomplete)


def datasets(incomplete: str) -> list[str]:
    """Propose data sets: those that are described, and layouts that describe themselves."""
    from clinit.extract.dataset.known import FOLDER, HUGGINGFACE, WEBDATASET, known_datasets

    return beginning((*known_datasets(), FOLDER, WEBDATASET, HUGGINGFACE), incomplete)


def described_datasets(incomplete: str) -> list[str]:
    """Propose data sets that are described."""
    from clinit.extract.dataset.known import known_datasets

    return beginning(known_datasets(), incomplete)


def recipes(incomplete: str) -> list[str]:
    """Propose recipes."""
    return beginning(names(), incomplete)


def recipes_or_files(incomplete: str) -> list[str]:
    """Propose recipes, and files of options beside what is typed."""
    folder, slash, name = incomplete.rpartition("/")
    own = [each.name for each in Path(folder + slash).glob("*.toml")]
    return [*recipes(incomplete), *(folder + slash + each for each in beginning(own, name))]


def tables(incomplete: str) -> list[str]:
    """Propose tables of the paper."""
    from clinit.analysis.paper.tables import NAMES

    return beginning((*NAMES, "all"), incomplete)


def beginning(names: Iterable[str], incomplete: str) -> list[str]:
    """Return the names that begin with what is typed, sorted."""
    return sorted(name for name in names if name.startswith(incomplete))
