import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from keras_elmo.formats import bilm_weights, weight_mapping
from keras_elmo.formats.base import BiLMFile
from keras_elmo.formats.bilm_weights import bilm_mapping
from keras_elmo.layers import BiLM, ElmoLayer
from tests.conftest import make_arrays, make_config, write_preset

pytestmark = pytest.mark.backends("torch")

floats = st.floats(-10, 10, width=32)


def cases():
    """Yield each transform of the mapping, with shapes that it takes."""
    side = st.integers(1, 4)
    yield bilm_weights.PREPEND_PADDING_ROW, st.tuples(side, side)
    yield bilm_weights.DROP_LEADING_AXIS, st.tuples(st.just(1), side, side, side)
    yield bilm_weights.SWAP_GATES, side.map(lambda d: (4 * d,))
    yield bilm_weights.SPLIT_ROWS, st.tuples(side.map(lambda p: 2 * p), side.map(lambda d: 4 * d))


@pytest.mark.parametrize("transform, shapes", list(cases()))
@settings(max_examples=20)
@given(data=st.data())
def test_save_undoes_load(transform, shapes, data):
    x = data.draw(arrays_of.arrays("float32", shapes, elements=floats))
    np.testing.assert_allclose(transform.save(*transform.load(x)), x, atol=1e-6)


def test_gates_are_swapped_and_rows_split():
    """Rows [x; h], columns i, j, f, o become kernel and recurrent kernel with i, f, c, o."""
    kernel, recurrent = bilm_weights.SPLIT_ROWS.load(np.array([[1, 2, 3, 4], [5, 6, 7, 8]]))
    np.testing.assert_array_equal(kernel, [[1, 3, 2, 4]])
    np.testing.assert_array_equal(recurrent, [[5, 7, 6, 8]])


CONFIGS = {
    "standard": {},
    "no_highway": {"n_highway": 0},
    "no_cnn_projection": {"projection_dim": 17, "lstm_dim": 19},
    "no_lstm_projection": {"lstm_dim": 6},
    "three_layers": {"n_layers": 3},
}


def build(config):
    bilm = BiLM(config)
    bilm.build((None, None, config.max_characters_per_token))
    return weight_mapping.variables_by_path(bilm)


@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
def test_mapping(changes):
    """It names every variable once, and assigning reverses extracting."""
    config = make_config(**changes)
    mapping, variables, arrays = bilm_mapping(config), build(config), make_arrays(config)
    assert sorted(path for tensor in mapping for path in tensor.targets) == sorted(variables)
    sources = [tensor.source for tensor in mapping]
    assert len(set(sources)) == len(sources)
    values = weight_mapping.load(mapping, dict(arrays))
    BiLMFile(config, values, "w.hdf5").assign(variables)
    again = weight_mapping.extract(mapping, variables)
    shapes = {name: array.shape for name, array in again.items()}
    assert weight_mapping.expected_shapes(mapping) == shapes
    assert again.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(again[name], array)
    before = weight_mapping.fingerprint(variables)
    for variable in variables.values():  # the fingerprint sees every variable
        value = keras.ops.convert_to_numpy(variable.value)
        variable.assign(value + 1e-3)
        assert weight_mapping.fingerprint(variables) != before
        variable.assign(value)


def test_nothing_is_loaded_from_weights_that_do_not_fit(tmp_path):
    config = make_config()
    arrays = make_arrays(config)
    write_preset(tmp_path / "good", config, arrays)
    layer = ElmoLayer.from_preset(tmp_path / "good")
    before = layer.fingerprint()
    arrays["CNN/b_cnn_0"] = np.zeros(4, "float32")
    arrays["CNN_high_1/b_carry"] = np.zeros(17, "float32")  # which the options do not have
    write_preset(tmp_path / "damaged", config, arrays)
    message = (
        "Weight file .*weights.hdf5 does not fit, nothing was loaded. Received: "
        r"'CNN/b_cnn_0' has shape \(4,\), expected \(3,\); 'CNN_high_1/b_carry' is not expected"
    )
    with pytest.raises(ValueError, match=message):
        layer.load_preset(tmp_path / "damaged")
    assert layer.fingerprint() == before


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_fingerprint_of_a_file_is_that_of_the_variables(dtype):
    config = make_config()
    bilm = BiLM(config, dtype=dtype)
    bilm.build((None, None, config.max_characters_per_token))
    variables = weight_mapping.variables_by_path(bilm)
    values = weight_mapping.load(bilm_mapping(config), make_arrays(config))
    file = BiLMFile(config, values, "w.hdf5")
    file.assign(variables)
    assert file.fingerprint(bilm.variable_dtype) == weight_mapping.fingerprint(variables)
    assert file.n_parameters == bilm.count_params()
