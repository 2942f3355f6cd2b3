"""The recipe of a pretraining run: its optimizer, schedule, batches and loss."""

import dataclasses
from typing import Any

import keras
from keras import ops

from keras_elmo.utils.checks import FieldTable, check_fields, invalid, is_number, is_whole
from keras_elmo.utils.typing import Tensor

# A resumed run may change these: they do not decide what a position in the corpus means.
CHANGEABLE = ("steps", "epochs", "learning_rate", "decay", "decay_shape", "clip_norm")

CHOICES = {
    "optimizer": ("adam", "muon"),
    "decay_shape": ("linear", "1-sqrt"),
    "precision": ("float32", "bfloat16"),
}

_CHECKS: FieldTable = [
    ("batch_tokens max_tokens", lambda x: is_whole(x, 1), "whole, 1 or more"),
    ("warmup", is_whole, "whole, 0 or more"),
    ("seed", lambda x: is_whole(x) and x < 2**32, "whole, from 0 to 2**32 - 1"),
    ("steps negatives", lambda x: x is None or is_whole(x, 1), "whole, 1 or more, or None"),
    ("learning_rate clip_norm", lambda x: is_number(x, above=0), "more than 0"),
    (
        "epochs",
        lambda x: x is None or (is_number(x, above=0) and x <= 1e6),
        "more than 0 and at most 1,000,000, or None",
    ),
    ("decay", lambda x: is_number(x) and 0 <= x <= 1, "from 0 to 1"),
    ("dropout", lambda x: is_number(x) and 0 <= x < 1, "0 or more and below 1"),
    ("frozen_bilm", lambda x: isinstance(x, bool), "True or False"),
    *((name, choices.__contains__, " or ".join(choices)) for name, choices in CHOICES.items()),
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """Hold the settings of a pretraining run.

    The learning rate rises linearly over ``warmup`` steps, stays constant, and falls to 0 over
    the last ``decay`` share of the steps.

    Attributes:
        steps: int or None. Updates of the weights; None if ``epochs`` is given. The default is
            30,000 if neither is given.
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
        negatives: int or None. Negatives of the sampled softmax; None for the full softmax.
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


@keras.saving.register_keras_serializable(package="keras_elmo")
class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """Compute the learning rate of a ``Recipe``, whose ``steps`` are known, after every step.

    Examples:
        >>> linear = {"decay": 0.5, "decay_shape": "linear"}
        >>> recipe = Recipe(steps=1000, warmup=100, learning_rate=1.0, **linear)
        >>> [round(float(Schedule(recipe)(step)), 2) for step in (49, 300, 750)]
        [0.5, 1.0, 0.5]
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    def __call__(self, step: Any) -> Tensor:
        recipe = self.recipe
        step = ops.cast(step, "float32")
        rising = (step + 1) / max(1, recipe.warmup)
        # 1 until the decay begins, 0 at the last step.
        steps = recipe.steps or 0
        remaining = ops.clip((steps - step) / max(1.0, steps * recipe.decay), 0.0, 1.0)
        falling = remaining if recipe.decay_shape == "linear" else 1 - ops.sqrt(1 - remaining)
        return recipe.learning_rate * ops.minimum(ops.minimum(rising, 1.0), falling)

    def get_config(self) -> dict:
        return {"recipe": dataclasses.asdict(self.recipe)}

    @classmethod
    def from_config(cls, config: dict) -> "Schedule":
        return cls(Recipe(**config["recipe"]))
