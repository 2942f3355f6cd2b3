"""The biLM inside a Keras model: boundary tokens on, biLM, boundary tokens off."""

import keras
import numpy as np
from keras import ops

from keras_elmo.config import BiLMConfig
from keras_elmo.layers.bilm import BiLM, representation_names, select_output
from keras_elmo.layers.boundaries import TokenMask, add_boundaries, with_boundaries
from keras_elmo.layers.carried_state import CarriedState
from keras_elmo.layers.pretrained_layer import PretrainedLayer
from keras_elmo.tokenizers.alphabets import alphabet_of, check_ids

_OUTPUTS = ("layers", "all", "top", "average")
# The largest whole number up to which a dtype holds every one.
_LARGEST = {
    "bfloat16": 256,
    "float16": 2048,
    "bool": 1,
    "int8": 127,
    "uint8": 255,
    "int16": 32767,
    "uint16": 65535,
}


@keras.saving.register_keras_serializable(package="keras_elmo")
class ElmoLayer(PretrainedLayer):
    """Give the layer representations of a pretrained biLM for every token.

    The biLM is frozen: its weights are non-trainable whatever is done to
    ``trainable`` on the layer or the model, and no gradient passes.

    Args:
        config: The ``BiLMConfig``. ``from_preset`` and ``from_hdf5`` read it, and the
            weights, from files; without them the weights are random.
        output: ``"layers"`` for all layers stacked, layer 0 the token representation
            twice and layer l ``[forward_l; backward_l]``; ``"all"`` for a dict of the
            2L + 1 representations ``token``, ``forward_1`` .. ``forward_L``,
            ``backward_1`` .. ``backward_L``; ``"top"`` for the last layer,
            ``"average"`` for the mean of all L + 1 layers.
        keep_boundaries: Whether ``<S>`` and ``</S>`` stay in the output, which then
            has ``tokens + 2``, both unmasked.
        stateful: Let each row of a batch start from the state in which the same row
            of the batch before ended, as bilm-tf and AllenNLP do, until
            ``reset_state()``. For eager calls only; on PyTorch ``fit`` and ``predict``
            are eager and carry the state too.
        trainable_bilm: Make the weights of the biLM ordinary trainable weights, for
            fine-tuning.
        save_bilm: Whether saved models hold the weights of the biLM. With False they
            hold a fingerprint instead: after loading, hand the same weights in with
            ``load_preset`` or ``load_hdf5``. ``load_weights`` of such a file into a layer
            that has another biLM raises if the layer was compiled (called by ``fit`` or
            ``predict``) before: what is compiled would go on with the weights it has.
        **kwargs: Passed on to ``keras.layers.Layer``.

    Call arguments:
        inputs: Character ids of ``CharacterTokenizer``, int, shape ``(batch, tokens,
            characters)``; an all-zero row is padding. ``characters`` is any number
            from the widest filter (at least 3) to ``max_characters_per_token``; the
            result is that of the full width if ``characters`` is at least the longest
            token's bytes plus 2 plus the widest filter. Of a biLM over code points the ids
            are those of its own tokenizer, ``CharacterTokenizer.from_preset``, where the id of
            the word can stand in front.

    Attributes:
        presets: Facts about the bundled presets by name: ``description``, ``layers``,
            ``width``, ``max_characters`` and ``path``.

    Returns:
        Float, 0 in padding. For ``"layers"`` shape ``(batch, tokens, L + 1, 2 *
        projection_dim)``; for ``"top"`` and ``"average"`` ``(batch, tokens, 2 *
        projection_dim)``; for ``"all"`` a dict of ``(batch, tokens, projection_dim)``.

    Masking: makes the Keras mask, bool ``(batch, tokens)``, from the ids: True up to
        the last token that is not padding. An incoming mask is ignored.

    Raises:
        ValueError: If an argument or the shape of the input is not as above; if NumPy
            ids are outside 0 .. 261 (ids inside a compiled graph are not checked); if
            a stateful layer is called in a compiled graph.

    Example:

    >>> config = BiLMConfig(lstm_dim=8, projection_dim=4, filters=((1, 6), (3, 8)))
    >>> layer = ElmoLayer(config)
    >>> ids = keras_elmo.CharacterTokenizer()([["One", "sentence", "."], ["Two"]])
    >>> keras.ops.shape(layer(ids))
    (2, 3, 3, 8)

    Reference:
        Peters et al., 2018, https://arxiv.org/abs/1802.05365
    """

    def __init__(
        self,
        config,
        output="layers",
        keep_boundaries=False,
        stateful=False,
        trainable_bilm=False,
        save_bilm=True,
        **kwargs,
    ):
        # Ids given as floats must not be rounded to a half-precision compute dtype.
        super().__init__(autocast=False, **kwargs)
        if not isinstance(config, BiLMConfig):
            raise ValueError(
                f"ElmoLayer expects a BiLMConfig. Received: config={config!r}. Use "
                "ElmoLayer.from_preset(...) or from_hdf5(...) for files, BiLMConfig.from_options "
                "for options"
            )
        if output not in _OUTPUTS:
            raise ValueError(
                f"ElmoLayer expects output to be one of {_OUTPUTS}. Received: output={output!r}"
            )
        if trainable_bilm and not save_bilm:
            raise ValueError(
                "ElmoLayer must save a biLM that is trained, or the training would be lost. "
                "Received: trainable_bilm=True, save_bilm=False"
            )
        self.config = config
        self.alphabet = alphabet_of(config)
        self.output_kind = output
        self.keep_boundaries = keep_boundaries
        self.stateful = stateful
        self.trainable_bilm = trainable_bilm
        self.save_bilm = save_bilm
        self.supports_masking = True
        self.token_mask = TokenMask(name="token_mask")
        self.output_mask = TokenMask(keep_boundaries, name=f"{self.name}_mask")
        self.carried_state = CarriedState()

    def __call__(self, inputs, *args, **kwargs):
        if isinstance(inputs, np.ndarray | list | tuple):
            inputs = check_ids(inputs, self.config)
        # A built layer, as from_preset gives, is not built again: check here too.
        self._check_shape(inputs.shape)
        self._check_dtype(inputs.dtype)
        return super().__call__(inputs, *args, **kwargs)

    def _check_dtype(self, dtype):
        dtype = keras.backend.standardize_dtype(dtype)
        largest = _LARGEST.get(dtype, self.alphabet.largest_id)
        if largest < self.alphabet.largest_id:
            raise ValueError(
                f"ElmoLayer expects character ids, and {dtype} has no room above {largest}. "
                f"Received: dtype={dtype}. Pass int32, or start the model with "
                f'keras.Input((None, {self.alphabet.row_length}), dtype="int32")'
            )

    def _check_shape(self, shape):
        fewest = max(3, self.config.widest_filter) + self.alphabet.leading
        most = self.alphabet.row_length
        if len(shape) != 3 or shape[2] not in range(fewest, most + 1):
            raise ValueError(
                "ElmoLayer expects character ids of shape (batch, tokens, characters) with "
                f"{fewest} to {most} characters. Received: shape={tuple(shape)}. "
                "CharacterTokenizer makes them from tokens"
            )

    def build(self, input_shape):
        self._check_shape(input_shape)
        self.bilm = BiLM(
            self.config,
            frozen=not self.trainable_bilm,
            saved=self.save_bilm,
            dtype=self.dtype_policy,
            name="bilm",
        )
        self.bilm.build(input_shape)

    def call(self, inputs):
        self.check_weights()
        if not self.save_bilm and _is_being_compiled(inputs):
            self._is_compiled = True
        if inputs.shape[0] == 0:  # the maximum over characters refuses a batch of no sentence
            return self._nothing(inputs.shape)
        ids = ops.cast(inputs, "int32")
        mask = self.token_mask(ids)
        representations = self._run_bilm(
            add_boundaries(ids, mask, self.alphabet), with_boundaries(mask)
        )
        if not self.trainable_bilm:
            representations = {k: ops.stop_gradient(x) for k, x in representations.items()}
        if not self.keep_boundaries:
            # The </S> of a short sentence lands on a masked place and becomes 0 there.
            keep = ops.cast(mask, self.compute_dtype)[..., None]
            representations = {k: x[:, 1:-1] * keep for k, x in representations.items()}
        return select_output(representations, self.output_kind)

    def _nothing(self, input_shape):
        shape = self.compute_output_shape(input_shape)
        if isinstance(shape, dict):
            return {name: ops.zeros(s, dtype=self.compute_dtype) for name, s in shape.items()}
        return ops.zeros(shape, dtype=self.compute_dtype)

    def _run_bilm(self, ids, mask):
        if not self.stateful:
            return self.bilm(ids, mask=mask)[0]
        if _in_compiled_graph(ids):
            raise ValueError(
                "ElmoLayer(stateful=True) is for eager calls, layer(ids). Received: a call inside "
                "a compiled graph, such as fit or predict. Use stateful=False there"
            )
        state = self.carried_state.of_rows(ids.shape[0])
        representations, state = self.bilm(ids, mask=mask, initial_state=state)
        self.carried_state.update(state)
        return representations

    def compute_mask(self, inputs, previous_mask=None):
        mask = self.output_mask(inputs)
        if self.output_kind == "all":
            return {name: mask for name in representation_names(self.config)}
        return mask

    def compute_output_shape(self, input_shape):
        batch, tokens, _ = input_shape
        if self.keep_boundaries and tokens is not None:
            tokens += 2
        width = self.config.projection_dim
        if self.output_kind == "all":
            return {name: (batch, tokens, width) for name in representation_names(self.config)}
        if self.output_kind == "layers":
            return (batch, tokens, self.config.n_layers + 1, 2 * width)
        return (batch, tokens, 2 * width)

    @property
    def state(self):
        """The carried state as NumPy, ``h`` and ``c``, or None before the first batch.

        Shapes ``(L, rows, 2 * projection_dim)`` and ``(L, rows, 2 * lstm_dim)``,
        forward before backward.
        """
        return self.carried_state.as_numpy()

    def reset_state(self) -> None:
        """Let every row of the next batch start from a zero state."""
        self.carried_state.reset()

    def get_config(self):
        return {
            **super().get_config(),
            "config": self.config.to_options(),
            "output": self.output_kind,
            "keep_boundaries": self.keep_boundaries,
            "stateful": self.stateful,
            "trainable_bilm": self.trainable_bilm,
            "save_bilm": self.save_bilm,
        }

    @classmethod
    def from_config(cls, config):
        return cls(**{**config, "config": BiLMConfig.from_options(config["config"])})


def _is_being_compiled(tensor):
    """Tell whether a call is traced to be run later, not only for the shape of its output."""
    with keras.SymbolicScope() as scope:
        return _in_compiled_graph(tensor) and scope.original_scope is None


def _in_compiled_graph(tensor):
    backend = keras.backend.backend()
    if backend == "tensorflow":
        return not hasattr(tensor, "numpy")
    if backend == "jax":
        import jax

        return isinstance(tensor, jax.core.Tracer)
    import torch

    return torch.compiler.is_compiling()
