"""The recipe and the named sizes of pretraining, which the command reads without Keras."""

import dataclasses

from keras_elmo.config import BiLMConfig
from keras_elmo.utils.checks import FieldTable, check_fields, invalid, is_number, is_whole

_ORIGINAL = BiLMConfig()
_FILTERS = _ORIGINAL.filters
# The sizes of --size; the last one is the released "original" model.
SIZES = {
    "mini": BiLMConfig(lstm_dim=512, projection_dim=128, n_highway=1, filters=_FILTERS[:5]),
    "small": BiLMConfig(
        lstm_dim=1024, projection_dim=256, n_highway=1, filters=(*_FILTERS[:5], (6, 256))
    ),
    "medium": BiLMConfig(lstm_dim=2048, projection_dim=256, n_highway=1, filters=_FILTERS[:6]),
    "original": _ORIGINAL,
}

_CHECKS: FieldTable = [
    ("batch_tokens max_tokens", lambda x: is_whole(x, 1), "whole, 1 or more"),
    ("warmup", is_whole, "whole, 0 or more"),
    ("seed", lambda x: is_whole(x) and x < 2**32, "whole, from 0 to 2**32 - 1"),
    ("steps", lambda x: x is None or is_whole(x, 1), "whole, 1 or more, or None"),
    ("negatives", lambda x: x is None or is_whole(x), "whole, 0 or more, or None"),
    ("learning_rate clip_norm", lambda x: is_number(x, above=0), "more than 0"),
    ("epochs", lambda x: x is None or is_number(x, above=0), "more than 0, or None"),
    ("decay", lambda x: is_number(x) and 0 <= x <= 1, "from 0 to 1"),
    ("dropout", lambda x: is_number(x) and 0 <= x < 1, "0 or more and below 1"),
    ("frozen_bilm", lambda x: isinstance(x, bool), "True or False"),
    ("optimizer", ("adam", "muon").__contains__, "adam or muon"),
    ("decay_shape", ("linear", "1-sqrt").__contains__, "linear or 1-sqrt"),
    ("precision", ("float32", "bfloat16").__contains__, "float32 or bfloat16"),
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """Hold the settings of a pretraining run.

    The learning rate rises linearly over ``warmup`` steps, stays constant, and falls to 0 over
    the last ``decay`` share of the steps.

    Attributes:
        steps: int or None. Updates of the weights. Without ``epochs`` the default is 30000.
        epochs: float or None. Passes over the corpus, instead of ``steps``.
        batch_tokens: int. Largest number of rows times longest sentence of a batch.
        max_tokens: int. Longer sentences are read in pieces of this length.
        optimizer: str. ``"adam"`` or ``"muon"``.
        learning_rate: float. Highest learning rate.
        warmup: int. Steps until the highest learning rate.
        decay: float. Share of the steps, 0 to 1, over which the learning rate falls.
        decay_shape: str. ``"linear"``, or ``"1-sqrt"``: one minus the square root of the share
            of the decay that is over.
        clip_norm: float. Largest global norm of the gradient.
        dropout: float. Dropout rate of the inputs and the last output of the LSTMs.
        negatives: int or None. Wrong tokens that a step compares with the right ones, drawn anew
            for each batch (sampled softmax). It draws by the rank in the vocabulary, where the
            most frequent tokens come first. 0 or None compares all, which is slower.
        precision: str. ``"float32"`` or ``"bfloat16"``, the dtype of large matrix products.
        seed: int. Seed of the weights, the order of the text, the negatives and the dropout.
        frozen_bilm: bool. Update the softmax only, and keep the biLM as it was.

    Raises:
        ValueError: If a setting is out of its range.

    Reference:
        Hu et al., 2024, https://arxiv.org/abs/2404.06395, section 4 (warm-up, stable, decay);
        Haegele et al., 2024, https://arxiv.org/abs/2405.18392 (1-sqrt).
    """

    steps: int | None = None
    epochs: float | None = None
    batch_tokens: int = 2048
    max_tokens: int = 200
    optimizer: str = "muon"
    learning_rate: float = 2e-3
    warmup: int = 500
    decay: float = 0.3
    decay_shape: str = "1-sqrt"
    clip_norm: float = 10.0
    dropout: float = 0.1
    negatives: int | None = 4096
    precision: str = "float32"
    seed: int = 0
    frozen_bilm: bool = False

    def __post_init__(self) -> None:
        check_fields(self, _CHECKS)
        if self.steps is not None and self.epochs is not None:
            received = f"steps={self.steps!r}, epochs={self.epochs!r}"
            raise invalid("Recipe expects steps or epochs, not both", received)
        if self.steps is None and self.epochs is None:
            object.__setattr__(self, "steps", 30_000)
        object.__setattr__(self, "negatives", self.negatives or None)
