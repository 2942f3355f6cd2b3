"""The bidirectional language model: one character CNN, two stacks of LSTMs."""

import keras
from keras import ops

from keras_elmo.config import BiLMConfig
from keras_elmo.layers.char_cnn import CharCNN
from keras_elmo.layers.freezable_layer import FreezableLayer
from keras_elmo.layers.lstm import ProjectedLSTM

DIRECTIONS = ("forward", "backward")


def lstm_names(config: BiLMConfig) -> list[str]:
    """Return ``forward_1`` .. ``forward_L``, ``backward_1`` .. ``backward_L``."""
    return [f"{d}_{layer}" for d in DIRECTIONS for layer in range(1, config.n_layers + 1)]


def representation_names(config: BiLMConfig) -> list[str]:
    """Return the names of the 2L + 1 representations of a token."""
    return ["token", *lstm_names(config)]


@keras.saving.register_keras_serializable(package="keras_elmo")
class BiLM(FreezableLayer):
    """Compute the 2L + 1 representations that a biLM of L layers has for every token.

    The character CNN gives the token representation; a forward and a backward
    stack of LSTMs read it, independent of each other. From the second layer up
    the input of a layer is added to its output (if ``use_skip_connections``).

    Args:
        config: The ``BiLMConfig``.
        **kwargs: Passed on to ``FreezableLayer``.

    Call arguments:
        inputs: Character ids of the tokens *and* of both boundary tokens, int,
            shape ``(batch, tokens, characters)``.
        mask: Bool, shape ``(batch, tokens)``, padding on the right; None if there
            is none.
        initial_state: The state to start from, as returned; zeros if None.

    Returns:
        A pair. First a dict of the representations ``token``, ``forward_1`` to
        ``forward_L``, ``backward_1`` to ``backward_L``, each float, shape
        ``(batch, tokens, projection_dim)``, 0 in padding. Then the final state, a
        dict of the ``[h, c]`` of ``forward_1`` to ``backward_L``.

    Example:

    >>> bilm = BiLM(BiLMConfig(lstm_dim=8, projection_dim=4, filters=((1, 6),)))
    >>> representations, state = bilm(keras.ops.ones((2, 7, 50), dtype="int32"))
    >>> keras.ops.shape(representations["backward_2"])
    (2, 7, 4)

    Reference:
        Peters et al., 2018, section 3.1, https://arxiv.org/abs/1802.05365
    """

    def __init__(self, config, **kwargs):
        super().__init__(**kwargs)
        self.config = config
        self.supports_masking = True

    def build(self, input_shape):
        config = self.config
        self.char_cnn = CharCNN(
            config.filters,
            config.character_embedding_dim,
            config.n_highway,
            config.projection_dim,
            config.activation,
            n_characters=config.n_characters,
            has_projection=config.has_projection,
            n_words=len(config.code_points.words) if config.code_points else 0,
            word_dim=config.code_points.word_dim if config.code_points else 0,
            name="char_cnn",
            **self.inner,
        )
        self.char_cnn.build(input_shape)
        # One flat list: Keras before 3.15 does not save what is in lists inside a dict.
        self.lstms = [
            ProjectedLSTM(
                config.lstm_dim,
                config.projection_dim,
                config.cell_clip,
                config.projection_clip,
                go_backwards=name.startswith("backward"),
                name=name,
                **self.inner,
            )
            for name in lstm_names(config)
        ]
        for lstm in self.lstms:
            lstm.build((*input_shape[:-1], config.projection_dim))

    def call(self, inputs, mask=None, initial_state=None):
        return self.contextualize(self.char_cnn(inputs), mask, initial_state)

    def contextualize(self, token, mask=None, initial_state=None):
        """Run the LSTMs over token representations; the rest of ``call``.

        Args:
            token: Token representations, float, shape ``(batch, tokens, projection_dim)``.
            mask: As for the layer.
            initial_state: As for the layer.

        Returns:
            What the layer returns.
        """
        if mask is not None:
            token = token * ops.cast(mask, token.dtype)[..., None]
            mask = ops.transpose(mask)
        representations, final_state = {"token": token}, {}
        time_first = ops.transpose(token, (1, 0, 2))
        for direction in DIRECTIONS:
            outputs, states = self.read(
                direction, time_first, mask, initial_state, reverse=direction == "backward"
            )
            representations |= {n: ops.transpose(x, (1, 0, 2)) for n, x in outputs.items()}
            final_state |= {n: list(state) for n, state in states.items()}
        return representations, final_state

    def read(
        self,
        direction,
        x,
        mask=None,
        initial_state=None,
        reverse=False,
        dropout=None,
        product_dtype=None,
    ):
        """Run the LSTMs of one direction, time first.

        Args:
            direction: ``"forward"`` or ``"backward"``.
            x: Token representations, float, shape ``(tokens, batch, projection_dim)``.
            mask: Bool, shape ``(tokens, batch)``, or None.
            initial_state: As for the layer.
            reverse: Read from the last token to the first, as a backward LSTM must that
                gets the sentences in their own order.
            dropout: Function that drops out of the input of every layer, or None.
            product_dtype: As for ``ProjectedLSTM.run``.

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
            lstm = self.lstms[lstm_names(self.config).index(name)]
            y, states[name] = lstm.run(x, mask, state, reverse, product_dtype)
            x = outputs[name] = x + y if self.config.use_skip_connections and layer > 1 else y
        return outputs, states

    def compute_mask(self, inputs, mask=None):
        config = self.config
        return (
            {name: mask for name in representation_names(config)},
            {name: [None, None] for name in lstm_names(config)},
        )

    def compute_output_shape(self, input_shape):
        config = self.config
        batch = input_shape[0]
        state = [(batch, config.projection_dim), (batch, config.lstm_dim)]
        return (
            {n: (*input_shape[:-1], config.projection_dim) for n in representation_names(config)},
            {name: list(state) for name in lstm_names(config)},
        )

    def get_config(self):
        return {**super().get_config(), "config": self.config.to_options()}

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
