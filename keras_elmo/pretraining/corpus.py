"""Make batches for a biLM from tokenised sentences, in an order that depends on a seed."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

import keras
import numpy as np

from keras_elmo.alphabets import ByteAlphabet
from keras_elmo.config import BiLMConfig
from keras_elmo.formats.vocabulary import SPECIAL_TOKENS
from keras_elmo.text_input import read_sentences
from keras_elmo.utils.batches import group_by_length
from keras_elmo.utils.files import PathLike

_BEGIN, _END, _UNKNOWN = range(len(SPECIAL_TOKENS))
# Epoch, index in the order of files of the epoch, index in the order of batches of the file, part
# of the batch, and number of its parts.
Position = tuple[int, int, int, int, int]
# The position before the first batch of a Corpus.
START: Position = (0, 0, 0, 0, 1)


class Batcher:
    """Make batches of whole sentences of similar length.

    A batch is a dict of arrays. The first axis is ``devices``: each device computes one part, and
    all parts have equal shapes.

    - ``characters``: int32, shape ``(devices, distinct, characters)``. Character ids of the
      distinct tokens of the part. The character axis is as short as possible without a change
      of the token representations.
    - ``words``: int32, shape ``(devices, 2, tokens, batch)``. The tokens to read, as indices of
      the distinct tokens: forward ``<S> w1 .. wn``, backward ``</S> wn .. w1``. Padding is last.
    - ``targets``: int32, same shape as ``words``. The tokens to predict, as vocabulary ids:
      forward ``w1 .. wn </S>``, backward ``wn .. w1 <S>``.
    - ``weights``: float32, same shape as ``words``. 0 in padding, and where a long sentence was
      cut. All other weights are equal; for each direction of a batch they sum to ``devices``.

    Args:
        vocabulary: list of str. Tokens, ``<S> </S> <UNK>`` first. Other tokens are ``<UNK>`` as
            targets; as inputs they keep their characters.
        max_characters: int. Largest number of character ids of a token.
        widest_filter: int. Width of the widest filter of the biLM.
        batch_tokens: int. Largest number of rows times longest sentence of a part. A longer
            sentence is a part by itself.
        devices: int. Number of parts of a batch.
        parts: range or None. Parts to make; None for all. Several processes plan equal batches,
            and each process makes some parts of every batch.
        fixed_shapes: bool. Whether to round sizes up to a few values, for backends that compile
            once per shape.

    Examples:
        >>> batcher = Batcher(["<S>", "</S>", "<UNK>", ".", "Cats"])
        >>> sentences = batcher.encode([["Dogs", "bark", "."], ["Cats", "do", "n't", "."]])
        >>> [rows] = batcher.arrange(sentences.lengths)
        >>> batcher.batch(sentences, rows)["targets"][0, 0].T
        array([[4, 2, 2, 3, 1],
               [2, 2, 3, 1, 0]], dtype=int32)
    """

    def __init__(
        self,
        vocabulary: Sequence[str],
        *,
        max_characters: int = 50,
        widest_filter: int = 7,
        batch_tokens: int = 2048,
        devices: int = 1,
        fixed_shapes: bool = False,
        parts: range | None = None,
    ) -> None:
        self.vocabulary = {token: i for i, token in enumerate(vocabulary)}
        self.max_characters = max_characters
        self.widest_filter = widest_filter
        self.batch_tokens = batch_tokens
        self.devices = devices
        self.fixed_shapes = fixed_shapes
        self.parts = range(devices) if parts is None else parts

    @classmethod
    def for_config(cls, config: BiLMConfig, vocabulary: Sequence[str], **kwargs: Any) -> Self:
        """Make a ``Batcher`` for the biLM of a config; the backend decides on fixed shapes."""
        return cls(
            vocabulary,
            max_characters=config.max_characters_per_token,
            widest_filter=config.widest_filter,
            fixed_shapes=keras.backend.backend() == "jax",
            **kwargs,
        )

    def encode(
        self, sentences: list[list[str]], max_tokens: int | None = None
    ) -> "EncodedSentences":
        """Look up the tokens of sentences.

        A sentence longer than ``max_tokens`` is cut into pieces of about equal length. The
        prediction of the boundary token at a cut does not count, because the text has none there.
        No sentence may be empty.
        """
        pieces = _pieces(sentences, max_tokens)
        sentences = [piece for piece, _, _ in pieces]
        types = {"<S>": _BEGIN, "</S>": _END}
        words = [types.setdefault(t, len(types)) for sentence in sentences for t in sentence]
        lengths = np.array([len(sentence) for sentence in sentences])
        alphabet = ByteAlphabet(self.max_characters)
        ids = alphabet.rows([token.encode("utf-8", "ignore") for token in types])
        return EncodedSentences(
            words=np.array(words, "int32"),
            starts=np.cumsum(lengths) - lengths,
            lengths=lengths,
            vocabulary_ids=np.array([self.vocabulary.get(t, _UNKNOWN) for t in types], "int32"),
            characters=ids,
            widths=alphabet.lengths(ids),
            is_begin=np.array([is_begin for _, is_begin, _ in pieces], bool),
            is_end=np.array([is_end for _, _, is_end in pieces], bool),
        )

    def arrange(
        self, lengths: np.ndarray, rng: np.random.Generator | None = None
    ) -> list[np.ndarray]:
        """Return the indices of the sentences of each batch.

        ``lengths`` are the tokens of each sentence. The order is random with ``rng``; without it,
        long sentences come first.
        """
        order = None if rng is None else rng.permutation(len(lengths))
        batches = group_by_length(
            lengths, lambda n: self.devices * self._rows(self._padded(n + 1, 8)), order
        )
        return batches if rng is None else [batches[i] for i in rng.permutation(len(batches))]

    def batch(self, sentences: "EncodedSentences", rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return the batch of the sentences with the indices ``rows``."""
        n, devices = len(rows), self.devices
        starts, lengths = sentences.starts[rows], sentences.lengths[rows]
        tokens = int(self._padded(lengths.max() + 1, 8))
        steps = np.arange(tokens)[:, None]
        inside = steps <= lengths
        after, there = steps[:-1], steps[:-1] < lengths
        words = np.empty((2, tokens, n), "int32")
        words[0], words[1] = _BEGIN, _END
        words[0, 1:][there] = sentences.words[(starts + after)[there]]
        words[1, 1:][there] = sentences.words[(starts + lengths - 1 - after)[there]]
        targets = np.zeros_like(words)
        targets[:, :-1] = sentences.vocabulary_ids[words[:, 1:]]
        last = lengths, np.arange(n)
        targets[0][last], targets[1][last] = _END, _BEGIN
        targets *= inside
        counts = np.stack([inside, inside])
        # The first prediction reads one boundary token; the last one predicts the other.
        begins, ends = sentences.is_begin[rows], sentences.is_end[rows]
        for direction, (first, final) in enumerate(((begins, ends), (ends, begins))):
            counts[direction, 0] &= first
            counts[direction][last] &= final
        total = np.maximum(counts.sum(axis=(1, 2), keepdims=True), 1)
        weights = counts * (devices / total).astype("float32")
        size = int(-(-n // devices))
        if self.fixed_shapes:  # a whole batch, or a half, a quarter, ...
            size = self._rows(tokens) >> max(0, (self._rows(tokens) // size).bit_length() - 1)
        parts = {}
        for device in range(devices):
            # With fixed shapes, all parts have the sizes of the largest part.
            if self.fixed_shapes or device in self.parts:
                # Deal the rows out in turn, so that all parts have sentences of similar length.
                mine = slice(device, None, devices)
                distinct, places = np.unique(words[:, :, mine], return_inverse=True)
                parts[device] = mine, distinct, places.reshape(2, tokens, -1).astype("int32")
        # A part without a sentence reads token 0 with the weight 0.
        most = max(1, *(len(distinct) for _, distinct, _ in parts.values()))
        most = self._padded(most, max(256, self.batch_tokens // 2))
        width = max(sentences.widths[distinct].max(initial=0) for _, distinct, _ in parts.values())
        width = min(self._padded(width + self.widest_filter, 16), self.max_characters)
        made = []
        for mine, distinct, places in (parts[device] for device in self.parts):
            ids = np.pad(distinct, (0, most - len(distinct)))
            part = {"words": places, "targets": targets[:, :, mine], "weights": weights[:, :, mine]}
            missing = [(0, 0), (0, 0), (0, size - places.shape[2])]
            part = {name: np.pad(array, missing) for name, array in part.items()}
            made.append({"characters": sentences.characters[ids, :width], **part})
        return {name: np.stack([part[name] for part in made]) for name in made[0]}

    def _rows(self, tokens: int) -> int:
        return max(1, self.batch_tokens // tokens)

    def _padded(self, size: int, step: int) -> int:
        return -(-size // step) * step if self.fixed_shapes else size


@dataclasses.dataclass(frozen=True)
class EncodedSentences:
    """Store sentences as indices of their distinct tokens.

    Attributes:
        words: array. Tokens of all sentences in order, as indices of the distinct tokens.
        starts: array. Index in ``words`` of the first token of each sentence.
        lengths: array. Number of tokens of each sentence.
        vocabulary_ids: array. Vocabulary id of each distinct token.
        characters: array. Character ids of each distinct token.
        widths: array. Number of character ids of each distinct token, without padding.
        is_begin, is_end: array of bool. Whether each sentence begins or ends like a sentence of
            the text. False where a long sentence was cut.
    """

    words: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    vocabulary_ids: np.ndarray
    characters: np.ndarray
    widths: np.ndarray
    is_begin: np.ndarray
    is_end: np.ndarray


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
        >>> corpus = Corpus(["a.txt"], Batcher(["<S>", "</S>", "<UNK>", "."]))
        >>> batch, tokens, position = next(corpus.batches())
        >>> tokens, position
        (7, (0, 0, 1, 0, 1))
    """

    def __init__(
        self,
        files: Iterable[PathLike],
        batcher: Batcher,
        max_tokens: int = 200,
        seed: int = 0,
    ) -> None:
        self.files = [str(file) for file in files]
        self.batcher = batcher
        self.max_tokens = max_tokens
        self.seed = seed

    def batches(
        self,
        position: Position = START,
        step: int = 0,
        parts: Callable[[int], int] = lambda step: 1,
    ) -> Iterator[tuple[dict[str, np.ndarray], int, Position]]:
        """Yield batches from a position on, epoch after epoch without end.

        Args:
            position: Position. Where to begin.
            step: int. Number of the first batch.
            parts: function. Maps the number of a batch to the number of parts that the whole
                batch from there is split into. Each part is yielded as a batch.

        Yields:
            Tuples of a batch, its number of tokens, and the position after it.

        Raises:
            ValueError: If no file has a sentence, or none has one any more.
        """
        epoch, start, done, part, count = position
        while True:
            found = max(start, done, part) > 0
            for place, file, rng in self._order(epoch, start):
                sentences = self.batcher.encode(read_sentences(file), self.max_tokens)
                if not len(sentences.lengths):
                    continue
                found = True
                for rows in self.batcher.arrange(sentences.lengths, rng)[done:]:
                    if part == 0:
                        count = min(parts(step), len(rows))
                    for k in range(part, count):
                        some = rows[k::count]
                        step += 1
                        done, part = (done, k + 1) if k + 1 < count else (done + 1, 0)
                        yield (
                            self.batcher.batch(sentences, some),
                            int(sentences.lengths[some].sum()),
                            (epoch, place, done, part, count),
                        )
                done = 0
            if not found:
                raise self._no_sentences()
            epoch, start = epoch + 1, 0

    def steps(self, epochs: float, parts: Callable[[int], int] = lambda step: 1) -> int:
        """Return the number of batches of ``epochs`` passes over the files, whole or not.

        ``batches`` describes ``parts``.

        Raises:
            ValueError: If no file has a sentence.
        """
        lengths = {}
        for file in self.files:
            pieces = _pieces(read_sentences(file), self.max_tokens)
            lengths[file] = np.array([len(piece) for piece, _, _ in pieces], int)
        batches = sum(len(self.batcher.arrange(of_file)) for of_file in lengths.values())
        if not batches:
            raise self._no_sentences()
        left, step, epoch = max(1, round(epochs * batches)), 0, 0
        while left:
            # Follow the order of training, because a batch of few sentences has fewer parts.
            for _, file, rng in self._order(epoch):
                for rows in self.batcher.arrange(lengths[file], rng)[:left]:
                    step += min(parts(step), len(rows))
                    left -= 1
            epoch += 1
        return step

    def _order(self, epoch: int, start: int = 0) -> Iterator[tuple[int, str, np.random.Generator]]:
        """Yield the index, the path and the random generator of each file of an epoch."""
        order = np.random.default_rng((self.seed, epoch)).permutation(len(self.files))
        for place in range(start, len(order)):
            rng = np.random.default_rng((self.seed, epoch, place))
            yield place, self.files[order[place]], rng

    def _no_sentences(self) -> ValueError:
        return ValueError(
            f"Corpus expects sentences, one per line. Received: none in {', '.join(self.files)}"
        )


def _pieces(
    sentences: list[list[str]], max_tokens: int | None
) -> list[tuple[list[str], bool, bool]]:
    """Cut long sentences; return each piece, and whether it begins and ends a sentence."""
    pieces = []
    for sentence in sentences:
        n, count = len(sentence), -(-len(sentence) // max_tokens) if max_tokens else 1
        for k in range(count):
            piece = sentence[k * n // count : (k + 1) * n // count]
            pieces.append((piece, k == 0, k == count - 1))
    return pieces
