"""The bidirectional language model: a character CNN and two stacks of LSTMs."""

from collections.abc import Callable

from keras import ops

from keras_elmo.config import DIRECTIONS
from keras_elmo.layers.backend.distinct_rows import distinct_rows
from keras_elmo.layers.bilm_part import BiLMPart
from keras_elmo.layers.char_cnn import CharCNN
from keras_elmo.layers.lstm import ProjectedLSTM
from keras_elmo.utils.typing import Tensor


class BiLM(BiLMPart):
    """Compute the 2L + 1 representations of every token in a biLM of L layers.

    The character CNN computes the token representation. A forward and a backward stack of
    LSTMs read it independently. With ``use_skip_connections``, every LSTM from the second
    layer up adds its input to its output.

    On a CPU, TensorFlow and PyTorch compute each distinct token of a batch once.

    Args:
        config: ``BiLMConfig``. The architecture.
        **kwargs: Arguments of ``BiLMPart``.

    Call arguments:
        inputs: Character ids of the tokens and of both boundary tokens, int, shape
            ``(batch, tokens, characters)``.
        mask: Bool, shape ``(batch, tokens)``, padding on the right; or None.
        initial_state: dict. ``(h, c)`` of every LSTM by its name, as the layer returns it;
            None for zeros.

    Returns:
        Two dicts. The first contains the representations ``token``, ``forward_1`` to
        ``forward_L`` and ``backward_1`` to ``backward_L``, each float, shape
        ``(batch, tokens, projection_dim)``, 0 in padding. The second contains the final
        ``(h, c)`` of ``forward_1`` to ``backward_L``.

    Examples:
        >>> bilm = BiLM(keras_elmo.BiLMConfig(lstm_dim=8, projection_dim=4, filters=((1, 6),)))
        >>> representations, state = bilm(keras.ops.ones((2, 7, 50), dtype="int32"))
        >>> keras.ops.shape(representations["backward_2"])
        (2, 7, 4)

    Reference:
        Peters et al., 2018, section 3.1, https://arxiv.org/abs/1802.05365
    """

    def build(self, input_shape: tuple) -> None:
        self.char_cnn = self.build_part(CharCNN, "char_cnn", input_shape)
        # A flat list, because Keras before 3.15 does not save layers in lists inside a dict.
        features = (None, None, self.config.projection_dim)
        self.lstms = [
            self.build_part(ProjectedLSTM, name, features) for name in self.config.lstm_names
        ]

    def call(
        self, inputs: Tensor, mask: Tensor | None = None, initial_state: dict | None = None
    ) -> tuple[dict, dict]:
        rows, indices = distinct_rows(inputs, self.config.alphabet.largest_id + 1)
        token = self.char_cnn(rows)
        if indices is not None:
            token = ops.take(token, indices, axis=0)
        token = ops.reshape(token, (*ops.shape(inputs)[:2], self.config.projection_dim))
        return self.contextualize(token, mask, initial_state)

    def contextualize(
        self, token: Tensor, mask: Tensor | None = None, initial_state: dict | None = None
    ) -> tuple[dict, dict]:
        """Run the LSTMs: ``call`` without the character CNN.

        ``token`` contains the token representations, float, shape ``(batch, tokens,
        projection_dim)``. The other arguments and the results are as in ``call``.
        """
        if mask is not None:
            # The character CNN gives padding a representation that is not 0.
            token = token * ops.cast(mask, token.dtype)[..., None]
            mask = ops.transpose(mask)
        time_first = ops.transpose(token, (1, 0, 2))
        representations: dict = {"token": token}
        final_state: dict = {}
        for direction in DIRECTIONS:
            x = _in_order(direction, time_first)
            is_token = None if mask is None else _in_order(direction, mask)
            outputs, states = self.run_direction(direction, x, is_token, initial_state)
            for name, output in outputs.items():
                representations[name] = ops.transpose(_in_order(direction, output), (1, 0, 2))
            final_state |= states
        return representations, final_state

    def run_direction(
        self,
        direction: str,
        x: Tensor,
        is_token: Tensor | None = None,
        initial_state: dict | None = None,
        dropout: Callable | None = None,
    ) -> tuple[dict, dict]:
        """Run the LSTMs of one direction, over tokens in the order in which it reads them.

        Args:
            direction: str. ``"forward"`` or ``"backward"``: whose weights to use.
            x: Token representations, float, shape ``(tokens, batch, projection_dim)``; for
                ``"backward"``, reversed, so that the padding comes first.
            is_token: Bool, shape ``(tokens, batch)``, False for padding; or None.
            initial_state: dict. ``(h, c)`` of every LSTM by its name; None for zeros.
            dropout: function or None. Applied to the input of every layer.

        Returns:
            Two dicts with the keys ``{direction}_1`` to ``{direction}_L``: the outputs, float,
            shape of ``x``, and the final states ``(h, c)``.
        """
        outputs: dict = {}
        states: dict = {}
        for lstm in self.lstms:
            if not lstm.name.startswith(direction):
                continue
            state = initial_state[lstm.name] if initial_state else None
            if dropout:
                x = dropout(x)
            y, states[lstm.name] = lstm(x, is_token=is_token, state=state)
            has_residual = self.config.use_skip_connections and len(outputs) > 0
            x = x + y if has_residual else y
            outputs[lstm.name] = x
        return outputs, states

    def compute_mask(self, inputs: Tensor, mask: Tensor | None = None) -> None:
        return None  # ElmoLayer attaches the mask to its outputs.


def _in_order(direction: str, x: Tensor) -> Tensor:
    """Reverse the tokens on the first axis for the backward direction."""
    return ops.flip(x, axis=0) if direction == "backward" else x


def layer_representation(representations: dict, layer: int) -> Tensor:
    """Concatenate both directions of a layer, or for layer 0 the token representation twice."""
    names = [f"{direction}_{layer}" if layer else "token" for direction in DIRECTIONS]
    return ops.concatenate([representations[name] for name in names], axis=-1)
