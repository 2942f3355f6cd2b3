"""``WordTokenizer``: text to the tokens that a biLM was trained on."""

import re
import unicodedata
from collections.abc import Callable
from typing import Any

import keras

from keras_elmo.presets import Preset
from keras_elmo.tokenizers.penn import BLANK, cut_sentences, penn_tokens, penn_tokens_in_graph
from keras_elmo.tokenizers.string_layer import StringLayer, tensorflow_of
from keras_elmo.tokenizers.token_lists import check_text, rows_of, split_tokens
from keras_elmo.utils.checks import invalid
from keras_elmo.utils.extras import import_extra
from keras_elmo.utils.typing import Tensor

TOKENIZERS = ("penn", "toktok", "kiwi", "letters", "whitespace")

# Keyboards, SST and CoNLL write plain quotes, and so does the training text.
_QUOTES = {"'": "‘’‚‛", '"': "“”„‟"}
_PLAIN_QUOTES = {ord(quote): plain for plain, quotes in _QUOTES.items() for quote in quotes}


def plain_quotes(text: str) -> str:
    """Return a text with plain quotes in place of typographic quotes."""
    return text.translate(_PLAIN_QUOTES)


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
        if name not in TOKENIZERS:
            expected = f"WordTokenizer expects a name of {', '.join(TOKENIZERS)}"
            raise invalid(expected, f"name={name!r}")
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
        return cls(Preset(preset).read_tokenizer(), **kwargs)

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        # Keras would search every string of a list for tensors.
        if isinstance(inputs, keras.KerasTensor) or tensorflow_of(inputs):
            return super().__call__(inputs, *args, **kwargs)
        return self.call(inputs)

    def call(self, inputs: Any) -> Any:
        if tf := tensorflow_of(inputs):
            return self._tokens_of_tensor(tf, inputs)
        if isinstance(inputs, str):
            return self._tokenize(inputs)
        rows = rows_of(inputs)
        if not isinstance(rows, list):
            expected = "WordTokenizer expects a str, or a list or column of str"
            raise invalid(expected, type(inputs).__name__, "Pass one column of a table")
        checked = [check_text(text, f"row {number}") for number, text in enumerate(rows)]
        return [self._tokenize(text) for text in checked]

    def _tokens_of_tensor(self, tf: Any, texts: Tensor) -> Tensor:
        if texts.shape.rank != 0:
            self.check_tensor(texts, "batch,", "Pass one text in each row")
        if self.tokenizer == "whitespace":
            texts = tf.strings.regex_replace(texts, "[\r\n]+$", "")
            tokens = tf.strings.split(tf.strings.regex_replace(texts, "\r?\n|\t", " "), " ")
            is_ragged = isinstance(tokens, tf.RaggedTensor)
            select = tf.ragged.boolean_mask if is_ragged else tf.boolean_mask
            return select(tokens, tokens != "")
        if self.tokenizer == "letters":
            return tf.strings.unicode_split(tf.strings.regex_replace(texts, BLANK, ""), "UTF-8")
        self._check_graph()
        for plain, quotes in _QUOTES.items():
            texts = tf.strings.regex_replace(texts, f"[{quotes}]", plain)
        return penn_tokens_in_graph(texts, self.split_sentences)

    def _check_graph(self) -> None:
        if self.tokenizer in ("toktok", "kiwi"):
            raise invalid(
                f"WordTokenizer({self.tokenizer!r}) runs in Python only",
                "a tensor",
                "Tokenise lists of str before the model or the tf.data pipeline",
            )

    def compute_output_spec(self, inputs: Any) -> keras.KerasTensor:
        self._check_graph()
        self.check_tensor(inputs, "batch,", "Call it before the model")
        return keras.KerasTensor((inputs.shape[0], None), dtype="string", ragged=True)

    def get_config(self) -> dict:
        config = super().get_config()
        return {
            **config,
            "name": self.tokenizer,
            "split_sentences": self.split_sentences,
            "layer_name": config["name"],
        }

    def __reduce__(self) -> tuple:
        return WordTokenizer.from_config, (self.get_config(),)


def make_tokenizer(name: str, split_sentences: bool = False) -> Callable[[str], list[str]]:
    """Return the function from a str to its tokens, without Keras around it.

    The arguments are the first two of ``WordTokenizer``.
    """
    if name == "whitespace":
        return lambda text: split_tokens(re.sub(r"\r?\n", " ", text))
    if name == "letters":
        return _letters
    if name == "penn":
        return lambda text: penn_tokens(plain_quotes(text), split_sentences)
    tokenize = _toktok() if name == "toktok" else _kiwi()
    if not split_sentences or name == "kiwi":  # Kiwi finds the sentences itself
        return lambda text: tokenize(plain_quotes(text))
    return lambda text: [
        token for sentence in cut_sentences(plain_quotes(text)) for token in tokenize(sentence)
    ]


def _letters(text: str) -> list[str]:
    if text.lstrip().startswith(">"):
        raise invalid(
            "WordTokenizer('letters') expects a sequence without its header",
            f"{text[:60]!r}, as in FASTA",
            "Name the file .fasta, or drop the headers and join the lines of each sequence",
        )
    return list(re.sub(BLANK, "", text))


def _toktok() -> Callable[[str], list[str]]:
    """Return Toktok's function, without the entities it writes for & and |."""
    owner = "WordTokenizer('toktok')"
    toktok = import_extra("nltk.tokenize.toktok", owner, "NLTK", "pretrain")
    tokenize = toktok.ToktokTokenizer().tokenize
    return lambda sentence: [
        token.replace("&amp;", "&").replace("&#124;", "|")
        for token in tokenize(" ".join(sentence.split()))
    ]


def _kiwi() -> Callable[[str], list[str]]:
    """Return Kiwi's function; it skips lone surrogates and composes syllables first."""
    kiwipiepy = import_extra("kiwipiepy", "WordTokenizer('kiwi')", "Kiwi", "korean")
    kiwi = kiwipiepy.Kiwi(num_workers=1)

    def tokenize(sentence: str) -> list[str]:
        text = unicodedata.normalize("NFC", sentence.encode("utf-8", "ignore").decode("utf-8"))
        forms = (morpheme.form for morpheme in kiwi.tokenize(text, compatible_jamo=True))
        return [token for form in forms for token in form.split()]

    return tokenize
