import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from keras_elmo.formats import bilm_weights, many_langs, torch_weights, weight_mapping
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
    yield torch_weights.TRANSPOSE, st.tuples(side, side, side)
    yield torch_weights.SPLIT_HIGHWAY, st.tuples(side.map(lambda d: 2 * d), side)
    yield torch_weights.SUBTRACT_FORGET_BIAS, st.just((8,))
    yield many_langs._split_columns(2), st.tuples(side, st.integers(3, 6))


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
    "three_highways": {"n_highway": 3},
    "no_cnn_projection": {"projection_dim": 17, "lstm_dim": 19},
    "no_lstm_projection": {"lstm_dim": 6},
    "one_layer": {"n_layers": 1},
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
    BiLMFile(config, arrays, "w.hdf5").assign(variables)
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


def test_single_layer_may_omit_the_cell_level():
    config = make_config(n_layers=1)
    arrays = {n.replace("MultiRNNCell/Cell0/", ""): a for n, a in make_arrays(config).items()}
    variables = build(config)
    BiLMFile(config, arrays, "w.hdf5").assign(variables)
    again = weight_mapping.extract(bilm_mapping(config, arrays), variables)
    np.testing.assert_array_equal(again["RNN_1/RNN/LSTMCell/B"], arrays["RNN_1/RNN/LSTMCell/B"])


def damaged():
    """Return arrays with one fault of every kind."""
    arrays = make_arrays(make_config())
    del arrays["char_embed"]
    arrays["CNN/b_cnn_0"] = np.zeros(4, "float32")
    arrays["CNN_proj/b_proj"] = np.arange(6)
    arrays["CNN_high_1/b_carry"] = np.zeros(17, "float32")
    arrays["RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0"] = np.zeros((12, 44), "float32")
    return arrays


FAULTS = [
    r"weights.hdf5 does not fit the options .*options.json, nothing was loaded",
    r"'char_embed' is missing, expected shape \(261, 4\)",
    r"'CNN/b_cnn_0' has shape \(4,\), expected \(3,\)",
    r"'CNN_proj/b_proj' must contain floats, found dtype int64",
    r"'CNN_high_1/b_carry' is not expected, found shape \(17,\)",
    r"Cell0/LSTMCell/W_0' has shape \(12, 44\), expected \(12, 40\)",
]


def test_one_error_names_every_fault_and_nothing_is_loaded(tmp_path):
    config = make_config()
    write_preset(tmp_path / "good", config, make_arrays(config))
    layer = ElmoLayer.from_preset(tmp_path / "good")
    before = layer.fingerprint()
    write_preset(tmp_path / "damaged", config, damaged())
    for fault in FAULTS:
        with pytest.raises(ValueError, match=fault):
            layer.load_preset(tmp_path / "damaged")
    assert layer.fingerprint() == before


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_float_types_are_cast(dtype):
    config = make_config()
    variables = build(config)
    arrays = {name: array.astype(dtype) for name, array in make_arrays(config).items()}
    BiLMFile(config, arrays, "w.hdf5").assign(variables)
    bias = keras.ops.convert_to_numpy(variables["char_cnn/conv_0_bias"].value)
    np.testing.assert_array_equal(bias, arrays["CNN/b_cnn_0"].astype("float32"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_fingerprint_of_a_file_is_that_of_the_variables(dtype):
    config = make_config()
    bilm = BiLM(config, dtype=dtype)
    bilm.build((None, None, config.max_characters_per_token))
    variables = weight_mapping.variables_by_path(bilm)
    file = BiLMFile(config, make_arrays(config), "w.hdf5")
    file.assign(variables)
    assert file.fingerprint(bilm.variable_dtype) == weight_mapping.fingerprint(variables)
    assert file.n_parameters == bilm.count_params()
