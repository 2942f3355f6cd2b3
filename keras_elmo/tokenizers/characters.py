"""``CharacterTokenizer`` and ``CodePointTokenizer``: tokens to character ids, as Keras layers."""

import numbers
import sys

import keras
import numpy as np
from keras import ops

from keras_elmo.config import CodePoints
from keras_elmo.presets import Preset
from keras_elmo.tokenizers.alphabets import ByteAlphabet, CodePointAlphabet
from keras_elmo.tokenizers.byte_ids import (
    BEGIN_WORD,
    BOUNDARY_TOKENS,
    END_WORD,
    PAD,
    REMEDY,
    boundary_row,
    unpadded,
    utf8,
)


class _Tokenizer(keras.layers.Layer):
    """What the tokenizers have in common.

    A subclass gives ``alphabet``, and ``_rows_of_tensor`` for tensors of TensorFlow.
    """

    def __init__(self, max_characters, **kwargs):
        super().__init__(**kwargs)
        if not isinstance(max_characters, numbers.Integral) or max_characters < 3:
            raise ValueError(
                "CharacterTokenizer expects max_characters to be a whole number, 3 or more. "
                f"Received: max_characters={max_characters!r}"
            )
        self.max_characters = int(max_characters)
        self.supports_jit = False
        # Keras would turn lists into float tensors and refuse strings; both switches
        # are private, and KerasHub relies on them too.
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True

    def __call__(self, inputs, **kwargs):
        # Keras would look into every single token of lists for a tensor, ten times the work.
        if isinstance(inputs, list | tuple) and not kwargs:
            return self.call(inputs)
        return super().__call__(inputs, **kwargs)

    def call(self, inputs):
        tf = sys.modules.get("tensorflow")
        if tf is not None and isinstance(inputs, tf.Tensor | tf.RaggedTensor):
            ids = self._ids_of_tensor(tf, inputs)
            if not tf.executing_eagerly() or keras.backend.backend() == "tensorflow":
                return ids
            ids = ids.numpy()
        elif isinstance(inputs, np.ndarray) and (inputs.dtype != object or inputs.ndim != 1):
            ids = self._ids_of_array(inputs)
        else:
            ids = self._ids_of_lists(inputs)
        return ops.convert_to_tensor(ids, dtype="int32")

    @staticmethod
    def check(sentences) -> list[bytes]:
        """Return all tokens as UTF-8; raise if these are not sequences of tokens."""
        if not isinstance(sentences, list | tuple | np.ndarray):
            raise ValueError(
                "CharacterTokenizer expects a batch of tokenised sentences. "
                f"Received: {type(sentences).__name__}. {REMEDY}"
            )
        for sentence in sentences:
            if not isinstance(sentence, list | tuple | np.ndarray):
                raise ValueError(
                    "CharacterTokenizer expects every sentence to be a list of tokens. "
                    f"Received: {sentence!r}. {REMEDY}"
                )
        return [utf8(token) for sentence in sentences for token in sentence]

    def _ids_of_lists(self, sentences):
        tokens = self.check(sentences)
        lengths = np.array([len(sentence) for sentence in sentences], "int64")
        shape = (len(sentences), lengths.max(initial=0), self.alphabet.row_length)
        ids = np.zeros(shape, "int32")
        ids[np.arange(shape[1]) < lengths[:, None]] = self.alphabet.rows(tokens)
        return ids

    def _ids_of_array(self, array):
        if array.ndim != 2:
            raise ValueError(
                "CharacterTokenizer expects an array of shape (batch, tokens). "
                f"Received: shape={array.shape}. {REMEDY}"
            )
        ids = self._ids_of_lists(unpadded(array))
        return np.pad(ids, [(0, 0), (0, array.shape[1] - ids.shape[1]), (0, 0)])

    def _ids_of_tensor(self, tf, tokens):
        if tokens.dtype != tf.string or tokens.shape.rank != 2:
            raise ValueError(
                "CharacterTokenizer expects a tf.string tensor of shape (batch, tokens). "
                f"Received: dtype={tokens.dtype.name}, shape={tokens.shape}. Batch the sentences "
                "first, for example with ds.ragged_batch(...) or tf.ragged.constant"
            )
        if isinstance(tokens, tf.RaggedTensor):
            real = tf.ones_like(tokens, dtype=tf.bool).to_tensor()
            tokens = tokens.to_tensor()
        else:
            # True up to the last token that is not "".
            filled = tf.cast(tokens != "", tf.int32)
            real = tf.cumsum(filled, axis=1, reverse=True) > 0
        return tf.where(real[..., None], self._rows_of_tensor(tf, tokens), 0)

    def compute_output_spec(self, inputs):
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                "CharacterTokenizer can be part of a model only on TensorFlow. Received: "
                f"keras.backend.backend()={keras.backend.backend()!r}. Call it in front of the "
                f"model, which then starts at keras.Input((None, {self.alphabet.row_length}), "
                'dtype="int32")'
            )
        if inputs.dtype != "string" or len(inputs.shape) != 2:
            raise ValueError(
                "CharacterTokenizer expects strings of shape (batch, tokens), as of "
                'keras.Input((None,), dtype="string"). '
                f"Received: dtype={inputs.dtype}, shape={inputs.shape}"
            )
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), dtype="int32")

    def compute_output_shape(self, input_shape):
        return (*input_shape, self.alphabet.row_length)

    def get_config(self):
        return {**super().get_config(), "max_characters": self.max_characters}


@keras.saving.register_keras_serializable(package="keras_elmo")
class CharacterTokenizer(_Tokenizer):
    """Turn tokens into the character ids that a biLM reads.

    A token becomes the row ``begin-word, its UTF-8 bytes, end-word, pad, pad, ...``,
    every id shifted by one so that 0 is left for padding. A token too long is cut
    to its first ``max_characters - 2`` bytes. The tokens ``<S>`` and ``</S>`` become
    the sentence boundaries; ``ElmoLayer`` adds those at both ends of a sentence
    itself.

    Args:
        max_characters: Ids per token, both word markers included; 3 or more.
            50 in every released biLM.
        **kwargs: Passed on to ``keras.layers.Layer``.

    Call arguments:
        inputs: Tokens of a batch of sentences, shape ``(batch, tokens)``. A list of
            lists of ``str`` (or of UTF-8 ``bytes``) and a ragged ``tf.string``
            tensor hold tokens only, ``""`` too; in a NumPy string array and in a
            dense ``tf.string`` tensor the trailing ``""`` of a row are padding.
            (NumPy itself drops a NUL at the end of a string.)

    Returns:
        int32, shape ``(batch, tokens, max_characters)``; padding is a row of 0. A
        tensor of the Keras backend, inside ``tf.data`` one of TensorFlow.

    Masking: none comes in or goes out; ``ElmoLayer`` finds the mask in the ids.

    Raises:
        ValueError: If the input is not a batch of tokenised sentences.

    Example:

    >>> ids = CharacterTokenizer(max_characters=6)([["é", "a"], ["</S>"]])
    >>> keras.ops.convert_to_numpy(ids)[0]
    array([[259, 196, 170, 260, 261, 261],
           [259,  98, 260, 261, 261, 261]], dtype=int32)

    Reference:
        Peters et al., 2018, section 3.4, https://arxiv.org/abs/1802.05365; the ids
        are those of bilm-tf.
    """

    def __init__(self, max_characters=50, **kwargs):
        super().__init__(max_characters, **kwargs)
        self.alphabet = ByteAlphabet(self.max_characters)

    @classmethod
    def from_preset(cls, preset, options=None, **kwargs):
        """Make the tokenizer that belongs to a preset, whatever its alphabet.

        Only the options are read, where a preset has them.

        Args:
            preset: As for ``ElmoLayer.from_preset``.
            options: As for ``ElmoLayer.from_preset``.
            **kwargs: Passed on to the tokenizer.

        Returns:
            A ``CharacterTokenizer``; for a biLM over code points, as those of
            ELMoForManyLangs, a ``CodePointTokenizer``.

        Raises:
            OSError: If a file is missing or damaged.
            ValueError: If there is no such preset, or not one of a biLM over characters.
        """
        config = Preset(preset, options).read_config()
        kwargs = {"max_characters": config.max_characters_per_token, **kwargs}
        if config.code_points is None:
            return cls(**kwargs)
        known = config.code_points
        return CodePointTokenizer(known.characters, known.words, **kwargs)

    def _rows_of_tensor(self, tf, tokens):
        """Return the rows of a dense tensor of tokens."""
        room = self.max_characters - 2
        lengths = tf.minimum(tf.strings.length(tokens), room)[..., None]
        text = tf.cast(tf.io.decode_raw(tokens, tf.uint8, fixed_length=room), tf.int32)
        text = tf.pad(text, [[0, 0], [0, 0], [1, 1]])
        position = tf.range(self.max_characters)
        ids = tf.where(position <= lengths, text, PAD)
        ids = tf.where(position == lengths + 1, END_WORD, ids)
        ids = tf.where(position == 0, BEGIN_WORD, ids) + 1
        for token, marker in BOUNDARY_TOKENS.items():
            row = boundary_row(marker, self.max_characters)
            ids = tf.where((tokens == token)[..., None], row, ids)
        return ids


@keras.saving.register_keras_serializable(package="keras_elmo")
class CodePointTokenizer(_Tokenizer):
    """Turn tokens into the ids that a biLM of ELMoForManyLangs reads.

    A token becomes the row ``word, <eow>, its code points, <bow>, <pad>, <pad>, ...``, the
    word only if there are words. A token too long is cut to its first ``max_characters - 2``
    code points, before it is looked up. The tokens ``<bos>`` and ``<eos>`` become the sentence
    boundaries. ``CharacterTokenizer.from_preset`` makes one of a preset.

    Args:
        characters: The characters that the biLM knows, behind ``<bos> <eos> <bow> <eow> <pad>
            <oov>``. Others are ``<oov>``.
        words: The words that it knows, behind ``<bos> <eos> <oov>``; empty if none.
        max_characters: Ids of the characters of a token, both word markers included; 3 or more.
        **kwargs: Passed on to ``keras.layers.Layer``.

    Call arguments:
        inputs: Tokens of a batch of sentences, as for ``CharacterTokenizer``.

    Returns:
        int32, shape ``(batch, tokens, max_characters)``, with words one more; padding is a row
        of 0. A tensor of the Keras backend, inside ``tf.data`` one of TensorFlow.

    Masking: none comes in or goes out; ``ElmoLayer`` finds the mask in the ids.

    Raises:
        ValueError: If an argument is not as above, or the input not a batch of tokenised
            sentences.

    Example:

    >>> special = ["<bos>", "<eos>", "<bow>", "<eow>", "<pad>", "<oov>"]
    >>> ids = CodePointTokenizer([*special, "水"], max_characters=6)([["水ab"]])
    >>> keras.ops.convert_to_numpy(ids)[0]
    array([[4, 7, 6, 6, 3, 5]], dtype=int32)

    Reference:
        Che et al., 2018, https://arxiv.org/abs/1807.03121; the ids are those of
        ELMoForManyLangs, in another order.
    """

    def __init__(self, characters, words=(), max_characters=50, **kwargs):
        super().__init__(max_characters, **kwargs)
        word_dim = 1 if words else 0  # which ids do not depend on
        self.code_points = CodePoints(characters=characters, words=words, word_dim=word_dim)
        self.alphabet = CodePointAlphabet(self.code_points, self.max_characters)
        self._table = None

    def _rows_of_tensor(self, tf, tokens):
        """Return the rows of a dense tensor of tokens."""
        alphabet = self.alphabet
        codes = tf.strings.unicode_decode(tokens, "UTF-8", errors="ignore")[..., : alphabet.room]
        words = tf.strings.unicode_encode(codes, "UTF-8").to_tensor()
        codes = codes.to_tensor(default_value=-1, shape=[None, None, alphabet.room])
        lengths = tf.reduce_sum(tf.cast(codes >= 0, tf.int32), axis=-1, keepdims=True)
        table = tf.constant(alphabet.character_table)
        ids = tf.gather(table, tf.clip_by_value(codes, 0, len(alphabet.character_table) - 1))
        ids = tf.pad(ids, [[0, 0], [0, 0], [1, 1]])
        position = tf.range(self.max_characters)
        ids = tf.where(position <= lengths, ids, alphabet.PAD)
        ids = tf.where(position == lengths + 1, alphabet.BOW, ids)
        ids = tf.where(position == 0, alphabet.EOW, ids)
        if alphabet.leading:
            word_ids = self._word_table(tf).lookup(words)
            ids = tf.concat([word_ids[..., None], ids], axis=-1)
        boundaries = alphabet.boundary_rows(alphabet.row_length)
        for token, row in zip(alphabet.boundary_tokens, boundaries, strict=True):
            ids = tf.where((words == token)[..., None], row, ids)
        return ids

    def _word_table(self, tf):
        if self._table is None:
            with tf.init_scope():
                words, ids = zip(*self.alphabet.word_ids.items(), strict=True)
                pairs = tf.lookup.KeyValueTensorInitializer(words, tf.constant(ids, tf.int32))
                self._table = tf.lookup.StaticHashTable(pairs, self.alphabet.WORD_OOV)
        return self._table

    def get_config(self):
        return {
            **super().get_config(),
            "characters": list(self.code_points.characters),
            "words": list(self.code_points.words),
        }
