"""The biLM in a Keras model: add boundary tokens, run the biLM, remove boundary tokens."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_elmo.config import BiLMConfig
from keras_elmo.layer_choice import LayerChoice
from keras_elmo.layers.backend.eager import in_few_shapes, is_eager
from keras_elmo.layers.bilm import BiLM, layer_representation
from keras_elmo.layers.boundaries import TokenMask, add_boundaries, token_mask, with_boundaries
from keras_elmo.layers.carried_state import CarriedState
from keras_elmo.layers.input_checks import check_inputs
from keras_elmo.layers.pretrained_layer import LiveWeights, PretrainedLayer
from keras_elmo.utils.checks import invalid, shorten
from keras_elmo.utils.forks import check_fork
from keras_elmo.utils.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_elmo")
class ElmoLayer(PretrainedLayer):
    """Compute the layer representations of a pretrained biLM for every token.

    The biLM is frozen: ``trainable`` of the layer or of the model does not change its
    weights, and no gradient passes through it. ``trainable_bilm=True`` makes it trainable.

    Args:
        config: ``BiLMConfig``. The architecture. ``from_preset`` and ``from_hdf5`` read the
            config and the weights from files. Otherwise the weights are random, or missing with
            ``save_bilm=False``.
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
        save_bilm: bool. Whether saved models, pickles and copies contain the weights of the biLM.
            With False they contain only its fingerprint, and the weights are NaN until
            ``load_preset`` or ``load_hdf5`` loads the biLM with that fingerprint. ``clone_model``
            keeps the weights.
        **kwargs: Arguments of ``keras.layers.Layer``.

    Call arguments:
        inputs: Character ids from ``CharacterTokenizer``, int, shape ``(batch, tokens,
            characters)``; a row of 0 is padding. ``characters`` is at least 3, at least the
            width of the widest filter, and at most ``max_characters_per_token``. A narrower batch
            gives the same result if its longest token has at most ``characters - 2 - width of
            the widest filter`` bytes. For a biLM over code points,
            make the tokenizer with ``CharacterTokenizer.from_preset``; a word id may precede
            its character ids.

    Attributes:
        presets: dict. Facts about the bundled presets by name: ``description``, ``layers``,
            ``width``, ``max_characters`` and ``path``.

    Returns:
        Float, 0 in padding. With ``"layers"``, shape ``(batch, tokens, L + 1, 2 *
        projection_dim)``. With ``"all"``, a dict of tensors of shape ``(batch, tokens,
        projection_dim)``. Otherwise shape ``(batch, tokens, 2 * projection_dim)``. NaN if the
        weights are missing, as after ``from_config``, ``model_from_json`` and with
        ``save_bilm=False``.

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
        self.config = config
        self.alphabet = config.alphabet
        self.choice = None  # with "all", the dict of all representations
        if not (isinstance(output, str) and output == "all"):
            layers = "all" if isinstance(output, str) and output == "layers" else output
            self.choice = LayerChoice.of(layers, config.n_layers + 1)
            output = "layers" if self.choice.weights is None else self.choice.name
        self.output_kind = output
        self.keep_boundaries = keep_boundaries
        self.stateful = stateful
        self.trainable_bilm = trainable_bilm
        self.save_bilm = save_bilm
        self.output_mask = TokenMask(keep_boundaries, name=f"{self.name}_mask")
        self.carried_state = CarriedState()

    def build(self, input_shape: tuple) -> None:
        self.bilm = BiLM(
            self.config,
            frozen=not self.trainable_bilm,
            saved=self.save_bilm,
            missing=self._builds_missing or not self.save_bilm,
            trainable=self.trainable,
            dtype=self.dtype_policy,
            name="bilm",
        )
        self.bilm.build(input_shape)

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
            # The slice removes <S>, and </S> in sentences without padding. In a sentence with
            # padding, </S> is then at the first padding token, where the mask is 0.
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
            return {name: mask for name in ("token", *self.config.lstm_names)}
        return mask

    def compute_output_shape(self, input_shape: tuple) -> Any:
        batch, tokens, _ = input_shape
        if self.keep_boundaries and tokens is not None:
            tokens += 2
        width = self.config.projection_dim
        if self.choice is None:
            return {name: (batch, tokens, width) for name in ("token", *self.config.lstm_names)}
        if self.choice.weights is None:
            return (batch, tokens, self.config.n_layers + 1, 2 * width)
        return (batch, tokens, 2 * width)

    def reset_state(self) -> None:
        """Start every row of the next batch from a zero state."""
        self.carried_state.values = {}

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "weights": LiveWeights(self),
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
        source = arguments.pop("weights", None)
        layer = cls(**arguments)
        layer._builds_missing = True
        if isinstance(source, LiveWeights):
            layer._copy_weights(source.layer)
        return layer
