"""How a biLM is trained: the numbers that a run needs besides its text."""

import dataclasses
import math
import numbers

import keras
import numpy as np
from keras import ops

# What a resumed run may change: none of it decides what a position in the corpus means.
CHANGEABLE = ("steps", "epochs", "learning_rate", "decay", "decay_shape", "clip_norm")

_CHOICES = {
    "optimizer": ("adam", "muon"),
    "decay_shape": ("linear", "1-sqrt"),
    "precision": ("float32", "bfloat16"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings of a pretraining run.

    The learning rate rises linearly over ``warmup`` steps, stays, and falls to 0 over the
    last ``decay`` share of the steps.

    Attributes:
        steps: Updates of the weights; None if ``epochs`` says how many. 30,000 if neither
            is given.
        epochs: Passes over the corpus instead of ``steps``; a fraction is a part of one.
        batch_tokens: Bound on the rows times the longest sentence of a batch, per device.
        first_batch_tokens: The bound at the start, doubled in equal stretches of
            ``ramp_steps`` until it is ``batch_tokens``; it begins at the half, quarter, ... of
            ``batch_tokens`` that is not above this. None for no ramp.
        ramp_steps: Steps until it is reached.
        max_tokens: Longer sentences are read in pieces.
        optimizer: ``"adam"`` or ``"muon"``.
        learning_rate: The highest.
        warmup: Steps until it is reached.
        decay: Share of the steps, from 0 to 1, over which it falls.
        decay_shape: ``"linear"``, or ``"1-sqrt"``: by one minus the square root of the
            share that is over.
        clip_norm: Bound on the global norm of the gradient.
        dropout: Rate on the inputs and the last output of the LSTMs.
        negatives: Of the sampled softmax; None for the full softmax.
        precision: ``"float32"`` or ``"bfloat16"``, the type of the large matrix products.
        seed: Of the weights, the order of the text, the negatives and the dropout; 0 or more.
        frozen_bilm: Update the softmax alone: the layer representations stay as they are.

    Raises:
        ValueError: If a setting is out of its range.

    Reference:
        Hu et al., 2024, https://arxiv.org/abs/2404.06395, section 4 (warm-up, stable, decay);
        Haegele et al., 2024, https://arxiv.org/abs/2405.18392 (1-sqrt).
    """

    steps: int | None = None
    epochs: float | None = None
    batch_tokens: int = 2048
    first_batch_tokens: int | None = None
    ramp_steps: int = 0
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

    def __post_init__(self):
        for field in dataclasses.fields(self):  # JSON holds no numbers of NumPy
            if isinstance(value := getattr(self, field.name), np.generic):
                object.__setattr__(self, field.name, value.item())
        least = {"batch_tokens": 1, "max_tokens": 1, "warmup": 0, "ramp_steps": 0, "seed": 0}
        for name, smallest in least.items():
            self._check(
                name, _is_whole(getattr(self, name), smallest), f"whole, {smallest} or more"
            )
        for name in ("steps", "negatives", "first_batch_tokens"):
            value = getattr(self, name)
            self._check(name, value is None or _is_whole(value, 1), "whole, 1 or more, or None")
        for name in ("learning_rate", "clip_norm"):
            value = getattr(self, name)
            self._check(name, _is_real(value) and 0 < value < math.inf, "more than 0")
        self._check(
            "epochs",
            self.epochs is None or (_is_real(self.epochs) and 0 < self.epochs < math.inf),
            "more than 0, or None",
        )
        for name, fits, expected in (
            ("decay", lambda x: 0 <= x <= 1, "from 0 to 1"),
            ("dropout", lambda x: 0 <= x < 1, "from 0 up to, not including, 1"),
        ):
            value = getattr(self, name)
            self._check(name, _is_real(value) and fits(value), expected)
        self._check("frozen_bilm", isinstance(self.frozen_bilm, bool), "True or False")
        for name, choices in _CHOICES.items():
            self._check(name, getattr(self, name) in choices, " or ".join(choices))
        if self.steps is not None and self.epochs is not None:
            raise ValueError(
                "Recipe expects steps or epochs, not both. "
                f"Received: steps={self.steps!r}, epochs={self.epochs!r}"
            )
        if self.steps is None and self.epochs is None:
            object.__setattr__(self, "steps", 30_000)
        first = self.first_batch_tokens
        self._check(
            "first_batch_tokens",
            first is None or first <= self.batch_tokens,
            f"at most batch_tokens={self.batch_tokens}",
        )
        if first is not None and not self.ramp_steps:
            raise ValueError(
                "Recipe expects ramp_steps of 1 or more with first_batch_tokens. "
                f"Received: first_batch_tokens={first}, ramp_steps=0"
            )
        if first is None and self.ramp_steps:
            raise ValueError(
                "Recipe expects first_batch_tokens with ramp_steps. "
                f"Received: first_batch_tokens=None, ramp_steps={self.ramp_steps}"
            )

    def _check(self, name, fits, expected):
        value = getattr(self, name)
        if not fits:
            raise ValueError(f"Recipe expects {name} to be {expected}. Received: {name}={value!r}")

    def parts(self, step: int) -> int:
        """Return into how many parts, each a batch, a whole batch is split at a step."""
        if self.first_batch_tokens is None or step >= self.ramp_steps:
            return 1
        doublings = math.ceil(math.log2(self.batch_tokens / self.first_batch_tokens))
        return 2 ** math.ceil(doublings * (1 - step / self.ramp_steps))


def _is_whole(value, least):
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_real(value):
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


@keras.saving.register_keras_serializable(package="keras_elmo")
class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """The learning rate of a ``Recipe`` at every step.

    Args:
        recipe: The ``Recipe``, its ``steps`` known.

    Call arguments:
        step: Updates so far, a tensor or a number.

    Returns:
        Float32, a scalar.

    Example:

    >>> recipe = Recipe(steps=1000, warmup=100, decay=0.5, learning_rate=1.0, decay_shape="linear")
    >>> [round(float(Schedule(recipe)(step)), 2) for step in (49, 300, 750)]
    [0.5, 1.0, 0.5]
    """

    def __init__(self, recipe):
        self.recipe = recipe

    def __call__(self, step):
        recipe = self.recipe
        step = ops.cast(step, "float32")
        rising = (step + 1) / max(1, recipe.warmup)
        # 1 until the decay begins, 0 at the last step.
        left = ops.clip((recipe.steps - step) / max(1.0, recipe.steps * recipe.decay), 0.0, 1.0)
        falling = left if recipe.decay_shape == "linear" else 1 - ops.sqrt(1 - left)
        return recipe.learning_rate * ops.minimum(ops.minimum(rising, 1.0), falling)

    def get_config(self):
        return {"recipe": dataclasses.asdict(self.recipe)}

    @classmethod
    def from_config(cls, config):
        return cls(Recipe(**config["recipe"]))
