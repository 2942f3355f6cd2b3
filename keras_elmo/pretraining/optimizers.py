"""Adam and Muon for pretraining: a global clip over all devices, and skipped updates."""

from typing import Any

import keras
from keras import ops

from keras_elmo.pretraining.recipe import Recipe, Schedule
from keras_elmo.utils.typing import Tensor

# Coefficients of the Newton-Schulz iteration (Jordan et al., 2024).
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)

# Its subclasses add an optimizer of Keras as the second base.
_Optimizer: Any = object


class _Guarded(_Optimizer):
    """Clip the global norm of the gradient, and skip updates that are not finite.

    The norm covers the gradient of all devices and counts each row of an embedding once. An
    update whose gradient has NaN or infinite values changes neither weights nor moments.
    ``skipped`` counts such updates, ``skipped_in_a_row`` the ones since the last good update.
    """

    def __init__(self, learning_rate: Any, clip_norm: float, **kwargs: Any) -> None:
        super().__init__(learning_rate, **kwargs)
        self.clip_norm = clip_norm
        self._is_finite: Any = None

    def get_config(self) -> dict:
        return {**super().get_config(), "clip_norm": self.clip_norm}

    def build(self, variables: list) -> None:
        if not self.built:
            super().build(variables)
            self.skipped = self.add_variable((), dtype="int32", name="skipped")
            self.skipped_in_a_row = self.add_variable((), dtype="int32", name="skipped_in_a_row")

    def _clip_gradients(self, grads: list) -> list:
        grads = [_dense(gradient) for gradient in grads]
        norm = ops.sqrt(sum(ops.sum(ops.square(g)) for g in _of_all_devices(grads)))
        # If the norm is not finite, all gradients become NaN; update_step checks for NaN.
        scale = ops.where(
            ops.isfinite(norm), ops.minimum(1.0, self.clip_norm / (norm + 1e-12)), float("nan")
        )
        return [gradient * scale for gradient in grads]

    def update_step(self, gradient: Tensor, variable: Any, learning_rate: Any) -> None:
        is_finite = ops.isfinite(ops.reshape(gradient, (-1,))[0])
        if self._get_variable_index(variable) == 0:
            skips = 1 - ops.cast(is_finite, "int32")
            self.assign(self.skipped, self.skipped + skips)
            self.assign(self.skipped_in_a_row, (self.skipped_in_a_row + skips) * skips)
        if keras.backend.backend() == "jax":
            # A condition of JAX cannot assign variables, so assign_add and assign_sub check it.
            self._is_finite = is_finite
            super().update_step(gradient, variable, learning_rate)
            self._is_finite = None
            return

        def update() -> bool:
            super(_Guarded, self).update_step(gradient, variable, learning_rate)
            return True

        ops.cond(is_finite, update, lambda: False)

    def assign_add(self, variable: Any, value: Tensor) -> None:
        super().assign_add(variable, self._zero_if_not_finite(value))

    def assign_sub(self, variable: Any, value: Tensor) -> None:
        super().assign_sub(variable, self._zero_if_not_finite(value))

    def _zero_if_not_finite(self, value: Tensor) -> Tensor:
        return value if self._is_finite is None else ops.where(self._is_finite, value, 0)


@keras.saving.register_keras_serializable(package="keras_elmo")
class Adam(_Guarded, keras.optimizers.Adam):
    """Adam of Keras (Kingma and Ba, 2015) that clips and skips as ``_Guarded`` does."""


@keras.saving.register_keras_serializable(package="keras_elmo")
class Muon(_Guarded, keras.optimizers.Muon):
    """Muon: momentum made orthogonal for each matrix (Jordan et al., 2024), with skips and clip.

    Muon updates the matrices of the biLM, scaled to the size of Adam's updates (Liu et al.,
    2025). Adam updates the character embedding, the softmax, convolutions and biases. There is
    no weight decay.

    Args:
        learning_rate: float or schedule. The learning rate.
        clip_norm: float. Largest global norm of the gradient.
        product_dtype: str. Dtype of the matrix products of the iteration.

    Raises:
        ImportError: If Keras is older than 3.13, which has a different Muon.

    Reference:
        Liu et al., 2025, https://arxiv.org/abs/2502.16982
    """

    def __init__(
        self, learning_rate: Any, clip_norm: float, product_dtype: str = "float32"
    ) -> None:
        if not keras_has_muon():
            raise ImportError(
                f"Muon needs Keras 3.13 or newer. Received: Keras {keras.__version__}. "
                "Upgrade it: pip install -U keras; or use --optimizer adam"
            )
        # State every setting: a later Keras with other defaults may resume the run.
        super().__init__(
            learning_rate,
            clip_norm,
            exclude_layers=["softmax", "embedding"],
            weight_decay=None,
            adam_weight_decay=None,
            adam_lr_ratio=1,
            momentum=0.95,
            nesterov=True,
            ns_steps=5,
            rms_rate=0.2,
        )
        self.product_dtype = product_dtype

    def get_config(self) -> dict:
        settings = {**super().get_config(), "product_dtype": self.product_dtype}
        return {n: settings[n] for n in ("learning_rate", "clip_norm", "product_dtype")}

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


def keras_has_muon() -> bool:
    """Return whether Keras has the Muon that ``Muon`` extends."""
    return tuple(map(int, keras.__version__.split(".")[:2])) >= (3, 13)


def make_optimizer(recipe: Recipe, schedule: Schedule) -> keras.optimizers.Optimizer:
    """Return the optimizer that a ``Recipe`` names."""
    if recipe.optimizer == "adam":
        return Adam(schedule, recipe.clip_norm)
    return Muon(schedule, recipe.clip_norm, recipe.precision)


def _dense(gradient: Any) -> Tensor:
    """Return a gradient as a tensor; TensorFlow gives rows for an embedding, some twice."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.convert_to_tensor(gradient)
    return gradient


def _of_all_devices(grads: list) -> list:
    """Sum the gradients over the replicas of ``tf.distribute``."""
    if keras.backend.backend() != "tensorflow":
        return grads  # JAX has summed them
    import tensorflow as tf

    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return grads
    return replica.all_reduce(tf.distribute.ReduceOp.SUM, grads)
