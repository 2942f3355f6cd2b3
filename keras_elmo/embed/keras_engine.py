"""The biLM of an ElmoLayer as a function of NumPy arrays."""

import contextlib
import threading

import keras
import numpy as np
from keras import ops

from keras_elmo.embed.weight_values import WeightValues, read_values
from keras_elmo.layers.bilm import select_output

_LAYERS = {"all": "layers", "top": "top", "average": "average"}


class KerasEngine:
    """Run the two halves of a biLM on NumPy, each in batches that someone else arranged.

    It may be called from many threads at once, and computes in the dtype of the layer,
    whatever the global dtype policy is.

    Args:
        elmo: A built ``ElmoLayer``.
    """

    def __init__(self, elmo):
        self._elmo = elmo
        self._programs = {}
        self._lock = threading.Lock()

    def facts(self) -> dict:
        """Return what decides the bits of a result, for JSON."""
        return {
            "biLM": self._elmo.fingerprint(),
            "options": self._elmo.config.digest(),
            "dtype": self._elmo.compute_dtype,
            "backend": keras.backend.backend(),
        }

    def token_weights(self) -> WeightValues:
        """Return the weights that token representations depend on, as they are now."""
        self._elmo.check_weights()
        return WeightValues(self._elmo.bilm.char_cnn.variables)

    def all_weights(self) -> WeightValues:
        """Return all weights of the biLM, as they are now."""
        self._elmo.check_weights()
        return WeightValues(self._elmo.bilm.variables)

    def represent(self, ids, weights) -> np.ndarray:
        """Return the token representations of distinct tokens.

        Args:
            ids: Character ids, int32, shape ``(rows, characters)``.
            weights: Of ``token_weights``.

        Returns:
            float32, shape ``(rows, projection_dim)``.
        """
        rows = len(ids)
        if keras.backend.backend() == "jax":  # which compiles for each size
            more = (32 if rows <= 32 else -(-rows // 256) * 256) - rows
            ids = np.pad(ids, [(0, more), (0, 0)], mode="edge")
        program = self._program("token", lambda: _Program(_Represent(self._elmo.bilm)))
        return program(weights.values, ids)[:rows]

    def contextualize(self, tokens, mask, layers) -> np.ndarray:
        """Return the layer representations of sentences that have boundary tokens.

        Args:
            tokens: Token representations, float32, shape ``(batch, tokens, projection_dim)``.
            mask: Bool, shape ``(batch, tokens)``, padding on the right.
            layers: ``"all"``, ``"top"``, ``"average"`` or the number of a layer.

        Returns:
            float32 without the boundary tokens: ``(batch, tokens - 2, layers, width)`` for
            ``"all"``, else ``(batch, tokens - 2, width)``; padding holds anything.
        """
        rows, longest = mask.shape
        if keras.backend.backend() == "jax":
            few = rows <= 16
            more_rows = (1 << (rows - 1).bit_length() if few else -(-rows // 16) * 16) - rows
            more = [(0, more_rows), (0, -longest % 8)]
            tokens, mask = np.pad(tokens, [*more, (0, 0)]), np.pad(mask, more)
        # What JAX compiles knows no variables, only their values.
        takes_values = keras.backend.backend() == "jax"
        program = self._program(
            layers, lambda: _Program(_Contextualize(self._elmo.bilm, layers), takes_values)
        )
        values = read_values(program.variables) if takes_values else []
        found = program(values, tokens, mask)
        return found[:rows, : longest - 2]

    def _program(self, name, make):
        with self._lock:
            if name not in self._programs:
                self._programs[name] = make()
            return self._programs[name]


class _Program:
    """A layer as a function of NumPy inputs, compiled, and of the values of its variables.

    Where it takes no values, it uses those that the variables have at the time.
    """

    def __init__(self, layer, takes_values=True):
        self.variables = layer.variables if takes_values else []
        self._dtypes = [dtype for _, dtype in layer.specs]

        def run(values, *inputs):
            pairs = list(zip(self.variables, values, strict=True))
            with keras.StatelessScope(pairs) if pairs else contextlib.nullcontext():
                return ops.cast(layer(*inputs), "float32")

        backend = keras.backend.backend()
        if backend == "tensorflow":
            import tensorflow as tf

            # One trace for all lengths; no XLA, which would compile for each.
            values = [tf.TensorSpec(v.shape, v.dtype) for v in self.variables]
            inputs = [tf.TensorSpec(shape, dtype) for shape, dtype in layer.specs]
            run = tf.function(run, input_signature=[values, *inputs], autograph=False)
        elif backend == "jax":
            import jax

            run = jax.jit(run)
        else:
            import torch

            run = torch.no_grad()(run)
        self._run = run

    def __call__(self, values, *arrays):
        pairs = zip(arrays, self._dtypes, strict=True)
        inputs = [ops.convert_to_tensor(array, dtype=dtype) for array, dtype in pairs]
        return ops.convert_to_numpy(self._run(values, *inputs))


class _Represent(keras.layers.Layer):
    """The character CNN over distinct tokens."""

    def __init__(self, bilm):
        # Its dtype is that of the biLM: the global policy would round the inputs.
        super().__init__(name="represent", dtype=bilm.dtype_policy)
        self.char_cnn = bilm.char_cnn
        self.specs = [((None, None), "int32")]

    def call(self, ids):
        return self.char_cnn.represent(ids)


class _Contextualize(keras.layers.Layer):
    """The LSTMs of a biLM over token representations, boundaries off."""

    def __init__(self, bilm, layers):
        super().__init__(name="contextualize", dtype=bilm.dtype_policy)
        self.lstms = bilm.lstms
        self.contextualize = bilm.contextualize
        self.wanted = layers
        self.specs = [((None, None, bilm.config.projection_dim), "float32"), ((None, None), "bool")]

    def call(self, tokens, mask):
        representations, _ = self.contextualize(tokens, mask)
        inside = {name: x[:, 1:-1] for name, x in representations.items()}
        if self.wanted in _LAYERS:
            return select_output(inside, _LAYERS[self.wanted])
        # The top of what remains without the layers above it.
        lower = {n: x for n, x in inside.items() if _layer_number(n) <= self.wanted}
        return select_output(lower, "top")


def _layer_number(name):
    return 0 if name == "token" else int(name.rpartition("_")[2])
