"""Models of ELMoForManyLangs: a biLM that reads code points and words."""

import dataclasses
import functools
import pathlib
from typing import Any

import numpy as np

from keras_elmo.alphabets import SPECIAL_CHARACTERS, SPECIAL_WORDS, CodePoints
from keras_elmo.config import BiLMConfig
from keras_elmo.formats.base import Format
from keras_elmo.formats.folder import Folder
from keras_elmo.formats.torch_weights import read_tensors, torch_layout
from keras_elmo.formats.weight_mapping import Transform, WeightMapping, make_mapping
from keras_elmo.utils.checks import invalid
from keras_elmo.utils.files import PathLike, read_bytes, read_options

_TORCH_FILES = ("token_embedder.pkl", "encoder.pkl")
_CHARACTERS = "token_embedder.pkl:char_emb_layer.embedding.weight"
_WORDS = "token_embedder.pkl:word_emb_layer.embedding.weight"
_PROJECTION = "token_embedder.pkl:projection"
_LAYOUT = torch_layout(
    convolution="token_embedder.pkl:convolutions.",
    highway="token_embedder.pkl:highways._layers.",
    projection=_PROJECTION,
    lstms="encoder.pkl:",
)


class ManyLangs(Format):
    """A directory of ELMoForManyLangs: two dictionaries, two PyTorch files, ``config.json``.

    ``config.json`` names a file with the architecture. Most published models lack that file. It
    is read from the same directory, or given as ``options``.
    """

    name = "ELMoForManyLangs"
    tokens = "the words of Universal Dependencies (UDPipe)"
    released_config = BiLMConfig(character_embedding_dim=50)

    @classmethod
    def recognises(cls, folder: Folder) -> bool:
        return all(folder.named(name) for name in ("char.dic", *_TORCH_FILES))

    @property
    def source(self) -> str:
        return f"PyTorch files {' and '.join(_TORCH_FILES)} of {self.folder.path}"

    @functools.cached_property
    def tensors(self) -> dict[str, np.ndarray]:
        return {
            f"{file}:{key}": tensor
            for file in _TORCH_FILES
            for key, tensor in read_tensors(self.folder.pick(file)).items()
        }

    def options_file(self) -> pathlib.Path | None:
        for file in self.folder.named("config.json"):
            path = read_options(file, "Configuration").get("config_path")
            name = path.replace("\\", "/").rpartition("/")[2] if isinstance(path, str) else ""
            if self.folder.named(name):
                return self.folder.pick(name)
        return None

    @functools.cached_property
    def config(self) -> BiLMConfig:
        words = self.tensors.get(_WORDS, np.zeros((0, 0)))
        code_points = CodePoints(
            characters=tuple(self._characters), words=tuple(self._words), word_dim=words.shape[-1]
        )
        return dataclasses.replace(super().config, code_points=code_points)

    def parse_options(self, options: dict, file: PathLike | None) -> BiLMConfig:
        try:
            embedder, encoder = options["token_embedder"], options["encoder"]
            return BiLMConfig(
                filters=embedder["filters"],
                character_embedding_dim=embedder["char_dim"],
                max_characters_per_token=embedder["max_characters_per_token"],
                activation=embedder["activation"],
                n_highway=embedder["n_highway"],
                lstm_dim=encoder["dim"],
                projection_dim=encoder["projection_dim"],
                n_layers=encoder["n_layers"],
                cell_clip=encoder["cell_clip"],
                projection_clip=encoder["proj_clip"],
            )
        except (TypeError, LookupError, ValueError) as error:
            raise invalid(
                "ELMoForManyLangs expects its architecture, a JSON object with 'token_embedder' "
                "and 'encoder'",
                f"{file or 'options='}, {type(error).__name__}: {error}",
            ) from None

    def mapping(self) -> WeightMapping:
        rows = (_CHARACTERS, "c e", _reorder_rows(self._characters), "char_cnn/embeddings")
        layout: list[tuple[Any, ...]] = [rows, *_LAYOUT]
        if self._words:
            targets = "char_cnn/word_kernel", "char_cnn/projection_kernel"
            kernel = f"{_PROJECTION}.weight"
            split = _split_columns(self.config.code_points.word_dim)  # type: ignore[union-attr]
            layout = [row for row in layout if row[0] != kernel]
            layout += [
                (kernel, "P v+F", split, *targets),
                (_WORDS, "V v", _reorder_rows(self._words), "char_cnn/word_embeddings"),
            ]
        return make_mapping(layout, self.config)

    @functools.cached_property
    def _characters(self) -> dict[str, int]:
        return self._dictionary("char.dic", _CHARACTERS, SPECIAL_CHARACTERS)

    @functools.cached_property
    def _words(self) -> dict[str, int]:
        if _WORDS not in self.tensors:
            return {}
        return self._dictionary("word.dic", _WORDS, SPECIAL_WORDS)

    def _dictionary(self, name: str, tensor: str, special: tuple[str, ...]) -> dict[str, int]:
        """Return the row of every token in a tensor. Special tokens come first."""
        file = self.folder.pick(name)
        content = read_bytes(file, "Dictionary")
        try:
            row_of = _parse_dictionary(content.decode("utf-8"))
        except ValueError as error:
            expected = "lines with a token, a tab and a number, in UTF-8"
            raise invalid(f"Dictionary {file} must consist of {expected}", error) from None
        n_rows = len(self.tensors[tensor]) if tensor in self.tensors else 0
        if sorted(row_of.values()) != list(range(n_rows)):
            raise invalid(
                f"Dictionary {file} must number the {n_rows} rows of '{tensor}', each once",
                f"{len(row_of)} tokens",
                "Do the files belong to one model?",
            )
        if missing := [token for token in special if token not in row_of]:
            raise invalid(f"Dictionary {file} must contain {special}", f"a file without {missing}")
        tokens = [*special, *sorted(row_of.keys() - set(special), key=row_of.__getitem__)]
        return {token: row_of[token] for token in tokens}


def _parse_dictionary(text: str) -> dict[str, int]:
    """Return the number of every token.

    ELMoForManyLangs strips whitespace. A line without a token then belongs to U+3000. If lines
    have the same token, it looks up the row of the last one. No text uses the other rows, so they
    get names that are not characters.
    """
    row_of: dict[str, int] = {}
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        fields = line.strip().split("\t")
        token, row = fields if len(fields) == 2 else ("\u3000", *fields)[:2]
        if len(fields) > 2 or not (row.isascii() and row.isdigit()):
            raise ValueError(f"{line[:60]!r} in line {number}")
        if token in row_of:
            unused = row_of.pop(token)
            row_of[f"<unused {unused}>"] = unused
        row_of[token] = int(row)
    return row_of


def _reorder_rows(row_of: dict[str, int]) -> Transform:
    """Return the change from their order of rows to ours, which begins with a padding row."""
    rows = np.array(list(row_of.values()), "int64")
    return Transform(lambda x: (np.concatenate([np.zeros_like(x[:1]), x[rows]]),))


def _split_columns(word_dim: int) -> Transform:
    """Return the split of a projection into the columns of words and of characters."""
    return Transform(lambda x: (x[:, :word_dim].T, x[:, word_dim:].T))
