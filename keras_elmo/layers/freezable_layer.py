"""The base class of all layers of a biLM: weights can be frozen, or left out of files."""

from typing import Any

import keras
from keras import ops

from keras_elmo.utils.typing import Tensor


class FreezableLayer(keras.layers.Layer):
    """A layer of a biLM.

    In Keras, any model can set ``trainable`` of the layers inside it. Only a weight that was
    created non-trainable stays frozen, so a frozen layer creates its weights that way.
    A saved model contains the weights of every layer inside it, unless that layer itself
    leaves them out.

    Args:
        frozen: bool. Create all weights non-trainable.
        saved: bool. Whether saved models contain the weights of this layer.
        **kwargs: Arguments of ``keras.layers.Layer``.
    """

    def __init__(self, *, frozen: bool = False, saved: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.frozen = frozen
        self.saved = saved

    @property
    def part_arguments(self) -> dict:
        """Arguments that this layer passes to the layers inside it."""
        return {"frozen": self.frozen, "saved": self.saved, "dtype": self.dtype_policy}

    def add_weight(self, **kwargs: Any) -> keras.Variable:
        return super().add_weight(trainable=not self.frozen, **kwargs)

    def in_compute_dtype(self, *weights: Any) -> list[Tensor]:
        """Return weights as tensors of the compute dtype; None for None.

        Keras casts weights only inside ``call``. Other methods need this cast.
        """
        return [None if w is None else ops.cast(w, self.compute_dtype) for w in weights]

    def save_own_variables(self, store: Any) -> None:
        if self.saved:
            super().save_own_variables(store)

    def load_own_variables(self, store: Any) -> None:
        if self.saved:
            super().load_own_variables(store)

    def get_config(self) -> dict:
        return {**super().get_config(), "frozen": self.frozen, "saved": self.saved}
