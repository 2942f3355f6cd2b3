"""The base class of all layers of a biLM."""

from typing import Any, TypeVar

import keras

from keras_elmo.config import BiLMConfig

Part = TypeVar("Part", bound="BiLMPart")


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
        missing: bool. Create all weights as NaN, so that random weights are not mistaken for
            loaded ones.
        product_dtype: str or None. Dtype of the large matrix products, for pretraining in half
            precision; None for the dtype of the layer.
        **kwargs: Arguments of ``keras.layers.Layer``.
    """

    def __init__(
        self,
        config: BiLMConfig,
        *,
        frozen: bool = False,
        saved: bool = True,
        missing: bool = False,
        product_dtype: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.config = config
        self.frozen = frozen
        self.saved = saved
        self.missing = missing
        self.product_dtype = product_dtype

    def build_part(self, kind: type[Part], name: str, input_shape: tuple) -> Part:
        """Build a layer inside this one, with the arguments of this one."""
        part = kind(
            self.config,
            frozen=self.frozen,
            saved=self.saved,
            missing=self.missing,
            product_dtype=self.product_dtype,
            trainable=self.trainable,
            dtype=self.dtype_policy,
            name=name,
        )
        part.build(input_shape)
        return part

    def add_kernel_and_bias(
        self, name: str, shape: tuple, initializer: Any = None, bias: float = 0.0
    ) -> tuple[keras.Variable, keras.Variable]:
        """Add ``{name}_kernel`` of this shape, and ``{name}_bias``, one value for each output."""
        kernel = self.add_weight(shape=shape, initializer=initializer, name=f"{name}_kernel")
        constant = keras.initializers.Constant(bias)
        return kernel, self.add_weight(shape=shape[-1:], initializer=constant, name=f"{name}_bias")

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
