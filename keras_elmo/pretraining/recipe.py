"""How a biLM is trained: the numbers that a run needs besides its text."""

import dataclasses
import numbers

import keras
from keras import ops


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings of a pretraining run.

    The learning rate rises linearly over ``warmup`` steps, stays, and falls linearly to 0
    over the last ``decay`` share of the steps.

    Attributes:
        steps: Updates of the weights.
        batch_tokens: Bound on the rows times the longest sentence of a batch, per device.
        max_tokens: Longer sentences are cut.
        learning_rate: The highest, of Adam.
        warmup: Steps until it is reached.
        decay: Share of the steps, from 0 to 1, over which it falls.
        clip: Bound on the global norm of the gradient.
        dropout: Rate on the inputs and the last output of the LSTMs.
        negatives: Of the sampled softmax; None for the full softmax.
        products: ``"float32"`` or ``"bfloat16"``, the type of the large matrix products.
        seed: Of the weights, the order of the text, the negatives and the dropout.

    Raises:
        ValueError: If a setting is out of its range.

    Reference:
        Hu et al., 2024, https://arxiv.org/abs/2404.06395, section 4 (warm-up, stable, decay).
    """

    steps: int = 30_000
    batch_tokens: int = 2048
    max_tokens: int = 200
    learning_rate: float = 2e-3
    warmup: int = 500
    decay: float = 0.3
    clip: float = 10.0
    dropout: float = 0.1
    negatives: int | None = 4096
    products: str = "float32"
    seed: int = 0

    def __post_init__(self):
        for name, least in (("steps", 1), ("batch_tokens", 1), ("max_tokens", 1), ("warmup", 0)):
            value = getattr(self, name)
            fits = isinstance(value, int) and value >= least
            self._check(name, fits, f"whole, {least} or more")
        for name in ("learning_rate", "clip"):
            value = getattr(self, name)
            self._check(name, isinstance(value, numbers.Real) and value > 0, "more than 0")
        for name in ("decay", "dropout"):
            self._check(name, isinstance(getattr(self, name), numbers.Real), "a number")
        self._check("decay", 0 <= self.decay <= 1, "from 0 to 1")
        self._check("dropout", 0 <= self.dropout < 1, "from 0 up to, not including, 1")
        self._check(
            "negatives",
            self.negatives is None or (isinstance(self.negatives, int) and self.negatives > 0),
            "whole, 1 or more, or None",
        )
        self._check("seed", isinstance(self.seed, int), "a whole number")
        self._check("products", self.products in ("float32", "bfloat16"), "float32 or bfloat16")

    def _check(self, name, fits, expected):
        value = getattr(self, name)
        if not fits:
            raise ValueError(f"Recipe expects {name} to be {expected}. Received: {name}={value!r}")


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """The learning rate of a ``Recipe`` at every step.

    Args:
        recipe: The ``Recipe``.

    Call arguments:
        step: Updates so far, a tensor or a number.

    Returns:
        Float32, a scalar.

    Example:

    >>> schedule = Schedule(Recipe(steps=1000, warmup=100, decay=0.5, learning_rate=1.0))
    >>> [round(float(schedule(step)), 2) for step in (49, 300, 750)]
    [0.5, 1.0, 0.5]
    """

    def __init__(self, recipe):
        self.recipe = recipe

    def __call__(self, step):
        recipe = self.recipe
        step = ops.cast(step, "float32")
        rising = (step + 1) / max(1, recipe.warmup)
        falling = (recipe.steps - step) / max(1.0, recipe.steps * recipe.decay)
        return recipe.learning_rate * ops.clip(ops.minimum(rising, falling), 0.0, 1.0)

    def get_config(self):
        return {"recipe": dataclasses.asdict(self.recipe)}

    @classmethod
    def from_config(cls, config):
        return cls(Recipe(**config["recipe"]))
