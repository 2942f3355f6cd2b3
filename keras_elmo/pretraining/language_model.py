"""The bidirectional language model: a biLM and its softmax."""

import functools
from typing import Any

import keras
from keras import ops

from keras_elmo.config import BiLMConfig
from keras_elmo.layers.bilm import DIRECTIONS, BiLM
from keras_elmo.pretraining.softmax import (
    negative_log_likelihood,
    sample_log_uniform,
    softmax_loss,
)
from keras_elmo.utils.forks import check_fork
from keras_elmo.utils.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_elmo")
class BiLanguageModel(keras.Model):
    """Train a biLM by the joint log-likelihood of both directions.

    Both directions share the character CNN and the softmax, not the LSTMs. Every sentence is
    read whole, from a zero state. The loss is the mean of the negative log-likelihoods per token
    of both directions, and includes the boundary tokens::

        -1/2 (mean log p(t_k | t_1 .. t_k-1) + mean log p(t_k | t_k+1 .. t_N))

    Args:
        config: BiLMConfig. Sizes of the biLM.
        vocabulary_size: int. Tokens of the softmax, ``<S> </S> <UNK>`` included.
        n_negatives: int or None. Log-uniform negatives of the sampled softmax, shared by the
            batch. None, or a number as large as the vocabulary, gives the full softmax.
        dropout: float. Dropout rate of the inputs and the last output of the LSTMs, as in
            bilm-tf.
        product_dtype: str. ``"float32"``, or ``"bfloat16"`` for large matrix products in half
            precision.
        seed: int. Seed of the dropout and the negatives.
        **kwargs: Arguments for ``keras.Model``. Weights are float32 under every dtype policy.

    Call arguments:
        inputs: dict. A batch of ``Corpus``.

    Returns:
        The loss in nats per token, float32, a scalar.

    Examples:
        >>> config = BiLMConfig(lstm_dim=8, projection_dim=4, filters=((1, 6),))
        >>> model = BiLanguageModel(config, vocabulary_size=10, n_negatives=None)
        >>> model.compile(keras.optimizers.Adam(0.01))
        >>> batch = {
        ...     "characters": np.ones((1, 3, 10), "int32"),
        ...     "words": np.array([[[[0], [2]], [[1], [2]]]], "int32"),
        ...     "targets": np.array([[[[5], [1]], [[5], [0]]]], "int32"),
        ...     "weights": np.full((1, 2, 2, 1), 0.5, "float32"),
        ... }
        >>> float(model.train_on_batch(batch)) > 0
        True

    Reference:
        Peters et al., 2018, section 3.1, https://arxiv.org/abs/1802.05365
    """

    def __init__(
        self,
        config: BiLMConfig,
        vocabulary_size: int,
        n_negatives: int | None = 4096,
        dropout: float = 0.1,
        product_dtype: str = "float32",
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        check_fork()
        super().__init__(**{**kwargs, "dtype": "float32"})
        if n_negatives is not None and n_negatives < 1:
            raise ValueError(
                "BiLanguageModel expects n_negatives of 1 or more, or None for the full softmax. "
                f"Received: n_negatives={n_negatives}"
            )
        if config.code_points is not None:
            raise ValueError(
                "BiLanguageModel expects a biLM over the bytes of UTF-8. "
                f"Received: code_points={config.code_points}"
            )
        self.config = config
        self.vocabulary_size = vocabulary_size
        self.n_negatives = n_negatives
        self.product_dtype = product_dtype
        self.bilm = BiLM(config, dtype="float32", name="bilm")
        self.bilm.build((None, None, config.max_characters_per_token))
        width = config.projection_dim
        self.softmax_kernel = self.add_weight(
            shape=(vocabulary_size, width),
            initializer=keras.initializers.RandomNormal(stddev=width**-0.5),
            name="softmax_kernel",
        )
        self.softmax_bias = self.add_weight(
            shape=(vocabulary_size,), initializer="zeros", name="softmax_bias"
        )
        self.seed = seed
        seed %= 2**31 - 1  # PyTorch takes no larger seeds
        self.dropout = keras.layers.Dropout(dropout, seed=seed, dtype="float32", name="dropout")
        self.seed_generator = keras.random.SeedGenerator(seed + 1)
        self.built = True

    def call(self, inputs: dict, training: bool = False) -> Tensor:
        outputs = self.read(inputs, training)
        sample = None
        if self.n_negatives is not None and self.n_negatives < self.vocabulary_size:
            sample = sample_log_uniform(self.n_negatives, self.vocabulary_size, self.seed_generator)
        devices = ops.shape(inputs["weights"])[0]

        def loss(part: dict) -> Tensor:
            return softmax_loss(
                ops.reshape(part["outputs"], (-1, self.config.projection_dim)),
                ops.reshape(part["targets"], (-1,)),
                ops.reshape(part["weights"], (-1,)) / len(DIRECTIONS),
                self.softmax_kernel,
                self.softmax_bias,
                sample,
                self.product_dtype,
            )

        total = 0.0
        for d in range(len(DIRECTIONS)):
            parts = {name: inputs[name][:, d] for name in ("targets", "weights")}
            parts["outputs"] = _split(outputs[d], devices)
            is_apart = _is_apart(devices)
            total += ops.sum(ops.vectorized_map(loss, parts)) if is_apart else loss(parts)
        return total / ops.cast(devices, "float32")

    def read(self, inputs: dict, training: bool = False) -> list[Tensor]:
        """Return the top outputs of both directions, each in the order in which it reads.

        Returns two tensors, float32, shape ``(tokens, devices * batch, projection_dim)``.
        """
        devices, distinct, characters = ops.shape(inputs["characters"])
        rows = ops.reshape(inputs["characters"], (-1, characters))
        token = self.bilm.char_cnn(rows, product_dtype=self.product_dtype)
        token = ops.reshape(token, (devices, distinct, self.config.projection_dim))
        drop_out = functools.partial(self.dropout, training=training)
        top = []
        for d, direction in enumerate(DIRECTIONS):
            x = _look_up(token, inputs["words"][:, d])
            outputs, _ = self.bilm.run_direction(
                direction, x, dropout=drop_out, product_dtype=self.product_dtype
            )
            top.append(drop_out(outputs[f"{direction}_{self.config.n_layers}"]))
        return top

    def score(self, inputs: dict) -> Tensor:
        """Return the negative log-likelihoods of a batch under the full softmax.

        Returns nats, float32, shape ``(2, tokens, devices * batch)``, in the order of ``targets``.
        """
        found = []
        for d, outputs in enumerate(self.read(inputs)):
            targets = _join(inputs["targets"][:, d])
            nll = negative_log_likelihood(
                ops.reshape(outputs, (-1, self.config.projection_dim)),
                ops.reshape(targets, (-1,)),
                self.softmax_kernel,
                self.softmax_bias,
            )
            found.append(ops.reshape(nll, ops.shape(targets)))
        return ops.stack(found)

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        """Do nothing: the model is built, and Keras cannot build on a batch of several hosts."""

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Tensor:
        if keras.backend.backend() != "tensorflow":
            return y_pred
        import tensorflow as tf

        # Replicas sum their gradients, and Keras scales the reported loss by their number.
        return y_pred / tf.distribute.get_strategy().num_replicas_in_sync

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict:
        metrics = super().compute_metrics(x, y, y_pred, sample_weight)
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            strategy = tf.distribute.get_strategy()
            if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
                # Keras averages the hosts over the first axis.
                return {name: ops.reshape(value, (1,)) for name, value in metrics.items()}
        return metrics

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "config": self.config.to_options(),
            "vocabulary_size": self.vocabulary_size,
            "n_negatives": self.n_negatives,
            "dropout": self.dropout.rate,
            "product_dtype": self.product_dtype,
            "seed": self.seed,
        }

    @classmethod
    def from_config(cls, config: dict) -> "BiLanguageModel":
        return cls(**{**config, "config": BiLMConfig.from_options(config["config"])})


def _is_apart(devices: Any) -> bool:
    """Return whether each device computes its part of the first axis of a batch."""
    return keras.backend.backend() == "jax" and devices > 1


def _look_up(token: Tensor, words: Tensor) -> Tensor:
    """Return (tokens, devices * batch, width); every device has its distinct tokens."""
    devices, distinct, width = ops.shape(token)
    if _is_apart(devices):
        found = ops.vectorized_map(lambda part: ops.take(*part, axis=0), (token, words))
        return ops.reshape(ops.transpose(found, (1, 0, 2, 3)), (found.shape[1], -1, width))
    first = ops.arange(devices, dtype="int32") * distinct
    words = _join(words + ops.reshape(first, (-1, 1, 1)))
    return ops.take(ops.reshape(token, (-1, width)), words, axis=0)


def _join(x: Tensor) -> Tensor:
    """Join the parts of all devices: (devices, tokens, batch) to (tokens, -1)."""
    return ops.reshape(ops.transpose(x, (1, 0, 2)), (ops.shape(x)[1], -1))


def _split(x: Tensor, devices: Any) -> Tensor:
    """Split outputs by device: (tokens, devices * batch, d) to (devices, tokens, batch, d)."""
    tokens, _, width = ops.shape(x)
    return ops.transpose(ops.reshape(x, (tokens, devices, -1, width)), (1, 0, 2, 3))
