"""Turn sentences into arrays: each distinct token once, and little padding."""

import functools
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from keras_elmo.embed.embed_file import embed_file as embed_file_of
from keras_elmo.embed.engine_choice import check_engine, choose_engine, keras_engine
from keras_elmo.embed.onnx_engine import OnnxEngine
from keras_elmo.embed.token_table import TokenTable
from keras_elmo.layer_choice import LayerChoice, Layers
from keras_elmo.presets import open_preset
from keras_elmo.tokenizers.text_tokens import make_tokenizer, tokenize_texts
from keras_elmo.tokenizers.token_lists import sentence_rows, utf8_tokens
from keras_elmo.utils.batches import length_batches, token_batches
from keras_elmo.utils.checks import check_whole, invalid, shorten
from keras_elmo.utils.files import PathLike
from keras_elmo.utils.progress import progress_bar

if TYPE_CHECKING:
    from keras_elmo.embed.keras_engine import KerasEngine
    from keras_elmo.layers.elmo_layer import ElmoLayer

_BAR_DELAY = 5  # seconds
_BUILDING = threading.Lock()

Sentences = Iterable[Sequence[str | bytes]] | np.ndarray


class TokenizedText(list):
    """The tokens of one text, which ``Embedder.embed`` takes as one sentence."""


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
        batch_tokens: int. Tokens in a batch of the LSTMs, padding included.
        options: dict, path or None. As in ``ElmoLayer.from_preset``; not for a layer.
        engine: str. ``"keras"`` computes with the backend of Keras. ``"onnxruntime"`` computes
            with ONNX Runtime on the CPU, whatever the backend is. ``"auto"`` is the faster of
            them for this CPU and dtype, as ``keras-elmo info`` says; it is Keras where ONNX
            Runtime is not installed.

    Attributes:
        elmo: ElmoLayer. The layer with the weights in use, for reading only. With ONNX Runtime
            it is made when you first read it, and imports Keras.
        config: BiLMConfig. The sizes of the biLM.
        batch_tokens: int. As the argument.

    A pickled ``Embedder`` contains the weights, but not the remembered tokens.

    Raises:
        ImportError: If ONNX Runtime is requested and not installed.
        RuntimeError: If the engine is Keras and this process was forked from one that had
            computed with Keras. An ``Embedder`` that was pickled raises it at its first use.
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
        preset: "PathLike | ElmoLayer",
        dtype: str = "float32",
        cache: int = 100_000,
        batch_tokens: int = 2048,
        options: dict | PathLike | None = None,
        engine: str = "auto",
    ) -> None:
        check_engine(engine, dtype)
        self._cache = check_whole("Embedder", "cache", cache)
        self.batch_tokens = check_whole("Embedder", "batch_tokens", batch_tokens)
        self.preset_files: list = []
        self._tokenizer: str | None = None
        if isinstance(preset, PathLike):
            files = open_preset(preset, options)
            self._bilm, self._policy = files.read(), "float32" if dtype == "int8" else dtype
            self.preset_files, self._tokenizer = files.files, files.tokenizer
        else:
            if options is not None:
                raise invalid(
                    "Embedder expects options only with a preset: a layer has its own",
                    f"options={shorten(options)}",
                )
            self._bilm, self._policy = keras_engine().read_layer(preset)
        self.config = self._bilm.config
        compute_dtype = self._policy.removeprefix("mixed_")
        if engine == "auto":
            engine, _ = choose_engine(self.config, compute_dtype if dtype == "float32" else dtype)
        self._engine_name = engine
        self._dtype = compute_dtype if engine == "keras" else dtype
        self._engine  # noqa: B018 - made now, for all threads

    # An Embedder that was pickled makes its engine at the first use. Keras computes when it makes
    # variables, which is an error in some forked processes. Such an error while a worker of
    # multiprocessing.Pool unpickles its work would end the worker, and the pool would wait forever.
    @functools.cached_property
    def _engine(self) -> "KerasEngine | OnnxEngine":
        with _BUILDING:
            if "_engine" not in vars(self):
                if self._engine_name == "keras":
                    engine = keras_engine().KerasEngine(self._bilm, self._policy)
                else:
                    engine = OnnxEngine(self._bilm, self._dtype)
                vars(self)["_engine"] = engine
                del self._bilm  # the Keras engine has a copy
            return vars(self)["_engine"]

    @functools.cached_property
    def elmo(self) -> "ElmoLayer":
        """The layer with the weights in use, for reading only."""
        if isinstance(self._engine, OnnxEngine):
            return keras_engine().build_layer(self._engine.bilm, self._policy)
        return self._engine.elmo

    @functools.cached_property
    def _table(self) -> TokenTable:
        return TokenTable(self.config.projection_dim, self._cache)

    def __getstate__(self) -> dict:
        made = "elmo", "_engine", "_table"
        state = {name: value for name, value in vars(self).items() if name not in made}
        return {**state, "_bilm": self._engine.bilm}

    def __repr__(self) -> str:
        layers, width = self.config.n_layers + 1, 2 * self.config.projection_dim
        sizes = f"{layers} layers of width {width}"
        return f"<Embedder: {sizes}, engine {self._engine_name!r}, {self._dtype}>"

    @classmethod
    def from_preset(cls, preset: PathLike, **kwargs: Any) -> Self:
        """Make an ``Embedder`` from a preset: ``Embedder(preset, **kwargs)``."""
        return cls(preset, **kwargs)

    def tokenize(self, texts: Any) -> Any:
        """Split raw texts into the tokens that the biLM was trained on.

        ``embedder.embed(embedder.tokenize(texts))`` is the way from texts to arrays.

        Args:
            texts: str, or a list or column of str. The input of ``WordTokenizer``.

        Returns:
            A list of tokens for a str, which ``embed`` takes as one sentence; else a list of
            such lists.

        Raises:
            ValueError: If a row is empty or not text, or if the ``Embedder`` was made from a
                layer or from a preset that does not record its tokenizer.
        """
        if self._tokenizer is None:
            raise invalid(
                "Embedder.tokenize expects a preset that records its tokenizer",
                repr(self),
                'Call a WordTokenizer, for example WordTokenizer("penn")',
            )
        tokens = tokenize_texts(make_tokenizer(self._tokenizer, split_sentences=True), texts)
        return TokenizedText(tokens) if isinstance(texts, str) else tokens

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
        # Copy: a view of a sentence would keep its whole batch in memory.
        arrays = {
            i: np.array(array, order="C")
            for i, array in self.iterate(sentences, layers, remember, progress)
        }
        return [arrays[i] for i in range(len(arrays))]

    def iterate(
        self,
        sentences: Sentences,
        layers: Layers | LayerChoice = "all",
        remember: bool = True,
        progress: bool | None = None,
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the index and the array of each sentence, the longest first.

        Arguments and errors are as in ``embed``. An array is a view of its batch.
        """
        choice = LayerChoice.of(layers, self.config.n_layers + 1)
        tokens, lengths = _flatten(sentences)
        if not len(lengths):
            return
        boundaries = self.config.alphabet.boundary_tokens
        distinct, places = _distinct([*boundaries, *tokens])
        starts = np.cumsum(lengths) - lengths + len(boundaries)
        represent = self._represent
        rows = self._table.look_up(distinct, represent) if remember else represent(distinct)
        delay = 0 if progress else _BAR_DELAY
        bar = progress_bar(progress, total=len(lengths), unit=" sentences", delay=delay)
        for batch in length_batches(lengths, self.batch_tokens):
            longest = lengths[batch].max() + 2
            indices = np.zeros((len(batch), longest), "int64")  # Row 0 is <S>, row 1 is </S>.
            for row, i in zip(indices, batch, strict=True):
                row[1 : lengths[i] + 1] = places[starts[i] : starts[i] + lengths[i]]
                row[lengths[i] + 1] = 1
            mask = np.arange(longest) < lengths[batch][:, None] + 2
            found = self._engine.contextualize(rows[indices], mask, choice)
            for i, array in zip(batch, found, strict=True):
                array = array[: lengths[i]]
                yield int(i), np.moveaxis(array, 1, 0) if choice.weights is None else array
            bar.update(len(batch))
        bar.close()

    def embed_tokens(self, tokens: Sequence[str | bytes]) -> np.ndarray:
        """Return the token representations of tokens, which do not depend on context.

        Args:
            tokens: List of str or UTF-8 bytes.

        Returns:
            A float32 array, shape ``(len(tokens), projection_dim)``.

        Raises:
            ValueError: If ``tokens`` is not a list of tokens.
        """
        distinct, places = _distinct(utf8_tokens([tokens]))
        return self._table.look_up(distinct, self._represent)[places]

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
        width = 2 * self.config.projection_dim
        shape = (self.config.n_layers + 1, width) if choice.weights is None else (width,)
        found = {
            i: array.mean(axis=-2) if array.size else np.zeros(shape, "float32")
            for i, array in self.iterate(sentences, choice, progress=progress)
        }
        means = np.array([found[i] for i in range(len(found))], "float32").reshape(-1, *shape)
        if normalize:
            norms = np.linalg.norm(means, axis=-1, keepdims=True)
            means /= np.maximum(norms, np.finfo("float32").tiny)
        return means

    embed_file = embed_file_of

    def _represent(self, tokens: list[bytes]) -> np.ndarray:
        """Return the token representations of distinct tokens; the CNN sees little padding."""
        alphabet = self.config.alphabet
        ids = alphabet.rows(tokens)
        rows = np.empty((len(tokens), self.config.projection_dim), "float32")
        sizes = self.config.widest_filter, self.config.max_characters_per_token
        for batch, width in token_batches(alphabet.lengths(ids), *sizes):
            rows[batch] = self._engine.represent(ids[batch, : alphabet.leading + width])
        return rows

    def settings(self) -> dict:
        """Return the settings that decide the results, apart from rounding, for JSON."""
        bilm = self._engine.bilm.fingerprint()
        return {"biLM": bilm, "options": self.config.digest(), "dtype": self._dtype}


def _flatten(sentences: Sentences) -> tuple[list[bytes], np.ndarray]:
    """Return all tokens as UTF-8, and the number of tokens of each sentence."""
    rows = [sentences] if isinstance(sentences, TokenizedText) else sentence_rows(sentences)
    tokens = utf8_tokens(rows)
    return tokens, np.array([len(row) for row in rows], "int64")


def _distinct(tokens: Iterable[bytes]) -> tuple[list[bytes], np.ndarray]:
    """Return the distinct tokens, and the index of every token among them."""
    places: dict[bytes, int] = {}
    indices = [places.setdefault(token, len(places)) for token in tokens]
    return list(places), np.array(indices, "int64")
