"""Parity with the layer representations, states and mixes that AllenNLP and bilm-tf compute."""

import functools
import json

import numpy as np
import pytest

import keras_elmo
from tests import reference
from tests.conftest import BACKEND, GOLDEN, numpy, tokenize

pytestmark = pytest.mark.backends

TOLERANCE = 1e-5
MIXED = ["mixed", "single", "uniform"]
BATCHES = [*MIXED, "special", "empty_sentence"]
if BACKEND == "jax":  # each shape compiles anew
    MIXED, BATCHES = ["mixed"], ["mixed", "empty_sentence"]


@functools.cache
def golden(variant):
    facts = json.loads((GOLDEN / variant / "golden.json").read_text())
    arrays = {
        **np.load(GOLDEN / variant / "golden.npz"),
        **{
            f"bilmtf.{k}": v for k, v in np.load(GOLDEN / variant / "bilmtf_layer_norm.npz").items()
        },
    }
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
def test_mix(variant, name, r):
    facts, arrays = golden(variant)
    layers = load(variant)(tokenize(facts["batches"][name]))
    found = make_mix(facts, r, layers)(layers)
    mask = arrays[f"{name}.mask"]
    assert worst(found, arrays[f"{name}.elmo"][r], mask) < TOLERANCE
    assert not numpy(found)[~mask].any()


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("r", [0, 1])
def test_layer_norm(variant, name, r):
    """bilm-tf ignores the boundaries; with keep_boundaries they count, as in AllenNLP."""
    facts, arrays = golden(variant)
    ids = tokenize(facts["batches"][name])
    layers = load(variant)(ids)
    found = make_mix(facts, r, layers, layer_norm=True)(layers)
    mask = arrays[f"{name}.mask"]
    assert worst(found, arrays[f"bilmtf.{name}.elmo_ln"][r], mask) < TOLERANCE
    assert not numpy(found)[~mask].any()

    layers = load(variant, keep_boundaries=True)(ids)
    found = make_mix(facts, r, layers, layer_norm=True)(layers)
    inside = found[:, 1:-1]
    assert worst(inside, arrays[f"{name}.elmo_ln"][r], mask) < TOLERANCE


def test_reference_agrees(variant):
    """The NumPy specification computes the same numbers."""
    import h5py

    facts, arrays = golden(variant)
    weights = {}
    with h5py.File(GOLDEN / variant / "weights.hdf5") as file:
        file.visititems(
            lambda n, d: weights.update({n: d[()]}) if isinstance(d, h5py.Dataset) else None
        )
    for row, sentence in enumerate(facts["batches"]["mixed"][2:5]):
        found = reference.elmo_layers(sentence, facts["options"], weights)
        expected = np.moveaxis(arrays["mixed.activations"], 0, 2)[row + 2, 1 : len(sentence) + 1]
        np.testing.assert_allclose(found, expected, atol=4e-6)
