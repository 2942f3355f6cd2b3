"""Turn sentences into arrays: each distinct token once, and little padding."""

import functools
import itertools
import pathlib
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, Self, TextIO

import numpy as np
from keras import ops

from keras_elmo.config import BiLMConfig
from keras_elmo.embed.engine_choice import check_engine, choose_engine
from keras_elmo.embed.input_lines import TABLES, ending_of, input_lines
from keras_elmo.embed.keras_engine import KerasEngine
from keras_elmo.embed.layer_file import LayerFileWriter, Part
from keras_elmo.embed.onnx_engine import OnnxEngine
from keras_elmo.embed.token_table import (
    TokenTable,
    read_token_cache,
    write_token_cache,
    write_word_vectors,
)
from keras_elmo.layer_choice import LayerChoice, Layers
from keras_elmo.layers.elmo_layer import ElmoLayer
from keras_elmo.presets import Preset
from keras_elmo.text_input import OPENERS
from keras_elmo.tokenizers.characters import CharacterTokenizer
from keras_elmo.tokenizers.token_lists import sentence_rows
from keras_elmo.tokenizers.words import WordTokenizer
from keras_elmo.utils.batches import length_batches, token_batches
from keras_elmo.utils.checks import check_whole, shorten
from keras_elmo.utils.files import PathLike, local_path, same_file
from keras_elmo.utils.forks import check_fork
from keras_elmo.utils.progress import progress_bar

_BAR_DELAY = 5  # seconds

Sentences = Iterable[Sequence[str | bytes]] | np.ndarray


class Embedder:
    """Turn tokenised sentences into the layer representations of a biLM, as NumPy arrays.

    An ``Embedder`` computes what ``ElmoLayer`` computes, and faster: every distinct token goes
    through the character CNN once, and sentences of similar length share a batch. No sentence
    depends on another one. Any number of threads may use one ``Embedder``.

    An ``Embedder`` made from a layer copies the weights. It does not see later changes of the
    layer: after training, make a new ``Embedder``.

    Args:
        preset: str, path or ElmoLayer. What ``ElmoLayer.from_preset`` takes, or a built layer.
        dtype: str. ``"float32"`` is exact. ``"bfloat16"`` (engine ``"keras"``) is faster on
            hardware with bfloat16 products, and differs by about 1% of a typical value.
            ``"int8"`` (engine ``"onnxruntime"``) is the fastest on a CPU, and differs by 1 to
            2%. Results are always float32. Engine ``"keras"`` keeps the dtype of a given layer.
        cache: int. Number of tokens whose representations are remembered between calls. Each
            takes ``4 * projection_dim`` bytes and about 140 more. ``embed_file`` ignores
            remembered tokens, so that a resumed run gives the same bits.
        token_cache: Pair of paths, or None. A vocabulary with one token a line, and the hdf5
            file with its token representations, from ``write_token_cache`` or bilm-tf. Only
            other tokens go through the character CNN.
        batch_tokens: int. Tokens in a batch of the LSTMs, padding included.
        options: dict, path or None. As in ``ElmoLayer.from_preset``; not for a layer.
        engine: str. ``"keras"`` computes with the backend of Keras. ``"onnxruntime"`` computes
            with ONNX Runtime on the CPU, whatever the backend is. ``"auto"`` is the faster of
            them for this CPU and dtype, as ``keras-elmo info`` says; it is Keras where ONNX
            Runtime is not installed.

    Attributes:
        elmo: ElmoLayer. The layer with the weights in use, for reading only.
        config: BiLMConfig. The sizes of the biLM.
        batch_tokens: int. As the argument.

    A pickled ``Embedder`` contains the weights, but not the remembered tokens.

    Raises:
        ImportError: If ONNX Runtime is requested and not installed.
        RuntimeError: If this process was forked from one that had made an ``Embedder``.
        ValueError: If an argument is invalid; errors of ``ElmoLayer.from_preset``.

    Examples:
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
        preset: PathLike | ElmoLayer,
        dtype: str = "float32",
        cache: int = 100_000,
        token_cache: Sequence[PathLike] | None = None,
        batch_tokens: int = 2048,
        options: dict | PathLike | None = None,
        engine: str = "auto",
    ) -> None:
        check_fork()
        check_engine(engine, dtype)
        cache, batch_tokens = check_sizes(cache, batch_tokens, token_cache)
        if isinstance(preset, ElmoLayer):
            if options is not None:
                raise ValueError(
                    "Embedder expects options only with a preset: a layer has its own. "
                    f"Received: options={shorten(options)}"
                )
            self.elmo = _copy(preset)
            # The name of the tokenizer, or the error of ``tokenize``.
            self._tokenizer: str | ValueError = ValueError(
                "Embedder.tokenize expects an Embedder made from a preset. Received: an Embedder "
                'made from a layer. Call a WordTokenizer, for example WordTokenizer("penn")'
            )
        else:
            layer_dtype = "float32" if dtype == "int8" else dtype
            files = Preset(preset, options)
            self.elmo = ElmoLayer._from_bilm(files.read(), {"dtype": layer_dtype})
            try:
                self._tokenizer = files.read_tokenizer()
            except ValueError as error:  # without its traceback, which would keep the files
                self._tokenizer = ValueError(*error.args)
        self.config = self.elmo.config
        self.batch_tokens = batch_tokens
        self._cache = cache
        self._fixed = None
        if token_cache is not None:
            vocabulary, embedding = token_cache
            self._fixed = read_token_cache(vocabulary, embedding, self.config.projection_dim)
        self._engine_name, self._dtype = engine, dtype
        self._start()

    def _start(self) -> None:
        """Make what a pickle does not contain."""
        self._word_tokenizer: WordTokenizer | None = None
        engine, dtype = self._engine_name, self._dtype
        if engine == "auto":
            is_float32 = self.elmo.compute_dtype == "float32" or dtype == "int8"
            engine, _ = choose_engine(self.config, dtype if is_float32 else "bfloat16")
        is_keras = engine == "keras"
        self._engine = KerasEngine(self.elmo) if is_keras else OnnxEngine(self.elmo, dtype)
        self._table = self._new_table()

    @classmethod
    def from_preset(cls, preset: PathLike, **kwargs: Any) -> Self:
        """Make an ``Embedder`` from a preset, as ``Embedder(preset, **kwargs)`` does.

        Args:
            preset: str or path. What ``ElmoLayer.from_preset`` takes.
            **kwargs: Arguments of ``Embedder``.

        Returns:
            An ``Embedder``.

        Raises:
            ImportError, OSError, ValueError: As ``Embedder``.
        """
        return cls(preset, **kwargs)

    def __getstate__(self) -> dict:
        check_fork()
        state = vars(self).copy()
        for name in ("_word_tokenizer", "_engine", "_table"):
            del state[name]
        return {**state, "elmo": self.elmo.get_config(), "weights": self.elmo.bilm.get_weights()}

    def __setstate__(self, state: dict) -> None:
        check_fork()
        weights = state.pop("weights")
        vars(self).update(state)
        self.elmo = _build(ElmoLayer.from_config(state["elmo"]))
        self.elmo.bilm.set_weights(weights)
        self._start()

    def tokenize(self, texts: Any) -> Any:
        """Split raw texts into the tokens that the biLM was trained on.

        ``embedder.embed(embedder.tokenize(texts))`` is the way from texts to arrays.

        Args:
            texts: str, or a list or column of str. The input of ``WordTokenizer``.

        Returns:
            A list of tokens for a str, else a list of such lists.

        Raises:
            ValueError: If a row is empty or not text, or if the ``Embedder`` was made from a
                layer or from a preset that does not record its tokenizer.
        """
        if isinstance(self._tokenizer, ValueError):
            raise ValueError(*self._tokenizer.args)
        if self._word_tokenizer is None:
            self._word_tokenizer = WordTokenizer(self._tokenizer)
        return self._word_tokenizer(texts)

    def embed(
        self,
        sentences: Sentences,
        layers: Layers = "all",
        remember: bool = True,
        progress: bool | None = None,
    ) -> list[np.ndarray]:
        """Embed a list of sentences.

        Args:
            sentences: List, generator, or pandas or Arrow column of lists of str or UTF-8
                bytes, the tokens; or a NumPy array of shape ``(sentences, tokens)``. As in
                ``CharacterTokenizer``, trailing ``""`` are padding in an array, and tokens in
                a list. For raw text see ``tokenize``.
            layers: str, int or list of float. ``"all"``, ``"top"``, ``"average"``, or the
                number of one layer: 0 is the token representation, and -1 the last layer. Or a
                weight for each layer, such as the ``layer_weights`` of a trained ``ScalarMix``:
                the result is the weighted sum.
            remember: bool. Whether to use and extend the remembered token representations.
                With False, earlier calls do not affect even the last bit of the result.
            progress: bool or None. Whether to show a progress bar on stderr. None shows it on a
                terminal, in calls of more than five seconds.

        Returns:
            A list of float32 arrays, one for each sentence: ``(layers, tokens, width)`` for
            ``"all"``, else ``(tokens, width)``.

        Raises:
            ValueError: If an argument is invalid.
        """
        choice = LayerChoice.of(layers, self.config.n_layers + 1)
        table = self._table if remember else self._new_table()
        # Copy: a view of a sentence would keep its whole batch in memory.
        arrays = {
            i: np.array(array, order="C")
            for i, array in self._arrays(*_flatten(sentences), choice, table, progress)
        }
        return [arrays[i] for i in range(len(arrays))]

    def embed_tokens(self, tokens: Sequence[str | bytes]) -> np.ndarray:
        """Return the token representations of tokens, which do not depend on context.

        Args:
            tokens: List of str or UTF-8 bytes.

        Returns:
            A float32 array, shape ``(len(tokens), projection_dim)``.

        Raises:
            ValueError: If ``tokens`` is not a list of tokens.
        """
        distinct, places = _distinct(CharacterTokenizer.check([tokens]))
        return self._table.look_up(distinct)[places]

    def embed_means(
        self,
        sentences: Sentences,
        layers: Layers = "average",
        normalize: bool = False,
        progress: bool | None = None,
    ) -> np.ndarray:
        """Return one vector for each sentence, the mean over its tokens.

        Args:
            sentences: As in ``embed``. An empty sentence gives zeros.
            layers: As in ``embed``.
            normalize: bool. Whether to scale each vector to length 1, so that the dot product
                of two vectors is their cosine similarity.
            progress: As in ``embed``.

        Returns:
            A float32 array, ``(sentences, layers, width)`` for ``"all"``, else
            ``(sentences, width)``.

        Raises:
            ValueError: If an argument is invalid.
        """
        choice = LayerChoice.of(layers, self.config.n_layers + 1)
        tokens, lengths = _flatten(sentences)
        width = 2 * self.config.projection_dim
        shape = (self.config.n_layers + 1, width) if choice.weights is None else (width,)
        means = np.zeros((len(lengths), *shape), "float32")
        for i, array in self._arrays(tokens, lengths, choice, self._table, progress):
            if lengths[i]:
                means[i] = array.mean(axis=-2)
        if normalize:
            norms = np.linalg.norm(means, axis=-1, keepdims=True)
            means /= np.maximum(norms, np.finfo("float32").tiny)
        return means

    def embed_file(
        self,
        input_file: PathLike | BinaryIO | TextIO,
        output_file: PathLike,
        layers: Layers = "all",
        float16: bool = False,
        compression: str | None = None,
        resume: bool = False,
        progress: bool = True,
        raw: bool = False,
        column: str | None = None,
        overwrite: bool = False,
    ) -> dict[str, int | float]:
        """Embed a file of sentences into an hdf5 file, in bounded memory.

        Args:
            input_file: Path or open file. A UTF-8 text with one sentence a line, and spaces or
                tabs between tokens. A path that ends with .gz, .bz2 or .xz is decompressed.
                Other white space, such as the no-break space, is part of a token. A blank line
                is an empty sentence.
            output_file: Path of the hdf5 file. It gets one dataset for each line, named by the
                index of the line from 0, with the array of ``embed``; and the lines themselves
                as the dataset ``sentences``.
            layers: As in ``embed``.
            float16: bool. Whether to store float16, half the size.
            compression: str or None. ``"gzip"`` or ``"lzf"``, as in ``h5py``.
            resume: bool. Whether to continue an interrupted run. An unfinished output is a
                folder next to it, ``OUTPUT.parts``. A finished output of the same lines and
                settings is left unchanged; its engine, backend and batches may be others.
            progress: bool. Whether to show a progress bar on stderr.
            raw: bool. Whether the lines or cells are raw text, for ``tokenize``.
            column: str or None. Column of the sentences, if the input is the path of a table:
                CSV, TSV, JSON lines or Parquet. A cell is a str, or a list of tokens.
            overwrite: bool. Whether to replace an output that exists.

        Returns:
            A dict of ``sentences``, ``tokens``, ``seconds`` and ``tokens_per_s`` of this run,
            and ``resumed_tokens``, the tokens that an earlier run embedded.

        Raises:
            OSError: If a file cannot be read or written, if another process writes the output,
                or if the files of an earlier run are damaged.
            ValueError: If an argument is invalid or the text is not UTF-8; if the output
                exists, or there is an unfinished run and ``resume`` is False; if an earlier run
                had other settings or other lines; if a cell of the column has no text.
        """
        if compression not in (None, "gzip", "lzf"):
            raise ValueError(
                "Embedder expects compression to be None, 'gzip' or 'lzf'. "
                f"Received: compression={compression!r}"
            )
        output = local_path(output_file)
        path = local_path(input_file) if isinstance(input_file, PathLike) else None
        _check_output(path, output, resume, overwrite)
        if path and column is None and ending_of(path) in TABLES:
            warnings.warn(
                f"embed_file reads each line of {path} as a sentence. Pass column (--column) to "
                "read one column of a table",
                stacklevel=2,
            )
        choice = LayerChoice.of(layers, self.config.n_layers + 1)
        settings = {
            "biLM": self.elmo.fingerprint(),
            "options": self.config.digest(),
            **self._engine.settings,
            # The batches change the rounding. A token cache can contain quite different vectors.
            "batch_tokens": self.batch_tokens,
            "token_cache": self._fixed and self._fixed.digest(),
            "layers": choice.name,
            "float16": bool(float16),
            "compression": compression,
        }
        counts: dict[str, int | float] = {"sentences": 0, "tokens": 0, "resumed_tokens": 0}

        def arrays(part: Part) -> Iterator[tuple[int, np.ndarray]]:
            # A token's last bit can depend on its batch. Each part computes its tokens anew,
            # so that a resumed run gives the same file.
            found = self._arrays(*_flatten(part.sentences), choice, self._new_table())
            yield from ((i, array.astype("float16") if float16 else array) for i, array in found)

        start = time.perf_counter()
        total = _count_lines(path) if progress and path and column is None else None
        name: object = path or getattr(input_file, "name", "the input")

        def place(i: int) -> str:
            return f"row {i} of {name}" if column else f"line {i + 1} of {name}"

        lines = input_lines(path or input_file, column, self.tokenize if raw else None)
        # Read the first line before the output is begun: the input may be invalid.
        first = list(itertools.islice(lines, 1))
        with (
            LayerFileWriter(output, settings, resume, compression) as writer,
            progress_bar(progress, total=total, unit=" sentences") as bar,
        ):
            for part in writer.parts(itertools.chain(first, lines), place):
                if not part.already_written:
                    writer.write(part, arrays(part))
                counts["sentences"] += len(part.sentences)
                counts["resumed_tokens" if part.already_written else "tokens"] += part.tokens
                bar.update(len(part.sentences))
                bar.set_postfix_str(
                    f"{counts['tokens'] / (time.perf_counter() - start):.0f} tokens/s"
                )
            writer.finish()
        seconds = time.perf_counter() - start
        return {**counts, "seconds": seconds, "tokens_per_s": counts["tokens"] / seconds}

    def write_token_cache(
        self, tokens: Sequence[str | bytes], vocabulary_file: PathLike, embedding_file: PathLike
    ) -> None:
        """Write the token representations of a vocabulary, in bilm-tf's layout.

        Pass the two files as ``token_cache``: these tokens then skip the character CNN.

        Args:
            tokens: List of str or UTF-8 bytes. Distinct tokens, not empty, without line ends.
            vocabulary_file: Path of the vocabulary to write, one token a line.
            embedding_file: Path of the hdf5 file to write, with the dataset ``embedding``,
                float32, shape ``(len(tokens), projection_dim)``.

        Raises:
            OSError: If a file cannot be written.
            ValueError: If the tokens are invalid or not UTF-8.
        """
        checked = CharacterTokenizer.check([tokens])
        write_token_cache(self._table, checked, vocabulary_file, embedding_file)

    def write_word_vectors(self, tokens: Sequence[str | bytes], file: PathLike) -> None:
        """Write the token representations of a vocabulary as word2vec text.

        gensim reads the file: ``KeyedVectors.load_word2vec_format(file)``.

        Args:
            tokens: List of str or UTF-8 bytes. Distinct tokens without white space.
            file: Path of the text to write: a line with the number of tokens and
                ``projection_dim``, then one line for each token and its numbers.

        Raises:
            OSError: If the file cannot be written.
            ValueError: If a token is empty, contains white space, is not UTF-8 or occurs twice.
        """
        write_word_vectors(self._table, CharacterTokenizer.check([tokens]), file)

    def _new_table(self) -> TokenTable:
        """Return a table that knows only the tokens of the token cache."""
        compute = functools.partial(_represent, self._engine, self.config)
        return TokenTable(compute, self.config.projection_dim, self._cache, self._fixed)

    def _arrays(
        self,
        tokens: list[bytes],
        lengths: np.ndarray,
        choice: LayerChoice,
        table: TokenTable,
        progress: bool | None = False,
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the index and the array of each sentence, the longest first, batch by batch."""
        boundaries = self.config.alphabet.boundary_tokens
        distinct, places = _distinct([*boundaries, *tokens])
        starts = np.cumsum(lengths) - lengths + len(boundaries)
        if not len(lengths):
            return
        rows = table.look_up(distinct)
        delay = 0 if progress else _BAR_DELAY
        bar = progress_bar(progress, total=len(lengths), unit=" sentences", delay=delay)
        for batch in length_batches(lengths, self.batch_tokens):
            longest = lengths[batch].max() + 2
            indices = np.zeros((len(batch), longest), "int64")  # Row 0 is <S>, row 1 is </S>.
            for row, i in zip(indices, batch, strict=True):
                row[1 : lengths[i] + 1] = places[starts[i] : starts[i] + lengths[i]]
                row[lengths[i] + 1] = 1
            mask = np.arange(longest) < lengths[batch][:, None] + 2
            found = self._engine.contextualize(rows[indices] * mask[..., None], mask, choice)
            for i, array in zip(batch, found, strict=True):
                array = array[: lengths[i]]
                yield int(i), np.moveaxis(array, 1, 0) if choice.weights is None else array
            bar.update(len(batch))
        bar.close()


def check_sizes(cache: Any, batch_tokens: Any, token_cache: Any) -> tuple[int, int]:
    """Return ``cache`` and ``batch_tokens`` of an ``Embedder``; raise if an argument is invalid."""
    if token_cache is not None and not (
        isinstance(token_cache, list | tuple) and len(token_cache) == 2
    ):
        raise ValueError(
            "Embedder expects token_cache to be two paths, of a vocabulary and of its hdf5 "
            f"file. Received: token_cache={token_cache!r}"
        )
    cache = check_whole("Embedder", "cache", cache)
    return cache, check_whole("Embedder", "batch_tokens", batch_tokens)


def _represent(
    engine: KerasEngine | OnnxEngine, config: BiLMConfig, tokens: list[bytes]
) -> np.ndarray:
    """Return the token representations of distinct tokens; the CNN sees little padding."""
    alphabet = config.alphabet
    ids = alphabet.rows(tokens)
    rows = np.empty((len(tokens), config.projection_dim), "float32")
    sizes = config.widest_filter, config.max_characters_per_token
    for batch, width in token_batches(alphabet.lengths(ids), *sizes):
        rows[batch] = engine.represent(ids[batch, : alphabet.leading + width])
    return rows


def _build(elmo: ElmoLayer) -> ElmoLayer:
    elmo.build((None, None, elmo.alphabet.row_length))
    return elmo


def _copy(elmo: ElmoLayer) -> ElmoLayer:
    """Return a new layer with the same weights and dtype."""
    elmo.check_weights()
    copy = _build(ElmoLayer(elmo.config, dtype=elmo.dtype_policy))
    for variable, source in zip(copy.bilm.variables, elmo.bilm.variables, strict=True):
        variable.assign(ops.copy(source.value))  # JAX may delete the array of a trained weight.
    return copy


def _check_output(
    path: pathlib.Path | None, output: pathlib.Path, resume: bool, overwrite: bool
) -> None:
    """Raise a ``ValueError`` if ``embed_file`` must not write its output."""
    is_input = path and same_file(path, output)
    if is_input or (output.exists() and not output.is_file()):
        raise ValueError(
            "embed_file expects the path of a new file. Received: "
            f"output_file={str(output)!r}, {'the input' if is_input else 'not a file'}"
        )
    if overwrite and resume:
        raise ValueError(
            "embed_file expects overwrite (--force) or resume (--resume). Received: both"
        )
    if output.exists() and not (overwrite or resume):
        raise ValueError(
            f"embed_file expects the path of a new file. Received: {output}, which exists. "
            "Pass overwrite=True (--force) to replace it"
        )


def _count_lines(path: pathlib.Path) -> int | None:
    """Return the number of line ends; None for a pipe or a compressed file."""
    if not path.is_file() or path.suffix.lower() in OPENERS:
        return None
    with open(path, "rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))


def _flatten(sentences: Sentences) -> tuple[list[bytes], np.ndarray]:
    """Return all tokens as UTF-8, and the number of tokens of each sentence."""
    sentences = sentence_rows(sentences)
    tokens = CharacterTokenizer.check(sentences)
    return tokens, np.array([len(sentence) for sentence in sentences], "int64")


def _distinct(tokens: Iterable[bytes]) -> tuple[list[bytes], np.ndarray]:
    """Return the distinct tokens, and the index of every token among them."""
    places: dict[bytes, int] = {}
    indices = [places.setdefault(token, len(places)) for token in tokens]
    return list(places), np.array(indices, "int64")
