from clinit.extract.did_you_mean import closest, did_you_mean


def test_the_closest_word_is_proposed_whatever_its_case_and_joints() -> None:
    known = ("buffer_per_class", "buffer", "least-square")
    assert closest("Buffer-Per-Clas", known) == "buffer_per_class"
    assert closest("least_squares", known) == "least-square"
    assert closest("table2", ("table1-start", "table2-last-layer")) == "table2-last-layer"


def test_where_no_word_is_like_it_nothing_is_asked() -> None:
    assert closest("zebra", ("text", "sgm")) is None
    assert did_you_mean("zebra", ("text", "sgm"), lead=". ") == ""
    assert did_you_mean("sgn", ("text", "sgm"), lead=". ") == ". Did you mean sgm?"


def test_the_dashes_before_an_option_are_no_letters_of_it() -> None:
    """With them, `--out` was more like `--quiet` than not."""
    assert closest("--out", ("--quiet", "--help")) is None
    assert closest("--output", ("--top", "--json")) is None
    assert closest("--out", ("--plot", "--means")) is None
    assert closest("--itertions", ("--iterations", "--init")) == "--iterations"
    assert closest("--quite", ("--quiet", "--help")) == "--quiet"
    assert closest("--o", ("--out", "--help")) is None
