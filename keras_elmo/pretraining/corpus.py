"""Make batches for a biLM from tokenised sentences, in an order that depends on a seed."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

import keras
import numpy as np

from keras_elmo.config import BiLMConfig
from keras_elmo.formats.vocabulary import SPECIAL_TOKENS
from keras_elmo.text_input import read_sentences
from keras_elmo.utils.batches import group_by_length
from keras_elmo.utils.checks import invalid
from keras_elmo.utils.files import PathLike

_BEGIN, _END, _UNKNOWN = range(len(SPECIAL_TOKENS))


class Batcher:
    """Make batches of whole sentences of similar length.

    A batch is a dict of arrays:

    - ``characters``: int32, shape ``(distinct, characters)``. Character ids of the distinct
      tokens of the batch, short tokens first. The character axis is as short as possible without
      a change of the token representations.
    - ``words``: int32, shape ``(batch, 2, tokens)``. The tokens to read, as indices of the
      distinct tokens: forward ``<S> w1 .. wn``, backward ``</S> wn .. w1``. Padding is last.
    - ``targets``: int32, same shape as ``words``. The tokens to predict, as vocabulary ids:
      forward ``w1 .. wn </S>``, backward ``wn .. w1 <S>``.
    - ``weights``: float32, same shape as ``words``. 0 in padding, and where a long sentence was
      cut. All other weights are equal; for each direction they sum to 1.

    Args:
        config: BiLMConfig. The biLM that reads the batches.
        vocabulary: list of str. Tokens, ``<S> </S> <UNK>`` first. Other tokens are ``<UNK>`` as
            targets; as inputs they keep their characters.
        batch_tokens: int. Largest number of rows times longest sentence of a batch. A longer
            sentence is a batch by itself.
        devices: int. The first axes are padded to a multiple of this number.
        fixed_shapes: bool or None. Whether to round sizes up to a few values, because each new
            shape is compiled. None means on JAX only.

    Examples:
        >>> config = keras_elmo.BiLMConfig()
        >>> batcher = Batcher(config, ["<S>", "</S>", "<UNK>", ".", "Cats"])
        >>> sentences = batcher.encode([["Dogs", "bark", "."], ["Cats", "do", "n't", "."]])
        >>> [rows] = batcher.arrange(sentences.lengths)
        >>> batcher.batch(sentences, rows)["targets"][:, 0]
        array([[4, 2, 2, 3, 1],
               [2, 2, 3, 1, 0]], dtype=int32)
    """

    def __init__(
        self,
        config: BiLMConfig,
        vocabulary: Sequence[str],
        batch_tokens: int = 2048,
        devices: int = 1,
        fixed_shapes: bool | None = None,
    ) -> None:
        self.config = config
        self.vocabulary = {token: i for i, token in enumerate(vocabulary)}
        self.batch_tokens = batch_tokens
        self.devices = devices
        is_jax = keras.backend.backend() == "jax"
        self.fixed_shapes = is_jax if fixed_shapes is None else fixed_shapes

    def encode(
        self, sentences: list[list[str]], max_tokens: int | None = None
    ) -> "EncodedSentences":
        """Look up the tokens of sentences.

        A sentence longer than ``max_tokens`` is cut into pieces of about equal length. The
        prediction of the boundary token at a cut does not count, because the text has none there.
        No sentence may be empty.
        """
        pieces = _pieces(sentences, max_tokens)
        sentences = [piece for piece, _ in pieces]
        types = {"<S>": _BEGIN, "</S>": _END}
        # Short tokens come first, which saves time in BiLanguageModel.
        tokens = dict.fromkeys(itertools.chain.from_iterable(sentences))
        for token in sorted(tokens, key=lambda token: len(token.encode("utf-8", "ignore"))):
            types.setdefault(token, len(types))
        words = [types[token] for sentence in sentences for token in sentence]
        lengths = np.array([len(sentence) for sentence in sentences])
        alphabet = self.config.alphabet
        ids = alphabet.rows([token.encode("utf-8", "ignore") for token in types])
        return EncodedSentences(
            words=np.array(words, "int32"),
            starts=np.cumsum(lengths) - lengths,
            lengths=lengths,
            vocabulary_ids=np.array([self.vocabulary.get(t, _UNKNOWN) for t in types], "int32"),
            characters=ids,
            widths=alphabet.lengths(ids),
            is_boundary=np.array([is_boundary for _, is_boundary in pieces], bool),
        )

    def arrange(
        self, lengths: np.ndarray, rng: np.random.Generator | None = None
    ) -> list[np.ndarray]:
        """Return the indices of the sentences of each batch.

        ``lengths`` are the tokens of each sentence. The order is random with ``rng``; without it,
        long sentences come first.
        """
        order = None if rng is None else rng.permutation(len(lengths))
        batches = group_by_length(lengths, lambda n: self._rows(self._padded(n + 1, 8)), order)
        return batches if rng is None else [batches[i] for i in rng.permutation(len(batches))]

    def batch(self, sentences: "EncodedSentences", rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return the batch of the sentences with the indices ``rows``."""
        n, every = len(rows), np.arange(len(rows))
        starts, lengths = sentences.starts[rows][:, None], sentences.lengths[rows][:, None]
        tokens = int(self._padded(lengths.max() + 1, 8))
        steps = np.arange(tokens)
        inside = (steps <= lengths)[:, None]
        after, there = steps[:-1], steps[:-1] < lengths
        words = np.empty((n, 2, tokens), "int32")
        words[:, 0], words[:, 1] = _BEGIN, _END
        words[:, 0, 1:][there] = sentences.words[(starts + after)[there]]
        words[:, 1, 1:][there] = sentences.words[(starts + lengths - 1 - after)[there]]
        targets = np.zeros_like(words)
        targets[:, :, :-1] = sentences.vocabulary_ids[words[:, :, 1:]]
        targets[every, :, lengths[:, 0]] = _END, _BEGIN
        targets *= inside
        # The first prediction reads one boundary token; the last one predicts the other.
        is_boundary, counts = sentences.is_boundary[rows], np.repeat(inside, 2, axis=1)
        counts[:, :, 0] &= is_boundary
        counts[every, :, lengths[:, 0]] &= is_boundary[:, ::-1]
        total = np.maximum(counts.sum(axis=(0, 2), keepdims=True), 1)
        distinct, words = np.unique(words, return_inverse=True)
        width = sentences.widths[distinct].max() + self.config.widest_filter
        width = min(self._padded(width, 16), self.config.max_characters_per_token)
        size = n
        if self.fixed_shapes:  # as many rows as a whole batch, or half, a quarter, ...
            size = self._rows(tokens) >> max(0, (self._rows(tokens) // n).bit_length() - 1)
        n_distinct = self._padded(len(distinct), max(256, self.batch_tokens // 2))
        batch = {
            "words": words.reshape(targets.shape).astype("int32"),
            "targets": targets,
            "weights": counts * (1 / total).astype("float32"),
        }
        batch = {name: self._with_rows(array, size) for name, array in batch.items()}
        return {
            "characters": self._with_rows(sentences.characters[distinct, :width], n_distinct),
            **batch,
        }

    def _with_rows(self, array: np.ndarray, size: int) -> np.ndarray:
        """Pad the first axis of an array with zeros to a size that the devices can share."""
        size = -(-size // self.devices) * self.devices
        return np.pad(array, [(0, size - len(array)), *[(0, 0)] * (array.ndim - 1)])

    def _rows(self, tokens: int) -> int:
        return max(1, self.batch_tokens // tokens)

    def _padded(self, size: int, step: int) -> int:
        return -(-size // step) * step if self.fixed_shapes else size


@dataclasses.dataclass(frozen=True)
class EncodedSentences:
    """Store sentences as indices of their distinct tokens."""

    words: np.ndarray  # The tokens of all sentences in order, as indices of the distinct tokens.
    starts: np.ndarray  # The index in ``words`` of the first token of each sentence.
    lengths: np.ndarray  # The number of tokens of each sentence.
    vocabulary_ids: np.ndarray  # The vocabulary id of each distinct token.
    characters: np.ndarray  # The character ids of each distinct token.
    widths: np.ndarray  # The number of character ids of each distinct token, without padding.
    # Whether each sentence begins, and whether it ends, like a sentence of the text. False where
    # a long sentence was cut. Shape (sentences, 2).
    is_boundary: np.ndarray


class Corpus:
    r"""Read training files in an order that depends on the seed only.

    Args:
        files: iterable of str or path. Text files, one sentence per line, with spaces between
            tokens. One file at a time is in memory.
        batcher: Batcher. Makes the batches.
        max_tokens: int. Longer sentences are read in pieces of this length.
        seed: int. Seed of the order of files, sentences and batches.

    Examples:
        >>> import pathlib
        >>> _ = pathlib.Path("a.txt").write_text("Dogs bark .\nCats do n't .\n")
        >>> batcher = Batcher(keras_elmo.BiLMConfig(), ["<S>", "</S>", "<UNK>", "."])
        >>> corpus = Corpus(["a.txt"], batcher)
        >>> batch, tokens, position = next(corpus.batches())
        >>> tokens, position
        (7, (0, 0, 1))
    """

    def __init__(
        self, files: Iterable[PathLike], batcher: Batcher, max_tokens: int = 200, seed: int = 0
    ) -> None:
        self.files = [str(file) for file in files]
        self.batcher = batcher
        self.max_tokens = max_tokens
        self.seed = seed

    def batches(
        self, position: Sequence[int] = (0, 0, 0)
    ) -> Iterator[tuple[dict[str, np.ndarray], int, Sequence[int]]]:
        """Yield batches from a position on, epoch after epoch without end.

        Yields:
            Tuples of a batch, its number of tokens, and the position after it: the epoch, the
            index in its order of files, and the number of batches of the file up to there.

        Raises:
            ValueError: If an epoch has no sentence.
        """
        epoch, start, done = position
        while True:
            order = np.random.default_rng((self.seed, epoch)).permutation(len(self.files))
            is_empty = not (start or done)
            for place in range(start, len(order)):
                sentences = read_sentences(self.files[order[place]])
                encoded = self.batcher.encode(sentences, self.max_tokens)
                rng = np.random.default_rng((self.seed, epoch, place))
                for rows in self.batcher.arrange(encoded.lengths, rng)[done:]:
                    done += 1
                    tokens = int(encoded.lengths[rows].sum())
                    yield self.batcher.batch(encoded, rows), tokens, (epoch, place, done)
                is_empty, done = is_empty and not sentences, 0
            if is_empty:
                raise invalid("Corpus expects sentences", f"none in {', '.join(self.files)}")
            epoch, start = epoch + 1, 0

    def steps(self, epochs: float) -> int:
        """Return the number of batches of ``epochs`` passes over the files, whole or not."""
        batches = 0
        for file in self.files:
            pieces = _pieces(read_sentences(file), self.max_tokens)
            batches += len(self.batcher.arrange(np.array([len(p) for p, _ in pieces], int)))
        return max(1, round(epochs * batches))


def _pieces(
    sentences: list[list[str]], max_tokens: int | None
) -> list[tuple[list[str], tuple[bool, bool]]]:
    """Cut long sentences; return each piece, and whether it begins and ends a sentence."""
    pieces = []
    for sentence in sentences:
        n, count = len(sentence), -(-len(sentence) // max_tokens) if max_tokens else 1
        for k in range(count):
            piece = sentence[k * n // count : (k + 1) * n // count]
            pieces.append((piece, (k == 0, k == count - 1)))
    return pieces
