"""How well a bidirectional language model predicts text: perplexity, and every token apart."""

import keras
import numpy as np

from keras_elmo.pretraining.corpus import Batcher
from keras_elmo.pretraining.vocabulary import UNKNOWN
from keras_elmo.tokenizers.characters import CharacterTokenizer, unpadded


class Scorer:
    """Score sentences with the full softmax of a ``BiLanguageModel``.

    Tokens that the vocabulary lacks are read by their own characters, and scored as
    ``<UNK>``: what the model gives to all unknown tokens together.

    Args:
        model: The ``BiLanguageModel``.
        vocabulary: Its vocabulary, a list of tokens.
        batch_tokens: Bound on the rows times the longest sentence of a batch.

    Example:

    >>> from keras_elmo.pretraining.language_model_files import read_language_model
    >>> scorer = Scorer(*read_language_model("elmo_mini_en"))
    >>> [found] = scorer.log_probabilities([["The", "end", "."]])
    >>> found.shape
    (2, 4)

    Reference:
        Peters et al., 2018, section 3.1 and the perplexities of section 3.4.
    """

    def __init__(self, model, vocabulary, batch_tokens=2048):
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

    def log_probabilities(self, sentences) -> list[np.ndarray]:
        """Return the log-probability of every token.

        Args:
            sentences: List of sentences, each a list of tokens without boundaries; arrays
                as for ``Embedder.embed``.

        Returns:
            For each sentence float32, shape ``(2, tokens + 1)``, nats: forward those of
            the tokens and ``</S>``, backward those of ``<S>`` and the tokens. Column k of
            both rows is of token k, but for the boundaries at either end: forward
            ``t_1 .. t_n </S>``, backward ``<S> t_1 .. t_n``.

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

    def perplexity(self, sentences) -> dict:
        """Return the perplexities of sentences, blank ones left out.

        Returns:
            Dict of ``forward``, ``backward`` and ``perplexity``, ``exp`` of the mean
            negative log-likelihood per prediction, of their mean for the joint one;
            ``tokens``, those of the text; ``predictions``, of each direction: tokens and one
            boundary a sentence; ``oov_share``, the share of the tokens that are scored as
            ``<UNK>``. Those of a biLM that diverged are infinite or NaN.

        Raises:
            ValueError: If there is no token, or if a sentence is a string.
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


def _as_lists(sentences):
    """Return sentences as lists of strings; raise if they are not sequences of tokens."""
    if isinstance(sentences, np.ndarray) and sentences.ndim == 2:
        sentences = unpadded(sentences)
    CharacterTokenizer.check(sentences)
    return [
        [t if isinstance(t, str) else t.decode("utf-8", "ignore") for t in sentence]
        for sentence in sentences
    ]


def _exp(x):
    with np.errstate(over="ignore"):  # of a biLM that diverged
        return float(np.exp(x))


class _Scores(keras.Model):
    """``BiLanguageModel.score`` as a model to predict with."""

    def __init__(self, model):
        super().__init__(name="scores", dtype="float32")
        self.model = model

    def call(self, inputs):
        return self.model.score(inputs)
