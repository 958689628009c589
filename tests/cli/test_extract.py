import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from clinit.cli.main import app
from clinit.errors import BackboneError, CacheError, ClinitError, ClusterError
from tests.extract.dataset.made import make_tar

ARGUMENTS = [
    "--backbone=convnextv2_atto",
    "--model-arg=depths=(1,1,1,1)",
    "--model-arg=dims=(4,8,8,12)",
    "--input-size=32",
    "--shard-rows=8",
    "--device=cpu",
]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def extract(tiny_weights: Path, tmp_path: Path) -> Callable[..., Result]:
    def call(*arguments: object, out: str = "cache") -> Result:
        places = ["--out", tmp_path / out, "--weights", tiny_weights]
        return run("extract", *places, *ARGUMENTS, *arguments)

    return call


def test_both_splits_are_extracted_and_summed_up(
    extract: Callable[..., Result], make_tree: Callable[..., Path], tmp_path: Path
) -> None:
    shown = extract("--dataset", "folder", "--root", make_tree())
    assert shown.exit_code == 0, shown.output
    assert (
        f"train: 15 images, features 15 x 12 float16 in 2 shards at {tmp_path}/cache/train"
        in shown.output
    )
    assert "val: 6 images" in shown.output
    assert "the bound is " in shown.output
    assert "stored head: top-1 " in shown.output
    assert "(its classes: stored with the weights)" in shown.output


def test_a_root_one_folder_too_deep_is_asked_about(
    extract: Callable[..., Result], make_tree: Callable[..., Path]
) -> None:
    root = make_tree()
    shown = " ".join(extract("--dataset", "folder", "--root", root / "train").output.split())
    told = f"Note: {root / 'train'} has no val split: none of its classes can be evaluated."
    assert f"{told} {root} has one: was --root {root} meant?" in shown
    complete = extract("--dataset", "folder", "--root", root, out="whole").output
    assert "has no val split" not in complete
    asked = extract("--dataset", "folder", "--root", root, "--split", "train", out="half").output
    assert "has no val split" not in asked


def test_test_images_become_the_split_val_where_that_is_asked_for(
    extract: Callable[..., Result], make_tree: Callable[..., Path], tmp_path: Path
) -> None:
    root = make_tree()
    (root / "val").rename(root / "test")
    assert extract("--dataset", "folder", "--root", root, "--split", "train").exit_code == 0
    shown = extract("--dataset", "folder", "--root", root, "--split", "test")
    assert f"val: 6 images, features 6 x 12 float16 in 1 shard at {tmp_path}/cache/val" in (
        shown.output
    )
    again = extract("--dataset", "folder", "--root", root)  # beside train, test is val
    assert again.output.count("already complete") == 2


@pytest.mark.parametrize("by_manifest", [False, True])
def test_shards_are_extracted_where_they_lie(
    extract: Callable[..., Result],
    make_tree: Callable[..., Path],
    tmp_path: Path,
    by_manifest: bool,
) -> None:
    images = sorted((make_tree() / "train").glob("*/*.png"))
    members = [(f"{p.parent.name}{p.stem}.png", p.read_bytes()) for p in images]
    labels = [(f"{p.parent.name}{p.stem}.txt", p.parent.name.encode()) for p in images]
    root = make_tar(tmp_path / "shards" / "0.tar", [*members, *labels]).parent
    source = ("--dataset", "webdataset")
    if by_manifest:
        source = ("--manifest", str(tmp_path / "m"))
        arguments = ("--root", root, "--split", "train", "--out", tmp_path / "m")
        assert run("manifest", "build", "webdataset", *arguments).exit_code == 0
    shown = extract(*source, "--root", root)
    assert shown.exit_code == 0, shown.output
    assert "train: 15 images, features 15 x 12 float16" in shown.output
    assert "stored head: top-1 " in shown.output


def test_one_split_and_a_limit(
    extract: Callable[..., Result], make_tree: Callable[..., Path], tmp_path: Path
) -> None:
    shown = extract(
        "--dataset", "folder", "--root", make_tree(), "--split", "val", "--limit-per-class", 1
    )
    assert "val: 3 images" in shown.output
    assert not (tmp_path / "cache" / "train").exists()


def test_a_manifest_built_before_gives_the_same_features(
    extract: Callable[..., Result], make_tree: Callable[..., Path], tmp_path: Path
) -> None:
    root, manifest = make_tree(), tmp_path / "train.parquet"
    built = run("manifest", "build", "folder", "--root", root, "--split=train", "--out", manifest)
    assert built.exit_code == 0
    assert extract("--manifest", manifest, "--root", root).exit_code == 0
    assert extract("--dataset", "folder", "--root", root, out="other").exit_code == 0
    for name in ("shard-00000.h5", "plan.json"):
        paths = [tmp_path / out / "train" / name for out in ("cache", "other")]
        assert paths[0].read_bytes() == paths[1].read_bytes()


def test_settings_come_from_a_file_and_the_command_line_wins(
    extract: Callable[..., Result], make_tree: Callable[..., Path], tmp_path: Path
) -> None:
    root, manifest = make_tree(), tmp_path / "val.parquet"
    run("manifest", "build", "folder", "--root", root, "--split=val", "--out", manifest)
    file = tmp_path / "study.toml"
    file.write_text(
        "[extract]\ndataset = 'folder'\ntransform = 'paper'\ndtype = 'float32'\nstrict = true\n"
        "[train-head]\nlr = 1e-3\n"
    )
    shown = extract("--config", file, "--root", root, "--dtype=float16", "--split=val")
    assert shown.exit_code == 0, shown.output
    plan = json.loads((tmp_path / "cache" / "val" / "plan.json").read_text())
    assert plan["dtype"] == "float16"
    assert plan["fingerprint"]["transform"].startswith("resize 37x37 ")  # 256 / 224 of 32
    other = extract("--config", file, "--root", root, "--manifest", manifest, out="other")
    assert other.exit_code == 0, other.output
    assert not (tmp_path / "other" / "train").exists()


def test_invalid_rows_are_read_again_and_what_came_of_it_is_said(
    extract: Callable[..., Result], make_tree: Callable[..., Path], tmp_path: Path
) -> None:
    root, path = make_tree(), tmp_path / "train.parquet"
    run("manifest", "build", "folder", "--root", root, "--split=train", "--out", path)
    for number in (1, 2):
        (root / "train" / "b" / f"{number}.png").rename(tmp_path / f"{number}.png")
    base = ["--manifest", path, "--root", root]
    assert (
        "Warning: 2 of 15 images have no features (--retry-invalid reads" in extract(*base).output
    )
    (tmp_path / "1.png").rename(root / "train" / "b" / "1.png")
    assert "2 of 15 images have no features" in extract(*base).output
    again = extract(*base, "--retry-invalid")
    assert again.exit_code == 0, again.output
    assert "  invalid rows read again: 2; invalid now: 1" in again.output
    assert "row 7  train/b/2.png: the file is missing" in again.output
    (tmp_path / "2.png").rename(root / "train" / "b" / "2.png")
    assert (
        "  invalid rows read again: 1; invalid now: 0" in extract(*base, "--retry-invalid").output
    )
    last = extract(*base, "--retry-invalid").output
    assert "  no row was invalid: none was read again" in last
    assert "already complete" in last


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("checkpoint_path=evil.pth", "the model argument 'checkpoint_path' is none of those that"),
        ("depths=[]", "timm cannot build convnextv2_atto with {'depths': []"),
        ("img_size=1000000000", "the model argument img_size = 1000000000 lies beyond 65,536"),
    ],
)
def test_a_wrong_model_argument_is_one_sentence(
    extract: Callable[..., Result], make_tree: Callable[..., Path], argument: str, text: str
) -> None:
    shown = extract("--dataset", "folder", "--root", make_tree(), "--model-arg", argument)
    assert isinstance(shown.exception, BackboneError)
    assert text in str(shown.exception)
    assert "--model-arg" in shown.exception.remedy


def test_many_bad_images_are_counted_and_the_list_is_pointed_to(
    extract: Callable[..., Result], make_tree: Callable[..., Path], tmp_path: Path
) -> None:
    root = make_tree(train=25)
    for number in range(25):
        (root / "train" / "b" / f"{number}.png").write_text("no pixels")
    shown = extract("--dataset", "folder", "--root", root)
    assert (
        "Warning: 25 of 75 images have no features (--retry-invalid reads them again):"
        in shown.output
    )
    assert shown.output.count("not an image of a known format") == 20
    assert f"all of them are listed in {tmp_path}/cache/train/cache.json" in shown.output


def test_a_head_without_names_says_how_to_name_it(
    make_tree: Callable[..., Path], tiny_weights: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    save_file(load_file(tiny_weights), tmp_path / "nameless.safetensors")
    places = ["--out", tmp_path / "cache", "--weights", tmp_path / "nameless.safetensors"]
    base = ["extract", *places, *ARGUMENTS, "--dataset", "folder", "--root", make_tree()]
    assert "name them with --head-classes" in run(*base).output
    shown = run(*base, "--head-classes", "dataset")
    assert (
        "stored head: top-1"
        in run(*base[:2], tmp_path / "named", *base[3:], "--head-classes", "dataset").output
    )
    assert shown.exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "give either --dataset or --manifest"),
        (["--dataset", "folder", "--manifest", "x"], "give either --dataset or --manifest"),
        (["--dataset", "folder", "--mean", "a"], "--mean takes one number or three, got 'a'"),
        (["--dataset", "folder", "--std", "1,2"], "--std takes one number or three, got '1,2'"),
        (["--dataset", "folder", "--std", "0"], "--std must not be negative or a deviation of 0"),
        (["--dataset", "folder", "--mean", "124"], "Was 124/255 meant"),
        (["--dataset", "folder", "--part=1/2", "--ray=x:1"], "--part and --ray exclude each"),
    ],
)
def test_wrong_options_are_refused(
    extract: Callable[..., Result],
    make_tree: Callable[..., Path],
    arguments: list[str],
    text: str,
) -> None:
    shown = extract("--root", make_tree(), *arguments)
    assert shown.exit_code == 2
    assert text in " ".join(shown.output.replace("│", " ").split())


def test_show_tells_what_the_features_depend_on(
    extract: Callable[..., Result], make_tree: Callable[..., Path], tmp_path: Path
) -> None:
    extract("--dataset", "folder", "--root", make_tree())
    shown = run("cache", "show", tmp_path / "cache").output
    plan = json.loads((tmp_path / "cache" / "train" / "plan.json").read_text())
    for name, value in plan["fingerprint"].items():
        assert name == "manifest" or (name in shown and value in shown)
    assert "3 rows, named" in shown


def test_verify_finds_a_flipped_byte_and_says_what_to_do(
    extract: Callable[..., Result], make_tree: Callable[..., Path], tmp_path: Path
) -> None:
    extract("--dataset", "folder", "--root", make_tree())
    assert "Everything is as it was written." in run("cache", "verify", tmp_path / "cache").output
    path = tmp_path / "cache" / "train" / "shard-00001.h5"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    failed = run("cache", "verify", tmp_path / "cache")
    assert isinstance(failed.exception, CacheError)
    assert str(failed.exception) == f"1 problem in {tmp_path / 'cache'}"
    assert f"\n  {path} " in failed.output
    assert "writes anew what is damaged" in failed.exception.remedy


def test_views_are_extracted_summed_up_and_shown(
    extract: Callable[..., Result], make_tree: Callable[..., Path], tmp_path: Path
) -> None:
    root, cache = make_tree(), tmp_path / "cache"
    (root / "train" / "b" / "2.png").write_text("no pixels")
    base = ["--dataset", "folder", "--root", root]
    assert extract(*base).exit_code == 0
    assert "  views" not in run("cache", "show", cache).output
    shown = extract(*base, "--views", 2, "--view-seed", 7)
    assert shown.exit_code == 0, shown.output
    assert shown.output.count("  already complete: every shard verified, nothing to do") == 2
    for number in (0, 1):
        assert f"train, view {number}: 15 images at " in shown.output
    assert shown.output.count("have no features") == 1, "what train has listed is not listed again"
    assert "2 views of the training images, seed 7: " in shown.output
    assert f"MB at {cache}/views" in shown.output
    kind = "random resized crop 32x32 bicubic antialias, area 0.08 to 1, aspect 3/4 to 4/3"
    assert f"  {kind}" in shown.output
    again = extract(*base, "--views", 1, "--view-seed", 7)
    assert "train, view 0: already complete, every shard verified; stored head" in again.output
    assert "1 view of the training images, seed 7: 0 s" in again.output
    assert "the cache holds 2 views: those that this command did not ask for stay" in again.output
    described = run("cache", "show", cache).output
    assert "       views  2 of train, seed 7, " in described
    assert kind in described


def test_parts_say_what_is_there_and_the_last_one_completes_the_cache(
    extract: Callable[..., Result], make_tree: Callable[..., Path], tmp_path: Path
) -> None:
    images = ["--dataset", "folder", "--root", make_tree()]
    first = extract(*images, "--part", "1/2", "--shard-rows", "4")
    assert first.exit_code == 0, first.output
    assert f"train, part 1/2: 2 of 4 shards are there, at {tmp_path}/cache/train" in first.output
    assert "  8 images computed" in first.output
    assert "the same command without --part computes what is missing" in first.output
    again = extract(*images, "--part", "1/2", "--shard-rows", "4")
    assert "  this part was complete: every shard verified" in again.output
    last = extract(*images, "--part", "2/2", "--shard-rows", "4")
    assert "train: 15 images, features 15 x 12 float16 in 4 shards" in last.output
    assert "--part" not in last.output


def test_a_cluster_needs_ray(
    extract: Callable[..., Result],
    make_tree: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    shown = extract("--dataset=folder", "--root", make_tree(), "--ray=127.0.0.1:1")
    assert isinstance(shown.exception, ClusterError)
    assert str(shown.exception) == "--ray needs Ray, which is not installed"
    assert shown.exception.remedy == 'Install it, on every node: pip install "clinit[ray]".'


HINT = (
    "this CPU multiplies bfloat16: --autocast bfloat16 would be faster; its features differ"
    " (another fingerprint), so it needs another --out"
)


@pytest.fixture
def bound_by_bf16(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let an extraction be as if the forward pass had bounded it, on a given CPU."""

    def pretend(*, has_bf16: bool = True, bound: str = "forward", long_s: float = 0.0) -> None:
        monkeypatch.setattr("clinit.machine.cpu_has_bf16", lambda: has_bf16)
        monkeypatch.setattr("clinit.extract.work.pipeline.Timing.bound", bound)
        monkeypatch.setattr("clinit.cli.extract._LONG_S", long_s)

    return pretend


def test_a_faster_arithmetic_is_named_once(
    extract: Callable[..., Result],
    make_tree: Callable[..., Path],
    bound_by_bf16: Callable[..., None],
) -> None:
    bound_by_bf16()
    root = make_tree()
    shown = extract("--dataset=folder", "--root", root)
    assert " ".join(shown.output.split()).count(HINT) == 1
    assert (
        "multiplies bfloat16" not in extract("--dataset=folder", "--root", root).output
    )  # was complete


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (("--dataset=imagenet1k",), "train"),
        (("--dataset=folder", "--part=0/2"), "expected i/n"),
        (("--manifest=absent",), "absent"),
    ],
)
def test_what_is_not_there_is_refused_before_anything_is_loaded(
    extract: Callable[..., Result], tmp_path: Path, words: tuple[str, ...], match: str
) -> None:
    shown = extract(*words, "--root", tmp_path)
    assert isinstance(shown.exception, ClinitError)
    assert match in str(shown.exception)
