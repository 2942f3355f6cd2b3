"""The bidirectional language model: a character CNN and two stacks of LSTMs."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_elmo.config import BiLMConfig
from keras_elmo.layers.char_cnn import CharCNN
from keras_elmo.layers.freezable_layer import FreezableLayer
from keras_elmo.layers.lstm import ProjectedLSTM
from keras_elmo.utils.typing import Tensor

DIRECTIONS = ("forward", "backward")


def lstm_names(config: BiLMConfig) -> list[str]:
    """Return ``forward_1`` .. ``forward_L``, ``backward_1`` .. ``backward_L``."""
    return [f"{d}_{layer}" for d in DIRECTIONS for layer in range(1, config.n_layers + 1)]


def representation_names(config: BiLMConfig) -> list[str]:
    """Return the names of the 2L + 1 representations of a token."""
    return ["token", *lstm_names(config)]


@keras.saving.register_keras_serializable(package="keras_elmo")
class BiLM(FreezableLayer):
    """Compute the 2L + 1 representations of every token in a biLM of L layers.

    The character CNN computes the token representation. A forward and a backward stack of
    LSTMs read it independently. With ``use_skip_connections``, every LSTM from the second
    layer up adds its input to its output.

    Args:
        config: ``BiLMConfig``. The architecture.
        **kwargs: Arguments of ``FreezableLayer``.

    Call arguments:
        inputs: Character ids of the tokens and of both boundary tokens, int, shape
            ``(batch, tokens, characters)``.
        mask: Bool, shape ``(batch, tokens)``, padding on the right; or None.
        initial_state: dict. ``[h, c]`` of every LSTM by its name, as the layer returns it;
            None for zeros.

    Returns:
        Two dicts. The first contains the representations ``token``, ``forward_1`` to
        ``forward_L`` and ``backward_1`` to ``backward_L``, each float, shape
        ``(batch, tokens, projection_dim)``, 0 in padding. The second contains the final
        ``[h, c]`` of ``forward_1`` to ``backward_L``.

    Examples:
        >>> bilm = BiLM(BiLMConfig(lstm_dim=8, projection_dim=4, filters=((1, 6),)))
        >>> representations, state = bilm(keras.ops.ones((2, 7, 50), dtype="int32"))
        >>> keras.ops.shape(representations["backward_2"])
        (2, 7, 4)

    Reference:
        Peters et al., 2018, section 3.1, https://arxiv.org/abs/1802.05365
    """

    def __init__(self, config: BiLMConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.config = config
        self.supports_masking = True

    def build(self, input_shape: tuple) -> None:
        config = self.config
        self.char_cnn = CharCNN(
            config.filters,
            config.character_embedding_dim,
            config.n_highway,
            config.projection_dim,
            config.activation,
            n_characters=config.alphabet.n_characters,
            has_projection=config.has_projection,
            n_words=config.alphabet.n_words,
            word_dim=config.alphabet.word_dim,
            name="char_cnn",
            **self.part_arguments,
        )
        self.char_cnn.build(input_shape)
        # A flat list, because Keras before 3.15 does not save layers in lists inside a dict.
        self.lstms = [
            ProjectedLSTM(
                config.lstm_dim,
                config.projection_dim,
                config.cell_clip,
                config.projection_clip,
                go_backwards=name.startswith("backward"),
                name=name,
                **self.part_arguments,
            )
            for name in lstm_names(config)
        ]
        for lstm in self.lstms:
            lstm.build((*input_shape[:-1], config.projection_dim))

    def call(
        self, inputs: Tensor, mask: Tensor | None = None, initial_state: dict | None = None
    ) -> tuple[dict, dict]:
        return self.contextualize(self.char_cnn(inputs), mask, initial_state)

    def contextualize(
        self, token: Tensor, mask: Tensor | None = None, initial_state: dict | None = None
    ) -> tuple[dict, dict]:
        """Run the LSTMs over token representations: ``call`` without the character CNN.

        Args:
            token: Token representations, float, shape ``(batch, tokens, projection_dim)``.
            mask: Bool, shape ``(batch, tokens)``, padding on the right; or None.
            initial_state: dict. ``[h, c]`` of every LSTM by its name; None for zeros.

        Returns:
            Two dicts: the 2L + 1 representations by name, and the final ``[h, c]`` of every LSTM.
        """
        if mask is not None:
            # The character CNN gives padding a representation that is not 0.
            token = token * ops.cast(mask, token.dtype)[..., None]
            mask = ops.transpose(mask)
        representations: dict = {"token": token}
        final_state: dict = {}
        time_first = ops.transpose(token, (1, 0, 2))
        for direction in DIRECTIONS:
            outputs, states = self.run_direction(
                direction, time_first, mask, initial_state, reverse=direction == "backward"
            )
            representations |= {n: ops.transpose(x, (1, 0, 2)) for n, x in outputs.items()}
            final_state |= {n: list(state) for n, state in states.items()}
        return representations, final_state

    def run_direction(
        self,
        direction: str,
        x: Tensor,
        mask: Tensor | None = None,
        initial_state: dict | None = None,
        reverse: bool = False,
        dropout: Callable | None = None,
        product_dtype: str | None = None,
    ) -> tuple[dict, dict]:
        """Run the LSTMs of one direction, with time on the first axis.

        Args:
            direction: str. ``"forward"`` or ``"backward"``.
            x: Token representations, float, shape ``(tokens, batch, projection_dim)``.
            mask: Bool, shape ``(tokens, batch)``, or None.
            initial_state: dict. ``[h, c]`` of every LSTM by its name; None for zeros.
            reverse: bool. Run from the last token to the first. ``direction`` only selects the
                weights, because pretraining passes an ``x`` that is already reversed.
            dropout: function or None. Applied to the input of every layer.
            product_dtype: str or None. Dtype of the matrix products; see ``projected_lstm``.

        Returns:
            Two dicts with the keys ``{direction}_1`` to ``{direction}_L``: the outputs, float,
            shape of ``x``, and the final states ``(h, c)``.
        """
        outputs, states = {}, {}
        for layer in range(1, self.config.n_layers + 1):
            name = f"{direction}_{layer}"
            state = initial_state[name] if initial_state else None
            if dropout:
                x = dropout(x)
            [lstm] = [each for each in self.lstms if each.name == name]
            y, states[name] = lstm.run(x, mask, state, reverse, product_dtype)
            has_residual = self.config.use_skip_connections and layer > 1
            x = x + y if has_residual else y
            outputs[name] = x
        return outputs, states

    def compute_mask(self, inputs: Tensor, mask: Tensor | None = None) -> tuple[dict, dict]:
        config = self.config
        return (
            {name: mask for name in representation_names(config)},
            {name: [None, None] for name in lstm_names(config)},
        )

    def compute_output_shape(self, input_shape: tuple) -> tuple[dict, dict]:
        config = self.config
        batch = input_shape[0]
        state = [(batch, config.projection_dim), (batch, config.lstm_dim)]
        return (
            {n: (*input_shape[:-1], config.projection_dim) for n in representation_names(config)},
            {name: list(state) for name in lstm_names(config)},
        )

    def get_config(self) -> dict:
        return {**super().get_config(), "config": self.config.to_options()}

    @classmethod
    def from_config(cls, config: dict) -> "BiLM":
        return cls(**{**config, "config": BiLMConfig.from_options(config["config"])})


def select_output(representations: dict, output: str | int) -> Any:
    """Select or combine the 2L + 1 representations of a biLM.

    Args:
        representations: dict. The representations by name, as from ``BiLM``.
        output: str or int. ``"all"`` for the dict, a number from 0 to L for that layer,
            ``"top"`` for layer L, ``"average"`` for the mean of all layers, ``"layers"`` for all
            layers, stacked on axis 2.
    """
    if output == "all":
        return representations
    n_layers = len(representations) // 2  # of 2L + 1 representations
    if isinstance(output, int):
        return _layer(representations, output)
    if output == "top":
        return _layer(representations, n_layers)
    layers = [_layer(representations, i) for i in range(n_layers + 1)]
    return sum(layers) / len(layers) if output == "average" else ops.stack(layers, axis=2)


def _layer(representations: dict, layer: int) -> Tensor:
    """Concatenate both directions of a layer, or for layer 0 the token representation twice."""
    names = [f"{direction}_{layer}" if layer else "token" for direction in DIRECTIONS]
    return ops.concatenate([representations[name] for name in names], axis=-1)
