"""How often calls are compiled, and which operations the graphs contain."""

import keras
import numpy as np
import pytest

from keras_elmo.layers import CRF, ElmoLayer, ScalarMix
from keras_elmo.pretraining.optimizers import Muon
from tests.conftest import BACKEND, SENTENCES, make_config, only_tensorflow, tokenize
from tests.gradients import gradients_of
from tests.pretraining.test_language_model import make_batch, make_model

pytestmark = pytest.mark.backends

IDS = tokenize(SENTENCES, 13)
only_jax = pytest.mark.skipif(BACKEND != "jax", reason="JAX only: it compiles eager calls")


@pytest.fixture
def compilations():
    """Return a list that gets an entry for everything that JAX compiles."""
    import jax

    times = []

    def listen(event, duration, **kwargs):
        if event.endswith("backend_compile_duration"):
            times.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield times
    jax.monitoring.unregister_event_duration_listener(listen)


def eager_calls():
    x = np.random.default_rng(0).normal(size=(4, 5, 3)).astype("float32")
    mask = np.arange(5) < np.array([5, 3, 1, 0])[:, None]
    crf = CRF()
    layer = ElmoLayer(make_config(cell_clip=1.0, projection_clip=0.5))
    stateful = ElmoLayer(make_config(), stateful=True, keep_boundaries=True)
    return {
        "elmo_layer": lambda: layer(IDS),
        "stateful": lambda: stateful(IDS),
        "crf_decode": lambda: crf.decode(x, mask),
        "crf_loss": lambda: crf.loss(np.where(mask, 1, -1), crf(x)),
    }


@only_jax
@pytest.mark.parametrize("name", ["elmo_layer", "stateful", "crf_decode", "crf_loss"])
def test_eager_calls_are_compiled_once(name, compilations):
    """A layer reuses the program of another layer of the same sizes."""
    call = eager_calls()[name]
    call(), call()
    assert compilations
    first = len(compilations)
    another = eager_calls()[name]
    call(), another(), another()
    assert len(compilations) == first


@only_tensorflow
@pytest.mark.parametrize("jit_compile", [False, True])
def test_distinct_tokens_are_sought_in_graphs(jit_compile):
    import tensorflow as tf

    layer = ElmoLayer(make_config())
    layer.build(IDS.shape)
    ids = np.concatenate([IDS, IDS])
    program = tf.function(layer, jit_compile=jit_compile, autograph=False)
    graph = program.get_concrete_function(tf.TensorSpec(ids.shape, "int32")).graph
    kinds = {operation.type for operation in graph.get_operations()}
    assert ("Unique" in kinds) == (not tf.config.list_logical_devices("GPU"))
    np.testing.assert_allclose(program(tf.constant(ids)), layer(ids), atol=1e-6)


@only_tensorflow
def test_eager_calls_of_other_shapes_log_no_retracing(caplog):
    """One graph serves all batch sizes and lengths, also of several models."""
    import tensorflow as tf

    tf.get_logger().propagate = True
    try:
        layers = [ElmoLayer(make_config(lstm_dim=lstm_dim)) for lstm_dim in range(10, 14)]
        for ids in (IDS, IDS[:2, :3], IDS[1:, :4]):
            for layer in layers:
                layer(ids)
    finally:
        tf.get_logger().propagate = False
    assert not [record for record in caplog.records if "retracing" in record.getMessage()]


@only_tensorflow
def test_a_graph_of_a_frozen_bilm_registers_no_gradient():
    """TensorFlow would never free the functions, and the graph with them."""
    import gc
    import weakref

    import tensorflow as tf

    layer = ElmoLayer(make_config())
    spec = tf.TensorSpec((None, None, 13), tf.int32)
    program = tf.function(lambda ids: layer(ids), input_signature=[spec], autograph=False)
    graph = weakref.ref(program.get_concrete_function().graph)
    del program
    gc.collect()
    assert graph() is None


def model_with_batch(what):
    """Return a small model, and a batch for its ``train_step``."""
    if what == "pretraining":
        model = make_model(n_negatives=5, dropout=0.1)
        model.compile(Muon(1e-3, global_clipnorm=5.0), jit_compile=False)
        return model, (make_batch(),)
    ids = keras.Input(IDS.shape[1:], dtype="int32")
    layers = ElmoLayer(
        make_config(cell_clip=1.0, projection_clip=0.5), trainable_bilm=what == "fine-tuning"
    )(ids)
    model = keras.Model(ids, keras.layers.Dense(3)(ScalarMix()(layers)))
    model.compile("adam", "mse", jit_compile=False)
    return model, (IDS, np.zeros((*IDS.shape[:2], 3), "float32"))


@only_tensorflow
@pytest.mark.parametrize("what", ["frozen", "fine-tuning", "pretraining"])
def test_a_training_step_never_leaves_the_gpu(monkeypatch, what):
    """No operation of a step runs in Python, or has a kernel for the CPU only."""
    import tensorflow as tf
    from tensorflow.python.framework import kernels

    gpu = [tf.config.LogicalDevice("/device:GPU:0", "GPU")]
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind=None: gpu)
    model, batch = model_with_batch(what)
    model.optimizer.build(model.trainable_variables)
    step = tf.function(lambda *batch: model.train_step(batch), autograph=False)
    graph = step.get_concrete_function(*batch).graph
    inner = graph.as_graph_def().library.function
    kinds = {node.op for function in inner for node in function.node_def}
    kinds |= {operation.type for operation in graph.get_operations()}
    assert "MatMul" in kinds and not [kind for kind in kinds if "PyFunc" in kind]

    def devices(kind):
        return {k.device_type for k in kernels.get_registered_kernels_for_op(kind).kernel}

    if "GPU" not in devices("MatMul"):
        pytest.skip("this TensorFlow was built without its operations for GPUs")
    # Calls of functions have no kernels.
    assert not [k for k in kinds if devices(k) and not devices(k) & {"GPU", "DEFAULT"}]


@only_tensorflow
def test_gradients_of_looked_up_weights_are_dense():
    """Sparse gradients would contain a row twice, and have another norm."""
    import tensorflow as tf

    layer = ElmoLayer(make_config(), trainable_bilm=True)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(IDS) ** 2)
    gradients = tape.gradient(loss, [w.value for w in layer.trainable_weights])
    assert len(gradients) == len(layer.weights)
    assert not any(isinstance(gradient, tf.IndexedSlices) for gradient in gradients)


@pytest.mark.parametrize("output", ["layers", "all"])
@pytest.mark.parametrize("trainable", [False, True])
def test_no_gradient_passes_through_a_frozen_bilm(output, trainable):
    """The gradient is zero even for variables that are named explicitly."""
    layer = ElmoLayer(make_config(), output=output, trainable_bilm=trainable)
    layer.build(IDS.shape)
    variables = layer.bilm.variables

    def loss():
        return sum(keras.ops.sum(x**2) for x in keras.tree.flatten(layer(IDS)))

    gradients = gradients_of(loss, variables)
    assert len(gradients) == len(variables) > 10
    assert [bool(np.any(g)) for g in gradients] == [trainable] * len(variables)
