"""Sentences to arrays, at the speed of the matrix products: distinct words once, little padding."""

import contextlib
import pathlib
import time

import keras
import numpy as np
import tqdm
from keras import ops

from keras_elmo.characters import PAD, unpadded
from keras_elmo.layer_file import write_layer_file
from keras_elmo.layers.elmo_layer import ElmoLayer, arrange
from keras_elmo.token_table import TokenTable
from keras_elmo.tokenizer import CharacterTokenizer

_LAYERS = {"all": "layers", "top": "top", "average": "average"}
_WORDS_AT_ONCE = (32, 256)  # in a batch of the character CNN; JAX compiles for each size


class Embedder:
    """Turn tokenised sentences into the layer representations of a biLM, as NumPy.

    The result is that of ``ElmoLayer``, the sentences being independent of each other.
    Every distinct word goes through the character CNN once; sentences of like length
    share a batch.

    Args:
        preset: What ``ElmoLayer.from_preset`` takes, or a built ``ElmoLayer``, whose own
            dtype then counts.
        dtype: ``"float32"``, exact, or ``"bfloat16"``, which is faster where the
            hardware multiplies it and off by about 1% of a typical value. Results are
            float32 either way.
        cache: Words whose token representation is remembered from call to call; each
            takes ``4 * projection_dim`` bytes. ``embed_file`` starts each 2000 lines
            with an empty one, so that a resumed run gives the same bits.
        token_cache: Pair of files, a vocabulary with a token a line and the hdf5 with
            its token representations (``write_token_cache`` or bilm-tf make them).
            Other words go through the character CNN.
        batch_tokens: Tokens in a batch of the LSTMs, padding included.

    Raises:
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

    def __init__(self, preset, dtype="float32", cache=100_000, token_cache=None, batch_tokens=2048):
        if isinstance(preset, ElmoLayer):
            preset.check_weights()
            elmo = preset
        else:
            elmo = ElmoLayer.from_preset(preset, dtype=dtype)
        for name, value in (("cache", cache), ("batch_tokens", batch_tokens)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(
                    f"Embedder expects {name} to be a whole number, 1 or more. "
                    f"Received: {name}={value!r}"
                )
        self.elmo = elmo
        self.config = elmo.config
        self.batch_tokens = batch_tokens
        self._tokenizer = CharacterTokenizer(self.config.max_characters_per_token)
        self._programs = {}
        self._table = TokenTable(self._compute_tokens, self.config.projection_dim, cache)
        if token_cache is not None:
            self._table.load(*token_cache)

    def embed(self, sentences, layers="all") -> list[np.ndarray]:
        """Embed a list of sentences.

        Args:
            sentences: List of lists of tokens. As for ``CharacterTokenizer``, trailing
                ``""`` are padding in the rows of a two-dimensional NumPy array, and
                tokens in a list.
            layers: ``"all"``, ``"top"`` or ``"average"``.

        Returns:
            A float32 array for each sentence, in order: ``(layers, tokens, width)`` for
            ``"all"``, else ``(tokens, width)``.

        Raises:
            ValueError: If ``layers`` or the sentences are not as above.
        """
        if layers not in _LAYERS:
            raise ValueError(
                f"Embedder expects layers to be one of {tuple(_LAYERS)}. "
                f"Received: layers={layers!r}"
            )
        if isinstance(sentences, np.ndarray) and sentences.ndim == 2:
            sentences = unpadded(sentences)
        self._tokenizer.check(sentences)
        found = [None] * len(sentences)
        for batch in length_batches([len(s) for s in sentences], self.batch_tokens):
            arrays = self._embed_batch([sentences[i] for i in batch], layers)
            for i, array in zip(batch, arrays, strict=True):
                array = array[: len(sentences[i])]
                # A copy, or one sentence would keep its whole batch in memory.
                found[i] = np.array(np.moveaxis(array, 1, 0) if layers == "all" else array)
        return found

    def embed_tokens(self, tokens) -> np.ndarray:
        """Return the context-free token representations of words.

        Args:
            tokens: List of tokens.

        Returns:
            float32, shape ``(len(tokens), projection_dim)``.
        """
        self._tokenizer.check([tokens])
        places, rows = self._table.look_up(list(tokens))
        return rows[places]

    def embed_means(self, sentences, layers="average") -> np.ndarray:
        """Return a vector for each sentence, the mean over its tokens.

        Args:
            sentences: List of lists of tokens; an empty one gives zeros.
            layers: As for ``embed``.

        Returns:
            float32, shape ``(sentences, layers, width)`` for ``"all"``, else
            ``(sentences, width)``.
        """
        width = 2 * self.config.projection_dim
        shape = (self.config.n_layers + 1, width) if layers == "all" else (width,)
        means = np.zeros((len(sentences), *shape), "float32")
        for i, array in enumerate(self.embed(sentences, layers)):
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
            input_file: Path of a UTF-8 text, or an open file: a sentence a line,
                tokens between spaces. A blank line gives an empty record.
            output_file: Path of the hdf5 file: a dataset for each line, named by its
                index from 0, of the shape that ``embed`` gives; and ``sentences``.
            layers: As for ``embed``.
            float16: Store float16, half the size.
            compression: Of ``h5py``: None, ``"gzip"`` or ``"lzf"``.
            resume: Go on where an interrupted run stopped. Until it is complete the
                output is a folder beside it, ``OUTPUT.parts``.
            progress: Show a progress bar with tokens/s on stderr.

        Returns:
            Dict of ``sentences``, ``tokens``, ``seconds``, ``tokens_per_s`` (of what
            this run embedded) and ``resumed_tokens`` (of what was there).

        Raises:
            OSError: If a file cannot be read or written.
            ValueError: If an argument is not as above, or the text not UTF-8; if parts of
                an unfinished run are in the way, or do not fit this one.
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
        settings = {
            "biLM": self.elmo.fingerprint(),
            "dtype": self.elmo.compute_dtype,
            # These decide the last bit, and the token cache more.
            "backend": keras.backend.backend(),
            "batch_tokens": self.batch_tokens,
            "token_cache": self._table.fixed_digest(),
            "layers": layers,
            "float16": float16,
            "compression": compression,
        }
        counts = {"sentences": 0, "tokens": 0, "resumed_tokens": 0}

        def embed(sentences):
            # What was computed in which batch can change the last bit: so that a resumed run
            # gives the very same file, no part depends on those before it.
            self._table.forget()
            arrays = self.embed(sentences, layers)
            return [array.astype("float16") for array in arrays] if float16 else arrays

        def done(tokens, sentences, there):
            counts["sentences"] += sentences
            counts["resumed_tokens" if there else "tokens"] += tokens
            bar.update(sentences)
            bar.set_postfix_str(f"{counts['tokens'] / (time.monotonic() - start):.0f} tokens/s")

        self.embed([], layers)  # an unknown name fails before anything is made
        start = time.monotonic()
        with contextlib.ExitStack() as stack:
            total = None
            if is_path:
                if pathlib.Path(input_file).is_file():  # a pipe can be read only once
                    with open(input_file, "rb") as file:
                        total = sum(1 for _ in file)
                input_file = stack.enter_context(open(input_file, "rb"))
            bar = stack.enter_context(
                tqdm.tqdm(total=total, unit=" sentences", disable=not progress)
            )
            write_layer_file(
                _lines(input_file), embed, output_file, settings, resume, compression, done
            )
        seconds = time.monotonic() - start
        return {**counts, "seconds": seconds, "tokens_per_s": counts["tokens"] / seconds}

    def write_token_cache(self, tokens, vocabulary_file, embedding_file) -> None:
        """Write the token representations of a vocabulary, the paper's way to save the CNN.

        Args:
            tokens: List of distinct tokens.
            vocabulary_file: Path for the tokens, one a line.
            embedding_file: Path for the hdf5 with the dataset ``embedding``, shape
                ``(len(tokens), projection_dim)``, as bilm-tf writes it.
        """
        self._tokenizer.check([tokens])
        self._table.write(list(tokens), vocabulary_file, embedding_file)

    def _embed_batch(self, sentences, layers):
        """Return (rows, tokens, ...) for sentences of like length, rows and tokens or more."""
        lengths = np.array([len(sentence) + 2 for sentence in sentences])
        rows, longest = _padded_shape(len(lengths), lengths.max())
        flat = [token for sentence in sentences for token in ("<S>", *sentence, "</S>")]
        places, table = self._table.look_up(flat)
        tokens = np.zeros((rows, longest, table.shape[1]), "float32")
        mask = np.zeros((rows, longest), bool)
        mask[: len(lengths)] = np.arange(longest) < lengths[:, None]
        tokens[mask] = table[places]
        if layers not in self._programs:
            tokens_in = keras.Input((None, self.config.projection_dim))
            mask_in = keras.Input((None,), dtype="bool")
            contextualize = _Contextualize(self.elmo.bilm, _LAYERS[layers])
            self._programs[layers] = _program(
                [tokens_in, mask_in], contextualize(tokens_in, mask_in)
            )
        return self._programs[layers].predict_on_batch([tokens, mask])[: len(sentences)]

    def _compute_tokens(self, tokens):
        """Return the token representations of distinct tokens, the character axis trimmed."""
        if "token" not in self._programs:
            ids = keras.Input((None,), dtype="int32")
            self._programs["token"] = _program(ids, _AsFloat32(self.elmo.bilm.char_cnn)(ids))
        most = self.config.max_characters_per_token
        ids = ops.convert_to_numpy(self._tokenizer([tokens]))[0]
        # Both word markers, the bytes between them, and a window of padding only.
        needed = (ids != PAD + 1).sum(axis=1) + self.config.widest_filter
        needed = np.minimum(-(-needed // 8) * 8, most)
        if len(tokens) <= _WORDS_AT_ONCE[0]:  # to read the weights once more would cost more
            needed[:] = needed.max()
        found = np.empty((len(tokens), self.config.projection_dim), "float32")
        for width in np.unique(needed):
            same = np.flatnonzero(needed == width)
            size = _WORDS_AT_ONCE[len(same) > _WORDS_AT_ONCE[0]]
            for start in range(0, len(same), size):
                part = same[start : start + size]
                rows = size if keras.backend.backend() == "jax" else len(part)
                batch = np.full((rows, width), PAD + 1, "int32")
                batch[: len(part)] = ids[part, :width]
                found[part] = self._programs["token"].predict_on_batch(batch)[: len(part)]
        return found


def _is_same(path, other):
    return pathlib.Path(path).exists() and other.exists() and other.samefile(path)


def _lines(file):
    """Yield the lines of a file that is open for text or bytes."""
    for number, line in enumerate(file, start=1):
        try:
            text = line.decode("utf-8") if isinstance(line, bytes) else line
        except UnicodeDecodeError as error:
            name = getattr(file, "name", "the input")
            raise ValueError(
                f"embed_file expects UTF-8 text. Received: line {number} of {name}, with bytes "
                f"that are not ({error.reason}). Convert the file first, for example with iconv"
            ) from None
        yield text.removesuffix("\n")


def _program(inputs, outputs):
    """Return a model to predict with, which takes new lengths without much ado."""
    model = keras.Model(inputs, outputs)
    if keras.backend.backend() == "tensorflow":
        # On a GPU Keras would choose XLA, which compiles anew for every length.
        model.compile(jit_compile=False)
    return model


class _Contextualize(keras.layers.Layer):
    """The LSTMs of a biLM over token representations, boundaries off, float32 out."""

    def __init__(self, bilm, output):
        super().__init__()
        self.bilm = bilm
        self.output_kind = output

    def call(self, tokens, mask):
        tokens = ops.cast(tokens, self.bilm.compute_dtype)
        representations, _ = self.bilm.contextualize(tokens, mask)
        inside = {name: x[:, 1:-1] for name, x in representations.items()}
        return ops.cast(arrange(inside, self.output_kind), "float32")

    def compute_output_spec(self, tokens, mask):
        config = self.bilm.config
        layers = (config.n_layers + 1,) if self.output_kind == "layers" else ()
        shape = (None, None, *layers, 2 * config.projection_dim)
        return keras.KerasTensor(shape, dtype="float32")


class _AsFloat32(keras.layers.Layer):
    def __init__(self, char_cnn):
        super().__init__()
        self.char_cnn = char_cnn

    def call(self, ids):
        return ops.cast(self.char_cnn(ids), "float32")

    def compute_output_spec(self, ids):
        return keras.KerasTensor((None, self.char_cnn.projection_dim), dtype="float32")


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


def _padded_shape(rows, tokens):
    """Return the shape to compute: JAX compiles anew for each, so few are used there."""
    if keras.backend.backend() != "jax":
        return rows, tokens
    few = rows <= 16
    return 1 << (rows - 1).bit_length() if few else -(-rows // 16) * 16, -(-tokens // 8) * 8
