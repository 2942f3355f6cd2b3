"""The optimizers of a run: Adam and Muon, with one clip for all devices, and steps left out."""

import keras
from keras import ops

# Coefficients of the Newton-Schulz iteration (Jordan et al., 2024).
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


class _Guarded:
    """Bound the global norm of the gradient, and leave out updates that are not finite.

    The norm is that of the gradient of all devices together, each row of an embedding
    counted once. An update whose gradient holds NaN or infinite values changes neither
    weights nor moments; ``skipped`` counts them, ``skipped_in_a_row`` those since the last
    good one.

    Args:
        learning_rate: A number or a schedule.
        clip_norm: Bound on the global norm of the gradient.
        **kwargs: Passed on to the optimizer.
    """

    def __init__(self, learning_rate, clip_norm, **kwargs):
        super().__init__(learning_rate, **kwargs)
        self.clip_norm = clip_norm
        self._is_finite = None

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.skipped = self.add_variable((), dtype="int32", name="skipped")
        self.skipped_in_a_row = self.add_variable((), dtype="int32", name="skipped_in_a_row")

    def _clip_gradients(self, grads):
        grads = [_dense(gradient) for gradient in grads]
        norm = ops.sqrt(sum(ops.sum(ops.square(g)) for g in _of_all_devices(grads)))
        # A norm that is not finite makes every gradient NaN, which update_step looks for.
        scale = ops.where(
            ops.isfinite(norm), ops.minimum(1.0, self.clip_norm / (norm + 1e-12)), float("nan")
        )
        return [gradient * scale for gradient in grads]

    def update_step(self, gradient, variable, learning_rate):
        is_finite = ops.isfinite(ops.reshape(gradient, (-1,))[0])
        if self._get_variable_index(variable) == 0:
            skips = 1 - ops.cast(is_finite, "int32")
            self.assign(self.skipped, self.skipped + skips)
            self.assign(self.skipped_in_a_row, (self.skipped_in_a_row + skips) * skips)
        backend = keras.backend.backend()
        if backend == "tensorflow":
            import tensorflow as tf

            def update():
                super(_Guarded, self).update_step(gradient, variable, learning_rate)
                return True

            tf.cond(is_finite, update, lambda: False)
        elif backend == "torch":
            if is_finite:
                super().update_step(gradient, variable, learning_rate)
        else:
            self._is_finite = is_finite
            super().update_step(gradient, variable, learning_rate)
            self._is_finite = None

    def assign(self, variable, value):
        if self._is_finite is not None:
            value = ops.where(self._is_finite, value, ops.convert_to_tensor(variable))
        super().assign(variable, value)

    def assign_add(self, variable, value):
        if self._is_finite is not None:
            value = ops.where(self._is_finite, value, 0)
        super().assign_add(variable, value)

    def assign_sub(self, variable, value):
        if self._is_finite is not None:
            value = ops.where(self._is_finite, value, 0)
        super().assign_sub(variable, value)


@keras.saving.register_keras_serializable(package="keras_elmo")
class Adam(_Guarded, keras.optimizers.Adam):
    """Adam (Kingma and Ba, 2015) as ``keras.optimizers.Adam``, guarded.

    Example:

    >>> Adam(2e-3, clip_norm=10.0).clip_norm
    10.0
    """

    def get_config(self):
        return {**super().get_config(), "clip_norm": self.clip_norm}


@keras.saving.register_keras_serializable(package="keras_elmo")
class Muon(_Guarded, keras.optimizers.Muon):
    """Muon: momentum whose matrices are made orthogonal (Jordan et al., 2024), guarded.

    Matrices of the biLM are updated by Muon, scaled to the size of Adam's updates (Liu et
    al., 2025); the rows of the character embedding and of the softmax, convolutions and
    biases by Adam. There is no weight decay.

    Args:
        learning_rate: A number or a schedule.
        clip_norm: Bound on the global norm of the gradient.
        product_dtype: Of the matrix products of the iteration.

    Raises:
        ImportError: If Keras is older than 3.13, whose Muon is another.

    Example:

    >>> Muon(4e-3, clip_norm=10.0).product_dtype
    'float32'

    Reference:
        Liu et al., 2025, https://arxiv.org/abs/2502.16982
    """

    def __init__(self, learning_rate, clip_norm, product_dtype="float32"):
        if not keras_has_muon():
            raise ImportError(
                f"Muon needs Keras 3.13 or newer. Received: Keras {keras.__version__}. "
                "Upgrade it: pip install -U keras; or take --optimizer adam"
            )
        # Said in full, since a run is resumed with any later Keras.
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

    def get_config(self):
        return {
            "learning_rate": super().get_config()["learning_rate"],
            "clip_norm": self.clip_norm,
            "product_dtype": self.product_dtype,
        }

    def zeropower_via_newtonschulz5(self, x, steps):
        a, b, c = _NEWTON_SCHULZ
        is_tall = x.shape[0] > x.shape[1]
        x = ops.transpose(x) if is_tall else x
        x = ops.cast(x / (ops.sqrt(ops.sum(ops.square(x))) + 1e-7), self.product_dtype)
        for _ in range(steps):
            square = ops.matmul(x, ops.transpose(x))
            x = a * x + ops.matmul(b * square + c * ops.matmul(square, square), x)
        x = ops.cast(x, "float32")
        return ops.transpose(x) if is_tall else x


def keras_has_muon() -> bool:
    """Tell whether the Muon of Keras is the one that ``Muon`` builds on."""
    return tuple(map(int, keras.__version__.split(".")[:2])) >= (3, 13)


def make_optimizer(recipe, schedule):
    """Return the optimizer that a ``Recipe`` names."""
    if recipe.optimizer == "adam":
        return Adam(schedule, recipe.clip_norm)
    return Muon(schedule, recipe.clip_norm, recipe.precision)


def _dense(gradient):
    """Return a gradient as a tensor; that of an embedding may come as rows, some twice."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.convert_to_tensor(gradient)
    return gradient


def _of_all_devices(grads):
    """Return the gradients added up over the replicas of ``tf.distribute``."""
    if keras.backend.backend() != "tensorflow":
        return grads  # JAX's are those of the whole batch
    import tensorflow as tf

    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return grads
    return replica.all_reduce(tf.distribute.ReduceOp.SUM, grads)
