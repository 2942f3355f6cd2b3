"""Models of ELMoForManyLangs: code points and words in front of the same biLM."""

import functools

import numpy as np

from keras_elmo.formats.base import Source
from keras_elmo.formats.bilm_files import BiLMFile
from keras_elmo.formats.files import base
from keras_elmo.formats.hdf5 import misfit_error
from keras_elmo.formats.torch_file import read_tensors
from keras_elmo.formats.torch_table import (
    TorchNames,
    infer_sizes,
    read_torch_bilm,
    torch_rows,
)
from keras_elmo.formats.weight_mapping import Transform
from keras_elmo.tokenizers.code_points import SPECIAL_CHARACTERS, SPECIAL_WORDS, CodePoints
from keras_elmo.utils.files import read_bytes, read_options

_PARTS = ("token_embedder.pkl", "encoder.pkl")
_LARGEST_DICTIONARY = 1 << 26
_LARGEST_JSON = 1 << 20
_NAMES = TorchNames(
    characters="token_embedder.pkl:char_emb_layer.embedding.weight",
    convolution="token_embedder.pkl:convolutions.{}",
    highway="token_embedder.pkl:highways._layers.{}",
    projection="token_embedder.pkl:projection",
    lstms="encoder.pkl:",
    words="token_embedder.pkl:word_emb_layer.embedding.weight",
)
_ARCHITECTURE = "its architecture, a JSON with 'token_embedder' and 'encoder'"


class ManyLangs(Source):
    """A directory of ELMoForManyLangs: two dictionaries, two files of PyTorch, ``config.json``.

    The architecture is in a file that ``config.json`` names and that mostly stayed elsewhere; it
    is looked for beside the others, or given as ``options``.
    """

    kind = "ELMoForManyLangs"

    @classmethod
    def recognises(cls, files):
        return all(files.named(name) for name in ("char.dic", *_PARTS))

    def read_options(self):
        if self.given_options is not None:
            return super().read_options()
        settings, _ = self._json("config.json") if self.files.named("config.json") else ({}, "")
        path = settings.get("config_path") if isinstance(settings, dict) else None
        name = base(path.replace("\\", "/")) if isinstance(path, str) else ""
        return self._json(name) if name and self.files.named(name) else (None, None)

    @functools.cached_property
    def _config(self):
        sizes = infer_sizes(_NAMES, self._tensors)
        if sizes is None:
            raise misfit_error(
                f"PyTorch files {' and '.join(_PARTS)} of {self.files.path}",
                ["the tensors of a character CNN and of LSTMs are not all there"],
            )
        words = self._tensors.get(_NAMES.words, np.zeros((0, 0)))
        (characters, _), (lexicon, _) = self._characters, self._words
        code_points = CodePoints(characters=characters, words=lexicon, word_dim=words.shape[-1])
        options, origin = self.read_options()
        known = {} if options is None else _fields_of(options, origin)
        if wrong := {n for n, x in known.items() if n in sizes and x != sizes[n]}:
            told = [f"{n} is {sizes[n]} in its tensors and {known[n]} in the file" for n in wrong]
            raise ValueError(
                f"Architecture {origin} must be that of the model. Received: {'; '.join(told)}. Do "
                "they belong together?"
            )
        known |= {**sizes, "code_points": code_points, "use_skip_connections": True}
        return self.make_config(origin or self.files.path, **known)

    def read(self) -> BiLMFile:
        config = self.read_config()
        return read_torch_bilm(config, self._rows(config), self._tensors, str(self.files.path))

    def tensors(self):
        return sorted(self._tensors), []

    def _rows(self, config):
        (_, characters), (_, words) = self._characters, self._words
        return torch_rows(config, _NAMES, _reorder(characters), _reorder(words), padding=0)

    def _json(self, name):
        name = self.files.pick(name, self.files.named(name))
        origin = self.files.origin(name)
        return read_options(self.files.file(name, _LARGEST_JSON), origin, "Configuration"), origin

    @functools.cached_property
    def _tensors(self):
        tensors = {}
        for part in _PARTS:
            name = self.files.pick(part, self.files.named(part))
            found = read_tensors(self.files, name)
            tensors |= {f"{part}:{key}": x for key, x in found.items()}
        return tensors

    @functools.cached_property
    def _characters(self):
        return self._dictionary("char.dic", _NAMES.characters, SPECIAL_CHARACTERS)

    @functools.cached_property
    def _words(self):
        if _NAMES.words not in self._tensors:
            return (), []
        return self._dictionary("word.dic", _NAMES.words, SPECIAL_WORDS)

    def _dictionary(self, name, tensor, special):
        """Return the tokens, special ones first, and the rows that they have in the tensor."""
        name = self.files.pick(name, self.files.named(name))
        origin = self.files.origin(name)
        content = read_bytes(self.files.file(name), origin, "Dictionary", _LARGEST_DICTIONARY)
        try:
            row_of = _parse(content.decode("utf-8"))
        except ValueError as error:
            raise ValueError(
                f"Dictionary {origin} must be lines of a token, a tab and a number, in UTF-8. "
                f"Received: {error}"
            ) from None
        rows = len(self._tensors[tensor]) if tensor in self._tensors else 0
        if sorted(row_of.values()) != list(range(rows)):
            raise ValueError(
                f"Dictionary {origin} must number the {rows} rows of '{tensor}', each once. "
                f"Received: {len(row_of)} tokens. Do the files belong to one model?"
            )
        if missing := [token for token in special if token not in row_of]:
            raise ValueError(
                f"Dictionary {origin} must hold {special}. Received: none of {missing}"
            )
        tokens = [*special, *sorted(row_of.keys() - set(special), key=row_of.__getitem__)]
        return tuple(tokens), [row_of[token] for token in tokens]


def _parse(text):
    """Return the number of every token; a line without token is that of U+3000."""
    row_of = {}
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        fields = line.strip().split("\t")
        token, row = fields if len(fields) == 2 else ("\u3000", *fields)[:2]
        if len(fields) > 2 or not (row.isascii() and row.isdigit()) or len(row) > 9:
            raise ValueError(f"{line[:60]!r} in line {number}")
        if token in row_of:
            raise ValueError(f"{token[:60]!r} a second time in line {number}")
        row_of[token] = int(row)
    return row_of


def _reorder(rows):
    """Take rows in our order, behind one for the padding."""
    rows = np.array(rows, "int64")
    return Transform(
        "reorder_rows",
        lambda x: (np.concatenate([np.zeros_like(x[:1]), x[rows]]),),
        lambda x: (x[1:][np.argsort(rows)],),
    )


def _fields_of(options, origin):
    """Return the fields of a ``BiLMConfig`` that an architecture file tells."""
    try:
        embedder, encoder = options["token_embedder"], options["encoder"]
        names = (str(embedder["name"]).lower(), str(encoder["name"]).lower())
        fields = {
            "filters": [tuple(pair) for pair in embedder["filters"]],
            "character_embedding_dim": embedder["char_dim"],
            "n_highway": embedder["n_highway"],
            "activation": embedder["activation"],
            "max_characters_per_token": embedder["max_characters_per_token"],
            "lstm_dim": encoder["dim"],
            "projection_dim": encoder["projection_dim"],
            "n_layers": encoder["n_layers"],
            "cell_clip": encoder["cell_clip"],
            "projection_clip": encoder["proj_clip"],
        }
    except (TypeError, KeyError, LookupError) as error:
        raise ValueError(
            f"ELMoForManyLangs expects {_ARCHITECTURE}. Received: {origin}, without {error}"
        ) from None
    if names != ("cnn", "elmo"):
        raise ValueError(
            "ELMoForManyLangs expects the token embedder 'cnn' and the encoder 'elmo'. "
            f"Received: {names}, in {origin}"
        )
    return fields
