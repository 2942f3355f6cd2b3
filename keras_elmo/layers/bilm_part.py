"""The base class of all layers of a biLM."""

from typing import Any

import keras

from keras_elmo.config import BiLMConfig


class BiLMPart(keras.layers.Layer):
    """A layer of a biLM. Its weights can be frozen, left out of files, or missing at first.

    In Keras, any model can set ``trainable`` of the layers inside it. Only a weight that was
    created non-trainable stays frozen, so a frozen part creates its weights that way.
    A saved model contains the weights of every layer inside it, unless that layer itself
    leaves them out.

    Args:
        config: ``BiLMConfig``. The architecture of the biLM.
        frozen: bool. Create all weights non-trainable.
        saved: bool. Whether saved models contain the weights of this layer.
        missing: bool. Create all weights as NaN, so that nobody takes the results of random
            weights as the weights of a biLM that were not loaded yet.
        **kwargs: Arguments of ``keras.layers.Layer``.
    """

    def __init__(
        self,
        config: BiLMConfig,
        *,
        frozen: bool = False,
        saved: bool = True,
        missing: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.config = config
        self.frozen = frozen
        self.saved = saved
        self.missing = missing

    @property
    def part_arguments(self) -> dict:
        """Arguments that this layer passes to the layers inside it."""
        return {
            "config": self.config,
            "frozen": self.frozen,
            "saved": self.saved,
            "missing": self.missing,
            "trainable": self.trainable,
            "dtype": self.dtype_policy,
        }

    def add_weight(self, **kwargs: Any) -> keras.Variable:
        if self.missing:
            kwargs["initializer"] = keras.initializers.Constant(float("nan"))
        return super().add_weight(trainable=not self.frozen, **kwargs)

    def save_own_variables(self, store: Any) -> None:
        if self.saved:
            super().save_own_variables(store)

    def load_own_variables(self, store: Any) -> None:
        if self.saved:
            super().load_own_variables(store)
