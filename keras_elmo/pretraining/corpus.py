"""Tokenised sentences to batches for a biLM, in an order that can be entered anywhere."""

import collections.abc
import dataclasses

import numpy as np

from keras_elmo.pretraining.text_files import read_sentences
from keras_elmo.pretraining.vocabulary import SPECIAL_TOKENS
from keras_elmo.tokenizers.characters import PAD, character_ids

_BEGIN, _END, _UNKNOWN = range(len(SPECIAL_TOKENS))
# The position in front of the first batch of a Corpus.
START = (0, 0, 0, 0, 1)


class Batcher:
    """Batches of whole sentences of like length.

    A batch is a dict of arrays whose first axis is ``devices``, parts of equal shape
    that are computed apart:

    - ``characters``: character ids of the distinct tokens of the part, int32, shape
      ``(devices, distinct, characters)``. The character axis is as short as it can be
      without changing the token representations.
    - ``words``: what the LSTMs read, as places among the distinct tokens, int32, shape
      ``(devices, 2, tokens, batch)``: forward ``<S> w1 .. wn``, backward ``</S> wn .. w1``.
      Padding comes last.
    - ``targets``: what they predict, vocabulary ids, int32, same shape: forward
      ``w1 .. wn </S>``, backward ``wn .. w1 <S>``.
    - ``weights``: float32, same shape: 0 in padding and where a sentence that was split
      into pieces was cut, else such that the sum over a direction of a batch is ``devices``.

    Args:
        vocabulary: List of tokens, ``<S> </S> <UNK>`` first. Other tokens become
            ``<UNK>`` as targets and keep their own characters as inputs.
        max_characters: Of the biLM.
        widest_filter: Of the biLM.
        batch_tokens: Bound on rows times longest sentence of one device's part; a longer
            sentence is alone.
        devices: Number of parts of a batch.
        parts: Range of those that are made, all if None; the first axis is theirs alone.
            Several processes make the same batches, and each its own parts of them.
        fixed_shapes: Round the sizes of the arrays up to few values, for backends that
            compile anew for each.

    Example:

    >>> batcher = Batcher(["<S>", "</S>", "<UNK>", ".", "Cats"])
    >>> sentences = batcher.encode([["Dogs", "bark", "."], ["Cats", "do", "n't", "."]])
    >>> [rows] = batcher.arrange(sentences)
    >>> batcher.batch(sentences, rows)["targets"][0, 0].T
    array([[4, 2, 2, 3, 1],
           [2, 2, 3, 1, 0]], dtype=int32)

    Reference:
        Peters et al., 2018, section 3.1: what both directions predict.
    """

    def __init__(
        self,
        vocabulary,
        *,
        max_characters=50,
        widest_filter=7,
        batch_tokens=2048,
        devices=1,
        fixed_shapes=False,
        parts=None,
    ):
        self.vocabulary = {token: i for i, token in enumerate(vocabulary)}
        self.max_characters = max_characters
        self.widest_filter = widest_filter
        self.batch_tokens = batch_tokens
        self.devices = devices
        self.fixed_shapes = fixed_shapes
        self.parts = range(devices) if parts is None else parts

    def encode(self, sentences, max_tokens=None) -> "EncodedSentences":
        """Look up the tokens of sentences, lists of tokens of one token or more.

        Longer ones than ``max_tokens`` become pieces of about equal length. Where they were
        cut no prediction counts: the boundary token that a piece is given there was never
        in the text.
        """
        sentences, is_begin, is_end = _pieces(sentences, max_tokens)
        types = {"<S>": _BEGIN, "</S>": _END}
        words = [types.setdefault(t, len(types)) for sentence in sentences for t in sentence]
        lengths = np.array([len(sentence) for sentence in sentences])
        ids = character_ids([t.encode("utf-8", "ignore") for t in types], self.max_characters)
        return EncodedSentences(
            words=np.array(words, "int32"),
            starts=np.cumsum(lengths) - lengths,
            lengths=lengths,
            vocabulary_ids=np.array([self.vocabulary.get(t, _UNKNOWN) for t in types], "int32"),
            characters=ids,
            widths=(ids != PAD + 1).sum(axis=1),
            is_begin=np.array(is_begin, bool),
            is_end=np.array(is_end, bool),
        )

    def arrange(self, sentences, rng=None) -> list[np.ndarray]:
        """Return the rows of each batch; long sentences first, or in random order."""
        return self.arrange_lengths(sentences.lengths, rng)

    def arrange_lengths(self, lengths, rng=None) -> list[np.ndarray]:
        """As ``arrange``, of sentences of which only the lengths are known."""
        order = np.arange(len(lengths)) if rng is None else rng.permutation(len(lengths))
        order = order[np.argsort(-lengths[order], kind="stable")]
        batches = []
        while len(order):
            size = self.devices * self._rows(self._padded(lengths[order[0]] + 1, 8))
            batches.append(order[:size])
            order = order[size:]
        return batches if rng is None else [batches[i] for i in rng.permutation(len(batches))]

    def batch(self, sentences, rows) -> dict:
        """Return the batch of some sentences, given by their rows in ``sentences``."""
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
        # The first prediction follows one boundary, the last one is of the other.
        begins, ends = sentences.is_begin[rows], sentences.is_end[rows]
        for direction, (first, final) in enumerate(((begins, ends), (ends, begins))):
            counts[direction, 0] &= first
            counts[direction][last] &= final
        total = np.maximum(counts.sum(axis=(1, 2), keepdims=True), 1)
        weights = counts * (devices / total).astype("float32")
        size = int(-(-n // devices))
        if self.fixed_shapes:  # a whole batch, or a half or a quarter of one, ...
            size = self._rows(tokens) >> max(0, (self._rows(tokens) // size).bit_length() - 1)
        made: dict[str, list] = {"characters": [], "words": [], "targets": [], "weights": []}
        most = width = 0
        for device in range(devices):
            if device not in self.parts and not self.fixed_shapes:
                continue
            # Rows are dealt out in turn, so that the parts are alike.
            mine = slice(device, None, devices)
            missing = size - len(range(n)[mine])
            distinct, places = np.unique(words[:, :, mine], return_inverse=True)
            most = max(most, len(distinct))
            width = max(width, sentences.widths[distinct].max(initial=0))
            if device not in self.parts:  # its sizes count: those of all parts are equal
                continue
            made["characters"].append(distinct)
            made["words"].append(_widen(places.reshape(2, tokens, -1).astype("int32"), missing))
            made["targets"].append(_widen(targets[:, :, mine], missing))
            made["weights"].append(_widen(weights[:, :, mine], missing))
        most = self._padded(most, max(256, self.batch_tokens // 2))
        width = min(self._padded(width + self.widest_filter, 16), self.max_characters)
        made["characters"] = [
            sentences.characters[np.pad(distinct, (0, most - len(distinct))), :width]
            for distinct in made["characters"]
        ]
        return {name: np.stack(parts) for name, parts in made.items()}

    def _rows(self, tokens):
        return max(1, self.batch_tokens // tokens)

    def _padded(self, size, step):
        return -(-size // step) * step if self.fixed_shapes else size


@dataclasses.dataclass(frozen=True)
class EncodedSentences:
    """Sentences whose distinct tokens are looked up once.

    Attributes:
        words: All tokens one after another, as indices among the distinct ones.
        starts: Where each sentence starts in ``words``.
        lengths: Tokens of each sentence.
        vocabulary_ids: Of each distinct token.
        characters: Character ids of each distinct token.
        widths: Characters before the padding of each distinct token.
        is_begin, is_end: Whether each sentence begins and ends as in the text, and was not
            cut there.
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
    r"""The files that a biLM is trained on, in an order that depends on the seed alone.

    Args:
        files: Paths of text files: a sentence a line, tokens between spaces. One file is
            in memory at a time.
        batcher: The ``Batcher``.
        max_tokens: Longer sentences are read in pieces.
        seed: Of the order of files, sentences and batches.

    Example:

    >>> import pathlib
    >>> _ = pathlib.Path("a.txt").write_text("Dogs bark .\nCats do n't .\n")
    >>> corpus = Corpus(["a.txt"], Batcher(["<S>", "</S>", "<UNK>", "."]))
    >>> batch, tokens, position = next(corpus.batches())
    >>> tokens, position
    (7, (0, 0, 1, 0, 1))
    """

    def __init__(self, files, batcher, max_tokens=200, seed=0):
        self.files = [str(file) for file in files]
        self.batcher = batcher
        self.max_tokens = max_tokens
        self.seed = seed

    def batches(self, position=START, step=0, parts=lambda step: 1) -> collections.abc.Iterator:
        """Yield batches from a position on, epoch after epoch without end.

        Args:
            position: Epoch, index in its order of files, index in the order of batches of
                that file; part of that batch, and of how many parts.
            step: Number of the first batch.
            parts: Function from the number of a batch to how many batches a whole one is
                split into from there.

        Yields:
            Triples of a batch, the number of its tokens and the position behind it.

        Raises:
            ValueError: If no file holds a sentence.
        """
        epoch, start, done, part, count = position
        found = done > 0 or part > 0
        while True:
            for place, file, rng in self._order(epoch, start):
                sentences = self._read(file)
                if sentences is None:
                    continue
                found = True
                for rows in self.batcher.arrange(sentences, rng)[done:]:
                    if part == 0:
                        count = min(parts(step), len(rows))
                    while part < count:
                        some = rows[part::count]
                        part += 1
                        if part == count:
                            done, part = done + 1, 0
                        step += 1
                        yield (
                            self.batcher.batch(sentences, some),
                            int(sentences.lengths[some].sum()),
                            (epoch, place, done, part, count),
                        )
                        if part == 0:
                            break
                done = 0
            if not found and start == 0:
                raise self._no_sentences()
            epoch, start = epoch + 1, 0

    def steps(self, epochs, parts=lambda step: 1) -> int:
        """Return the number of batches of so many passes over the files, parts of one allowed.

        Raises:
            ValueError: If no file holds a sentence.
        """
        lengths = {}
        for file in self.files:
            pieces, _, _ = _pieces(_sentences(file), self.max_tokens)
            lengths[file] = np.array([len(piece) for piece in pieces], int)
        batches = sum(len(self.batcher.arrange_lengths(of_file)) for of_file in lengths.values())
        if not batches:
            raise self._no_sentences()
        left, step, epoch = max(1, round(epochs * batches)), 0, 0
        while left:
            # In the order of training: a batch of few sentences is split into fewer parts.
            for _, file, rng in self._order(epoch):
                for rows in self.batcher.arrange_lengths(lengths[file], rng)[:left]:
                    step += min(parts(step), len(rows))
                    left -= 1
            epoch += 1
        return step

    def _order(self, epoch, start=0):
        """Yield the files of an epoch in their order, each with its place and generator."""
        order = np.random.default_rng((self.seed, epoch)).permutation(len(self.files))
        for place in range(start, len(order)):
            rng = np.random.default_rng((self.seed, epoch, place))
            yield place, self.files[order[place]], rng

    def _read(self, file):
        sentences = _sentences(file)
        return self.batcher.encode(sentences, self.max_tokens) if sentences else None

    def _no_sentences(self):
        return ValueError(
            f"Corpus expects sentences, one a line. Received: none in {', '.join(self.files)}"
        )


def _sentences(file):
    return [sentence for sentence in read_sentences(file) if sentence]


def _pieces(sentences, max_tokens):
    """Cut long sentences; return the pieces, and whether each begins and ends a sentence."""
    pieces, is_begin, is_end = [], [], []
    for sentence in sentences:
        count = -(-len(sentence) // max_tokens) if max_tokens else 1
        for k in range(count):
            pieces.append(sentence[k * len(sentence) // count : (k + 1) * len(sentence) // count])
            is_begin.append(k == 0)
            is_end.append(k == count - 1)
    return pieces, is_begin, is_end


def _widen(array, missing):
    """Append columns of 0 to the last axis."""
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, missing)])
