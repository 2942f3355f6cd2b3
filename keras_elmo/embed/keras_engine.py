"""Compute the two halves of a biLM with Keras, from NumPy arrays to NumPy arrays."""

import functools
import threading
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_elmo.formats.base import BiLMFile
from keras_elmo.formats.weight_mapping import variables_by_path
from keras_elmo.layer_choice import LayerChoice
from keras_elmo.layers.bilm import layer_representation
from keras_elmo.layers.elmo_layer import ElmoLayer
from keras_elmo.utils.batches import few_sizes, padding_to_few_shapes
from keras_elmo.utils.checks import invalid, shorten
from keras_elmo.utils.forks import check_fork


def read_layer(elmo: object) -> tuple[BiLMFile, str]:
    """Return the biLM and the dtype policy, from which ``build_layer`` makes the same layer.

    Raises:
        ValueError: If ``elmo`` is not an ``ElmoLayer`` or has no weights.
    """
    if not isinstance(elmo, ElmoLayer):
        raise invalid("Embedder expects a preset, a path or an ElmoLayer", shorten(elmo))
    check_fork()
    elmo.check_weights()
    # Copies: on JAX an array can be a view of a weight, which training deletes.
    weights = {path: np.array(v) for path, v in variables_by_path(elmo.bilm).items()}
    return BiLMFile(elmo.config, weights, elmo.name), elmo.dtype_policy.name


def build_layer(bilm: BiLMFile, policy: str) -> ElmoLayer:
    """Return a new layer with a biLM and a dtype policy."""
    check_fork()
    return ElmoLayer._from_bilm(bilm, {"dtype": policy})


def computes_on_cpu() -> bool:
    """Return whether the backend has no accelerator."""
    if keras.backend.backend() == "torch":
        import torch

        return not (torch.cuda.is_available() or torch.backends.mps.is_available())
    return all(device.startswith("cpu") for device in keras.distribution.list_devices())


class KerasEngine:
    """Compute token and layer representations with the backend of Keras.

    Any number of threads may use it. It computes in the dtype of the layer, whatever the
    global dtype policy is. Its functions are compiled once, for the weights of this layer.

    Args:
        bilm: BiLMFile. The biLM.
        policy: str. Dtype policy of the layer.

    Attributes:
        elmo: ElmoLayer. The layer with the weights.
    """

    def __init__(self, bilm: BiLMFile, policy: str) -> None:
        self.elmo = build_layer(bilm, policy)
        self._bilm = self.elmo.bilm
        self._programs: dict[LayerChoice | None, Callable] = {}  # None: token representations
        self._lock = threading.Lock()

    @property
    def bilm(self) -> BiLMFile:
        """The biLM."""
        return read_layer(self.elmo)[0]

    def represent(self, ids: np.ndarray) -> np.ndarray:
        """Return the token representations of distinct tokens.

        Args:
            ids: int32 array of character ids, shape ``(rows, characters)``.

        Returns:
            A float32 array, shape ``(rows, projection_dim)``.
        """
        rows = len(ids)
        if keras.backend.backend() == "jax":
            ids = np.pad(ids, [(0, few_sizes(max(rows, 32), 256) - rows), (0, 0)], mode="edge")
        return self._run(None, ids)[:rows]

    def contextualize(
        self, tokens: np.ndarray, mask: np.ndarray, choice: LayerChoice
    ) -> np.ndarray:
        """Return the layer representations of sentences.

        Args:
            tokens: float32 array of token representations, shape ``(batch, tokens,
                projection_dim)``, boundary tokens included.
            mask: bool array, shape ``(batch, tokens)``, padding on the right.
            choice: LayerChoice. The layers to return.

        Returns:
            A float32 array without the boundary tokens: ``(batch, tokens - 2, layers, width)``
            for ``"all"``, else ``(batch, tokens - 2, width)``. Padding has any values.
        """
        rows, longest = mask.shape
        if keras.backend.backend() == "jax":
            more = [(0, n) for n in padding_to_few_shapes(rows, longest)]
            tokens, mask = np.pad(tokens, [*more, (0, 0)]), np.pad(mask, more)
        return self._run(choice, tokens, mask)[:rows, : longest - 2]

    def _run(self, choice: LayerChoice | None, *arrays: np.ndarray) -> np.ndarray:
        """Compute an output; compile the function for it at the first call."""
        check_fork()
        with self._lock:
            if choice not in self._programs:
                function, inputs = self._define(choice)
                self._programs[choice] = _compile(function, self._bilm.variables, inputs)
        tensors = [ops.convert_to_tensor(array, dtype=array.dtype.name) for array in arrays]
        return ops.convert_to_numpy(self._programs[choice](*tensors))

    def _define(self, choice: LayerChoice | None) -> tuple[Callable, list]:
        """Return the function of an output, and the shapes and dtypes of its inputs."""
        bilm = self._bilm
        if choice is None:
            return bilm.char_cnn, [((None, None), "int32")]

        def contextualize(tokens: Any, mask: Any) -> Any:
            # Only Keras layers cast their inputs; this is a plain function.
            tokens = ops.cast(tokens, bilm.compute_dtype)
            representations, _ = bilm.contextualize(tokens, mask)
            inside = {name: x[:, 1:-1] for name, x in representations.items()}
            layers = [layer_representation(inside, layer) for layer in choice.layers]
            layers = [ops.cast(layer, "float32") for layer in layers]
            return ops.stack(layers, axis=2) if choice.weights is None else choice.combine(layers)

        tokens = ((None, None, bilm.config.projection_dim), "float32")
        return contextualize, [tokens, ((None, None), "bool")]


def _compile(function: Callable, variables: list, inputs: list) -> Callable:
    """Return a compiled function whose result is float32."""

    def run(*tensors: Any) -> Any:
        return ops.cast(function(*tensors), "float32")

    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        # One trace serves all lengths. XLA would compile for each of them. A partial, because
        # TensorFlow counts the traces of functions with the same code together, and warns.
        specs = [tf.TensorSpec(shape, dtype) for shape, dtype in inputs]
        return tf.function(functools.partial(run), input_signature=specs, autograph=False)
    if backend == "jax":
        import jax

        # As constants, the weights would be stored a second time in what JAX compiles.
        def run_with(values: list, *tensors: Any) -> Any:
            with keras.StatelessScope(list(zip(variables, values, strict=True))):
                return run(*tensors)

        compiled = jax.jit(run_with)
        return lambda *tensors: compiled([variable.value for variable in variables], *tensors)
    import torch

    return torch.no_grad()(run)
