"""The biLM in a Keras model: add boundary tokens, run the biLM, remove boundary tokens."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_elmo.config import BiLMConfig
from keras_elmo.formats.base import BiLMFile
from keras_elmo.formats.bilm_hdf5 import read_bilm, write_bilm
from keras_elmo.formats.weight_mapping import fingerprint, variables_by_path
from keras_elmo.layer_choice import LayerChoice
from keras_elmo.layers.backend.eager import in_few_shapes, is_eager
from keras_elmo.layers.bilm import BiLM, layer_representation, representation_names
from keras_elmo.layers.boundaries import TokenMask, add_boundaries, token_mask, with_boundaries
from keras_elmo.layers.carried_state import CarriedState
from keras_elmo.layers.input_checks import check_inputs, check_shape
from keras_elmo.presets import Preset, bundled_facts
from keras_elmo.utils.checks import invalid, shorten
from keras_elmo.utils.files import PathLike, local_path
from keras_elmo.utils.forks import check_fork
from keras_elmo.utils.typing import Tensor

# The entry "weights" in the config of a built layer. The config itself contains no weights.
_WEIGHTS = "saved apart from the config"


class _LiveWeights(str):
    """``_WEIGHTS`` with the layer that wrote the config, so ``clone_model`` copies its weights.

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
        output: str, int or list. ``"layers"`` returns all layers in one tensor: layer 0 contains
            the token representation twice, layer l contains ``[forward_l; backward_l]``.
            ``"top"`` returns the last layer, ``"average"`` the mean of all L + 1 layers.
            A number from 0 to L returns that layer; negative numbers count from the end. A list
            of L + 1 weights returns the weighted sum of the layers.
            ``"all"`` returns a dict of the 2L + 1 representations ``token``, ``forward_1`` ..
            ``forward_L``, ``backward_1`` .. ``backward_L``.
        keep_boundaries: bool. Keep ``<S>`` and ``</S>`` in the output. The output then has
            ``tokens + 2`` tokens, and the mask is True for both.
        stateful: bool. Start each row of a batch from the final state of the same row of the
            previous batch, as bilm-tf and AllenNLP do, until ``reset_state()``. It works in
            eager calls only. On PyTorch, ``fit`` and ``predict`` are eager too.
        trainable_bilm: bool. Make the weights of the biLM trainable, for fine-tuning.
        save_bilm: bool. Whether saved models contain the weights of the biLM. With False they
            contain only its fingerprint. The weights of a loaded layer are then NaN until
            ``load_preset`` or ``load_hdf5`` loads the biLM with that fingerprint.
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
        projection_dim)``. With ``"all"``, a dict of tensors of shape ``(batch, tokens,
        projection_dim)``. Otherwise shape ``(batch, tokens, 2 * projection_dim)``. NaN if the
        weights are missing: ``from_config`` and ``model_from_json`` make a layer without them,
        and so does a file that was saved with ``save_bilm=False``.

    Masking: computes the Keras mask from the ids, bool, shape ``(batch, tokens)``: True up to
        the last token that is not padding. It ignores an incoming mask.

    Raises:
        ValueError: If an argument or the shape of the input is invalid. If the ids have another
            alphabet than the biLM, or are padded in front; compiled graphs do not check this.
            If a stateful layer is called in a compiled graph. In eager calls, if the weights are
            missing.

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
        output: str | int | Sequence[float] = "layers",
        keep_boundaries: bool = False,
        stateful: bool = False,
        trainable_bilm: bool = False,
        save_bilm: bool = True,
        **kwargs: Any,
    ) -> None:
        # Autocast would round float ids to the compute dtype.
        super().__init__(autocast=False, **kwargs)
        if not isinstance(config, BiLMConfig):
            raise invalid(
                "ElmoLayer expects a BiLMConfig",
                f"config={shorten(config)}",
                "Use ElmoLayer.from_preset(...) or from_hdf5(...) for files, "
                "BiLMConfig.from_options(...) for options",
            )
        if trainable_bilm and not save_bilm:
            raise invalid(
                "ElmoLayer expects save_bilm=True with trainable_bilm=True, or the trained biLM "
                "would be lost",
                "trainable_bilm=True, save_bilm=False",
            )
        if kwargs.get("trainable") and not trainable_bilm:
            warnings.warn(
                "ElmoLayer expects trainable_bilm=True to train its biLM. Received: "
                "trainable=True, which leaves the biLM frozen",
                stacklevel=2,
            )
        self.config = config
        self.alphabet = config.alphabet
        self.choice = None  # for all representations
        if not (isinstance(output, str) and output == "all"):
            layers = "all" if isinstance(output, str) and output == "layers" else output
            self.choice = LayerChoice.of(layers, config.n_layers + 1)
            output = "layers" if self.choice.weights is None else self.choice.name
        self.output_kind = output
        self.keep_boundaries = keep_boundaries
        self.stateful = stateful
        self.trainable_bilm = trainable_bilm
        self.save_bilm = save_bilm
        self.supports_masking = True
        self.output_mask = TokenMask(keep_boundaries, name=f"{self.name}_mask")
        self.carried_state = CarriedState()
        # Not None after from_config: the weights exist elsewhere, so they are not random here.
        self._weights: str | None = None
        # The fingerprint of the biLM that a file with save_bilm=False expects.
        self._awaited: str | None = None

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
        layer.build((None, None, layer.alphabet.row_length))
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
            raise invalid(
                f"ElmoLayer expects a biLM with the options of this layer, {self.config}",
                f"{bilm.config}, from {bilm.file_name}",
            )
        if self._awaited:
            received = bilm.fingerprint(self.variable_dtype)
            if received != self._awaited:
                raise invalid(
                    "ElmoLayer expects the biLM that the model was saved with, "
                    f"fingerprint={self._awaited}",
                    f"fingerprint={received}, of {bilm.file_name}",
                )
        if not self.built:
            self._weights = _WEIGHTS  # random weights would only be replaced
            self.build((None, None, self.alphabet.row_length))
        bilm.assign(variables_by_path(self.bilm))
        self._awaited = None

    def save_hdf5(self, directory: PathLike, overwrite: bool = False) -> None:
        """Write ``options.json`` and ``weights.hdf5``, which AllenNLP and bilm-tf load.

        Args:
            directory: path. The directory is created if it does not exist.
            overwrite: bool. Replace existing files with these names.

        Raises:
            ValueError: If the layer has no weights yet, or a file exists and ``overwrite`` is
                False.
            OSError: If the files cannot be written.
        """
        self.check_weights()
        directory = local_path(directory)
        names = ("options.json", "weights.hdf5")
        if not overwrite and any((directory / name).exists() for name in names):
            raise invalid(
                f"save_hdf5 expects a directory without {' and '.join(names)}",
                f"directory={str(directory)!r}",
                "Pass overwrite=True to replace them",
            )
        write_bilm(directory, self.config, variables_by_path(self.bilm))

    def save_to_preset(self, directory: PathLike, overwrite: bool = False) -> None:
        """Write a preset, as ``save_hdf5`` does. KerasHub uses this name."""
        self.save_hdf5(directory, overwrite)

    def fingerprint(self) -> str:
        """Return the SHA-256 of the weights of the biLM, in hexadecimal."""
        check_fork()  # weights in bfloat16 are cast
        self.check_weights()
        return fingerprint(variables_by_path(self.bilm))

    def check_weights(self) -> None:
        """Raise a ``ValueError`` if the layer is not built or has no weights yet."""
        if not self.built:
            raise ValueError("ElmoLayer has no weights before it is built. Call it first")
        if not self._has_weights():
            advice = "load_preset or load_hdf5"
            if self._awaited:
                advice += f" with the biLM of fingerprint {self._awaited}"
            raise invalid(
                "ElmoLayer expects the weights of its biLM",
                "weights of NaN, because the layer was made from a config, or from a file that "
                "was saved with save_bilm=False; or its training diverged",
                f"Call {advice}, or load_weights or set_weights of the model. clone_model and "
                ".keras files keep the weights",
            )

    def _has_weights(self) -> bool:
        return not np.isnan(ops.convert_to_numpy(self._last_bias)).any()

    @property
    def _last_bias(self) -> Any:
        """The bias of the last LSTM: a small weight that shows whether the weights are missing."""
        return self.bilm.lstms[-1].bias.value

    def build(self, input_shape: tuple) -> None:
        check_shape(input_shape, self.config)
        self.bilm = BiLM(
            self.config,
            frozen=not self.trainable_bilm,
            saved=self.save_bilm,
            missing=self._weights is not None,
            trainable=self.trainable,
            dtype=self.dtype_policy,
            name="bilm",
        )
        self.bilm.build(input_shape)
        source = getattr(self._weights, "layer", None)
        if source is not None:
            self.bilm.set_weights(source.bilm.get_weights())
            self._awaited = source._awaited

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        check_fork()
        return super().__call__(check_inputs(inputs, self.config), *args, **kwargs)

    def call(self, inputs: Tensor) -> Any:
        if is_eager(inputs, self._last_bias):
            self.check_weights()
            if not self.stateful:
                return in_few_shapes(self._compute, inputs, 2 * self.keep_boundaries)
        elif self.stateful:
            raise invalid(
                "ElmoLayer(stateful=True) expects eager calls, layer(ids)",
                "a call inside a compiled graph, such as fit or predict",
                "Use stateful=False there",
            )
        return self._compute(inputs)

    def _compute(self, inputs: Tensor) -> Any:
        ids = ops.cast(inputs, "int32")
        mask = token_mask(ids)
        state = self.carried_state.for_batch(ids.shape[0]) if self.stateful else None
        representations, state = self.bilm(
            add_boundaries(ids, mask, self.alphabet),
            mask=with_boundaries(mask),
            initial_state=state,
        )
        if self.stateful:
            self.carried_state.update(state)
        if not self.trainable_bilm:
            representations = {k: ops.stop_gradient(x) for k, x in representations.items()}
        if not self.keep_boundaries:
            # The slice removes <S>, and the </S> of the longest sentences. In a shorter sentence
            # </S> is then where the input has its first padding token, and the mask is 0.
            keep = ops.cast(mask, self.compute_dtype)[..., None]
            representations = {k: x[:, 1:-1] * keep for k, x in representations.items()}
        if self.choice is None:
            return representations
        layers = [layer_representation(representations, layer) for layer in self.choice.layers]
        if self.choice.weights is None:
            return ops.stack(layers, axis=2)
        return self.choice.combine(layers)

    def compute_mask(self, inputs: Tensor, previous_mask: Tensor | None = None) -> Any:
        if isinstance(inputs, keras.KerasTensor):
            mask = self.output_mask(inputs)  # a node in the graph of the model
        else:
            mask = in_few_shapes(self.output_mask.call, inputs, 2 * self.keep_boundaries)
        if self.choice is None:
            return {name: mask for name in representation_names(self.config)}
        return mask

    def compute_output_shape(self, input_shape: tuple) -> Any:
        batch, tokens, _ = input_shape
        if self.keep_boundaries and tokens is not None:
            tokens += 2
        width = self.config.projection_dim
        if self.choice is None:
            return {name: (batch, tokens, width) for name in representation_names(self.config)}
        if self.choice.weights is None:
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
        if not self.save_bilm:
            has_weights = self.built and self._has_weights()
            digest = self.fingerprint() if has_weights or not self._awaited else self._awaited
            store["fingerprint"] = np.frombuffer(bytes.fromhex(digest), "uint8")

    def load_own_variables(self, store: Any) -> None:
        # A file has a fingerprint exactly if it was written with save_bilm=False.
        if ("fingerprint" in store.keys()) == self.save_bilm:
            raise invalid(
                "ElmoLayer expects a file written with the same save_bilm",
                f"save_bilm={self.save_bilm}, and a file written with the opposite",
            )
        if self.save_bilm:
            return
        saved = np.asarray(store["fingerprint"]).tobytes().hex()
        if not self._has_weights():
            self._awaited = saved
        elif saved != self.fingerprint():
            raise invalid(
                "ElmoLayer expects a file that was saved with the biLM of this layer, "
                f"fingerprint={self.fingerprint()}",
                f"fingerprint={saved}",
                "Make the layer from the biLM that the file was saved with",
            )

    def __reduce__(self) -> tuple:
        """Keep the weights in copies and pickles, also with ``save_bilm=False``."""
        weights = self.bilm.get_weights() if self.built else None
        return _restore, (self.get_config(), weights, self._awaited)

    def get_config(self) -> dict:
        weights = self._weights
        if self.built:
            weights = _LiveWeights(_WEIGHTS)
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
        if arguments.get("trainable"):  # the default, which would cause a warning
            del arguments["trainable"]
        weights = arguments.pop("weights", None)
        layer = cls(**arguments)
        layer._weights = weights
        return layer


def _restore(config: dict, weights: list | None, awaited: str | None) -> ElmoLayer:
    """Make the layer of a copy or a pickle."""
    layer = ElmoLayer.from_config({**config, "weights": None})
    if weights is not None:
        layer._weights = _WEIGHTS
        layer.build((None, None, layer.alphabet.row_length))
        layer.bilm.set_weights(weights)
    layer._awaited = awaited
    return layer
