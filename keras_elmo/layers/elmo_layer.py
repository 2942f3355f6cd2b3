"""The biLM inside a Keras model: boundary tokens on, biLM, boundary tokens off."""

import keras
import numpy as np
from keras import ops

from keras_elmo.characters import check_ids
from keras_elmo.checkpoints.bilm_files import read_bilm, write_bilm
from keras_elmo.checkpoints.presets import Preset, bundled_facts, read_preset
from keras_elmo.checkpoints.rows import fingerprint, variables_by_path
from keras_elmo.config import BiLMConfig
from keras_elmo.layers.bilm import DIRECTIONS, BiLM, representation_names
from keras_elmo.layers.boundaries import TokenMask, add_boundaries, with_boundaries
from keras_elmo.layers.carried_state import CarriedState

_OUTPUTS = ("layers", "all", "top", "average")


class _BundledFacts:
    """An attribute of the class, read from the files whenever it is asked for."""

    def __get__(self, layer, owner):
        return bundled_facts()


@keras.saving.register_keras_serializable(package="keras_elmo")
class ElmoLayer(keras.layers.Layer):
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
            token's bytes plus 2 plus the widest filter.

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

    presets = _BundledFacts()

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
        self.output_kind = output
        self.keep_boundaries = keep_boundaries
        self.stateful = stateful
        self.trainable_bilm = trainable_bilm
        self.save_bilm = save_bilm
        self.supports_masking = True
        self.token_mask = TokenMask(name="token_mask")
        self.output_mask = TokenMask(keep_boundaries, name=f"{self.name}_mask")
        self.carried_state = CarriedState()
        self._is_pretrained = False
        self._is_compiled = False
        self._awaited_fingerprint = None

    # Files.

    @classmethod
    def from_hdf5(cls, options_file, weight_file, **kwargs):
        """Build the layer from an options and a weight file of bilm-tf's layout.

        Args:
            options_file: Path of the ``options.json``.
            weight_file: Path of the ``weights.hdf5``.
            **kwargs: Passed on to ``ElmoLayer``.

        Returns:
            A built ``ElmoLayer``.

        Raises:
            OSError: If a file is missing or damaged.
            ValueError: If the options are not those of a biLM over characters, or the
                weights do not fit them; the error names every tensor that does not.
        """
        return cls._from_files(read_bilm(options_file, weight_file), kwargs)

    @classmethod
    def from_preset(cls, preset, load_weights=True, **kwargs):
        """Build the layer from a preset.

        Args:
            preset: Name of a bundled preset, or path of a directory, .zip or .tar.gz. It
                holds one options file, named ``*options.json`` or ``options_file``, and
                one weight file: the one ``*weights.hdf5``, else ``model.hdf5``, else the
                only ``*.hdf5`` beside ``softmax.hdf5``, else ``weights_file``.
            load_weights: With False only the options are read, and the weights random.
            **kwargs: Passed on to ``ElmoLayer``.

        Returns:
            A built ``ElmoLayer``.

        Raises:
            OSError: If a file is missing or damaged.
            ValueError: If there is no such preset, or its files do not fit together.
        """
        if load_weights:
            return cls._from_files(read_preset(preset), kwargs)
        layer = cls(Preset(preset).read_config(), **kwargs)
        layer._build_unbuilt()
        return layer

    @classmethod
    def _from_files(cls, bilm, kwargs):
        layer = cls(bilm.config, **kwargs)
        layer._load(bilm)
        return layer

    def load_hdf5(self, options_file, weight_file) -> None:
        """Load weights into this layer, built or not; arguments and errors of ``from_hdf5``."""
        self._load(read_bilm(options_file, weight_file))

    def load_preset(self, preset) -> None:
        """Load the weights of a preset into this layer, as ``load_hdf5`` does."""
        self._load(read_preset(preset))

    def _load(self, bilm):
        if bilm.config != self.config:
            raise ValueError(
                "ElmoLayer expects the options that it was made with. "
                f"Expected: {self.config}. Received: {bilm.config}, for {bilm.origin}"
            )
        if self._awaited_fingerprint:
            received = bilm.fingerprint(self.variable_dtype)
            if received != self._awaited_fingerprint:
                raise ValueError(
                    "ElmoLayer expects the biLM that the model was saved with, and still waits "
                    f"for it. Expected: fingerprint={self._awaited_fingerprint}. "
                    f"Received: fingerprint={received}, of {bilm.origin}"
                )
        self._build_unbuilt()
        bilm.assign(variables_by_path(self.bilm))
        self._awaited_fingerprint = None
        self._is_pretrained = True

    def _build_unbuilt(self):
        if not self.built:
            self.build((None, None, self.config.max_characters_per_token))

    def save_hdf5(self, directory) -> None:
        """Write ``options.json`` and ``weights.hdf5``, which AllenNLP and bilm-tf load.

        Args:
            directory: Where to; made if it does not exist. Files of these names are
                replaced, both or none.

        Raises:
            ValueError: If the layer is not built, or waits for its biLM.
            OSError: If the files cannot be written.
        """
        self.check_weights()
        write_bilm(directory, self.config, variables_by_path(self.bilm))

    def save_to_preset(self, directory) -> None:
        """Write what ``from_preset`` reads back; ``save_hdf5`` by the name that KerasHub has."""
        self.save_hdf5(directory)

    def fingerprint(self) -> str:
        """Return the SHA-256 of the biLM's weights, in hexadecimal."""
        self.check_weights()
        return fingerprint(variables_by_path(self.bilm))

    def check_weights(self) -> None:
        """Raise a ``ValueError`` if the layer is not built, or waits for its biLM."""
        if not self.built:
            raise ValueError("ElmoLayer has no weights before it is built. Call it first")
        if self._awaited_fingerprint:
            raise ValueError(
                "ElmoLayer was saved without its biLM (save_bilm=False) and has no weights yet. "
                "Call load_preset or load_hdf5 with the biLM of fingerprint "
                f"{self._awaited_fingerprint}"
            )

    # The Keras contract.

    def __call__(self, inputs, *args, **kwargs):
        if isinstance(inputs, np.ndarray | list | tuple):
            inputs = check_ids(inputs)
        # A built layer, as from_preset gives, is not built again: check here too.
        self._check_shape(inputs.shape)
        return super().__call__(inputs, *args, **kwargs)

    def _check_shape(self, shape):
        fewest = max(3, self.config.widest_filter)
        most = self.config.max_characters_per_token
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
        if keras.backend.standardize_dtype(inputs.dtype) == "bfloat16":
            raise ValueError(
                "ElmoLayer expects whole character ids, and bfloat16 rounds those above 256. "
                "Received: dtype=bfloat16. Pass int32, or start the model with "
                'keras.Input((None, 50), dtype="int32")'
            )
        if inputs.shape[0] == 0:  # the maximum over characters refuses a batch of no sentence
            return self._nothing(inputs.shape)
        ids = ops.cast(inputs, "int32")
        mask = self.token_mask(ids)
        representations = self._run_bilm(add_boundaries(ids, mask), with_boundaries(mask))
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

    # State, for stateful=True.

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

    # Saving.

    def save_own_variables(self, store):
        if not self.save_bilm:
            digest = self._awaited_fingerprint or self.fingerprint()
            store["fingerprint"] = np.frombuffer(bytes.fromhex(digest), "uint8")

    def load_own_variables(self, store):
        if ("fingerprint" in store.keys()) == self.save_bilm:
            raise ValueError(
                "ElmoLayer expects a file written with the same save_bilm. "
                f"Received: save_bilm={self.save_bilm}, and a file written with the opposite"
            )
        if not self.save_bilm:
            saved = np.asarray(store["fingerprint"]).tobytes().hex()
            own = fingerprint(variables_by_path(self.bilm))
            if saved != own and (self._is_pretrained or self._is_compiled):
                raise ValueError(
                    "ElmoLayer expects a file that was saved with its own biLM. "
                    f"Expected: fingerprint={own}. Received: fingerprint={saved}. Before the "
                    "first call of fit or predict, load the biLM of that fingerprint with "
                    "load_preset or load_hdf5"
                )
            self._awaited_fingerprint = None if saved == own else saved

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


def select_output(representations, output):
    """Order the 2L + 1 representations of a biLM as ``output`` of ``ElmoLayer`` asks."""
    if output == "all":
        return representations
    token = representations["token"]
    layers = [ops.concatenate([token, token], axis=-1)]
    while f"forward_{len(layers)}" in representations:
        pair = [representations[f"{direction}_{len(layers)}"] for direction in DIRECTIONS]
        layers.append(ops.concatenate(pair, axis=-1))
    if output == "top":
        return layers[-1]
    if output == "average":
        return sum(layers) / len(layers)
    return ops.stack(layers, axis=2)


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
