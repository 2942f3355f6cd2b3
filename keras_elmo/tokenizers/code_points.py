"""The alphabet of ELMoForManyLangs: code points of Unicode, and known words before them."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_elmo.tokenizers.characters import Alphabet, CharacterTokenizer
from keras_elmo.utils.checks import is_whole, shorten
from keras_elmo.utils.typing import Tensor

# The first entries of the characters and of the words of a biLM, in this order.
SPECIAL_CHARACTERS = ("<bos>", "<eos>", "<bow>", "<eow>", "<pad>", "<oov>")
SPECIAL_WORDS = ("<bos>", "<eos>", "<oov>")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CodePoints:
    """The characters and words that a biLM of ELMoForManyLangs knows.

    Attributes:
        characters: tuple of str. ``SPECIAL_CHARACTERS``, then the known characters. The first
            has the id 1.
        words: tuple of str. ``SPECIAL_WORDS``, then the known words. Empty if the biLM reads
            characters only.
        word_dim: int. Features of a word embedding; 0 without words.

    Raises:
        ValueError: If an attribute is invalid.
    """

    characters: tuple[str, ...]
    words: tuple[str, ...] = ()
    word_dim: int = 0

    def __post_init__(self) -> None:
        for name, special in (("characters", SPECIAL_CHARACTERS), ("words", SPECIAL_WORDS)):
            tokens = getattr(self, name)
            if not (isinstance(tokens, list | tuple) and all(isinstance(t, str) for t in tokens)):
                raise ValueError(
                    f"CodePoints expects {name} to be a list of text. "
                    f"Received: {name}={shorten(tokens)}"
                )
            object.__setattr__(self, name, tuple(tokens))
            if tuple(tokens[: len(special)]) != special and (tokens or name == "characters"):
                raise ValueError(
                    f"CodePoints expects {name} to start with {special}. "
                    f"Received: {name}={shorten(tokens)}"
                )
            if len(set(tokens)) < len(tokens):
                raise ValueError(f"CodePoints expects all {name} to differ. Received: one twice")
        if not is_whole(self.word_dim) or bool(self.word_dim) != bool(self.words):
            raise ValueError(
                "CodePoints expects word_dim to be a whole number, 1 or more with words and 0 "
                f"without. Received: word_dim={shorten(self.word_dim)}, {len(self.words)} words"
            )

    def __repr__(self) -> str:
        sizes = f"{len(self.characters)} characters, {len(self.words)} words"
        return f"CodePoints({sizes}, word_dim={self.word_dim})"

    @classmethod
    def from_options(cls, options: object) -> "CodePoints":
        """Read the value of ``code_points`` in an options file."""
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(options, dict) or not set(options) <= names:
            raise ValueError(
                "BiLMConfig expects 'code_points' in the options to have characters, words "
                f"and word_dim. Received: code_points={shorten(options)}"
            )
        return cls(**{"characters": (), **options})

    def to_options(self) -> dict:
        """Return the value of ``code_points`` in an options file."""
        return {
            "characters": list(self.characters),
            "words": list(self.words),
            "word_dim": self.word_dim,
        }


class CodePointAlphabet(Alphabet):
    """The code points that a biLM of ELMoForManyLangs knows, and its words.

    A token is cut to ``max_characters - 2`` code points, before its word is looked up.
    ELMoForManyLangs swaps the begin and end marker in training, so this class swaps them too.

    Args:
        code_points: ``CodePoints``. The known characters and words.
        max_characters: int. Character ids of a token, begin and end marker included.
    """

    boundary_tokens = (b"<bos>", b"<eos>")
    BOS, EOS, end, begin, pad, OOV = range(1, len(SPECIAL_CHARACTERS) + 1)
    boundary_ids = (BOS, EOS)
    WORD_OOV = SPECIAL_WORDS.index("<oov>") + 1

    def __init__(self, code_points: CodePoints, max_characters: int) -> None:
        self.code_points = code_points
        self.max_characters = max_characters
        self.n_characters = len(code_points.characters) + 1
        self.n_words = len(code_points.words)
        self.word_dim = code_points.word_dim
        super().__init__(max_characters)

    @functools.cached_property
    def word_table(self) -> dict[bytes, int]:
        """The id of every word in UTF-8."""
        words = (word.encode("utf-8", "surrogatepass") for word in self.code_points.words)
        return {word: i for i, word in enumerate(words, 1)}

    @functools.cached_property
    def character_table(self) -> np.ndarray:
        """The ids of all code points up to the last known one, then ``<oov>`` for all others."""
        known = [(ord(c), i) for i, c in enumerate(self.code_points.characters, 1) if len(c) == 1]
        table = np.full(max((code for code, _ in known), default=0) + 2, self.OOV, "int32")
        for code, i in known:
            table[code] = i
        return table

    def encode(self, tokens: Sequence[bytes]) -> tuple[Sequence[bytes], np.ndarray, np.ndarray]:
        texts = [token.decode("utf-8", "ignore")[: self.longest] for token in tokens]
        joined = "".join(text.ljust(self.longest, "\0") for text in texts).encode("utf-32-le")
        codes = np.frombuffer(joined, "<u4").reshape(len(texts), self.longest)
        ids = self.character_table[np.minimum(codes, len(self.character_table) - 1)]
        lengths = np.array([len(text) for text in texts], "int32")
        return [text.encode() for text in texts], ids, lengths

    def word_ids(self, tokens: Sequence[bytes]) -> list[int]:
        return [self.word_table.get(token, self.WORD_OOV) for token in tokens]

    def make_tokenizer(self, **kwargs: Any) -> "CodePointTokenizer":
        """Make the Keras layer for these characters and words."""
        known = self.code_points
        arguments = {"max_characters": self.max_characters, **kwargs}
        return CodePointTokenizer(known.characters, known.words, **arguments)


@keras.saving.register_keras_serializable(package="keras_elmo")
class CodePointTokenizer(CharacterTokenizer):
    """Turn tokens into the ids that a biLM of ELMoForManyLangs reads.

    A token becomes the row ``word, <eow>, its code points, <bow>, <pad>, <pad>, ...``. The word
    id is only there if there are words. A longer token is cut to its first
    ``max_characters - 2`` code points, before the word is looked up. The tokens ``<bos>`` and
    ``<eos>`` become the sentence boundaries.

    Args:
        characters: list of str. ``<bos> <eos> <bow> <eow> <pad> <oov>``, then the characters
            that the biLM knows. All other characters are ``<oov>``.
        words: list of str. ``<bos> <eos> <oov>``, then the words that the biLM knows; or empty.
        max_characters: int. Character ids per token, begin and end marker included; 3 or more.
        **kwargs: Arguments of ``keras.layers.Layer``.

    It takes, masks and refuses the same inputs as ``CharacterTokenizer``.

    Returns:
        int32, shape ``(batch, tokens, max_characters)``, or one id more with words; padding is
        a row of 0.

    Raises:
        ValueError: If an argument is invalid or the input is not a batch of tokenised
            sentences.

    Examples:
        >>> special = ["<bos>", "<eos>", "<bow>", "<eow>", "<pad>", "<oov>"]
        >>> ids = CodePointTokenizer([*special, "水"], max_characters=6)([["水ab"]])
        >>> keras.ops.convert_to_numpy(ids)[0]
        array([[4, 7, 6, 6, 3, 5]], dtype=int32)

    Reference:
        Che et al., 2018, https://arxiv.org/abs/1807.03121. The ids are in
        another order than in ELMoForManyLangs.
    """

    def __init__(
        self,
        characters: Sequence[str],
        words: Sequence[str] = (),
        max_characters: int = 50,
        **kwargs: Any,
    ) -> None:
        super().__init__(max_characters, **kwargs)
        word_dim = 1 if words else 0  # The ids do not depend on it.
        known: dict[str, Any] = {"characters": characters, "words": words, "word_dim": word_dim}
        self.code_points = CodePoints(**known)
        self.alphabet = CodePointAlphabet(self.code_points, self.max_characters)
        self._table = None

    @classmethod
    def from_preset(cls, preset: Any, options: Any = None, **kwargs: Any) -> "CodePointTokenizer":
        """Make the tokenizer of a preset; see ``CharacterTokenizer.from_preset``.

        Raises:
            OSError: If a file is missing or damaged.
            ValueError: If the preset does not exist or its biLM reads bytes.
        """
        tokenizer = CharacterTokenizer.from_preset(preset, options, **kwargs)
        if not isinstance(tokenizer, CodePointTokenizer):
            raise ValueError(
                "CodePointTokenizer expects a preset whose biLM reads code points. "
                f"Received: preset={str(preset)!r}, whose biLM reads bytes. "
                "Use CharacterTokenizer.from_preset"
            )
        return tokenizer

    def _rows_of_tensor(self, tf: Any, tokens: Tensor) -> Tensor:
        """Return the rows of a dense string tensor."""
        alphabet = self.alphabet
        codes = tf.strings.unicode_decode(tokens, "UTF-8", errors="ignore")
        codes = codes[..., : alphabet.longest]
        words = tf.strings.unicode_encode(codes, "UTF-8").to_tensor()
        codes = codes.to_tensor(default_value=-1, shape=[None, None, alphabet.longest])
        lengths = tf.reduce_sum(tf.cast(codes >= 0, tf.int32), axis=-1, keepdims=True)
        table = tf.constant(alphabet.character_table)
        ids = tf.gather(table, tf.clip_by_value(codes, 0, len(alphabet.character_table) - 1))
        word_ids = self._word_table(tf).lookup(words) if alphabet.leading else None
        return self._join_row(tf, words, ids, lengths, word_ids)

    def _word_table(self, tf: Any) -> Any:
        """Return the lookup table of the words; an attribute, so that exports include it."""
        if self._table is None:
            with tf.init_scope():
                words, ids = zip(*self.alphabet.word_table.items(), strict=True)
                pairs = tf.lookup.KeyValueTensorInitializer(words, tf.constant(ids, tf.int32))
                self._table = tf.lookup.StaticHashTable(pairs, self.alphabet.WORD_OOV)
        return self._table

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "characters": list(self.code_points.characters),
            "words": list(self.code_points.words),
        }
