import numpy as np
import torch

from clinit.extract.cache.head import Head
from clinit.headtrain.heads.linear import Rows

WEIGHT = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
BIAS = np.array([0.1, 0.2, 0.3])


def test_the_rows_of_a_head_are_its_numbers_in_float64() -> None:
    head = Head(WEIGHT.astype(np.float32), BIAS.astype(np.float32), ("a", "b", "c"), "f")
    rows = Rows.of_head(head)
    assert rows.weight.dtype == rows.bias.dtype == np.float64
    np.testing.assert_array_equal(rows.weight, head.weight)
    np.testing.assert_array_equal(rows.bias, head.bias)
    again = rows.as_head(head.class_names, head.fingerprint)
    assert (again.class_names, again.fingerprint) == (("a", "b", "c"), "f")
    assert again.weight.dtype == again.bias.dtype == np.float32
    assert again.weight.tobytes() == head.weight.tobytes()
    assert again.bias.tobytes() == head.bias.tobytes()


def test_a_head_of_tensors_is_rounded_to_float32_and_of_unknown_origin() -> None:
    head = Rows(torch.from_numpy(WEIGHT), torch.from_numpy(BIAS)).as_head(None)
    assert (head.class_names, head.fingerprint) == (None, "")
    assert isinstance(head.bias, np.ndarray)
    np.testing.assert_array_equal(head.bias, BIAS.astype(np.float32))
