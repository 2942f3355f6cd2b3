"""``WordTokenizer``: text to the tokens that a biLM was trained on."""

from typing import Any

import keras

from keras_elmo.presets import open_preset
from keras_elmo.tokenizers.penn import BLANK, penn_tokens_in_graph
from keras_elmo.tokenizers.string_layer import StringLayer, tensorflow_of
from keras_elmo.tokenizers.text_tokens import QUOTES, make_tokenizer, tokenize_texts
from keras_elmo.utils.checks import invalid
from keras_elmo.utils.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_elmo")
class WordTokenizer(StringLayer):
    r"""Split text into the tokens that a biLM was trained on.

    It is a Keras layer and a plain callable. Inside a TensorFlow model or ``tf.data`` it takes
    ``tf.string`` tensors: ``"penn"``, ``"letters"`` and ``"whitespace"`` run in the graph. Text
    of several sentences is cut into sentences first, because Penn rules split off only the last
    period.

    Args:
        name: str. The tokenizer: ``"penn"`` for English, Penn Treebank tokens with plain quotes
            and brackets; ``"toktok"``, NLTK's tokenizer for many languages; ``"kiwi"`` for
            Korean, the morphemes of Kiwi in dictionary form; ``"letters"`` for proteins, where
            each letter is a token; ``"whitespace"`` for text that is already tokenised.
        split_sentences: bool. Whether to cut text into sentences first. False is for text with
            one sentence in each string.
        layer_name: str or None. Name of the Keras layer.
        **kwargs: Arguments for ``keras.layers.Layer``.

    Call arguments:
        inputs: str, for the tokens of one text; or a list, tuple, NumPy array, pandas or Arrow
            column of str, one text in each row; or a ``tf.string`` tensor, scalar or of shape
            ``(batch,)``.

    Returns:
        A list of tokens for a str, a list of such lists for rows, a ragged ``tf.string`` tensor
        ``(batch, tokens)`` for a tensor.

    Raises:
        ValueError: If the name is unknown, if a row is empty, missing or not text (the error
            names the row), or if the tokenizer cannot run in a graph.
        ImportError: If the tokenizer needs NLTK or Kiwi, and that package is missing.

    Examples:
        >>> WordTokenizer("penn")("It isn't “far”. I walked (twice).")
        ['It', 'is', "n't", '"', 'far', '"', '.', 'I', 'walked', '(', 'twice', ')', '.']
        >>> WordTokenizer("penn")(["A fine film.", "Too long!"])
        [['A', 'fine', 'film', '.'], ['Too', 'long', '!']]

    Reference:
        Marcus et al., 1993, https://aclanthology.org/J93-2004; Kiwi,
        https://github.com/bab2min/Kiwi
    """

    def __init__(
        self, name: str, split_sentences: bool = True, layer_name: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(name=layer_name, **kwargs)
        self.tokenizer = name
        self.split_sentences = split_sentences
        self._tokenize = make_tokenizer(name, split_sentences)

    @classmethod
    def from_preset(cls, preset: Any, **kwargs: Any) -> "WordTokenizer":
        """Make the tokenizer of a preset's training text.

        Args:
            preset: str or path. A preset of ``ElmoLayer.from_preset``.
            **kwargs: Arguments for ``WordTokenizer``.

        Raises:
            OSError: If a file is missing or damaged.
            ValueError: If the preset does not exist or does not record its tokenizer.

        Examples:
            >>> WordTokenizer.from_preset("elmo_small_en")("A fine film.")
            ['A', 'fine', 'film', '.']
        """
        files = open_preset(preset)
        if name := files.tokenizer:
            return cls(name, **kwargs)
        trained_on = f", trained on {files.tokens}" if files.tokens else ""
        raise invalid(
            "WordTokenizer.from_preset expects a preset with its tokenizer in tokenizer.json",
            f"{files.folder.path}{trained_on}",
            "Pass tokens of that kind to embed, or choose a tokenizer, for example "
            'WordTokenizer("penn")',
        )

    def call(self, inputs: Any) -> Any:
        if tf := tensorflow_of(inputs):
            return self._tokens_of_tensor(tf, inputs)
        return tokenize_texts(self._tokenize, inputs)

    def _tokens_of_tensor(self, tf: Any, texts: Tensor) -> Tensor:
        if texts.shape.rank == 0:
            return self._tokens_of_tensor(tf, texts[None])[0]
        self._check(texts, "Pass one text in each row")
        if self.tokenizer == "whitespace":
            texts = tf.strings.regex_replace(texts, "[\r\n]+$", "")
            tokens = tf.strings.split(tf.strings.regex_replace(texts, "\r?\n|\t", " "), " ")
            return tf.ragged.boolean_mask(tokens, tokens != "")
        if self.tokenizer == "letters":
            return tf.strings.unicode_split(tf.strings.regex_replace(texts, BLANK, ""), "UTF-8")
        for plain, quotes in QUOTES.items():
            texts = tf.strings.regex_replace(texts, f"[{quotes}]", plain)
        return penn_tokens_in_graph(texts, self.split_sentences)

    def _check(self, texts: Tensor, advice: str) -> None:
        if self.tokenizer in ("toktok", "kiwi"):
            raise invalid(
                f"WordTokenizer({self.tokenizer!r}) runs in Python only",
                "a tensor",
                "Tokenise lists of str before the model or the tf.data pipeline",
            )
        self.check_tensor(texts, "batch,", advice)

    def compute_output_spec(self, inputs: Any) -> keras.KerasTensor:
        self._check(inputs, "Call it before the model")
        return keras.KerasTensor((inputs.shape[0], None), dtype="string", ragged=True)

    def get_config(self) -> dict:
        config = super().get_config()
        return {
            **config,
            "name": self.tokenizer,
            "split_sentences": self.split_sentences,
            "layer_name": config["name"],
        }
