"""The bidirectional language model: a biLM and its softmax."""

import functools
from typing import Any

import keras
from keras import ops

from keras_elmo.config import DIRECTIONS, BiLMConfig
from keras_elmo.layers.bilm import BiLM
from keras_elmo.pretraining.distribution import count_devices
from keras_elmo.pretraining.softmax import (
    negative_log_likelihood,
    sample_log_uniform,
    softmax_loss,
)
from keras_elmo.utils.checks import check_whole, invalid
from keras_elmo.utils.forks import check_fork
from keras_elmo.utils.typing import Tensor


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
        ...     "characters": np.ones((3, 10), "int32"),
        ...     "words": np.array([[[0, 2], [1, 2]]], "int32"),
        ...     "targets": np.array([[[5, 1], [5, 0]]], "int32"),
        ...     "weights": np.full((1, 2, 2), 0.5, "float32"),
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
        if n_negatives is not None:
            check_whole("BiLanguageModel", "n_negatives", n_negatives)
        if config.code_points is not None:
            expected = "BiLanguageModel expects a biLM over the bytes of UTF-8"
            raise invalid(expected, f"code_points={config.code_points}")
        self.config = config
        self.vocabulary_size = vocabulary_size
        self.n_negatives = n_negatives
        self.product_dtype = product_dtype
        self.bilm = BiLM(config, product_dtype=product_dtype, dtype="float32", name="bilm")
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
        seed %= 2**31 - 1  # PyTorch takes no larger seeds
        self.dropout = keras.layers.Dropout(dropout, seed=seed, dtype="float32", name="dropout")
        self.seed_generator = keras.random.SeedGenerator(seed + 1)
        self.built = True

    def call(self, inputs: dict, training: bool = False) -> Tensor:
        sample = None
        if self.n_negatives is not None and self.n_negatives < self.vocabulary_size:
            sample = sample_log_uniform(self.n_negatives, self.vocabulary_size, self.seed_generator)
        losses = [
            softmax_loss(
                ops.reshape(outputs, (-1, self.config.projection_dim)),
                ops.reshape(inputs["targets"][:, d], (-1,)),
                ops.reshape(inputs["weights"][:, d], (-1,)),
                self.softmax_kernel,
                self.softmax_bias,
                sample,
                self.product_dtype,
            )
            for d, outputs in enumerate(self.read(inputs, training))
        ]
        return sum(losses) / len(DIRECTIONS)

    def read(self, inputs: dict, training: bool = False) -> list[Tensor]:
        """Return the top outputs of both directions, each in the order in which it reads.

        Returns two tensors, float32, shape ``(batch, tokens, projection_dim)``.
        """
        token = self._represent(inputs["characters"])
        drop_out = functools.partial(self.dropout, training=training)
        top = []
        for d, direction in enumerate(DIRECTIONS):
            words = ops.transpose(inputs["words"][:, d])
            outputs, _ = self.bilm.run_direction(
                direction,
                ops.take(token, words, axis=0),
                dropout=drop_out,
            )
            outputs = drop_out(outputs[f"{direction}_{self.config.n_layers}"])
            top.append(ops.transpose(outputs, (1, 0, 2)))
        return top

    def _represent(self, characters: Tensor) -> Tensor:
        """Return the token representations of the distinct tokens of a batch."""
        char_cnn = self.bilm.char_cnn
        if keras.backend.backend() != "tensorflow":  # JAX would compile for every shape
            return char_cnn(characters)
        # Few tokens are long, and they come last. The others need fewer characters.
        n = 3 * ops.shape(characters)[0] // 4
        filled = characters[:n] != self.config.alphabet.pad
        longest = ops.max(ops.count_nonzero(filled, axis=1))
        short = characters[:n, : longest + self.config.widest_filter]
        return ops.concatenate([char_cnn(short), char_cnn(characters[n:])])

    def score(self, inputs: dict) -> Tensor:
        """Return the negative log-likelihoods of a batch under the full softmax.

        Returns nats, float32, shape ``(batch, 2, tokens)``, in the order of ``targets``.
        """
        outputs, targets = ops.stack(self.read(inputs), axis=1), inputs["targets"]
        nll = negative_log_likelihood(
            ops.reshape(outputs, (-1, self.config.projection_dim)),
            ops.reshape(targets, (-1,)),
            self.softmax_kernel,
            self.softmax_bias,
        )
        return ops.reshape(nll, ops.shape(targets))

    def compute_loss(self, x: Any, y: Any, y_pred: Tensor, *_: Any, **__: Any) -> Tensor:
        # The replicas of TensorFlow sum their gradients. On one device this divides by 1.
        replicas = 1 if keras.backend.backend() == "jax" else count_devices()
        return y_pred / replicas
