"""What makes a test fail by chance is refused in all of them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
LISTINGS = ("iterdir", "glob", "rglob", "listdir", "scandir")
DRAWS = re.compile(
    r"(np|numpy)\.random\.(?!default_rng|Generator|seed|SeedSequence)\w+"
    r"|random\.(?!Random$|seed$)\w+"
    r"|torch\.(rand|randn|randint|randperm|normal|bernoulli|multinomial|rand_like|randn_like)"
)


def called(node: ast.AST) -> str:
    """Return what is called, such as `time.sleep`; empty if the node is no call."""
    return name_of(node.func) if isinstance(node, ast.Call) else ""


def name_of(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def lists_in_any_order(node: ast.AST) -> bool:
    name = called(node).rpartition(".")[2]
    if name in ("sorted", "min", "max", "set", "len"):
        return False
    return name in LISTINGS or any(map(lists_in_any_order, ast.iter_child_nodes(node)))


def is_shared(node: ast.AST) -> bool:
    """Return whether it is a fixture of several tests, which draws before one is seeded."""
    if not any("scope=" in ast.unparse(each) for each in getattr(node, "decorator_list", ())):
        return False
    return not any(called(each).endswith("manual_seed") for each in ast.walk(node))


def complaints(source: str) -> Iterator[str]:
    module = ast.parse(source)
    imported = [ast.unparse(each) for each in module.body if isinstance(each, ast.Import)]
    functions = [each for each in ast.walk(module) if isinstance(each, ast.FunctionDef)]
    inside = {part for each in functions if not is_shared(each) for part in ast.walk(each)}
    inside -= {part for each in functions if is_shared(each) for part in ast.walk(each)}
    generators = {
        target.id
        for each in module.body
        if isinstance(each, ast.Assign) and called(each.value).endswith(("default_rng", "Random"))
        for target in each.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(module):
        name, line = called(node), getattr(node, "lineno", 0)
        code = str(getattr(node, "value", "")) if isinstance(node, ast.Constant) else ""
        if name in ("time.sleep", "sleep") or "time.sleep(" in code:
            yield f"{line}: sleeps"
        if isinstance(node, ast.Compare):
            sides = (node.left, *node.comparators)
            if any(called(each).endswith(".stat") for each in sides):
                yield f"{line}: compares all that `stat` tells, which reading changes"
        is_first = isinstance(node, ast.Subscript) and ast.unparse(node.slice) in ("0", "-1")
        if (name == "next" or is_first) and lists_in_any_order(node):
            yield f"{line}: takes the first of a listing in any order"
        if re.search(r"(default_rng|random\.Random)$", name) and not node.args:  # type: ignore[attr-defined]
            yield f"{line}: makes a generator without a seed"
        is_draw = DRAWS.fullmatch(name) and (name[:7] != "random." or "import random" in imported)
        if is_draw and node not in inside and "generator=" not in ast.unparse(node):
            yield f"{line}: draws before a test is seeded"
        if isinstance(node, ast.Name) and node.id in generators and node in inside:
            yield f"{line}: several tests draw from one generator"


@pytest.mark.parametrize(
    "planted",
    [
        "import time\ndef test() -> None:\n    time.sleep(1)",
        "CODE = 'import time; time.sleep(1)'",
        "def test(path):\n    before = path.stat()\n    assert path.stat() == before",
        "def test(path):\n    next(path.iterdir())",
        "def test(path):\n    next(each for each in path.rglob('*') if each.is_file())",
        "def test(path):\n    list(path.glob('*'))[0]",
        "def test(path):\n    [*path.glob('*')][-1]",
        "def test(path):\n    os.listdir(path)[0]",
        "def test():\n    np.random.default_rng().normal()",
        "VALUES = torch.randn(3)",
        "import random\nVALUE = random.random()",
        "@pytest.fixture(scope='module')\ndef values():\n    return np.random.normal()",
        "RNG = np.random.default_rng(0)\ndef test():\n    RNG.normal()",
    ],
)
def test_a_planted_fault_is_found(planted: str) -> None:
    (found,) = complaints(planted)
    assert found.startswith(f"{len(planted.splitlines())}: ")


def test_no_test_depends_on_time_or_chance() -> None:
    good = "def test(path):\n    min(path.glob('*')), sorted(path.iterdir())[0], torch.randn(3)"
    assert list(complaints(good)) == []
    paths = {*FOLDER.rglob("*.py")} - {Path(__file__)}
    found = {path.name: list(complaints(path.read_text("utf-8"))) for path in sorted(paths)}
    assert {name: told for name, told in found.items() if told} == {}
