import numpy as np
import pytest

from keras_elmo import Embedder
from keras_elmo.layer_choice import LayerChoice
from tests.embed.conftest import MANY

pytestmark = pytest.mark.backends

WEIGHTS = [0.2, -0.5, 1.3]


@pytest.mark.parametrize("engine", ["keras", "onnxruntime"])
@pytest.mark.parametrize("weights", [WEIGHTS, (0, 0.5, 0), np.float32([1, 2, 0])])
def test_given_weights(tiny_preset, engine, weights):
    if engine == "onnxruntime":
        pytest.importorskip("onnxruntime")
    ours = Embedder(tiny_preset, engine=engine)
    means = ours.embed_means(MANY, weights)
    for array, whole, mean in zip(ours.embed(MANY, weights), ours.embed(MANY), means, strict=True):
        expected = np.tensordot(weights, whole, 1)
        np.testing.assert_allclose(array, expected, atol=1e-5)
        if len(expected):
            np.testing.assert_allclose(mean, expected.mean(0), atol=1e-5)


@pytest.mark.parametrize(
    "layers",
    ["last", 3, -4, 1.0, True, None, [0.5, 0.5], [0, 0, 0], [1, "a", 0], [1, np.nan, 0], [[1, 2]]],
    ids=str,
)
def test_other_values_are_refused(embedder, layers):
    message = "'average', a number from -3 to 2, or a list of 3 weights .*Received: layers="
    with pytest.raises(ValueError, match=message):
        embedder.embed(MANY, layers)


def test_numbers_count_from_the_first_layer():
    assert LayerChoice.of(-1, 3) == LayerChoice.of(np.int64(2), 3)
    assert LayerChoice.of([0, 1, 1], 3).layers == (1, 2)
