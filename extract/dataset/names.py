"""Names of classes: read lists of them, compare them, translate ImageNet's synsets.

Public lists of class names have many forms. `names_in` reads names alone, numbered names
(`0 ant`, `0,ant`, `1. ant`, `ant 0`), a table with a header, JSON, a Python dictionary, a list of
YAML, Places365's paths (`/a/airfield 0`), and synsets with their words (`n01440764 tench, Tinca
tinca`).
"""

from __future__ import annotations

import ast
import csv
import re
import unicodedata
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from clinit.errors import CacheError
from clinit.files.text import MAX_NAME, TextFileError, read_text
from clinit.words import cut_short, listed, number_of

CLASS_COLUMNS = (
    *("class_name", "label_name", "category_name", "species_name", "class", "category", "species"),
    *("breed", "label", "labels", "classname", "target", "scientific_name", "variety", "name"),
)
"""Usual names of a table's column of classes; names come before numbers."""


def column_key(name: str) -> str:
    """Return the name of a column without case, blanks, `_` and `-`."""
    return re.sub(r"[\s_-]", "", name).casefold()


def usual_columns(names: Sequence[str], usual: Iterable[str]) -> list[int]:
    """Return the numbers of the columns with usual names, in the order of `usual`."""
    keys = [*map(column_key, names)]
    return [keys.index(key) for key in map(column_key, usual) if key in keys]


_Lines = list[tuple[int, str]]
"""Numbers of lines (or of entries of JSON) from 1, and their texts."""
_NUMBERED = (
    re.compile(r"\(?(?P<number>\d+)(?P<sign>\s*[:,;)|=\t]\s*|\.\s+|\s+(-\s+)?)(?P<name>\S.*)"),
    re.compile(r"(?P<name>.*\S)(?P<sign>\s*[:,;|=\t]\s*|\s+(-\s+)?)(?P<number>\d+)"),
)
_SYNSET_AND_WORDS = re.compile(r"(n\d{8})[\s,:;|=]+\S.*|.*\S[\s,:;|=]+(n\d{8})")
_BULLET = re.compile(r"""[-*•]\s+(\S.*)|"([^"]+)",?|'([^']+)',?""")
_PLACE = re.compile(r"/([a-z])/(\1.*)")
_PATH = re.compile(r"/|\.{1,2}/|~|[A-Za-z]:\\")


LIST = "Write one name per line, every name once."
HEAD_LIST = f"{LIST} ImageNet's 1,000 rows can be named by synset: leave out `--head-classes`."


def read_class_names(path: Path, remedy: str = LIST) -> tuple[str, ...]:
    """Read class names from UTF-8 text, as `names_in` does.

    Raises:
        CacheError: If the file cannot be read as text, has no names, or repeats a name.
    """
    try:
        return names_in(path)
    except TextFileError as error:
        raise CacheError(f"cannot read class names in {path}: {error}", remedy=remedy) from error


def names_in(path: Path) -> tuple[str, ...]:
    """Return the class names in a file, in the order of their numbers if it has numbers.

    Raises:
        TextFileError: If the file cannot be read, has no names, repeats a name, or has a form that
            is not known.
    """
    text = read_text(path)
    # Not `splitlines`, which also splits at characters that a name may contain.
    split = enumerate(re.split(r"\r\n?|\n", text), start=1)
    lines = [(n, line.strip()) for n, line in split if line.strip() and not line.startswith("# ")]
    if not lines:
        raise TextFileError("the file contains no name")
    first = f"line {lines[0][0]} is {cut_short(lines[0][1])}"
    if lines[0][1][0] in "[{":
        found, place = _from_document(text, first), "entries"
    else:
        is_table = path.suffix.lower() in (".csv", ".tsv")
        found, place = _from_lines(lines, first, is_table=is_table), "lines"
    names = tuple(name for _, name in found)
    if (longest := max(map(len, names), default=0)) > MAX_NAME:
        raise TextFileError(f"a name has {longest:,} characters, expected at most {MAX_NAME:,}")
    line_of: dict[str, int] = {}
    for number, name in found:
        if line_of.setdefault(name, number) != number:
            raise TextFileError(f"the name {name!r} is in {place} {line_of[name]} and {number}")
    return names


def _from_document(text: str, first: str) -> _Lines:
    """Read JSON, or a Python dictionary: `{0: 'tench, Tinca tinca', ...}`."""
    content: Any = None
    with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
        content = ast.literal_eval(text.strip())
    if isinstance(content, dict):
        content = content.get("id2label", content)
        pairs = [(str(key), value) for key, value in content.items()]
        if all(isinstance(value, int) for _, value in pairs):
            pairs = [(str(value), key) for key, value in pairs]
        if {key for key, _ in pairs} == set(map(str, range(len(pairs)))):
            content = [value for _, value in sorted(pairs, key=lambda pair: int(pair[0]))]
    if not isinstance(content, list) or not content:
        raise TextFileError(f"{first}, neither a list of names nor names by number from 0")
    # Keras: {"0": ["n01440764", "tench"], ...}
    names = [each[0] if isinstance(each, list) and each else each for each in content]
    if not all(isinstance(name, str) and name.strip() for name in names):
        raise TextFileError(f"{first}, and a name in it is not a text")
    return list(enumerate((name.strip() for name in names), start=1))


def _from_lines(lines: _Lines, first: str, *, is_table: bool) -> _Lines:
    if len(lines) > 1 and re.fullmatch(r"\w+:", lines[0][1]):  # YAML: `names:`
        lines = lines[1:]
    bullets = [_BULLET.fullmatch(line) for _, line in lines]
    if all(bullets):
        lines = [(n, b[b.lastindex or 0]) for (n, _), b in zip(lines, bullets, strict=True) if b]
    sign = next((sign for sign in "\t;," if sign in lines[0][1]), "")
    if is_table or sign:
        head, *rows = csv.reader((line for _, line in lines), delimiter=sign or ",")
        columns = usual_columns(head, CLASS_COLUMNS)
        if columns and {len(row) for row in rows} == {len(head)}:
            are_names = (i for i in columns if not all(row[i].isdecimal() for row in rows))
            at = next(are_names, columns[0])
            named = [(n, row[at].strip()) for (n, _), row in zip(lines[1:], rows, strict=True)]
            numbers = [[row[i].strip() for row in rows] for i in range(len(head)) if i != at]
            return next(filter(None, (_in_order(each, named) for each in numbers)), named)
    for pattern in _NUMBERED:
        for skipped in (0, 1) if sign else (0,):  # perhaps a header
            kept = lines[skipped:]
            matches = [pattern.fullmatch(line) for _, line in kept]
            if len(matches) < 2 or not all(matches):
                continue
            told = [match.groupdict() for match in matches if match is not None]
            named = [(n, t["name"].strip('"')) for (n, _), t in zip(kept, told, strict=True)]
            ordered = _in_order([each["number"] for each in told], named)
            # `model 1`, `model 2` are names with numbers, not numbered names.
            are_several = 2 * len({name for _, name in named}) > len(named)
            if ordered and are_several:
                return _without_paths(ordered, first)
            counted = [int(each["number"]) for each in told]
            are_bare = all(each["sign"].strip() in ("", ".") for each in told)  # `boeing 707`
            is_near = counted[0] in (0, 1) and counted[-1] <= 2 * len(counted)
            are_rows = (pattern is _NUMBERED[0] or is_near) and are_several and len(counted) > 2
            if are_bare and not (are_rows and counted == sorted({*counted})):
                continue
            raise TextFileError(f"{first}: the numbers of the lines do not count from 0 or 1")
    synsets = [_SYNSET_AND_WORDS.fullmatch(line) for _, line in lines]
    if all(synsets):
        return [(n, s[1] or s[2]) for (n, _), s in zip(lines, synsets, strict=True) if s]
    return _without_paths(lines, first)


def _in_order(numbers: Sequence[str], names: _Lines) -> _Lines | None:
    """Return names in the order of their numbers; None if these do not count from 0 or 1."""
    if not all(number.isdecimal() for number in numbers):
        return None
    order = sorted(range(len(names)), key=lambda row: int(numbers[row]))
    start = int(numbers[order[0]])
    is_counted = [int(numbers[row]) for row in order] == [*range(start, start + len(names))]
    return [names[row] for row in order] if is_counted and start in (0, 1) else None


def _without_paths(lines: _Lines, first: str) -> _Lines:
    places = [_PLACE.fullmatch(name) for _, name in lines]
    if all(places):
        return [(n, place[2]) for (n, _), place in zip(lines, places, strict=True) if place]
    if all(_PATH.match(name) for _, name in lines):
        raise TextFileError(f"{first}: a path, not a name")
    return lines


def plain(name: str) -> str:
    """Return a name without case, blanks, `_`, hyphens, `/.,'`, and forms of Unicode.

    >>> plain("Cassette-Player"), plain("cassette player")
    ('cassetteplayer', 'cassetteplayer')
    """
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    dropped = ("Zs", "Pc", "Pd", "Cc", "Cf")
    kept = (each for each in folded if unicodedata.category(each) not in dropped)
    return "".join(each for each in kept if each not in "/.,'") or name


def by_word(names: Iterable[str]) -> dict[str, str]:
    """Return the first class with each plain word: its name, or a synonym of an ImageNet synset."""
    return {plain(word): name for name in reversed([*names]) for word in synonyms(name)}


def meant(word: str, names: Sequence[str]) -> list[str]:
    """Return the class of this name or, if there is none, all classes that have it as a word."""
    near = {each: {*map(plain, (*synonyms(each), in_words(each)))} for each in names}
    return [word] if word in near else [each for each in names if plain(word) in near[each]]


def near_names(names: Iterable[str], others: Iterable[str], here: str, there: str) -> str | None:
    """Return a warning about names that are not in `others`, but are spelt like a name there.

    A word for a synset of ImageNet is near to the synset.

    Args:
        names: Names of classes.
        others: Names to compare with.
        here: Owner of the first names, such as `val`.
        there: Owner of the other names.
    """
    known, pairs = list(others), list[tuple[str, str]]()
    if missing := [name for name in dict.fromkeys(names) if name not in {*known}]:
        near = by_word(known)
        for name in missing:
            found = (near.get(plain(word)) for word in synonyms(name))
            pairs += [(name, other) for other in found if other is not None][:1]
    if not pairs:
        return None
    shown = [f"{here} has {one}, {there} has {other}" for one, other in pairs[:3]]
    more = f" and {len(pairs) - 3:,} more" if len(pairs) > 3 else ""
    which = number_of(len(pairs), "name")
    return f"{which} spelt in two ways, which count as different classes: {'; '.join(shown)}{more}"


def alike(names: Iterable[str]) -> str | None:
    """Return a warning about names of one list that differ in spelling only."""
    same: dict[str, list[str]] = {}
    for name in names:
        same.setdefault(plain(name), []).append(name)
    if found := [listed(each) for each in same.values() if len(each) > 1]:
        return f"classes whose names differ in spelling only: {'; '.join(found[:3])}"
    return None


_IDENTIFIER = re.compile(r"n\d{8}")


@cache
def _lemmas() -> dict[str, str]:
    """Return the words of each synset: timm's table, read without the four seconds of timm."""
    spec = find_spec("timm")
    assert spec is not None
    assert spec.origin is not None
    table = Path(spec.origin).parent / "data" / "_info" / "imagenet_synset_to_lemma.txt"
    return dict(csv.reader(table.read_text(encoding="utf-8").splitlines(), delimiter="\t"))


def title(class_name: str) -> str:
    """Return the first synonym of an ImageNet synset; return other class names unchanged.

    Titles may repeat: two classes of ImageNet-1K are a `crane`.

    >>> title("n01440764"), title("campsite")
    ('tench', 'campsite')
    """
    return synonyms(class_name)[0]


def synonyms(class_name: str) -> list[str]:
    """Return all synonyms of an ImageNet synset; return other class names unchanged.

    >>> synonyms("n01440764")
    ['tench', 'Tinca tinca']
    """
    if not _IDENTIFIER.fullmatch(class_name):
        return [class_name]
    return _lemmas().get(class_name, class_name).split(", ")


def in_words(class_name: str) -> str:
    """Return an ImageNet synset with its title: `tench (n01440764)`; other names unchanged."""
    words = title(class_name)
    return class_name if words == class_name else f"{words} ({class_name})"
