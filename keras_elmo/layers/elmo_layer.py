"""The biLM in a Keras model: add boundary tokens, run the biLM, remove boundary tokens."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_elmo.config import BiLMConfig
from keras_elmo.formats.base import BiLMFile
from keras_elmo.formats.bilm_hdf5 import read_bilm, write_bilm
from keras_elmo.formats.weight_mapping import fingerprint, variables_by_path
from keras_elmo.layers.backend.tracing import computes_shapes_only, is_eager
from keras_elmo.layers.bilm import BiLM, representation_names, select_output
from keras_elmo.layers.boundaries import (
    TokenMask,
    add_boundaries,
    pad_empty_batch,
    token_mask,
    with_boundaries,
)
from keras_elmo.layers.carried_state import CarriedState
from keras_elmo.layers.input_checks import check_inputs, check_shape
from keras_elmo.presets import Preset, bundled_facts
from keras_elmo.utils.batches import padding_to_few_shapes
from keras_elmo.utils.checks import is_whole, shorten
from keras_elmo.utils.files import PathLike
from keras_elmo.utils.forks import check_fork
from keras_elmo.utils.typing import Tensor

_OUTPUTS = ("layers", "all", "top", "average")
# The entry "weights" in the config of a built layer. The config itself contains no weights.
_ANY_BILM = "saved apart from the config"


class _LiveWeights(str):
    """``_ANY_BILM`` with the layer that wrote the config, so ``clone_model`` copies its weights.

    In JSON and in a pickle it becomes a plain str.
    """

    layer: "ElmoLayer"

    def __deepcopy__(self, memo: dict) -> "_LiveWeights":
        return self

    def __reduce__(self) -> tuple:
        return str, (str(self),)


class _ClassProperty:
    """An attribute of a class that is computed at every access."""

    def __init__(self, compute: Callable) -> None:
        self.compute = compute

    def __get__(self, instance: Any, owner: type) -> Any:
        return self.compute()


@keras.saving.register_keras_serializable(package="keras_elmo")
class ElmoLayer(keras.layers.Layer):
    """Compute the layer representations of a pretrained biLM for every token.

    The biLM is frozen: ``trainable`` of the layer or of the model does not change its
    weights, and no gradient passes through it. ``trainable_bilm=True`` makes it trainable.

    Args:
        config: ``BiLMConfig``. The architecture. The weights of a new layer are random;
            ``from_preset`` and ``from_hdf5`` read the config and the weights from files.
        output: str or int. ``"layers"`` returns all layers in one tensor: layer 0 contains the
            token representation twice, layer l contains ``[forward_l; backward_l]``.
            ``"top"`` returns the last layer, ``"average"`` the mean of all L + 1 layers.
            A number from 0 to L returns that layer; negative numbers count from the end.
            ``"all"`` returns a dict of the 2L + 1 representations ``token``, ``forward_1`` ..
            ``forward_L``, ``backward_1`` .. ``backward_L``.
        keep_boundaries: bool. Keep ``<S>`` and ``</S>`` in the output. The output then has
            ``tokens + 2`` tokens, and the mask is True for both.
        stateful: bool. Start each row of a batch from the final state of the same row of the
            previous batch, as bilm-tf and AllenNLP do, until ``reset_state()``. It works in
            eager calls only. On PyTorch, ``fit`` and ``predict`` are eager too.
        trainable_bilm: bool. Make the weights of the biLM trainable, for fine-tuning.
        save_bilm: bool. Whether saved models contain the weights of the biLM. With False they
            contain only its fingerprint. A loaded layer then has no weights: a call raises an
            error until ``load_preset`` or ``load_hdf5`` loads the biLM with that fingerprint.
            Functions that were compiled before are not checked.
        **kwargs: Arguments of ``keras.layers.Layer``.

    Call arguments:
        inputs: Character ids from ``CharacterTokenizer``, int, shape ``(batch, tokens,
            characters)``; a row of 0 is padding. ``characters`` is at least 3, at least the
            width of the widest filter, and at most ``max_characters_per_token``. Fewer than
            ``max_characters_per_token`` give the same result if the longest token has at most
            ``characters - 2 - width of the widest filter`` bytes. For a biLM over code points,
            make the tokenizer with ``CharacterTokenizer.from_preset``; a word id may precede
            its character ids.

    Attributes:
        presets: dict. Facts about the bundled presets by name: ``description``, ``layers``,
            ``width``, ``max_characters`` and ``path``.

    Returns:
        Float, 0 in padding. With ``"layers"``, shape ``(batch, tokens, L + 1, 2 *
        projection_dim)``. With ``"top"``, ``"average"`` or a number, shape ``(batch, tokens,
        2 * projection_dim)``. With ``"all"``, a dict of tensors of shape ``(batch, tokens,
        projection_dim)``.

    Masking: computes the Keras mask from the ids, bool, shape ``(batch, tokens)``: True up to
        the last token that is not padding. It ignores an incoming mask.

    Raises:
        ValueError: If an argument or the shape of the input is invalid. If the ids have another
            alphabet than the biLM, or are padded in front; compiled graphs do not check this.
            If a stateful layer is called in a compiled graph. If the layer has no weights yet,
            because ``model_from_json`` made it, or it was saved with ``save_bilm=False``.

    Examples:
        >>> config = BiLMConfig(lstm_dim=8, projection_dim=4, filters=((1, 6), (3, 8)))
        >>> layer = ElmoLayer(config)
        >>> ids = keras_elmo.CharacterTokenizer()([["One", "sentence", "."], ["Two"]])
        >>> keras.ops.shape(layer(ids))
        (2, 3, 3, 8)

    Reference:
        Peters et al., 2018, https://arxiv.org/abs/1802.05365
    """

    presets = _ClassProperty(bundled_facts)

    def __init__(
        self,
        config: BiLMConfig,
        output: str | int = "layers",
        keep_boundaries: bool = False,
        stateful: bool = False,
        trainable_bilm: bool = False,
        save_bilm: bool = True,
        **kwargs: Any,
    ) -> None:
        # Autocast would round float ids to the compute dtype.
        super().__init__(autocast=False, **kwargs)
        if not isinstance(config, BiLMConfig):
            raise ValueError(
                f"ElmoLayer expects a BiLMConfig. Received: config={shorten(config)}. Use "
                "ElmoLayer.from_preset(...) or from_hdf5(...) for files, "
                "BiLMConfig.from_options(...) for options"
            )
        n = config.n_layers + 1
        if is_whole(output, -n) and output < n:
            output = int(output) % n
        elif not (isinstance(output, str) and output in _OUTPUTS):
            raise ValueError(
                f"ElmoLayer expects output to be one of {_OUTPUTS}, or a number from {-n} to "
                f"{n - 1}. Received: output={shorten(output)}"
            )
        if trainable_bilm and not save_bilm:
            raise ValueError(
                "ElmoLayer expects save_bilm=True with trainable_bilm=True, or the trained biLM "
                "would be lost. Received: trainable_bilm=True, save_bilm=False"
            )
        self.config = config
        self.alphabet = config.alphabet
        self.output_kind = output
        self.keep_boundaries = keep_boundaries
        self.stateful = stateful
        self.trainable_bilm = trainable_bilm
        self.save_bilm = save_bilm
        self.supports_masking = True
        self.output_mask = TokenMask(keep_boundaries, name=f"{self.name}_mask")
        self.carried_state = CarriedState()
        self._is_pretrained = False  # Whether the weights came from files.
        # The biLM that must be loaded before the layer can compute: None if it is there,
        # _ANY_BILM after from_config, or the fingerprint in a file with save_bilm=False.
        self._missing: str | None = None
        self._warns_of_trainable = not trainable_bilm
        if kwargs.get("trainable"):
            self._warn_of_trainable()

    @classmethod
    def from_hdf5(cls, options_file: PathLike, weight_file: PathLike, **kwargs: Any) -> "ElmoLayer":
        """Build the layer from an options file and a weight file in bilm-tf's layout.

        Args:
            options_file: path. The ``options.json``.
            weight_file: path. The ``weights.hdf5``.
            **kwargs: Arguments of ``ElmoLayer``.

        Returns:
            A built ``ElmoLayer``.

        Raises:
            OSError: If a file is missing or damaged.
            ValueError: If the options describe no biLM over characters, or the weights do not
                fit them. The error names every tensor that does not fit.
        """
        return cls._from_bilm(read_bilm(options_file, weight_file), kwargs)

    @classmethod
    def from_preset(
        cls, preset: Any, load_weights: bool = True, options: Any = None, **kwargs: Any
    ) -> "ElmoLayer":
        """Build the layer from a preset, or from the files of another program.

        Args:
            preset: str or path. Name of a bundled preset; name of a released model, or
                ``"hf://user/model"``, which is downloaded once; or path of a directory, .zip or
                .tar.gz with a biLM: options and hdf5 file in bilm-tf's layout, checkpoint of
                bilm-tf, TF-Hub module, AllenNLP archive or model of ELMoForManyLangs. The path
                of a checkpoint may lack its ending, as in ``model.ckpt-400``.
            load_weights: bool. With False, read the options only and keep random weights.
            options: dict or path of an options file. It replaces the options of the preset.
                If a format does not record all options and this is None, the layer takes the
                values of the released models, and a warning names them.
            **kwargs: Arguments of ``ElmoLayer``.

        Returns:
            A built ``ElmoLayer``.

        Raises:
            OSError: If a file is missing or damaged, or a download fails.
            ValueError: If the preset does not exist, or its files do not fit together.
            ImportError: If the format needs PyTorch or the Hub needs huggingface_hub, and it is
                missing.
        """
        if load_weights:
            return cls._from_bilm(Preset(preset, options).read(), kwargs)
        layer = cls(Preset(preset, options).read_config(), **kwargs)
        layer._build_unbuilt()
        return layer

    @classmethod
    def _from_bilm(cls, bilm: BiLMFile, kwargs: dict) -> "ElmoLayer":
        layer = cls(bilm.config, **kwargs)
        layer._load(bilm)
        return layer

    def load_hdf5(self, options_file: PathLike, weight_file: PathLike) -> None:
        """Build this layer and load its weights. Arguments and errors are as in ``from_hdf5``."""
        self._load(read_bilm(options_file, weight_file))

    def load_preset(self, preset: Any, options: Any = None) -> None:
        """Load the weights of a preset into this layer; see ``from_preset``."""
        self._load(Preset(preset, options).read())

    def _load(self, bilm: BiLMFile) -> None:
        if bilm.config != self.config:
            raise ValueError(
                "ElmoLayer expects a biLM with the options of this layer. "
                f"Expected: {self.config}. Received: {bilm.config}, from {bilm.file_name}"
            )
        if self._missing not in (None, _ANY_BILM):
            received = bilm.fingerprint(self.variable_dtype)
            if received != self._missing:
                raise ValueError(
                    "ElmoLayer expects the biLM that the model was saved with. "
                    f"Expected: fingerprint={self._missing}. "
                    f"Received: fingerprint={received}, of {bilm.file_name}"
                )
        self._build_unbuilt()
        bilm.assign(variables_by_path(self.bilm))
        self._missing, self._is_pretrained = None, True

    def _build_unbuilt(self) -> None:
        if not self.built:
            self.build((None, None, self.alphabet.row_length))

    def save_hdf5(self, directory: PathLike) -> None:
        """Write ``options.json`` and ``weights.hdf5``, which AllenNLP and bilm-tf load.

        Args:
            directory: path. The directory is created if it does not exist. Existing files
                with these names are replaced: both, or neither after an error.

        Raises:
            ValueError: If the layer is not built or has no weights yet.
            OSError: If the files cannot be written.
        """
        self.check_weights()
        write_bilm(directory, self.config, variables_by_path(self.bilm))

    def save_to_preset(self, directory: PathLike) -> None:
        """Write a preset, as ``save_hdf5`` does. KerasHub uses this name."""
        self.save_hdf5(directory)

    def fingerprint(self) -> str:
        """Return the SHA-256 of the weights of the biLM, in hexadecimal."""
        check_fork()  # weights in bfloat16 are cast
        self.check_weights()
        return fingerprint(variables_by_path(self.bilm))

    def check_weights(self) -> None:
        """Raise a ``ValueError`` if the layer is not built or has no weights yet."""
        if not self.built:
            raise ValueError("ElmoLayer has no weights before it is built. Call it first")
        if self._missing == _ANY_BILM:
            raise ValueError(
                "ElmoLayer was made from the config of another layer. Expected: the weights of its "
                "biLM. Received: a config, which contains no weights. Call load_weights or "
                "set_weights of the model, or load_preset of the layer. clone_model and .keras "
                "files keep the weights"
            )
        if self._missing:
            raise ValueError(
                "ElmoLayer was saved without its biLM (save_bilm=False) and has no weights yet. "
                f"Call load_preset or load_hdf5 with the biLM of fingerprint {self._missing}"
            )

    def __setattr__(self, name: str, value: Any) -> None:
        # A property would miss calls: on TensorFlow, Keras skips its setter for an equal value.
        if name == "trainable" and value:
            self._warn_of_trainable()
        if name == "trainable_bilm" and value != getattr(self, name, value):
            raise AttributeError(
                f"trainable_bilm can be set only when ElmoLayer {self.name!r} is made. Received: "
                f"trainable_bilm={value}, but the layer was made with {self.trainable_bilm}. Make "
                "another layer. To freeze a biLM that is trainable, set trainable=False"
            )
        super().__setattr__(name, value)

    def _warn_of_trainable(self) -> None:
        if self._warns_of_trainable:
            self._warns_of_trainable = False
            warnings.warn(
                f"ElmoLayer {self.name!r} expects trainable_bilm=True to train its biLM. "
                "Received: trainable=True, which leaves the biLM frozen. Make the layer with "
                "trainable_bilm=True for fine-tuning",
                stacklevel=3,
            )

    def build(self, input_shape: tuple) -> None:
        check_shape(input_shape, self.config)
        self.bilm = BiLM(
            self.config,
            frozen=not self.trainable_bilm,
            saved=self.save_bilm,
            dtype=self.dtype_policy,
            name="bilm",
        )
        self.bilm.build(input_shape)
        if self._missing:
            self._copy_weights(getattr(self._missing, "layer", None))

    def _copy_weights(self, source: "ElmoLayer | None") -> None:
        """Copy the weights of the layer that wrote the config, or wait for an assignment."""
        if source is not None and source._missing != _ANY_BILM:
            self._missing, self._is_pretrained = source._missing, source._is_pretrained
            self.bilm.set_weights(source.bilm.get_weights())
            return
        self._missing = _ANY_BILM
        # Keras has no hook for loaded weights. Every way to load weights assigns all variables, so
        # replace the assign method of each variable until a value is assigned.
        unassigned = {variable.path for variable in self.bilm.variables}

        def assign_first(variable: Any, value: Any) -> Any:
            result = type(variable).assign(variable, value)  # It raises if the shapes differ.
            del variable.assign
            unassigned.remove(variable.path)
            if not unassigned and self._missing == _ANY_BILM:
                self._missing = None
            return result

        for variable in self.bilm.variables:
            variable.assign = functools.partial(assign_first, variable)

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        check_fork()
        ids = pad_empty_batch(self, check_inputs(inputs, self.config))
        return super().__call__(ids, *args, **kwargs)

    def call(self, inputs: Tensor) -> Any:
        if not computes_shapes_only():
            self.check_weights()
        if inputs.shape[0] == 0:  # The max-pool of the character CNN fails on an empty batch.
            return self._empty_output(inputs.shape)
        return self._in_few_shapes(self._representations, inputs)

    def _representations(self, inputs: Tensor) -> Any:
        ids = ops.cast(inputs, "int32")
        mask = token_mask(ids)
        representations = self._run_bilm(
            add_boundaries(ids, mask, self.alphabet), with_boundaries(mask)
        )
        if not self.trainable_bilm:
            representations = {k: ops.stop_gradient(x) for k, x in representations.items()}
        if not self.keep_boundaries:
            # The slice removes <S>, and the </S> of the longest sentences. In a shorter sentence
            # </S> is then where the input has its first padding token, and the mask is 0.
            keep = ops.cast(mask, self.compute_dtype)[..., None]
            representations = {k: x[:, 1:-1] * keep for k, x in representations.items()}
        return select_output(representations, self.output_kind)

    def _in_few_shapes(self, compute: Callable, ids: Tensor) -> Any:
        """Call a function of the ids. In eager calls on JAX, pad the ids to one of a few shapes.

        JAX compiles again for every shape. For the biLM this takes seconds and 100 MB.
        """
        if keras.backend.backend() != "jax" or self.stateful or not is_eager(ids):
            return compute(ids)
        rows, tokens, _ = ids.shape
        more = [(0, n) for n in padding_to_few_shapes(rows, tokens)]
        padded = np.pad(ops.convert_to_numpy(ids), [*more, (0, 0)])
        outputs = compute(ops.convert_to_tensor(padded))
        tokens += 2 * self.keep_boundaries

        def cut(x: Tensor) -> Tensor:
            if not is_eager(x):  # A compiled function called the layer with constant ids.
                return x[:rows, :tokens]
            # In NumPy, because JAX would compile each slice.
            return ops.convert_to_tensor(ops.convert_to_numpy(x)[:rows, :tokens], x.dtype)

        return keras.tree.map_structure(cut, outputs)

    def _empty_output(self, input_shape: tuple) -> Any:
        return keras.tree.map_shape_structure(
            lambda shape: ops.zeros(shape, dtype=self.compute_dtype),
            self.compute_output_shape(input_shape),
        )

    def _run_bilm(self, ids: Tensor, mask: Tensor) -> dict:
        if not self.stateful or computes_shapes_only():
            representations, _ = self.bilm(ids, mask=mask)
            return representations
        if not is_eager(ids):
            raise ValueError(
                "ElmoLayer(stateful=True) expects eager calls, layer(ids). Received: a call inside "
                "a compiled graph, such as fit or predict. Use stateful=False there"
            )
        state = self.carried_state.for_batch(ids.shape[0])
        representations, state = self.bilm(ids, mask=mask, initial_state=state)
        self.carried_state.update(state)
        return representations

    def compute_mask(self, inputs: Tensor, previous_mask: Tensor | None = None) -> Any:
        if isinstance(inputs, keras.KerasTensor):
            mask = self.output_mask(inputs)  # a node in the graph of the model
        else:
            mask = self._in_few_shapes(self.output_mask.call, inputs)
        if self.output_kind == "all":
            return {name: mask for name in representation_names(self.config)}
        return mask

    def compute_output_shape(self, input_shape: tuple) -> Any:
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
    def state(self) -> tuple[np.ndarray, ...] | None:
        """The carried state, ``h`` and ``c`` as NumPy, or None before the first batch.

        The shapes are ``(L, rows, 2 * projection_dim)`` and ``(L, rows, 2 * lstm_dim)``. The
        forward features come first.
        """
        return self.carried_state.as_numpy()

    def reset_state(self) -> None:
        """Start every row of the next batch from a zero state."""
        self.carried_state.values = None

    def save_own_variables(self, store: Any) -> None:
        if self._missing == _ANY_BILM and (self.built or not self.save_bilm):
            self.check_weights()
        if not self.save_bilm:
            digest = self._missing or self.fingerprint()
            store["fingerprint"] = np.frombuffer(bytes.fromhex(digest), "uint8")

    def load_own_variables(self, store: Any) -> None:
        # A file has a fingerprint exactly if it was written with save_bilm=False.
        if ("fingerprint" in store.keys()) == self.save_bilm:
            raise ValueError(
                "ElmoLayer expects a file written with the same save_bilm. "
                f"Received: save_bilm={self.save_bilm}, and a file written with the opposite"
            )
        if self.save_bilm:
            return
        saved = np.asarray(store["fingerprint"]).tobytes().hex()
        own = fingerprint(variables_by_path(self.bilm))
        if saved != own and self._is_pretrained:
            raise ValueError(
                "ElmoLayer expects a file that was saved with the biLM of this layer. "
                f"Expected: fingerprint={own}. Received: fingerprint={saved}. Make the layer "
                "from the biLM that the file was saved with"
            )
        self._missing = None if saved == own else saved

    def get_config(self) -> dict:
        weights = self._missing
        if self.built:
            weights = _LiveWeights(_ANY_BILM)
            weights.layer = self
        return {
            **super().get_config(),
            **({} if weights is None else {"weights": weights}),
            "config": self.config.to_options(),
            "output": self.output_kind,
            "keep_boundaries": self.keep_boundaries,
            "stateful": self.stateful,
            "trainable_bilm": self.trainable_bilm,
            "save_bilm": self.save_bilm,
        }

    @classmethod
    def from_config(cls, config: dict) -> "ElmoLayer":
        arguments = {**config, "config": BiLMConfig.from_options(config["config"])}
        trainable = arguments.pop("trainable", True)
        weights = arguments.pop("weights", None)
        layer = cls(**arguments)
        layer._missing = weights
        # Keras sets trainable of all layers when it loads a model, so do not warn.
        layer._warns_of_trainable = False
        layer.trainable = trainable
        return layer
