import os
import shutil
import stat
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
VERSION = PROJECT["version"]
PARTS = ("analysis", "cli", "data_manifests", "extract", "headtrain")


@pytest.mark.parametrize("part", PARTS)
def test_the_package_links_every_top_level_folder(part: str) -> None:
    link = ROOT / "src" / "clinit" / part
    assert link.resolve() == ROOT / part
    assert not link.readlink().is_absolute()


def test_the_citation_has_the_version() -> None:
    assert f"\nversion: {VERSION}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_no_module_imports_itself_through_others() -> None:
    """Neither where it is loaded nor within a function, nor for types alone.

    But `Model` imports its verbs when they are called, and they take a `Model`.
    """
    graph = grimp.build_graph("clinit", cache_dir=None)
    imports = {each: graph.find_modules_directly_imported_by(each) for each in graph.modules}
    model = "clinit.headtrain.model.model"
    verbs = {each for each in imports[model] if model in graph.find_upstream_modules(each)}
    assert all(each.startswith("clinit.headtrain.model.") for each in verbs)
    imports[model] -= verbs
    order = {*TopologicalSorter(imports).static_order()}  # an error names the modules of a circle
    assert order >= {f"clinit.{part}" for part in PARTS}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of wheel and sdist; the wheel is built from the sdist."""
    folder, copy = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("copy") / "source"
    left_out = shutil.ignore_patterns("tests", "build", "dist", "site", ".[!c]*", "__pycache__")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=left_out)
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, copy],
        check=True,
        capture_output=True,
    )
    return folder


@pytest.mark.slow
def test_the_wheel_and_the_sdist_hold_every_source_file(built: Path) -> None:
    expected = {
        path.relative_to(ROOT).as_posix()
        for part in PARTS
        for path in (ROOT / part).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    } | {"__init__.py", "__main__.py", "api.py", "errors.py", "py.typed"}
    with zipfile.ZipFile(min(built.glob("*.whl"))) as wheel:
        assert {name.removeprefix("clinit/") for name in wheel.namelist()} >= expected
        for info in wheel.infolist():
            assert not stat.S_ISLNK(info.external_attr >> 16), info.filename
    with tarfile.open(min(built.glob("*.tar.gz"))) as sdist:
        names = {name.split("/", 1)[-1].removeprefix("src/clinit/") for name in sdist.getnames()}
        assert names >= expected | {"CHANGELOG.md", "CITATION.cff", "docs/index.md"}
        assert [member.name for member in sdist if member.issym()] == []


@pytest.mark.slow
def test_the_wheel_runs_without_the_source(built: Path, tmp_path: Path) -> None:
    place = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", place, min(built.glob("*.whl"))], check=True)
    environment = {**os.environ, "PYTHONPATH": str(place)}

    def run(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = run("-c", "import clinit; print(clinit.__file__, clinit.__version__)")
    assert where.split() == [str(place / "clinit" / "__init__.py"), VERSION]
    assert run("-m", "clinit", "--version") == f"clinit {VERSION}\n"
    assert "table2-last-layer" in run("-m", "clinit", "recipe", "list")
    assert "imagenet1k" in run("-m", "clinit", "manifest", "show", "imagenet1k")


def test_no_file_names_where_packages_are_downloaded() -> None:
    words = ("index-url", "find-links", "files.pythonhosted.org", "/simple/")
    names = "pyproject.toml Makefile README.md MANIFEST.in .ci/run zensical.toml"
    for name in names.split():
        text = (ROOT / name).read_text(encoding="utf-8")
        assert [word for word in words if word in text] == [], name
