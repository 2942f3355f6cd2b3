"""Keras layers that turn tokens into the ids that a biLM reads."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_elmo.alphabets import Alphabet, ByteAlphabet, CodePointAlphabet, CodePoints
from keras_elmo.presets import open_preset
from keras_elmo.tokenizers.string_layer import StringLayer, tensorflow_of
from keras_elmo.tokenizers.token_lists import sentence_rows, utf8_tokens
from keras_elmo.utils.checks import check_whole
from keras_elmo.utils.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_elmo")
class CharacterTokenizer(StringLayer):
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
        inputs: Tokens of a batch of sentences, shape ``(batch, tokens)``. In a list, or a pandas
            or Arrow column, of lists of ``str`` (or of UTF-8 ``bytes``), and in a ragged
            ``tf.string`` tensor, every element is a token, even ``""``. In a NumPy string array
            and in a dense ``tf.string`` tensor the trailing ``""`` of a row are padding. (NumPy
            drops a NUL at the end of a string.)

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
        super().__init__(**kwargs)
        self.max_characters = check_whole("CharacterTokenizer", "max_characters", max_characters, 3)
        self.alphabet: Alphabet = ByteAlphabet(self.max_characters)

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
        config = open_preset(preset, options).config
        kwargs = {"max_characters": config.max_characters_per_token, **kwargs}
        if config.code_points is None:
            return CharacterTokenizer(**kwargs)
        return CodePointTokenizer(config.code_points.characters, config.code_points.words, **kwargs)

    def call(self, inputs: Any) -> Tensor:
        if tf := tensorflow_of(inputs):
            ids = self._ids_of_tensor(tf, inputs)
            if not tf.executing_eagerly() or keras.backend.backend() == "tensorflow":
                return ids
            ids = ids.numpy()
        else:
            # At least one column, because layers have no values for an axis of length 0.
            is_table = isinstance(inputs, np.ndarray) and inputs.ndim == 2
            rows, least = sentence_rows(inputs), max(1, inputs.shape[1] if is_table else 0)
            tokens = utf8_tokens(rows)
            lengths = np.array([len(sentence) for sentence in rows], "int64")
            real = np.arange(lengths.max(initial=least)) < lengths[:, None]
            ids = np.zeros((*real.shape, self.alphabet.row_length), "int32")
            ids[real] = self.alphabet.rows(tokens)  # in the order of the True entries
        return ops.convert_to_tensor(ids, dtype="int32")

    def _ids_of_tensor(self, tf: Any, tokens: Tensor) -> Tensor:
        advice = "Batch the sentences first, for example with ds.ragged_batch(...)"
        self.check_tensor(tokens, "batch, tokens", advice)
        if isinstance(tokens, tf.RaggedTensor):
            real, tokens = tf.ones_like(tokens, tf.bool).to_tensor(), tokens.to_tensor()
        else:
            # True up to the last token that is not "".
            real = tf.cumsum(tf.cast(tokens != "", tf.int32), axis=1, reverse=True) > 0
        ids = tf.where(real[..., None], self._rows_of_tensor(tf, tokens), 0)
        if tokens.shape[1]:
            return ids
        padding = tf.cast(tf.shape(tokens)[1] == 0, tf.int32)  # at least one column, as for lists
        return tf.pad(ids, [[0, 0], [0, padding], [0, 0]])

    def _rows_of_tensor(self, tf: Any, tokens: Tensor) -> Tensor:
        """Return the rows of a dense string tensor."""
        longest = self.alphabet.longest
        lengths = tf.minimum(tf.strings.length(tokens), longest)
        codes = tf.cast(tf.io.decode_raw(tokens, tf.uint8, fixed_length=longest), tf.int32)
        return self.alphabet.join_rows(tf, tokens, codes + 1, lengths, None)

    def compute_output_spec(self, inputs: Tensor) -> keras.KerasTensor:
        start = f'keras.Input((None, {self.alphabet.row_length}), dtype="int32")'
        advice = f"Call it before the model, and start the model with {start}"
        self.check_tensor(inputs, "batch, tokens", advice)
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), dtype="int32")

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return (*input_shape, self.alphabet.row_length)

    def get_config(self) -> dict:
        return {**super().get_config(), "max_characters": self.max_characters}


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

    It takes the inputs of ``CharacterTokenizer``, and raises the same errors.

    Returns:
        int32, shape ``(batch, tokens, max_characters)``, or one id more with words; padding is
        a row of 0.

    Raises:
        ValueError: If an argument or the input is invalid.

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

    def _rows_of_tensor(self, tf: Any, tokens: Tensor) -> Tensor:
        """Return the rows of a dense string tensor."""
        alphabet: Any = self.alphabet
        codes = tf.strings.unicode_decode(tokens, "UTF-8", errors="ignore")
        codes = codes[..., : alphabet.longest]
        words = tf.strings.unicode_encode(codes, "UTF-8").to_tensor()
        codes = codes.to_tensor(default_value=-1, shape=[None, None, alphabet.longest])
        lengths = tf.reduce_sum(tf.cast(codes >= 0, tf.int32), axis=-1)
        table = tf.constant(alphabet.character_table)
        ids = tf.gather(table, tf.clip_by_value(codes, 0, len(alphabet.character_table) - 1))
        word_ids = self._word_table(tf).lookup(words) if alphabet.leading else None
        return alphabet.join_rows(tf, words, ids, lengths, word_ids)

    def _word_table(self, tf: Any) -> Any:
        """Return the lookup table of the words; an attribute, so that exports include it."""
        alphabet: Any = self.alphabet
        if self._table is None:
            with tf.init_scope():
                words, ids = zip(*alphabet.word_table.items(), strict=True)
                pairs = tf.lookup.KeyValueTensorInitializer(words, tf.constant(ids, tf.int32))
                self._table = tf.lookup.StaticHashTable(pairs, alphabet.WORD_OOV)
        return self._table

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "characters": list(self.code_points.characters),
            "words": list(self.code_points.words),
        }
