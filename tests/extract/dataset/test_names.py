"""Names of classes: the forms of public lists, and names that differ in spelling only."""

from pathlib import Path

import pytest

from clinit.extract.dataset.names import alike, meant, names_in, near_names
from clinit.files.text import TextFileError

# A list of names, what is read; `\n` and `\t` are signs.
LISTS = r"""
ant\n\n bee \n | ant bee
0 ant\n1 bee | ant bee
1. ant\n2. bee | ant bee
0: ant\n1: bee | ant bee
1,bee\n0,ant | ant bee
ant\t0\nbee\t1 | ant bee
,0\n0,ant\n1,bee | ant bee
id,name\n0,ant\n1,bee | ant bee
name,label\nant,1\nbee,0 | bee ant
/a/airfield 0\n/b/bar/indoor 1 | airfield bar/indoor
n01440764 tench, Tinca tinca\nn01443537 goldfish | n01440764 n01443537
["ant", "bee"] | ant bee
{"1": "bee", "0": "ant"} | ant bee
{"ant": 1, "bee": 0} | bee ant
{0: 'ant',\n 1: 'bee'} | ant bee
{"0": ["n01440764", "tench"]} | n01440764
model-1\nmodel-2 | model-1 model-2
001.ak47\n002.flag | 001.ak47 002.flag
names:\n  0: ant\n  1: bee | ant bee
classes:\n- ant\n- bee | ant bee
* ant\n* bee | ant bee
0 - ant\n1 - bee | ant bee
ant=0\nbee=1 | ant bee
0|ant\n1|bee | ant bee
(1) ant\n(2) bee | ant bee
# names\n"ant",\n"bee" | ant bee
tench n01440764\ngoldfish n01443537 | n01440764 n01443537
"""


@pytest.mark.parametrize("line", LISTS.strip().splitlines())
def test_a_public_list_is_read_in_the_order_of_its_numbers(tmp_path: Path, line: str) -> None:
    content, names = line.split(" | ")
    path = tmp_path / "names.txt"
    path.write_text(content.replace(r"\n", "\n").replace(r"\t", "\t"))
    assert names_in(path) == tuple(names.split())


@pytest.mark.parametrize(
    "names",
    [
        *("boeing 707\nboeing 717", "model 1\nmodel 2", "tench, Tinca tinca\ncock, hen", "ant 0"),
        *("1 cent\n2 cent\n5 cent\n1 euro", "747 boeing\n320 airbus\n7 up", "-ant\nbee:"),
    ],
)
def test_numbers_and_signs_may_be_parts_of_names(tmp_path: Path, names: str) -> None:
    (tmp_path / "names.txt").write_text(names)
    assert names_in(tmp_path / "names.txt") == tuple(names.split("\n"))


@pytest.mark.parametrize(
    ("content", "fact"),
    [
        ("\n", "contains no name"),
        ("ant\ncrane\n\ncrane\n", "the name 'crane' is in lines 2 and 4"),
        ("0 ant\n1 crane\n2 bee\n3 crane", "the name 'crane' is in lines 2 and 4"),
        ('["a", "b", "a"]', "the name 'a' is in entries 1 and 3"),
        ("5,ant\n9,bee", "line 1 is '5,ant': the numbers of the lines"),
        ("0 ant\n1 bee\n5 cat", "line 1 is '0 ant': the numbers of the lines"),
        ("ant 0\nbee 1\ncat 3", "line 1 is 'ant 0': the numbers of the lines"),
        ("/data/ant\n/data/bee", "line 1 is '/data/ant': a path"),
        ("{ant\nbee", "line 1 is '{ant', neither"),
        ('{"ant": "bee"}', "neither"),
        ("[1, 2]", "line 1 is '[1, 2]'"),
        ("a" * 5000, "5,000 characters"),
    ],
)
def test_another_list_is_refused_with_its_line(tmp_path: Path, content: str, fact: str) -> None:
    (tmp_path / "names.txt").write_text(content)
    with pytest.raises(TextFileError) as refusal:
        names_in(tmp_path / "names.txt")
    assert fact in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("elk", "Elk"),
        ("cassette_player", "Cassette-player"),
        ("caf\u00e9", "cafe\u0301"),
        ("\uff21\uff22", "ab"),
        ("tench", "n01440764"),
        ("n01440764", "Tinca tinca"),
        ("St. Bernard", "st bernard"),
    ],
)
def test_names_in_another_spelling_are_near(name: str, other: str) -> None:
    told = near_names(["ant", name], ["ant", other], "val", "train")
    assert told.endswith(f": val has {name}, train has {other}")
    assert near_names([name, other], [other, name], "val", "train") is None


def test_a_word_means_the_class_of_this_name_or_all_of_which_it_is_a_word() -> None:
    known = ("n01440764", "n02012849", "n03126707", "boat_deck")
    told = {name: name for name in known} | {"Tench": known[0], "tench (n01440764)": known[0]}
    told |= {"crane": f"{known[1]} {known[2]}", "boat-deck": known[3], "iceberg": ""}
    assert {word: " ".join(meant(word, known)) for word in told} == told


def test_other_signs_make_other_names() -> None:
    assert near_names(["c", "कि"], ["c++", "का"], "val", "train") is None
    assert alike(["a b", "c", "A_b"]) == "classes whose names differ in spelling only: a b and A_b"
