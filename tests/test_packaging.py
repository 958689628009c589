import subprocess
import sys
import tarfile
import zipfile
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("analysis", "cli", "data_manifests", "extract", "headtrain")


@pytest.mark.parametrize("part", PARTS)
def test_the_package_links_every_top_level_folder(part: str) -> None:
    link = ROOT / "src" / "clinit" / part
    assert link.resolve() == ROOT / part
    assert not link.readlink().is_absolute()


def test_no_module_imports_itself_through_others() -> None:
    """Neither where it is loaded nor within a function, nor for types alone."""
    graph = grimp.build_graph("clinit", cache_dir=None)
    imports = {each: graph.find_modules_directly_imported_by(each) for each in graph.modules}
    order = {*TopologicalSorter(imports).static_order()}  # an error names the modules of a circle
    assert order >= {f"clinit.{part}" for part in PARTS}


@pytest.mark.slow
def test_the_wheel_and_the_sdist_hold_every_source_file(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path, ROOT],
        check=True,
        capture_output=True,
    )
    expected = {
        path.relative_to(ROOT).as_posix()
        for part in PARTS
        for path in (ROOT / part).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    } | {"__init__.py", "__main__.py", "errors.py", "py.typed"}
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        assert expected <= {name.removeprefix("clinit/") for name in wheel.namelist()}
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as sdist:
        names = {name.split("/", 1)[-1].removeprefix("src/clinit/") for name in sdist.getnames()}
        assert expected <= names
