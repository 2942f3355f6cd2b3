"""Turn tokens into character ids: UTF-8 bytes between a begin and an end marker, as in bilm-tf.

There are two kinds of padding. The id ``pad`` fills the row of a token after its last character. A
padding token is a row of zeros.
"""

import abc
import re
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_elmo.tokenizers.text import rows_of
from keras_elmo.utils.checks import check_whole, shorten
from keras_elmo.utils.typing import Tensor

N_CHARACTERS = 262  # ids of ``ByteAlphabet``

_ADVICE = (
    "Pass a batch of sentences, each a list of tokens, as in "
    '[["ELMo", "reads", "characters"], ["Two", "tokens"]]. For raw text call WordTokenizer or '
    "Embedder.tokenize first"
)

_WHOLE_SENTENCE = re.compile(rb"\S\s+\S")
_WORD_AND_STOP = re.compile(rb"\w[.!?]")


class Alphabet(abc.ABC):
    """Turn tokens into rows of ids, and provide the sizes that a biLM needs.

    A row contains the ids of one token: ``begin``, the ids of the characters, ``end``, ``pad``,
    ``pad``, ... If the biLM has word embeddings, the id of the word comes first.

    Args:
        max_characters: int. Character ids of a token, begin and end marker included.

    Attributes:
        begin: int. The begin marker, a character id before the characters of every token.
        end: int. The end marker, a character id after the characters of every token.
        pad: int. The character id that fills a row after ``end``.
        longest: int. Largest number of characters of a token in a row; the rest is cut off.
        row_length: int. Ids in a row.
        boundary_tokens: tuple of bytes. The input tokens that become boundary tokens.
        boundary_ids: tuple of int. The character ids of the boundary tokens.
        n_characters: int. Number of different character ids, 0 included.
        n_words: int. Number of words with an embedding; 0 if the biLM reads characters only.
        word_dim: int. Features of a word embedding.
        leading: int. Word ids in a row, before the character ids: 0 or 1.
        largest_id: int. The largest id in a row.
        code_points: ``CodePoints`` or None. The known characters and words. None for an alphabet
            of bytes, which knows every character.
    """

    begin: int
    end: int
    pad: int
    boundary_tokens: tuple[bytes, bytes]
    boundary_ids: tuple[int, int]
    n_characters: int
    n_words = 0
    word_dim = 0
    code_points: Any = None

    def __init__(self, max_characters: int) -> None:
        self.leading = 1 if self.n_words else 0
        self.row_length = max_characters + self.leading
        self.largest_id = max(self.n_characters - 1, self.n_words)
        self.longest = max_characters - 2

    @abc.abstractmethod
    def encode(self, tokens: Sequence[bytes]) -> tuple[Sequence[bytes], np.ndarray, np.ndarray]:
        """Encode UTF-8 tokens.

        Returns:
            Three values: the tokens for ``word_ids``; the ids of their characters, int32, shape
            ``(len(tokens), longest)``; and the number of characters of each token, at most
            ``longest``. The ids after the last character of a token are arbitrary.
        """

    def rows(self, tokens: Sequence[bytes]) -> np.ndarray:
        """Return the rows of UTF-8 tokens: int32, shape ``(len(tokens), row_length)``.

        No id is 0.

        Examples:
            >>> ByteAlphabet(6).rows([b"to"])
            array([[259, 117, 112, 260, 261, 261]], dtype=int32)
        """
        tokens, ids, lengths = self.encode(tokens)
        rows = np.full((len(tokens), self.row_length), self.pad, "int32")
        characters = rows[:, self.leading :]  # a view: writing to it fills rows
        characters[:, 0] = self.begin
        inside = np.arange(self.longest) < lengths[:, None]
        np.copyto(characters[:, 1:-1], ids, where=inside)
        characters[np.arange(len(tokens)), lengths + 1] = self.end
        if self.leading:
            rows[:, 0] = self.word_ids(tokens)
        # A user may write boundary tokens. ElmoLayer adds them to every sentence itself.
        boundaries = dict(zip(self.boundary_tokens, self.boundary_rows(self.row_length)))
        for row, token in enumerate(tokens):
            if token in boundaries:
                rows[row] = boundaries[token]
        return rows

    def boundary_rows(self, row_length: int) -> np.ndarray:
        """Return the rows of both boundary tokens: int32, shape ``(2, row_length)``.

        A batch can have shorter rows than the alphabet.
        """
        rows = np.full((2, row_length), self.pad, "int32")
        for row, boundary in zip(rows, self.boundary_ids):
            row[: self.leading] = boundary  # its word id equals its character id
            row[self.leading : self.leading + 3] = self.begin, boundary, self.end
        return rows

    def word_ids(self, tokens: Sequence[bytes]) -> list[int]:
        """Return the word ids of UTF-8 tokens, for an alphabet with words."""
        raise NotImplementedError

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of characters in each row, begin and end marker included."""
        return (rows[:, self.leading :] != self.pad).sum(axis=1)

    def id_ranges(self, ids: np.ndarray) -> list[tuple[str, np.ndarray, int]]:
        """Return for each kind of id in the rows: its name, the ids, the largest valid id."""
        most = self.n_characters - 1
        if not self.leading or not ids.ndim:
            return [("character ids", ids, most)]
        return [("word ids", ids[..., 0], self.n_words), ("character ids", ids[..., 1:], most)]


class ByteAlphabet(Alphabet):
    """The bytes of UTF-8, as bilm-tf numbers them.

    A byte has the id ``byte + 1``, from 1 to 256; a padding token is a row of 0. Ids 257 to 261
    are ``<S>``, ``</S>``, the begin marker, the end marker and ``pad``.
    """

    BOS, EOS, begin, end, pad = range(257, N_CHARACTERS)
    boundary_tokens = (b"<S>", b"</S>")
    boundary_ids = (BOS, EOS)
    n_characters = N_CHARACTERS

    def encode(self, tokens: Sequence[bytes]) -> tuple[Sequence[bytes], np.ndarray, np.ndarray]:
        longest = self.longest
        lengths = np.array([min(len(token), longest) for token in tokens], "int32")
        text = b"".join(token[:longest].ljust(longest, b"\0") for token in tokens)
        ids = np.frombuffer(text, "uint8").reshape(len(tokens), longest).astype("int32") + 1
        return tokens, ids, lengths


def unpadded(array: np.ndarray) -> list[list]:
    """Return the rows of a token array as lists, without the trailing ``""``."""
    sentences = array.tolist()
    for sentence in sentences:
        while sentence and sentence[-1] in ("", b""):
            sentence.pop()
    return sentences


def sentence_rows(sentences: Any) -> Any:
    """Return the rows of a 2-D token array, or what ``rows_of`` returns; a text stays a text."""
    if isinstance(sentences, np.ndarray) and sentences.ndim == 2:
        return unpadded(sentences)
    return sentences if isinstance(sentences, str | bytes) else rows_of(sentences)


def _utf8(token: object) -> bytes:
    """Return a token as UTF-8, without lone surrogates; refuse other types."""
    if isinstance(token, str):
        return token.encode("utf-8", "ignore")
    if isinstance(token, bytes):
        return token
    raise ValueError(
        "CharacterTokenizer expects every token to be a str or UTF-8 bytes. "
        f"Received: {shorten(token)} of type {type(token).__name__}. {_ADVICE}"
    )


@keras.saving.register_keras_serializable(package="keras_elmo")
class CharacterTokenizer(keras.layers.Layer):
    """Turn tokens into the character ids that a biLM reads.

    A token becomes the row ``begin marker, its UTF-8 bytes, end marker, pad, pad, ...``.
    Every id is raised by one, because 0 is padding. A longer token is cut to its first
    ``max_characters - 2`` bytes. The tokens ``<S>`` and ``</S>`` become the sentence
    boundaries. ``ElmoLayer`` adds the boundaries to every sentence itself.

    Args:
        max_characters: int. Ids per token, begin and end marker included; 3 or more. Every
            released biLM has 50.
        **kwargs: Arguments of ``keras.layers.Layer``.

    Call arguments:
        inputs: Tokens of a batch of sentences, shape ``(batch, tokens)``. In a list of lists
            of ``str`` (or of UTF-8 ``bytes``) and in a ragged ``tf.string`` tensor every
            element is a token, even ``""``. In a NumPy string array and in a dense
            ``tf.string`` tensor the trailing ``""`` of a row are padding. (NumPy drops a NUL
            at the end of a string.)

    Returns:
        int32, shape ``(batch, tokens, max_characters)``; padding is a row of 0. The result is
        a tensor of the Keras backend, and of TensorFlow inside ``tf.data``.

    Masking: receives and returns no mask; ``ElmoLayer`` computes the mask from the ids.

    Raises:
        ValueError: If ``max_characters`` is invalid or the input is not a batch of tokenised
            sentences.

    Examples:
        >>> ids = CharacterTokenizer(max_characters=6)([["é", "a"], ["</S>"]])
        >>> keras.ops.convert_to_numpy(ids)[0]
        array([[259, 196, 170, 260, 261, 261],
               [259,  98, 260, 261, 261, 261]], dtype=int32)

    Reference:
        Peters et al., 2018, section 3.4, https://arxiv.org/abs/1802.05365. The ids are
        bilm-tf's.
    """

    def __init__(self, max_characters: int = 50, **kwargs: Any) -> None:
        # A Sequential without an Input uses the dtype of its first layer as the input dtype.
        super().__init__(**{"dtype": "string", **kwargs})
        self.max_characters = check_whole("CharacterTokenizer", "max_characters", max_characters, 3)
        self.alphabet: Any = ByteAlphabet(self.max_characters)
        self.supports_jit = False  # XLA has no strings
        # Keras would convert lists to float tensors and refuse strings. Both switches are
        # private; KerasHub uses them too.
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True

    @classmethod
    def from_preset(cls, preset: Any, options: Any = None, **kwargs: Any) -> "CharacterTokenizer":
        """Make the tokenizer of a preset.

        It reads only the options of the biLM, unless the format stores sizes in the weights.

        Args:
            preset: str or path. See ``ElmoLayer.from_preset``.
            options: dict or path. See ``ElmoLayer.from_preset``.
            **kwargs: Arguments of the tokenizer.

        Returns:
            A ``CharacterTokenizer``. For a biLM over code points, such as the models of
            ELMoForManyLangs, a ``CodePointTokenizer``.

        Raises:
            OSError: If a file is missing or damaged.
            ValueError: If the preset does not exist or contains no biLM over characters.
        """
        # Imported here to avoid a cycle: presets import config, and config imports this module.
        from keras_elmo.presets import Preset

        alphabet: Any = Preset(preset, options).read_config().alphabet
        if isinstance(alphabet, ByteAlphabet):
            return cls(**{"max_characters": alphabet.row_length, **kwargs})
        return alphabet.make_tokenizer(**kwargs)

    def __call__(self, inputs: Any, **kwargs: Any) -> Tensor:
        # Keras would search every token of a list for tensors, which takes ten times as long.
        if isinstance(inputs, list | tuple) and not kwargs:
            return self.call(inputs)
        return super().__call__(inputs, **kwargs)

    def call(self, inputs: Any) -> Tensor:
        tf = sys.modules.get("tensorflow")
        if tf is not None and isinstance(inputs, tf.Tensor | tf.RaggedTensor):
            ids = self._ids_of_tensor(tf, inputs)
            if not tf.executing_eagerly() or keras.backend.backend() == "tensorflow":
                return ids
            ids = ids.numpy()
        # A 1-D object array contains lists, so it is handled like a list.
        elif isinstance(inputs, np.ndarray) and (inputs.dtype != object or inputs.ndim != 1):
            ids = self._ids_of_array(inputs)
        else:
            ids = self._ids_of_lists(inputs)
        return ops.convert_to_tensor(ids, dtype="int32")

    @staticmethod
    def check(sentences: Any) -> list[bytes]:
        """Return the tokens of all sentences as UTF-8 in one list.

        It warns if most sentences look like raw text. A sentence looks like raw text if it is one
        token with spaces inside, or if its last token is a word with its full stop.

        Raises:
            ValueError: If the sentences are not lists of tokens.
        """
        if not isinstance(sentences, list | tuple | np.ndarray):
            raise ValueError(
                "CharacterTokenizer expects a batch of tokenised sentences. "
                f"Received: {type(sentences).__name__}. {_ADVICE}"
            )
        for sentence in sentences:
            if not isinstance(sentence, list | tuple | np.ndarray):
                raise ValueError(
                    "CharacterTokenizer expects every sentence to be a list of tokens. "
                    f"Received: {shorten(sentence)}. {_ADVICE}"
                )
        tokens = [[_utf8(token) for token in sentence] for sentence in sentences]
        _warn_of_raw_text(tokens)
        return [token for sentence in tokens for token in sentence]

    def _ids_of_lists(self, sentences: Any) -> np.ndarray:
        tokens = self.check(sentences)  # UTF-8, all sentences in one list
        lengths = np.array([len(sentence) for sentence in sentences], "int64")
        shape = (len(sentences), lengths.max(initial=0), self.alphabet.row_length)
        ids = np.zeros(shape, "int32")
        real = np.arange(shape[1]) < lengths[:, None]
        ids[real] = self.alphabet.rows(tokens)  # in the order of the True entries
        return ids

    def _ids_of_array(self, array: np.ndarray) -> np.ndarray:
        if array.ndim != 2:
            raise ValueError(
                "CharacterTokenizer expects an array of shape (batch, tokens). "
                f"Received: shape={array.shape}. {_ADVICE}"
            )
        ids = self._ids_of_lists(unpadded(array))
        return np.pad(ids, [(0, 0), (0, array.shape[1] - ids.shape[1]), (0, 0)])

    def _ids_of_tensor(self, tf: Any, tokens: Tensor) -> Tensor:
        if tokens.dtype != tf.string or tokens.shape.rank != 2:
            raise ValueError(
                "CharacterTokenizer expects a tf.string tensor of shape (batch, tokens). "
                f"Received: dtype={tokens.dtype.name}, shape={tokens.shape}. Batch the sentences "
                "first, for example with ds.ragged_batch(...) or tf.ragged.constant"
            )
        is_ragged = isinstance(tokens, tf.RaggedTensor)
        if tf.executing_eagerly():
            some = tokens[:32]
            _warn_of_raw_text(some.to_list() if is_ragged else unpadded(some.numpy()))
        if is_ragged:
            real = tf.ones_like(tokens, dtype=tf.bool).to_tensor()
            tokens = tokens.to_tensor()
        else:
            # True up to the last token that is not "".
            filled = tf.cast(tokens != "", tf.int32)
            real = tf.cumsum(filled, axis=1, reverse=True) > 0
        return tf.where(real[..., None], self._rows_of_tensor(tf, tokens), 0)

    def _rows_of_tensor(self, tf: Any, tokens: Tensor) -> Tensor:
        """Return the rows of a dense string tensor."""
        longest = self.alphabet.longest
        lengths = tf.minimum(tf.strings.length(tokens), longest)[..., None]
        codes = tf.cast(tf.io.decode_raw(tokens, tf.uint8, fixed_length=longest), tf.int32)
        return self._join_row(tf, tokens, codes + 1, lengths)

    def _join_row(
        self, tf: Any, tokens: Tensor, ids: Tensor, lengths: Tensor, word_ids: Tensor = None
    ) -> Tensor:
        """Add markers and pads to the ids of characters: ``Alphabet.rows`` in TensorFlow.

        ``ids`` has the shape ``(batch, tokens, longest)``; ids after ``lengths`` are ignored.
        """
        alphabet = self.alphabet
        position = tf.range(self.max_characters)
        ids = tf.pad(ids, [[0, 0], [0, 0], [1, 1]])
        ids = tf.where(position <= lengths, ids, alphabet.pad)
        ids = tf.where(position == lengths + 1, alphabet.end, ids)
        ids = tf.where(position == 0, alphabet.begin, ids)
        if word_ids is not None:
            ids = tf.concat([word_ids[..., None], ids], axis=-1)
        boundaries = alphabet.boundary_rows(alphabet.row_length)
        for token, row in zip(alphabet.boundary_tokens, boundaries):
            ids = tf.where((tokens == token)[..., None], row, ids)
        return ids

    def compute_output_spec(self, inputs: Tensor) -> keras.KerasTensor:
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                "CharacterTokenizer can be part of a model only on TensorFlow. Received: "
                f"keras.backend.backend()={keras.backend.backend()!r}. Call it before the model, "
                f"and start the model with keras.Input((None, {self.alphabet.row_length}), "
                'dtype="int32")'
            )
        if inputs.dtype != "string" or len(inputs.shape) != 2:
            raise ValueError(
                "CharacterTokenizer expects strings of shape (batch, tokens), as from "
                'keras.Input((None,), dtype="string"). '
                f"Received: dtype={inputs.dtype}, shape={inputs.shape}"
            )
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), dtype="int32")

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return (*input_shape, self.alphabet.row_length)

    def get_config(self) -> dict:
        return {**super().get_config(), "max_characters": self.max_characters}


def _warn_of_raw_text(sentences: list[list[bytes]]) -> None:
    """Warn if most sentences look like raw text.

    The text of the warning does not quote the sentences: Python shows equal warnings once only.
    """
    half = sum(map(bool, sentences)) / 2
    alone = [s[0] for s in sentences if len(s) == 1]
    last = [s[-1][-2:] for s in sentences if len(s) > 1]
    if sum(map(bool, map(_WHOLE_SENTENCE.search, alone))) > half:
        found = "sentences that are one token with spaces in it"
    elif half >= 1 and sum(map(bool, map(_WORD_AND_STOP.search, last))) > half:
        found = "sentences whose last token is a word and its full stop"
    else:
        return
    warnings.warn(
        f"CharacterTokenizer expects the tokens that the biLM was trained on. Received: {found}. "
        "Tokenise the text first: call WordTokenizer.from_preset(preset). For files, "
        "keras-elmo embed has --raw, and keras-elmo tokenize writes the tokens",
        stacklevel=4,
    )
