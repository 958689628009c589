"""One name of a class or of a type means one thing in the whole package."""

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("src/clinit", "extract", "headtrain", "analysis", "cli")
OPTION_TYPES = {"Labels", "Workers", "Loss", "Logits", "Values", "Weighting", "Kind", "Command"}
"""Types of options, and of arrays, that files name alike for their own use."""


def defined(path: Path) -> list[str]:
    """Return the public classes and types that a file defines."""
    found = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            found.append(node.name)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.append(node.targets[0].id)
    return [name for name in found if name[0].isupper() and not name.isupper()]


def test_no_two_classes_or_types_have_one_name() -> None:
    paths = {path.resolve() for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    names = Counter(name for path in paths for name in defined(path))
    assert {name for name, count in names.items() if count > 1} <= OPTION_TYPES
