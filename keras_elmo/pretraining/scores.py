"""Score text with a bidirectional language model: perplexity and log-probabilities."""

from typing import Any

import keras
import numpy as np

from keras_elmo.pretraining.corpus import Batcher
from keras_elmo.pretraining.language_model import BiLanguageModel
from keras_elmo.pretraining.vocabulary import UNKNOWN
from keras_elmo.tokenizers.characters import CharacterTokenizer, unpadded
from keras_elmo.utils.typing import Tensor


class Scorer:
    """Score sentences with the full softmax of a ``BiLanguageModel``.

    The biLM reads a token outside the vocabulary by its characters. The token is scored as
    ``<UNK>``, which is the probability of all unknown tokens together.

    Args:
        model: BiLanguageModel. The model.
        vocabulary: list of str. Vocabulary of the model.
        batch_tokens: int. Largest number of rows times longest sentence of a batch.

    Example:

    >>> from keras_elmo.pretraining.language_model_files import read_language_model
    >>> scorer = Scorer(*read_language_model("elmo_mini_en"))
    >>> [found] = scorer.log_probabilities([["The", "end", "."]])
    >>> found.shape
    (2, 4)

    Reference:
        Peters et al., 2018, section 3.1 and the perplexities of section 3.4.
    """

    def __init__(
        self, model: BiLanguageModel, vocabulary: list[str], batch_tokens: int = 2048
    ) -> None:
        config = model.config
        self._known = set(vocabulary) - {UNKNOWN}
        self._batcher = Batcher(
            vocabulary,
            max_characters=config.max_characters_per_token,
            widest_filter=config.widest_filter,
            batch_tokens=batch_tokens,
            fixed_shapes=keras.backend.backend() == "jax",
        )
        self._scores = _Scores(model)
        self._scores.compile(jit_compile=keras.backend.backend() == "jax")

    def log_probabilities(self, sentences: Any) -> list[np.ndarray]:
        """Return the log-probability of every token.

        Args:
            sentences: list of lists of str, or a NumPy array that ``Embedder.embed`` takes.
                Tokens without boundary tokens.

        Returns:
            For each sentence an array in nats, float32, shape ``(2, tokens + 1)``. Row 0,
            forward, has the columns ``t_1 .. t_n </S>``; row 1, backward, the columns
            ``<S> t_1 .. t_n``.

        Raises:
            ValueError: If a sentence has no token, or is a string.
        """
        sentences = _as_lists(sentences)
        if not all(sentences):
            raise ValueError("Scorer expects tokens in every sentence. Received: an empty sentence")
        found: list = [None] * len(sentences)
        encoded = self._batcher.encode(sentences)
        for rows in self._batcher.arrange(encoded):
            batch = self._batcher.batch(encoded, rows)
            nll = self._scores.predict_on_batch(batch)
            for column, row in enumerate(rows):
                n = len(sentences[row]) + 1
                found[row] = -np.stack([nll[0, :n, column], nll[1, :n, column][::-1]])
        return found

    def perplexity(self, sentences: Any) -> dict:
        """Return the perplexities of sentences; empty sentences are skipped.

        Returns:
            dict with ``forward`` and ``backward``, the ``exp`` of the mean negative
            log-likelihood per prediction; ``perplexity``, the ``exp`` of the mean of both;
            ``tokens`` of the text; ``predictions`` of each direction, the tokens and one
            boundary token per sentence; ``oov_share``, the share of tokens scored as ``<UNK>``.
            A biLM that diverged gives infinity or NaN.

        Raises:
            ValueError: If the text has no token, or if a sentence is a string.
        """
        sentences = [sentence for sentence in _as_lists(sentences) if sentence]
        if not sentences:
            raise ValueError("Scorer expects text. Received: no token")
        total = sum(x.sum(axis=1, dtype="float64") for x in self.log_probabilities(sentences))
        tokens = sum(map(len, sentences))
        predictions = tokens + len(sentences)
        forward, backward = -total / predictions
        unknown = sum(t not in self._known for sentence in sentences for t in sentence)
        return {
            "forward": _exp(forward),
            "backward": _exp(backward),
            "perplexity": _exp((forward + backward) / 2),
            "tokens": tokens,
            "predictions": predictions,
            "oov_share": unknown / tokens,
        }


def _as_lists(sentences: Any) -> list[list[str]]:
    """Return sentences as lists of str; raise if they are not sequences of tokens."""
    if isinstance(sentences, np.ndarray) and sentences.ndim == 2:
        sentences = unpadded(sentences)
    CharacterTokenizer.check(sentences)
    return [
        [t if isinstance(t, str) else t.decode("utf-8", "ignore") for t in sentence]
        for sentence in sentences
    ]


def _exp(x: float) -> float:
    with np.errstate(over="ignore"):  # the biLM may have diverged
        return float(np.exp(x))


class _Scores(keras.Model):
    """Wrap ``BiLanguageModel.score`` as a model for ``predict``."""

    def __init__(self, model: BiLanguageModel) -> None:
        super().__init__(name="scores", dtype="float32")
        self.model = model

    def call(self, inputs: dict) -> Tensor:
        return self.model.score(inputs)
