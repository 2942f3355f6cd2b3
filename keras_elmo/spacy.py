"""spaCy: the pipeline component ``"elmo"``, which gives every token an ELMo vector.

It needs spaCy: ``pip install 'keras-elmo[spacy]'``. spaCy finds the component without an import of
this module, by the entry point of keras-elmo.
"""

import functools
import os
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Self

import numpy as np
from spacy.language import Language
from spacy.tokens import Doc, Span, Token
from spacy.util import minibatch

from keras_elmo.embed.embedder import Embedder


class Elmo:
    """A spaCy component that stores the ELMo vectors of a document in ``doc.tensor``.

    ``doc.tensor`` is a float32 array of shape ``(tokens, width)``. The tokens of spaCy go to the
    biLM sentence by sentence, or the whole document at once if no component sets the boundaries of
    sentences. Tokens of white space get zeros.

    ``vector`` of a token is its row. ``vector`` of a span or document is the mean over its tokens.
    ``similarity`` is the cosine of two such vectors. These are hooks of the ``Doc``, so they also
    work in a pipeline with its own vectors. ``Doc.to_bytes`` stores the tensor but no hooks.

    The biLM is loaded for the first document. ``nlp.to_disk`` stores the name of the preset; a
    preset that is a path is stored whole, so that the pipeline loads on another machine.

    Args:
        preset: str. The preset, as in ``Embedder``.
        layers: str, int or list of float. The layers, as in ``Embedder.embed``. ``"all"`` puts the
            vectors of all layers next to each other.
        dtype: str. The dtype of the computation, as in ``Embedder``.

    Raises:
        ValueError: If an argument is invalid. The first document raises it.

    Examples:
        >>> import spacy
        >>> nlp = spacy.blank("en")
        >>> elmo = nlp.add_pipe("elmo", config={"preset": "elmo_mini_en"})
        >>> nlp("The bank lent money.").tensor.shape
        (5, 256)

    Reference:
        Peters et al., 2018, https://arxiv.org/abs/1802.05365
    """

    def __init__(
        self,
        preset: str = "elmo_small_en",
        layers: str | int | Sequence[float] = "average",
        dtype: str = "float32",
    ) -> None:
        self.preset, self.layers, self.dtype = preset, layers, dtype

    @functools.cached_property
    def embedder(self) -> Embedder:
        """Return the ``Embedder``, loaded at its first use."""
        return Embedder(self.preset, dtype=self.dtype)

    def __call__(self, doc: Doc) -> Doc:
        """Store the vectors of a document, and return it."""
        return next(self.pipe([doc]))

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 128) -> Iterator[Doc]:
        """Store the vectors of many documents, ``batch_size`` at once, and yield the documents."""
        for docs in minibatch(stream, batch_size):
            sentences = [sentence for doc in docs for sentence in _sentences(doc)]
            texts = [[token.text for token in sentence] for sentence in sentences]
            arrays = iter(self.embedder.embed(texts, layers=self.layers))
            for doc in docs:
                self._store(doc, arrays)
                yield doc

    def to_disk(self, path: str | pathlib.Path, *, exclude: Iterable[str] = ()) -> None:
        """Store the biLM in the directory of the component, if its preset is a path."""
        if os.path.exists(self.preset):
            self.embedder.elmo.save_hdf5(path, overwrite=True)

    def from_disk(self, path: str | pathlib.Path, *, exclude: Iterable[str] = ()) -> Self:
        """Use the biLM in the directory of the component, if there is one."""
        if os.path.exists(path):
            self.preset = str(path)
        return self

    def _store(self, doc: Doc, arrays: Iterator[np.ndarray]) -> None:
        config = self.embedder.config
        n_vectors = config.n_layers + 1 if self.layers == "all" else 1
        doc.tensor = np.zeros((len(doc), n_vectors * 2 * config.projection_dim), "float32")
        for sentence in _sentences(doc):
            array = next(arrays)
            if array.ndim == 3:  # (layers, tokens, width)
                array = np.concatenate(list(array), axis=-1)
            doc.tensor[[token.i for token in sentence]] = array
        hooks = {"vector": _mean_vector, "has_vector": _has_vector, "similarity": _similarity}
        doc.user_hooks |= hooks
        doc.user_span_hooks |= hooks
        doc.user_token_hooks |= hooks | {"vector": _token_vector}


@Language.factory(
    "elmo",
    assigns=["doc.tensor"],
    default_config={"preset": "elmo_small_en", "layers": "average", "dtype": "float32"},
)
def make_elmo(
    nlp: Language, name: str, preset: str, layers: str | int | list[float], dtype: str
) -> Elmo:
    """Return the component, with the arguments of ``Elmo``; ``nlp.add_pipe`` calls this."""
    return Elmo(preset, layers, dtype)


def _sentences(doc: Doc) -> list[list[Token]]:
    """Return the tokens of each sentence, without white space."""
    spans = doc.sents if doc.has_annotation("SENT_START") else [doc[:]]
    return [[token for token in span if not token.is_space] for span in spans]


# Module-level functions: spaCy pickles the hooks with the document.
def _token_vector(token: Token) -> np.ndarray:
    return token.doc.tensor[token.i]


def _mean_vector(tokens: Doc | Span) -> np.ndarray:
    rows = tokens.tensor[np.array([not token.is_space for token in tokens], bool)]
    return rows.sum(axis=0) / max(len(rows), 1)


def _has_vector(tokens: Doc | Span | Token) -> bool:
    return True


def _similarity(one: Doc | Span | Token, other: Doc | Span | Token) -> float:
    norms = np.linalg.norm(one.vector) * np.linalg.norm(other.vector)
    return float(one.vector @ other.vector / norms) if norms else 0.0
