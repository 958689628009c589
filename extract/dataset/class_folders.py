"""Find the class folders in a tree: which folders are splits, and which are classes.

A class folder has images of its own, or a folder such as `images` that has. Folders named as a
split (`part_of`) are never classes next to each other. A folder that contains only folders is no
class: it is entered if this gives one reading (`photos/train/<class>`, `seg_train/seg_train/
<class>`), and refused otherwise, because its folders may be classes or parts of one class.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from clinit.errors import ManifestError
from clinit.extract.dataset.known import FOLDER, Dataset, Layout
from clinit.extract.dataset.names import alike, near_names
from clinit.extract.dataset.tree import LEFT, SCAN_THREADS, Tree
from clinit.words import counted, examples, listed, printable

_WORDS = {
    "train": ("train", "training", "trn", "trainval"),
    "validation": ("validation", "valid", "val", "dev", "validate", "holdout"),
    "test": ("test", "testing", "eval", "evaluation", "tst"),
}
_PART_OF = {word: part for part, words in _WORDS.items() for word in words}
_ORDER = list(_PART_OF)
PARTS_OF = {"train": ("train",), "val": ("validation", "test"), "test": ("test",)}
"""Split -> parts that may be read as the split; the first existing part is used."""
_FILLER = r"images?|imgs?|photos?|pictures?|pics?|files?|folders?|data|datasets?|sets?|splits?|seg"
LABELS = "name the classes of single images in a table: `--labels FILE`"


def part_of(name: str) -> str:
    """Return the part of a data set that a folder's name means; an empty text for other names.

    >>> part_of("Training Set"), part_of("test-images"), part_of("valset"), part_of("test_tube")
    ('train', 'test', 'validation', '')
    """
    return _PART_OF.get(_core(name), "")


def _core(name: str) -> str:
    """Return a name without words such as `images`, and without digits and signs."""
    words = re.findall(r"[^\W\d_]+", name.lower())
    whole = (re.sub(r"(?<=[a-z]{3})(sets?|images?|imgs?|data)$", "", word) for word in words)
    return " ".join(word for word in whole if not re.fullmatch(_FILLER, word))


def is_filler(name: str) -> bool:
    """Return whether a name consists of words such as `images`, so that it names no class."""
    return not _core(name) and re.search(r"[^\W\d_]", name) is not None


@dataclass(frozen=True, slots=True)
class _Level:
    """The sub-folders of a folder."""

    folder: str
    own: list[str]
    """Folders with images of their own."""
    below: list[str]
    """Folders that contain only folders."""
    empty: list[str]

    @classmethod
    def of(cls, tree: Tree, folder: str) -> _Level:
        names = tree.folders(folder)

        def kind(name: str) -> str:
            path = _join(folder, name)
            if not part_of(name) and tree.has_image(path):
                return "own"
            inside = tree.folders(path)
            parts = [_join(path, each) for each in inside if is_filler(each)]
            if part_of(name) and len(parts) < len(inside):
                return "below"  # even if an image lies next to the class folders
            if any(map(tree.has_image, (path, *parts))):
                return "own"
            return "below" if inside else "empty"

        with ThreadPoolExecutor(SCAN_THREADS) as pool:
            kinds = list(pool.map(kind, names))
        of = {each: [n for n, k in zip(names, kinds, strict=True) if k == each] for each in kinds}
        return cls(folder, *(of.get(each, []) for each in ("own", "below", "empty")))

    def entered(self, tree: Tree) -> _Level:
        """Return the level below if the only folder is no class, but contains classes or splits."""
        if self.own or len(self.below) != 1 or (self.folder == "." and part_of(self.below[0])):
            return self
        inner = _Level.of(tree, _join(self.folder, self.below[0]))
        # A single folder with one folder of images is a class, unless its name rules that out.
        is_no_class = part_of(self.below[0]) or is_filler(self.below[0])
        several = len(inner.own) + len(inner.below) > 1 or any(map(part_of, inner.below))
        return inner if several or (inner.own and is_no_class) else self

    @property
    def classes(self) -> list[str]:
        """All folders except empty ones that are named as a split."""
        return sorted([*self.own, *(name for name in self.empty if not part_of(name))])

    def refuse_folders(self, tree: Tree) -> None:
        """Refuse folders that contain only folders.

        Raises:
            ManifestError: If there is one.
        """
        if not self.below:
            return
        inside = tree.folders(_join(self.folder, self.below[0]))
        paths = [printable(tree.root / _join(self.folder, name)) for name in self.below]
        have = "contains no image" if len(paths) == 1 else "contain no images"
        raise ManifestError(
            f"{listed(paths[:3]) if len(paths) < 4 else examples(paths)} {have} but folders"
            f" ({examples([*map(printable, inside)])}), so the classes are unclear",
            remedy=f"If these are class folders, give `{paths[0]}`; if they belong to one class,"
            " move their images up into its folder. Splits are found by names such as train and"
            f" val. Or {LABELS}.",
        )


def find_classes(tree: Tree, split: str) -> Dataset:
    """Describe a tree of class folders; a label means the same in all splits.

    Args:
        tree: The tree.
        split: The split to read: train, val, or test, which takes the place of val.

    Raises:
        ManifestError: If it is unclear which folders are classes.
    """
    top = _Level.of(tree, ".").entered(tree)
    flat = [name for name in top.own if part_of(name)]
    splits = [name for name in top.below if part_of(name)]
    others = [name for name in (*top.own, *top.below) if not part_of(name)]
    if splits and (any(part_of(name) == "train" for name in splits) or not others):
        return _of_splits(tree, split, top, splits)
    if len(flat) > 1 or (flat and not others):
        raise ManifestError(
            f"{listed([printable(tree.root / _join(top.folder, each)) for each in flat])}"
            f" {'contain' if len(flat) > 1 else 'contains'} images but no class folder",
            remedy=f"Sort the images into a folder per class, or {LABELS}.",
        )
    top.refuse_folders(tree)
    warnings = [
        f"the folder {name} has images of its own: it is read as a class, not as a split"
        for name in flat
    ]
    return _found(tree, {"train": [top]}, {".", top.folder}, warnings)


def _of_splits(tree: Tree, split: str, top: _Level, names: list[str]) -> Dataset:
    order = sorted(names, key=lambda name: (_ORDER.index(_core(name)), name))
    found: dict[str, list[_Level]] = {}
    firsts: list[str] = []
    for each in ("train", "test" if split == "test" else "val"):
        fitting = [_join(top.folder, name) for name in order if part_of(name) in PARTS_OF[each]]
        if fitting:
            first = _Level.of(tree, fitting[0]).entered(tree)
            first.refuse_folders(tree)
            firsts.append(fitting[0])
            found[each] = [first, *(_Level(folder, [], [], []) for folder in fitting[1:])]
    left = [_join(top.folder, name) for name in (*top.own, *top.below) if name not in names]
    flat = [path for path in left if part_of(path.rpartition("/")[2])]
    warnings = [
        *counted(flat, f"splits left out, whose images are in no class folder; {LABELS}"),
        *counted([path for path in left if path not in flat], "folders left out, next to splits"),
    ]
    return _found(tree, found, {".", top.folder, *firsts}, warnings)


def _found(
    tree: Tree, levels: dict[str, list[_Level]], passed: set[str], warnings: list[str]
) -> Dataset:
    """Return the description, with warnings about names and files next to class folders."""
    first = {split: each[0] for split, each in levels.items()}
    *earlier, (last, level) = first.items()
    near = [near_names(level.classes, other.classes, last, split) for split, other in earlier]
    same = [alike(each.classes) for each in first.values()]
    folders = [each.folder for each in first.values()]
    beside = [tree.images(each, deep=False) for each in sorted(passed.difference(folders))]
    loose = [path for images in beside for path in images.paths]
    entered = [each for each in folders if each != "." and not part_of(each)]
    places = {split: tuple(each.folder for each in of) for split, of in levels.items()}
    warnings += counted(loose, "files left out, outside of any class folder")
    warnings += filter(None, (*near, *same))
    notes = [f"class folders are read from {listed(entered)}"] if entered else []
    notes += counted([path for images in beside for path in images.left], LEFT)
    return Dataset(
        name=FOLDER,
        title="this folder",
        layouts=(Layout(kind="class-folders", folders=places),),
        classes=tuple(sorted({name for each in first.values() for name in each.classes})),
        warnings=tuple(warnings),
        notes=tuple(notes),
    )


def _join(folder: str, name: str) -> str:
    return name if folder == "." else f"{folder}/{name}"
