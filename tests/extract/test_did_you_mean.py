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
