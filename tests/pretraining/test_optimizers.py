"""The optimizers of a run: the clip, updates that are left out, and Muon."""

import keras
import numpy as np
import pytest

from keras_elmo.pretraining.language_model import BiLanguageModel
from keras_elmo.pretraining.optimizers import Adam, Muon, keras_has_muon, make_optimizer
from keras_elmo.pretraining.recipe import Recipe, Schedule
from tests.conftest import BACKEND, make_config, numpy, only_tensorflow

pytestmark = pytest.mark.backends

OPTIMIZERS = {"adam": Adam, "muon": Muon}
needs_muon = pytest.mark.skipif(not keras_has_muon(), reason="Muon needs Keras 3.13 or newer")
NAMES = ["adam", pytest.param("muon", marks=needs_muon)]


def make_variables(seed=0):
    rng = np.random.default_rng(seed)
    return [
        keras.Variable(rng.normal(size=shape).astype("float32"), name=name)
        for name, shape in (
            ("embedding", (5, 3)),
            ("wide", (3, 7)),
            ("tall", (6, 4)),
            ("bias", (7,)),
        )
    ]


def make_gradients(step=0):
    rng = np.random.default_rng((step, 1))
    return [rng.normal(size=v.shape).astype("float32") for v in make_variables()]


def test_muon_of_an_older_keras(monkeypatch):
    monkeypatch.setattr(keras, "__version__", "3.12.4")
    with pytest.raises(ImportError, match="Keras 3.13 or newer. Received: Keras 3.12.4. Upgrade"):
        make_optimizer(Recipe(optimizer="muon"), 1e-3)
    assert make_optimizer(Recipe(optimizer="adam"), 1e-3)


def values(variables):
    return [numpy(keras.ops.copy(v)) for v in variables]


def apply(optimizer, variables, gradients):
    optimizer.apply([keras.ops.convert_to_tensor(g) for g in gradients], variables)


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


def adam_steps(x, gradients, rate):
    m = v = 0
    for t, g in enumerate(gradients, 1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        x = x - rate * (1 - 0.999**t) ** 0.5 / (1 - 0.9**t) * m / (np.sqrt(v) + 1e-7)
    return x


def muon_steps(x, gradients, rate):
    m = 0
    for g in gradients:
        m = 0.95 * m + g
        x = x - rate * 0.2 * max(x.shape) ** 0.5 * newton_schulz(g + 0.95 * m)
    return x


@pytest.mark.parametrize("name", NAMES)
def test_updates_against_numpy(name):
    variables = make_variables()
    optimizer = OPTIMIZERS[name](0.1, 1e9)
    gradients = [make_gradients(step) for step in range(3)]
    before = values(variables)
    for some in gradients:
        apply(optimizer, variables, some)
    for i, variable in enumerate(variables):
        steps = muon_steps if name == "muon" and variable.name in ("wide", "tall") else adam_steps
        expected = steps(before[i], [some[i] for some in gradients], 0.1)
        np.testing.assert_allclose(numpy(variable), expected, atol=2e-5, err_msg=variable.name)


@needs_muon
def test_muon_makes_updates_orthogonal_also_in_half_precision():
    x = np.random.default_rng(0).normal(size=(8, 12)).astype("float32")
    for dtype, tolerance in (("float32", 1e-4), ("bfloat16", 0.1)):
        muon = Muon(0.1, 1.0, dtype)
        found = numpy(muon.zeropower_via_newtonschulz5(keras.ops.convert_to_tensor(x), 5))
        assert found.dtype == "float32"
        np.testing.assert_allclose(found, newton_schulz(x), atol=tolerance)
        sizes = np.linalg.svd(found.astype("float64"), compute_uv=False)
        assert (0.6 < sizes).all() and (sizes < 1.3).all()


@needs_muon
@pytest.mark.parametrize("decades", [0, 3, 9])
def test_muon_of_wide_matrices(decades):
    """Singular values of any size keep three digits, although their squares are iterated."""
    rng = np.random.default_rng(0)
    u, v = (np.linalg.qr(rng.normal(size=(rows, 16)))[0] for rows in (16, 64))
    x = (u * 10.0 ** -np.linspace(0, decades, 16) @ v.T).astype("float32")
    found = Muon(0.1, 1.0, "bfloat16").zeropower_via_newtonschulz5(x, 5)
    np.testing.assert_allclose(numpy(found), newton_schulz(x), atol=1e-3)


@needs_muon
@only_tensorflow
def test_the_matrices_of_a_bilm_get_muon_and_all_else_adam():
    model = BiLanguageModel(make_config(), 9, name="lm")
    optimizer = make_optimizer(Recipe(steps=9, optimizer="muon", precision="bfloat16"), 0.1)
    assert type(optimizer) is Muon and optimizer.product_dtype == "bfloat16"
    optimizer.build(model.trainable_variables)
    of_muon = {
        variable.path.removeprefix("lm/")
        for variable, velocity in zip(model.trainable_variables, optimizer.adam_velocities)
        if velocity is None
    }
    lstms = {f"{d}_{layer}" for d in ("forward", "backward") for layer in (1, 2)}
    assert of_muon == {
        *(f"bilm/char_cnn/highway_0/{part}_kernel" for part in ("transform", "gate")),
        "bilm/char_cnn/projection_kernel",
        *(f"bilm/{n}/{k}" for n in lstms for k in ("kernel", "recurrent_kernel", "projection")),
    }
    assert len(optimizer.momentums) == len(model.trainable_variables)
    assert optimizer.weight_decay is None and optimizer.adam_weight_decay is None
    assert type(make_optimizer(Recipe(steps=9, optimizer="adam"), 0.1)) is Adam


@pytest.mark.parametrize("clip_norm", [0.3, 1e6])
def test_the_norm_of_the_gradient_is_bounded(clip_norm):
    gradients = make_gradients()
    norm = np.sqrt(sum((g**2).sum() for g in gradients))
    optimizer = Adam(0.1, clip_norm)
    found = optimizer._clip_gradients([keras.ops.convert_to_tensor(g) for g in gradients])
    for ours, gradient in zip(found, gradients, strict=True):
        np.testing.assert_allclose(numpy(ours), gradient * min(1, clip_norm / norm), rtol=1e-5)


@only_tensorflow
@pytest.mark.parametrize("name", NAMES)
def test_rows_of_an_embedding_that_come_twice_are_one(name):
    """Their norm is that of the sum, and not of the rows; so are the moments."""
    import tensorflow as tf

    rows, places = np.ones((4, 3), "float32"), [1, 3, 1, 1]
    dense = np.zeros((5, 3), "float32")
    np.add.at(dense, places, rows)
    ends = []
    for embedding in (tf.IndexedSlices(tf.constant(rows), tf.constant(places), (5, 3)), dense):
        optimizer = OPTIMIZERS[name](0.1, 2.0)
        variables = make_variables()
        optimizer.build(variables)
        gradients = [embedding, *(0 * g for g in make_gradients()[1:])]
        [clipped, *_] = optimizer._clip_gradients(gradients)
        np.testing.assert_allclose(np.linalg.norm(numpy(clipped)), 2, rtol=1e-5)
        optimizer.apply(gradients, variables)
        ends.append(values([*variables, *optimizer.variables]))
    for one, other in zip(*ends, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@needs_muon
def test_muon_of_a_gradient_of_zeros():
    optimizer, variables = Muon(0.1, 2.0), make_variables()
    optimizer.build(variables)
    before = values(variables)
    apply(optimizer, variables, [np.zeros(v.shape, "float32") for v in variables])
    for old, new in zip(before, values(variables), strict=True):
        np.testing.assert_array_equal(old, new)


def make_model(name, jit_compile):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(2)])
    model.compile(OPTIMIZERS[name](0.1, 5.0), "mse", jit_compile=jit_compile)
    return model


@pytest.mark.parametrize("jit_compile", [False, True] if BACKEND == "tensorflow" else [False])
@pytest.mark.parametrize("name", NAMES)
def test_an_update_that_is_not_finite_changes_nothing_and_is_counted(name, jit_compile):
    model = make_model(name, jit_compile or BACKEND == "jax")
    optimizer = model.optimizer
    rng = np.random.default_rng(0)
    good = rng.normal(size=(6, 3)).astype("float32"), rng.normal(size=(6, 2)).astype("float32")

    def state():
        if BACKEND == "jax":
            model.jax_state_sync()
        names = ("iteration", "skipped", "skipped_in_a_row")
        counted = [v for v in optimizer.variables if v.name in names]
        kept = [v for v in optimizer.variables if v.name not in (*names, "learning_rate")]
        assert len(counted) == 3 and len(kept) >= 4
        return values([*model.variables, *kept]), [int(v) for v in values(counted)]

    model.train_on_batch(*good)
    before, counts = state()
    assert counts == [1, 0, 0]
    for i, poison in enumerate((np.nan, np.inf, 1e30), 1):  # the square of the last overflows
        x = good[0].copy()
        x[2, 1] = poison
        model.train_on_batch(x, good[1])
        after, counts = state()
        for one, other in zip(before, after, strict=True):
            np.testing.assert_array_equal(one, other)
        assert counts == [1 + i, i, i]
    model.train_on_batch(*good)
    after, counts = state()
    assert counts == [5, 3, 0]
    moved = [not np.array_equal(one, other) for one, other in zip(before, after, strict=True)]
    assert all(moved) and all(np.isfinite(x).all() for x in after)


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_model_loads_with_its_optimizer(name, tmp_path):
    """As ``ModelCheckpoint`` among the callbacks of a run saves it."""
    recipe = Recipe(optimizer=name, steps=10, clip_norm=0.5, precision="bfloat16")
    model = BiLanguageModel(make_config(), 7, n_negatives=None, dropout=0.0)
    model.compile(make_optimizer(recipe, Schedule(recipe)), jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    apply(model.optimizer, model.trainable_variables, [0.1 * w for w in model.get_weights()])
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert type(again.optimizer) is OPTIMIZERS[name]
    assert again.optimizer.get_config() == model.optimizer.get_config()
    assert again.optimizer.clip_norm == 0.5
    pairs = zip(again.optimizer.variables, model.optimizer.variables, strict=True)
    for ours, theirs in pairs:
        np.testing.assert_array_equal(numpy(ours), numpy(theirs))


def test_the_rate_follows_the_schedule():
    recipe = Recipe(steps=4, warmup=2, decay=0.5, decay_shape="linear", learning_rate=0.1)
    variables = make_variables()
    optimizer = make_optimizer(recipe, Schedule(recipe))
    rates = []
    for _ in range(4):
        before = values(variables)
        apply(optimizer, variables, [np.ones_like(g) for g in make_gradients()])
        # Adam moves by the rate if the gradient is always the same.
        rates.append(float((before[3] - numpy(variables[3])).mean()))
    np.testing.assert_allclose(rates, [0.05, 0.1, 0.1, 0.05], rtol=1e-3)
