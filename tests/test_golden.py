"""Parity with the layer representations, states and mixes that AllenNLP and bilm-tf compute."""

import functools
import json

import numpy as np
import pytest

import keras_elmo
from keras_elmo.formats.hdf5 import read_arrays
from tests import reference
from tests.conftest import BACKEND, GOLDEN, load_arrays, numpy, tokenize

pytestmark = pytest.mark.backends

TOLERANCE = 1e-5
MIXED = ["mixed", "single", "uniform"]
BATCHES = [*MIXED, "special", "empty_sentence"]
if BACKEND == "jax":  # each shape compiles anew
    MIXED, BATCHES = ["mixed"], ["mixed", "empty_sentence"]


@functools.cache
def golden(variant):
    facts = json.loads((GOLDEN / variant / "golden.json").read_text())
    arrays = load_arrays(GOLDEN / variant / "golden.npz")
    for name, array in load_arrays(GOLDEN / variant / "bilmtf_layer_norm.npz").items():
        arrays[f"bilmtf.{name}"] = array
    return facts, arrays


def load(variant, **kwargs):
    return keras_elmo.ElmoLayer.from_preset(GOLDEN / variant, **kwargs)


def worst(found, expected, mask):
    return np.abs(numpy(found) - expected)[mask].max()


@pytest.fixture(params=["a_standard", "f_clip"])
def variant(request):
    return request.param


@pytest.mark.parametrize("name", BATCHES)
def test_layers(variant, name):
    facts, arrays = golden(variant)
    ids = tokenize(facts["batches"][name])
    np.testing.assert_array_equal(ids, arrays[f"{name}.char_ids"])
    expected = np.moveaxis(arrays[f"{name}.activations"], 0, 2)
    for keep, mask in ((True, arrays[f"{name}.mask_bos_eos"]), (False, (ids > 0).any(-1))):
        found = load(variant, keep_boundaries=keep)(ids)
        np.testing.assert_array_equal(numpy(found._keras_mask), mask)
        assert not numpy(found)[~mask].any()
        if not keep:
            # The mask has no boundaries, so remove them from the expected values too.
            expected = expected[:, 1:-1]
        assert worst(found, expected, mask) < TOLERANCE


def test_states(variant):
    facts, arrays = golden(variant)
    layer = load(variant, keep_boundaries=True, stateful=True)
    for _ in range(2):
        for i, batch in enumerate(facts["stream"]):
            found = layer(tokenize(batch))
            expected = np.moveaxis(arrays[f"stream{i}.activations"], 0, 2)
            assert worst(found, expected, arrays[f"stream{i}.mask_bos_eos"]) < TOLERANCE
            # In the file, the forward features of a layer come before the backward ones.
            states = list(layer.carried_state.values.values())
            pairs = zip(states, states[len(states) // 2 :])
            found = [map(np.hstack, zip(forward, backward)) for forward, backward in pairs]
            for state, which in zip(zip(*found), "hc", strict=True):
                assert np.abs(state - arrays[f"stream{i}.state_{which}"]).max() < TOLERANCE
        layer.reset_state()


def make_mix(facts, r, layers, **kwargs):
    mix = keras_elmo.ScalarMix(**kwargs)
    mix.build(layers.shape)
    mix.scalars.assign(facts["scalar_mix"]["W"][r])
    mix.gamma.assign(facts["scalar_mix"]["gamma"][r])
    return mix


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("r", [0, 1])
def test_mixes(variant, name, r):
    """The layer norm of bilm-tf ignores the boundaries; with keep_boundaries they count."""
    facts, arrays = golden(variant)
    ids, mask = tokenize(facts["batches"][name]), arrays[f"{name}.mask"]
    inside, whole = (load(variant, keep_boundaries=keep)(ids) for keep in (False, True))
    for layers, layer_norm, key in (
        (inside, False, f"{name}.elmo"),
        (inside, True, f"bilmtf.{name}.elmo_ln"),
        (whole, True, f"{name}.elmo_ln"),
    ):
        found = make_mix(facts, r, layers, layer_norm=layer_norm)(layers)
        if layers is whole:
            found = found[:, 1:-1]
        else:
            assert not numpy(found)[~mask].any()
        assert worst(found, arrays[key][r], mask) < TOLERANCE


def test_reference_agrees(variant):
    """The NumPy specification computes the same numbers."""
    facts, arrays = golden(variant)
    weights = read_arrays(GOLDEN / variant / "weights.hdf5")
    for row, sentence in enumerate(facts["batches"]["mixed"][2:5]):
        found = reference.elmo_layers(sentence, facts["options"], weights)
        expected = np.moveaxis(arrays["mixed.activations"], 0, 2)[row + 2, 1 : len(sentence) + 1]
        np.testing.assert_allclose(found, expected, atol=4e-6)
