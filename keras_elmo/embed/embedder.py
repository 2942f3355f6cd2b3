"""Sentences to arrays, at the speed of the matrix products: distinct words once, little padding."""

import contextlib
import functools
import numbers
import pathlib
import threading
import time

import numpy as np
import tqdm

from keras_elmo.config import alphabet_of
from keras_elmo.embed.keras_engine import KerasEngine
from keras_elmo.embed.layer_file import LayerFileWriter
from keras_elmo.embed.onnx_engine import OnnxEngine
from keras_elmo.embed.token_table import WordTable, read_token_cache, write_token_cache
from keras_elmo.layers.elmo_layer import ElmoLayer
from keras_elmo.tokenizers.characters import CharacterTokenizer, unpadded
from keras_elmo.tokenizers.text import read_lines

DTYPES = {"keras": ("float32", "bfloat16"), "onnxruntime": ("float32", "int8")}
_LAYERS = ("all", "top", "average")
_WORDS_AT_ONCE = (32, 256)  # in a batch of the character CNN


class Embedder:
    """Turn tokenised sentences into the layer representations of a biLM, as NumPy.

    The result is that of ``ElmoLayer``, the sentences being independent of each other.
    Every distinct word goes through the character CNN once; sentences of like length
    share a batch.

    One ``Embedder`` serves any number of threads, and each call answers with the weights
    that its layer has then, whatever changed them. Change them between calls: one that
    runs meanwhile may see some before and some after.

    Args:
        preset: What ``ElmoLayer.from_preset`` takes, or a built ``ElmoLayer``, whose own
            dtype then counts.
        dtype: ``"float32"``, exact; ``"bfloat16"`` (of Keras), which is faster where the
            hardware multiplies it and off by about 1% of a typical value; ``"int8"`` (of
            ONNX Runtime), the fastest on a CPU, off by 2 to 3%. Results are float32 in any
            case.
        cache: Words whose token representation is remembered from call to call; each
            takes ``4 * projection_dim`` bytes. ``embed_file`` does without, so that a
            resumed run gives the same bits.
        token_cache: Pair of files, a vocabulary with a token a line and the hdf5 with
            its token representations (``write_token_cache`` or bilm-tf make them).
            Other words go through the character CNN; so do all words once the weights
            of the layer change, for the files belong to those it had.
        batch_tokens: Tokens in a batch of the LSTMs, padding included.
        options: As for ``ElmoLayer.from_preset``; not with an ``ElmoLayer``.
        engine: What computes: ``"keras"``, the backend of Keras, or ``"onnxruntime"``, on
            the CPU whatever the backend is. It takes the weights of the layer and one of its
            own dtypes, and seconds to start, as after any change of the weights. On
            PyTorch, whose tensors change unseen, each call compares all weights.

    A pickled ``Embedder`` holds the weights of its layer, and no remembered words.

    Raises:
        ImportError: If ONNX Runtime is asked for and not installed.
        ValueError: If an argument is not as above; errors of ``from_preset``.

    Example:

    >>> config = keras_elmo.BiLMConfig(lstm_dim=8, projection_dim=4, filters=((1, 6), (3, 8)))
    >>> layer = keras_elmo.ElmoLayer(config)
    >>> layer.build((None, None, 50))
    >>> embedder = Embedder(layer)
    >>> [array.shape for array in embedder.embed([["One", "sentence", "."], ["Two"]])]
    [(3, 3, 8), (3, 1, 8)]

    Reference:
        Peters et al., 2018, https://arxiv.org/abs/1802.05365
    """

    def __init__(
        self,
        preset,
        dtype="float32",
        cache=100_000,
        token_cache=None,
        batch_tokens=2048,
        options=None,
        engine="keras",
    ):
        if engine not in DTYPES:
            raise ValueError(
                f"Embedder expects engine to be one of {tuple(DTYPES)}. Received: engine={engine!r}"
            )
        if dtype not in DTYPES[engine]:
            raise ValueError(
                f"Embedder expects dtype to be one of {DTYPES[engine]} for engine={engine!r}. "
                f"Received: dtype={dtype!r}"
            )
        for name, value in (("cache", cache), ("batch_tokens", batch_tokens)):
            if not _is_whole(value) or value < 1:
                raise ValueError(
                    f"Embedder expects {name} to be a whole number, 1 or more. "
                    f"Received: {name}={value!r}"
                )
        is_pair = isinstance(token_cache, list | tuple) and len(token_cache) == 2
        if token_cache is not None and not is_pair:
            raise ValueError(
                "Embedder expects token_cache to be the paths of a vocabulary and of its hdf5 "
                f"file. Received: token_cache={token_cache!r}"
            )
        if isinstance(preset, ElmoLayer):
            if options is not None:
                raise ValueError(
                    "Embedder expects options with a preset, not with a layer, which has its own. "
                    f"Received: options={options!r}"
                )
            preset.check_weights()
            elmo = preset
        else:
            layer_dtype = dtype if engine == "keras" else "float32"
            elmo = ElmoLayer.from_preset(preset, dtype=layer_dtype, options=options)
        fixed = None
        if token_cache is not None:
            fixed = read_token_cache(*token_cache, elmo.config.projection_dim)
        self._start(elmo, engine, dtype, int(cache), int(batch_tokens), fixed)

    def _start(self, elmo, engine, dtype, cache, batch_tokens, fixed):
        self.elmo = elmo
        self.config = elmo.config
        self.batch_tokens = batch_tokens
        self._cache = cache
        self._engine = KerasEngine(elmo) if engine == "keras" else OnnxEngine(elmo, dtype)
        self._lock = threading.Lock()
        self._words = _Words(self._engine, self.config, self._cache, fixed)
        self._settings = {"engine": engine, "dtype": dtype}

    def __getstate__(self):
        words = self._words_now()
        return {
            **self._settings,
            "elmo": self.elmo.get_config(),
            "weights": self.elmo.get_weights(),
            "cache": self._cache,
            "batch_tokens": self.batch_tokens,
            "fixed": words.fixed,
        }

    def __setstate__(self, state):
        state = dict(state)
        elmo, weights = ElmoLayer.from_config(state.pop("elmo")), state.pop("weights")
        elmo.build((None, None, elmo.alphabet.row_length))
        elmo.set_weights(weights)
        self._start(elmo, **state)

    def embed(self, sentences, layers="all", remember=True) -> list[np.ndarray]:
        """Embed a list of sentences.

        Args:
            sentences: List of lists of tokens. As for ``CharacterTokenizer``, trailing
                ``""`` are padding in the rows of a two-dimensional NumPy array, and
                tokens in a list.
            layers: ``"all"``, ``"top"``, ``"average"``, or the number of one layer: 0 is
                the token representation, and -1 the last, as in Python.
            remember: Whether to use the words that earlier calls computed, and to remember
                those of this one. Without, the last bit too depends on these sentences alone.

        Returns:
            A float32 array for each sentence, in order: ``(layers, tokens, width)`` for
            ``"all"``, else ``(tokens, width)``.

        Raises:
            ValueError: If ``layers`` or the sentences are not as above.
        """
        layers = self._checked_layers(layers)
        if isinstance(sentences, np.ndarray) and sentences.ndim == 2:
            sentences = unpadded(sentences)
        tokens = CharacterTokenizer.check(sentences)
        lengths = np.array([len(sentence) for sentence in sentences], "int64")
        found: list = [None] * len(lengths)
        words = self._words_now()
        table = words.table if remember else words.without_memory()
        for i, array in self._arrays(tokens, lengths, layers, table):
            # A copy, or one sentence would keep its whole batch in memory.
            found[i] = np.array(array, order="C")
        return found

    def embed_tokens(self, tokens) -> np.ndarray:
        """Return the context-free token representations of words.

        Args:
            tokens: List of tokens.

        Returns:
            float32, shape ``(len(tokens), projection_dim)``.
        """
        distinct, places = _distinct(CharacterTokenizer.check([tokens]))
        return self._words_now().table.look_up(distinct)[places]

    def embed_means(self, sentences, layers="average") -> np.ndarray:
        """Return a vector for each sentence, the mean over its tokens.

        Args:
            sentences: List of lists of tokens; an empty one gives zeros.
            layers: As for ``embed``.

        Returns:
            float32, shape ``(sentences, layers, width)`` for ``"all"``, else
            ``(sentences, width)``.

        Raises:
            ValueError: As for ``embed``.
        """
        arrays = self.embed(sentences, layers)
        width = 2 * self.config.projection_dim
        shape = (self.config.n_layers + 1, width) if layers == "all" else (width,)
        means = np.zeros((len(arrays), *shape), "float32")
        for i, array in enumerate(arrays):
            if array.shape[-2]:
                means[i] = array.mean(axis=-2)
        return means

    def embed_file(
        self,
        input_file,
        output_file,
        layers="all",
        float16=False,
        compression=None,
        resume=False,
        progress=True,
    ) -> dict:
        """Embed a file of tokenised sentences into an hdf5 file, in bounded memory.

        Args:
            input_file: Path of a UTF-8 text, or an open file: a sentence a line, tokens
                between spaces or tabs; other blanks, such as the no-break space, belong
                to a token. A blank line gives an empty record.
            output_file: Path of the hdf5 file: a dataset for each line, named by its
                index from 0, of the shape that ``embed`` gives; and ``sentences``.
            layers: As for ``embed``.
            float16: Store float16, half the size.
            compression: Of ``h5py``: None, ``"gzip"`` or ``"lzf"``.
            resume: Go on where an interrupted run stopped. Until it is complete the
                output is a folder beside it, ``OUTPUT.parts``. A complete output of the
                same settings and lines is left as it is.
            progress: Show a progress bar with tokens/s on stderr.

        Returns:
            Dict of ``sentences``, ``tokens``, ``seconds``, ``tokens_per_s`` (of what
            this run embedded) and ``resumed_tokens`` (of what was there).

        Raises:
            OSError: If a file cannot be read or written; if another process writes the
                output, or what an earlier run left is damaged.
            ValueError: If an argument is not as above, or the text not UTF-8; if parts of
                an unfinished run are in the way, or what is to be resumed does not fit
                this run; if the weights change meanwhile.
        """
        if compression not in (None, "gzip", "lzf"):
            raise ValueError(
                "Embedder expects compression to be None, 'gzip' or 'lzf'. "
                f"Received: compression={compression!r}"
            )
        is_path = not hasattr(input_file, "read")
        output_file = pathlib.Path(output_file)
        if output_file.is_dir() or (is_path and _is_same(input_file, output_file)):
            raise ValueError(
                "embed_file expects an output file of its own. Received: "
                f"output_file={str(output_file)!r}, a folder or the input"
            )
        layers = self._checked_layers(layers)
        weights, words = self._engine.all_weights(), self._words_now()
        settings = {
            **self._engine.facts(),
            # These decide the last bit, and the token cache more.
            "batch_tokens": self.batch_tokens,
            "token_cache": words.fixed and words.fixed.digest(),
            "layers": layers,
            "float16": float16,
            "compression": compression,
        }
        counts = {"sentences": 0, "tokens": 0, "resumed_tokens": 0}

        def arrays(part):
            # What was computed in which batch can change the last bit: so that a resumed run
            # gives the very same file, no part knows words from before it.
            tokens = CharacterTokenizer.check(part.sentences)
            lengths = np.array([len(sentence) for sentence in part.sentences], "int64")
            for i, array in self._arrays(tokens, lengths, layers, words.without_memory()):
                yield i, array.astype("float16") if float16 else array
            if not (weights.are_current() and words.weights.are_current()):
                raise ValueError(
                    "embed_file expects the weights of its layer to stay as they are. Received: "
                    "weights that changed meanwhile. Restore them and resume, or start anew"
                )

        start = time.monotonic()
        with contextlib.ExitStack() as stack:
            total = None
            if is_path:
                if pathlib.Path(input_file).is_file():  # a pipe can be read only once
                    with open(input_file, "rb") as file:
                        total = sum(1 for _ in file)
                input_file = stack.enter_context(open(input_file, "rb"))
            writer = stack.enter_context(
                LayerFileWriter(output_file, settings, resume, compression)
            )
            bar = stack.enter_context(
                tqdm.tqdm(total=total, unit=" sentences", disable=not progress)
            )
            for part in writer.parts(read_lines(input_file)):
                if not part.already_written:
                    writer.write(part, arrays(part))
                counts["sentences"] += len(part.sentences)
                counts["resumed_tokens" if part.already_written else "tokens"] += part.tokens
                bar.update(len(part.sentences))
                bar.set_postfix_str(f"{counts['tokens'] / (time.monotonic() - start):.0f} tokens/s")
            writer.finish()
        seconds = time.monotonic() - start
        return {**counts, "seconds": seconds, "tokens_per_s": counts["tokens"] / seconds}

    def write_token_cache(self, tokens, vocabulary_file, embedding_file) -> None:
        """Write the token representations of a vocabulary, which saves the CNN, as in bilm-tf.

        Args:
            tokens: List of distinct tokens, neither empty nor with a line end inside.
            vocabulary_file: Path for the tokens, one a line.
            embedding_file: Path for the hdf5 with the dataset ``embedding``, shape
                ``(len(tokens), projection_dim)``, as bilm-tf writes it.

        Raises:
            ValueError: If the tokens are not as above, or not UTF-8.
        """
        tokens = CharacterTokenizer.check([tokens])
        write_token_cache(self._words_now().table, tokens, vocabulary_file, embedding_file)

    def _checked_layers(self, layers):
        """Return the layers that are asked for, a negative number counted from the end."""
        n = self.config.n_layers + 1
        if _is_whole(layers) and -n <= layers < n:
            return int(layers) % n
        if isinstance(layers, str) and layers in _LAYERS:
            return layers
        raise ValueError(
            f"Embedder expects layers to be one of {_LAYERS}, or a number from {-n} to {n - 1}. "
            f"Received: layers={layers!r}"
        )

    def _words_now(self):
        """Return the words of the weights that the layer has now."""
        self.elmo.check_weights()
        words = self._words
        while not words.weights.are_current():
            with self._lock:
                if self._words is words:  # else another thread was quicker: look at its weights
                    self._words = _Words(self._engine, self.config, self._cache)
                    return self._words
                words = self._words
        return words

    def _arrays(self, tokens, lengths, layers, table):
        """Yield (index, array) of each sentence, in no order; one batch is in memory."""
        boundaries = alphabet_of(self.config).boundary_tokens
        distinct, places = _distinct([*boundaries, *tokens])
        starts = np.cumsum(lengths) - lengths + len(boundaries)
        rows = table.look_up(distinct) if len(lengths) else None
        for batch in length_batches(lengths.tolist(), self.batch_tokens):
            longest = lengths[batch].max() + 2
            words = np.zeros((len(batch), longest), "int64")  # 0 is <S>, 1 is </S>
            for row, i in zip(words, batch, strict=True):
                row[1 : lengths[i] + 1] = places[starts[i] : starts[i] + lengths[i]]
                row[lengths[i] + 1] = 1
            mask = np.arange(longest) < lengths[batch][:, None] + 2
            found = self._engine.contextualize(rows[words] * mask[..., None], mask, layers)
            for i, array in zip(batch, found, strict=True):
                array = array[: lengths[i]]
                yield i, np.moveaxis(array, 1, 0) if layers == "all" else array


class _Words:
    """The words that an Embedder knows, and the weights that they were computed with."""

    def __init__(self, engine, config, limit, fixed=None):
        self.weights = engine.token_weights()
        self.fixed = fixed
        compute = functools.partial(_represent, engine, config, weights=self.weights)
        self._new_table = functools.partial(WordTable, compute, config.projection_dim, limit, fixed)
        self.table = self._new_table()

    def without_memory(self):
        """Return a table that knows the fixed vocabulary only."""
        return self._new_table()


def _represent(engine, config, tokens, weights):
    """Return the token representations of distinct tokens, the character axis trimmed."""
    alphabet = alphabet_of(config)
    ids = alphabet.rows(tokens)
    rows = np.empty((len(tokens), config.projection_dim), "float32")
    for batch, width in word_batches(alphabet.lengths(ids), config):
        rows[batch] = engine.represent(ids[batch, : alphabet.leading + width], weights)
    return rows


def word_batches(lengths, config):
    """Group words of like length.

    Args:
        lengths: Characters of each word, word markers included: int array.
        config: The ``BiLMConfig``.

    Yields:
        Pairs of the indices of some words and of the characters that they need.
    """
    # A window of padding only belongs to every word.
    needed = -(-(lengths + config.widest_filter) // 8) * 8
    needed = np.minimum(needed, config.max_characters_per_token)
    few, many = _WORDS_AT_ONCE
    if len(needed) <= few:  # to read the weights once more would cost more
        needed[:] = needed.max(initial=0)
    for width in np.unique(needed):
        same = np.flatnonzero(needed == width)
        size = many if len(same) > few else few
        for start in range(0, len(same), size):
            yield same[start : start + size], width


def length_batches(lengths, batch_tokens) -> list[list[int]]:
    """Group sentences of like length.

    Args:
        lengths: Tokens of each sentence.
        batch_tokens: Bound on rows times longest sentence, boundaries and padding
            included; a sentence longer than that is a batch of its own.

    Returns:
        Lists of indices, the longest sentences first; every index occurs once.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    batches = []
    while order:
        rows = max(1, batch_tokens // (lengths[order[0]] + 2))
        batches.append(order[:rows])
        order = order[rows:]
    return batches


def _distinct(tokens):
    """Return the distinct tokens, and an int array of the place of every token among them."""
    places = {}
    indices = [places.setdefault(token, len(places)) for token in tokens]
    return list(places), np.array(indices, "int64")


def _is_whole(value):
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_same(path, other):
    return pathlib.Path(path).exists() and other.exists() and other.samefile(path)
