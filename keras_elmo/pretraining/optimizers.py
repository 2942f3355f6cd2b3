"""The optimizers of pretraining, Adam and Muon of Keras, and the schedule of the learning rate."""

from typing import Any

import keras
from keras import ops

from keras_elmo.recipe import Recipe
from keras_elmo.utils.typing import Tensor

# Coefficients of the Newton-Schulz iteration (Jordan et al., 2024).
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


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


class Muon(keras.optimizers.Muon):
    """Muon of Keras, with a faster Newton-Schulz iteration for wide matrices.

    The kernels of an LSTM are many times wider than high. For them the iteration needs only
    products of small square matrices, and the result is the same. With the iteration of Keras a
    training step of the size mini takes 8% more CPU time (0.82 s instead of 0.76 s).

    Args:
        *args: Arguments of ``keras.optimizers.Muon``.
        product_dtype: str. Dtype of the matrix products for matrices that are not wide,
            ``"float32"`` or ``"bfloat16"``.
        **kwargs: Arguments of ``keras.optimizers.Muon``.

    Reference:
        Liu et al., 2025, https://arxiv.org/abs/2502.16982
    """

    def __init__(self, *args: Any, product_dtype: str = "float32", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.product_dtype = product_dtype

    def zeropower_via_newtonschulz5(self, x: Tensor, steps: int) -> Tensor:
        is_tall = x.shape[0] > x.shape[1]
        x = ops.transpose(x) if is_tall else x
        x = x / (ops.sqrt(ops.sum(ops.square(x))) + 1e-7)
        if x.shape[1] > 2 * x.shape[0]:
            # Each step multiplies by a polynomial of x x^T. Such polynomials commute, so the
            # steps need only small square matrices. In bfloat16 their errors would grow.
            gram = ops.matmul(x, ops.transpose(x))
            factors = ops.eye(x.shape[0])
            for _ in range(steps):
                factor = _newton_schulz_factor(gram)
                factors = ops.matmul(factor, factors)
                gram = ops.matmul(ops.matmul(factor, gram), factor)
            x = ops.matmul(factors, x)
        else:
            x = ops.cast(x, self.product_dtype)
            for _ in range(steps):
                x = ops.matmul(_newton_schulz_factor(ops.matmul(x, ops.transpose(x))), x)
            x = ops.cast(x, "float32")
        return ops.transpose(x) if is_tall else x


def _newton_schulz_factor(gram: Tensor) -> Tensor:
    a, b, c = _NEWTON_SCHULZ
    return a * ops.eye(gram.shape[0], dtype=gram.dtype) + b * gram + c * ops.matmul(gram, gram)


def make_optimizer(recipe: Recipe, schedule: Schedule) -> keras.optimizers.Optimizer:
    """Return the optimizer that a ``Recipe`` names.

    Muon updates the matrices of the biLM, scaled to the size of Adam's updates. Adam updates the
    character embedding, the softmax, convolutions and biases. There is no weight decay.
    """
    if recipe.optimizer == "adam":
        return keras.optimizers.Adam(schedule, global_clipnorm=recipe.clip_norm)
    return Muon(
        schedule,
        global_clipnorm=recipe.clip_norm,
        exclude_layers=["softmax"],
        weight_decay=None,
        adam_weight_decay=None,
        product_dtype=recipe.precision,
    )
