"""The search for distinct tokens."""

import numpy as np
import pytest
from keras import ops

from keras_elmo.layers.backend.distinct_rows import distinct_rows
from tests.conftest import BACKEND, numpy

pytestmark = pytest.mark.backends


@pytest.mark.skipif(BACKEND == "jax", reason="JAX compiles for fixed sizes")
@pytest.mark.parametrize("n_ids", [262, 40_000])
def test_distinct_rows(n_ids):
    """Rows that differ in any one id are distinct."""
    tokens = np.random.default_rng(0).integers(0, n_ids, size=(7, 50))
    tokens[:5] = tokens[0]
    tokens[1:5, [0, 6, 7, 49]] = n_ids - 1 - np.eye(4, dtype=int)
    ids = tokens[[[0, 1, 2, 0], [3, 4, 5, 6], [6, 6, 6, 1]]].astype("int32")
    rows, indices = distinct_rows(ops.convert_to_tensor(ids), n_ids)
    assert rows.shape[0] == 7 + 1  # and a row of padding
    np.testing.assert_array_equal(numpy(rows)[numpy(indices)], ids.reshape(12, 50))
    if BACKEND == "tensorflow":  # LiteRT cannot search, and gets one sentence.
        assert distinct_rows(ops.convert_to_tensor(ids[:1]), n_ids)[1] is None
