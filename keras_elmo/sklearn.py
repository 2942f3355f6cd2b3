"""scikit-learn: a transformer that turns a column of texts into ELMo vectors.

It needs scikit-learn: ``pip install 'keras-elmo[sklearn]'``.
"""

import functools
import pathlib
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.preprocessing import normalize as scale_to_length_1

from keras_elmo.embed.embedder import Embedder
from keras_elmo.utils.checks import invalid, shorten

# Clones of a grid search share an Embedder: loading and compiling one takes seconds.
_embedder = functools.lru_cache(maxsize=2)(Embedder)


class ElmoVectorizer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Turn each text of a column into one vector, the mean of the ELMo vectors of its tokens.

    The transformer works in ``Pipeline``, ``ColumnTransformer``, ``GridSearchCV`` and ``joblib``.
    It learns nothing, so ``fit`` does nothing. A clone or a pickle contains the name of the preset
    and not its weights, so the other machine needs the preset too.

    Each process loads a preset once and keeps the last two. Start a new process to read a
    directory again after its files changed.

    Args:
        preset: str or path. The preset, as in ``Embedder``.
        layers: str, int or list of float. The layers, as in ``Embedder.embed``. ``"all"`` puts the
            vectors of all layers next to each other.
        pooling: str. ``"mean"`` or ``"max"`` over the tokens of the text.
        normalize: bool. Whether to scale each vector to length 1.
        dtype: str. The dtype of the computation, as in ``Embedder``. The vectors are float32.

    Raises:
        ValueError: If an argument is invalid, or if a row is neither text nor a list of tokens.
            ``transform`` raises it.

    Examples:
        >>> from keras_elmo.sklearn import ElmoVectorizer
        >>> vectorizer = ElmoVectorizer("elmo_mini_en")
        >>> vectorizer.fit_transform(["A fine film.", "Too long!"]).shape
        (2, 256)
        >>> vectorizer.get_feature_names_out()[:2].tolist()
        ['elmovectorizer0', 'elmovectorizer1']

    Reference:
        Peters et al., 2018, https://arxiv.org/abs/1802.05365
    """

    def __init__(
        self,
        preset: str | pathlib.Path = "elmo_small_en",
        layers: str | int | list[float] = "average",
        pooling: str = "mean",
        normalize: bool = False,
        dtype: str = "float32",
    ) -> None:
        self.preset = preset
        self.layers = layers
        self.pooling = pooling
        self.normalize = normalize
        self.dtype = dtype

    def fit(self, X: Any, y: Any = None) -> Self:
        """Return the transformer itself."""
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Return one vector for each row.

        Args:
            X: List, array or pandas column of texts, which the tokenizer of the preset splits, or
                of lists of tokens. An empty list of tokens gives zeros.

        Returns:
            A float32 array of shape ``(rows, width)``, or a DataFrame after
            ``set_output(transform="pandas")``.
        """
        if self.pooling not in ("mean", "max"):
            expected = "ElmoVectorizer expects pooling to be 'mean' or 'max'"
            raise invalid(expected, f"pooling={shorten(self.pooling)}")
        rows, embedder = _rows(X), _embedder(self.preset, self.dtype)
        is_text = any(isinstance(row, str) for row in rows)
        sentences = embedder.tokenize(rows) if is_text else rows
        if self.pooling == "mean":
            vectors = embedder.embed_means(sentences, layers=self.layers)
        else:
            arrays = embedder.embed(sentences, layers=self.layers)
            # No tokens have no maximum. Their sum is 0.
            vectors = np.stack([a.max(-2) if a.shape[-2] else a.sum(-2) for a in arrays])
        vectors = vectors.reshape(len(rows), -1)
        return scale_to_length_1(vectors) if self.normalize else vectors

    @property
    def _n_features_out(self) -> int:
        """Return the number of columns, which ``get_feature_names_out`` reads."""
        config = _embedder(self.preset, self.dtype).config
        n_vectors = config.n_layers + 1 if self.layers == "all" else 1
        return n_vectors * 2 * config.projection_dim

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        tags.requires_fit = False
        return tags


def _rows(X: Any) -> list:
    """Return the rows of a column, or raise a ``ValueError``."""
    is_column = not isinstance(X, str | bytes) and len(getattr(X, "shape", [0])) == 1
    if not is_column or not len(X):
        raise invalid(
            "ElmoVectorizer expects one column of texts or of lists of tokens, at least one row",
            f"X of type {type(X).__name__}, {shorten(X)}",
            "Select one column of a table by its name, table['text']",
        )
    return list(X)
