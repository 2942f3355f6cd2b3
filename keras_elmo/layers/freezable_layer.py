"""What the parts of a biLM have in common: weights that stay frozen, or out of saved files."""

import keras
from keras import ops


class FreezableLayer(keras.layers.Layer):
    """A part of a biLM.

    Keras lets any model switch the weights of its layers to trainable, whatever
    their own constructor was told; only a weight that is *created* non-trainable
    stays so. Likewise a saved model holds the weights of every layer inside it
    unless that layer itself leaves them out.

    Args:
        frozen: Create all weights non-trainable, out of reach of every
            ``trainable`` toggle.
        saved: Whether saved models hold the weights of this layer.
        **kwargs: Passed on to ``keras.layers.Layer``.
    """

    def __init__(self, *, frozen=False, saved=True, **kwargs):
        super().__init__(**kwargs)
        self.frozen = frozen
        self.saved = saved

    @property
    def inner(self) -> dict:
        """Arguments for a part inside this one."""
        return {"frozen": self.frozen, "saved": self.saved, "dtype": self.dtype_policy}

    def add_weight(self, **kwargs):
        return super().add_weight(trainable=not self.frozen, **kwargs)

    def in_compute_dtype(self, *weights) -> list:
        """Return weights as tensors to compute with, None for None.

        Keras casts them inside a call of the layer only, and its other methods need them too.
        """
        return [None if w is None else ops.cast(w, self.compute_dtype) for w in weights]

    def save_own_variables(self, store):
        if self.saved:
            super().save_own_variables(store)

    def load_own_variables(self, store):
        if self.saved:
            super().load_own_variables(store)

    def get_config(self):
        return {**super().get_config(), "frozen": self.frozen, "saved": self.saved}
