"""Score text with a bidirectional language model: perplexity, log-probabilities, substitutes."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_elmo.formats.vocabulary import SPECIAL_TOKENS, UNKNOWN
from keras_elmo.formats.weight_mapping import to_float32
from keras_elmo.pretraining.corpus import Batcher
from keras_elmo.pretraining.language_model import BiLanguageModel
from keras_elmo.tokenizers.token_lists import sentence_rows, utf8_tokens
from keras_elmo.utils.checks import check_whole, invalid


class Scorer:
    """Score sentences with the full softmax of a ``BiLanguageModel``.

    The biLM reads a token outside the vocabulary by its characters. The token is scored as
    ``<UNK>``, which is the probability of all unknown tokens together.

    Args:
        model: BiLanguageModel. The model.
        vocabulary: list of str. Vocabulary of the model.
        batch_tokens: int. Largest number of rows times longest sentence of a batch.

    Examples:
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
        self._model = model
        self._vocabulary = vocabulary
        self._batcher = Batcher(model.config, vocabulary, batch_tokens)
        self._score = _CompiledMethod(model, "score").predict_on_batch
        self._read = _CompiledMethod(model, "read").predict_on_batch

    def log_probabilities(self, sentences: Any) -> list[np.ndarray]:
        """Return the log-probability of every token.

        Args:
            sentences: The sentences that ``Embedder.embed`` takes, without boundary tokens.

        Returns:
            For each sentence an array in nats, float32, shape ``(2, tokens + 1)``. Row 0,
            forward, has the columns ``t_1 .. t_n </S>``; row 1, backward, the columns
            ``<S> t_1 .. t_n``.

        Raises:
            ValueError: If a sentence has no token, or is a string.
        """
        sentences = _as_lists(sentences)
        if not all(sentences):
            raise invalid("Scorer expects tokens in every sentence", "an empty sentence")
        found: list = [None] * len(sentences)
        encoded = self._batcher.encode(sentences)
        for rows in self._batcher.arrange(encoded.lengths):
            batch = self._batcher.batch(encoded, rows)
            nll = self._score(batch)
            for (forward, backward), row in zip(nll, rows):
                n = len(sentences[row]) + 1
                found[row] = -np.stack([forward[:n], backward[:n][::-1]])
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
            raise invalid("Scorer expects text", "no token")
        total = sum(x.sum(axis=1, dtype="float64") for x in self.log_probabilities(sentences))
        tokens = sum(map(len, sentences))
        predictions = tokens + len(sentences)
        forward, backward = -total / predictions
        with np.errstate(over="ignore"):  # the biLM may have diverged
            perplexities = np.exp([forward, backward, (forward + backward) / 2])
        known = set(self._vocabulary) - {UNKNOWN}
        unknown = sum(t not in known for sentence in sentences for t in sentence)
        return {
            **dict(zip(("forward", "backward", "perplexity"), perplexities.tolist())),
            "tokens": tokens,
            "predictions": predictions,
            "oov_share": unknown / tokens,
        }

    def substitutes(
        self, sentence: Sequence[str], position: int, top: int = 10
    ) -> dict[str, list[tuple[str, float]]]:
        """Return the tokens that the biLM expects in the place of a token, with probabilities.

        The forward softmax reads the tokens before the place, the backward softmax the tokens
        after it. The joint probability is ``forward * backward / prior``, scaled to a sum of 1
        over the words of the vocabulary. It assumes that both contexts are independent, given
        the word. The prior is ``1 / rank``, Zipf's law, so the vocabulary must be ordered by
        frequency; otherwise use ``"forward"`` and ``"backward"``. No prediction reads the token
        itself.

        Args:
            sentence: list of str. The tokens of one sentence.
            position: int. Index of the token; a negative index counts from the end.
            top: int. Number of tokens to return.

        Returns:
            dict of ``"forward"``, ``"backward"`` and ``"joint"``, each a list of pairs of token
            and probability, the most probable first, without ``<S>``, ``</S>`` and ``<UNK>``.

        Raises:
            IndexError: If the sentence has no such position.
            ValueError: If the sentence is not a list of tokens.

        Examples:
            >>> from keras_elmo.pretraining.language_model_files import read_language_model
            >>> scorer = Scorer(*read_language_model("elmo_mini_en"))
            >>> found = scorer.substitutes("He was born in London .".split(), position=3, top=3)
            >>> [token for token, probability in found["joint"]]
            ['in', 'to', 'at']

        Reference:
            Peters et al., 2018, section 3.1, the two factorisations of the biLM.
        """
        [tokens] = _as_lists([sentence])
        top = check_whole("Scorer", "top", top)
        index = range(len(tokens))[position]
        encoded = self._batcher.encode([tokens])
        forward, backward = self._read(self._batcher.batch(encoded, np.array([0])))
        # Each direction returns its outputs in the order in which it reads.
        states = forward[0, index], backward[0, len(tokens) - 1 - index]
        kernel, bias = map(to_float32, (self._model.softmax_kernel, self._model.softmax_bias))
        logs = [_log_softmax(kernel @ state + bias) for state in states]
        joint = logs[0] + logs[1] + np.log(np.arange(len(bias)) + 1)
        joint[: len(SPECIAL_TOKENS)] = -np.inf
        found = {}
        for name, log in zip(("forward", "backward", "joint"), [*logs, _log_softmax(joint)]):
            order = np.argsort(-log, kind="stable")
            words = order[order >= len(SPECIAL_TOKENS)][:top]
            found[name] = [(self._vocabulary[i], float(np.exp(log[i]))) for i in words]
        return found


def _as_lists(sentences: Any) -> list[list[str]]:
    """Return sentences as lists of str; raise if they are not sequences of tokens."""
    sentences = sentence_rows(sentences)
    utf8_tokens(sentences)
    return [
        [t if isinstance(t, str) else t.decode("utf-8", "ignore") for t in sentence]
        for sentence in sentences
    ]


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = logits - logits.max()
    return logits - np.log(np.exp(logits).sum())


class _CompiledMethod(keras.Model):
    """Compile a method of ``BiLanguageModel``. Call ``predict_on_batch`` with a batch."""

    def __init__(self, model: BiLanguageModel, method: str) -> None:
        super().__init__(name=method, dtype="float32")
        self.model, self.method = model, method
        self.compile(jit_compile=keras.backend.backend() == "jax")

    def call(self, inputs: dict) -> Any:
        return getattr(self.model, self.method)(inputs)
