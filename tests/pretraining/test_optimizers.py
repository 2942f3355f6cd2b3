"""The optimizers of a run: the schedule, the clip, and Muon."""

import keras
import numpy as np
import pytest

from keras_elmo.pretraining.language_model import BiLanguageModel
from keras_elmo.pretraining.optimizers import Muon, Schedule, make_optimizer
from keras_elmo.recipe import Recipe
from tests.conftest import make_config, numpy

pytestmark = pytest.mark.backends

SHAPES = {"embedding": (5, 3), "wide": (3, 7), "tall": (6, 4), "bias": (7,)}


def newton_schulz(x):
    """Keller Jordan's quintic iteration, five times, in float64."""
    x = x.astype("float64")
    if len(x) > len(x.T):
        return newton_schulz(x.T).T
    x = x / np.linalg.norm(x)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x


def adam(x, gradients, rates):
    m = v = 0
    for t, (g, rate) in enumerate(zip(gradients, rates), 1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        x = x - rate * (1 - 0.999**t) ** 0.5 / (1 - 0.9**t) * m / (np.sqrt(v) + 1e-7)
    return x


def muon(x, gradients, rates):
    m = 0
    for g, rate in zip(gradients, rates):
        m = 0.95 * m + g
        x = x - rate * 0.2 * max(x.shape) ** 0.5 * newton_schulz(g + 0.95 * m)
    return x


@pytest.mark.parametrize("name", ["adam", "muon"])
def test_updates_against_numpy(name):
    """With the schedule, and with a gradient whose global norm is clipped to 2."""
    rng = np.random.default_rng(0)
    variables = [
        keras.Variable(rng.normal(size=s).astype("float32"), name=n) for n, s in SHAPES.items()
    ]
    recipe = Recipe(optimizer=name, steps=4, warmup=2, learning_rate=0.1, decay=0.0, clip_norm=2.0)
    optimizer = make_optimizer(recipe, Schedule(recipe))
    before, steps = [numpy(v).copy() for v in variables], []
    for _ in range(3):
        gradients = [rng.normal(size=v.shape).astype("float32") for v in variables]
        optimizer.apply([keras.ops.convert_to_tensor(g) for g in gradients], variables)
        norm = np.sqrt(sum((g**2).sum() for g in gradients))
        assert norm > 2
        steps.append([g * 2 / norm for g in gradients])
    for i, variable in enumerate(variables):
        update = muon if name == "muon" and variable.name in ("wide", "tall") else adam
        expected = update(before[i], [some[i] for some in steps], (0.05, 0.1, 0.1))
        np.testing.assert_allclose(numpy(variable), expected, atol=2e-5, err_msg=variable.name)


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-4), ("bfloat16", 0.1)])
def test_muon_in_half_precision(dtype, tolerance):
    x = np.random.default_rng(0).normal(size=(8, 12)).astype("float32")
    optimizer = Muon(0.1, product_dtype=dtype)
    found = numpy(optimizer.zeropower_via_newtonschulz5(keras.ops.convert_to_tensor(x), 5))
    assert found.dtype == "float32"
    np.testing.assert_allclose(found, newton_schulz(x), atol=tolerance)


@pytest.mark.parametrize("decades", [0, 9])
def test_muon_of_wide_matrices(decades):
    """Singular values of any size keep three digits, although their squares are iterated."""
    rng = np.random.default_rng(0)
    u, v = (np.linalg.qr(rng.normal(size=(rows, 16)))[0] for rows in (16, 64))
    x = (u * 10.0 ** -np.linspace(0, decades, 16) @ v.T).astype("float32")
    found = Muon(0.1, product_dtype="bfloat16").zeropower_via_newtonschulz5(x, 5)
    np.testing.assert_allclose(numpy(found), newton_schulz(x), atol=1e-3)


def test_muon_updates_the_matrices_of_the_bilm_only():
    model = BiLanguageModel(make_config(), 9, name="lm")
    optimizer = make_optimizer(Recipe(), 0.1)
    optimizer.build(model.trainable_variables)
    moments = zip(model.trainable_variables, optimizer.adam_velocities, strict=True)
    by_muon = {variable.path for variable, velocity in moments if velocity is None}
    lstms = [f"{d}_{n}" for d in ("forward", "backward") for n in (1, 2)]
    parts = ("kernel", "recurrent_kernel", "projection")
    expected = {f"bilm/{lstm}/{part}" for lstm in lstms for part in parts}
    expected |= {f"bilm/char_cnn/highway_0/{part}_kernel" for part in ("transform", "gate")}
    assert {path.partition("bilm/")[2] for path in by_muon} == {
        path.partition("bilm/")[2] for path in expected | {"bilm/char_cnn/projection_kernel"}
    }
