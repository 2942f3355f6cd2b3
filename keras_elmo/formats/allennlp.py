"""AllenNLP's archives: a trained model that contains a biLM and its scalar mixes."""

import functools
import pathlib
import re

import numpy as np

from keras_elmo.config import BiLMConfig
from keras_elmo.formats.base import Format, Mix
from keras_elmo.formats.checks import check_tensors
from keras_elmo.formats.folder import Folder
from keras_elmo.formats.torch_weights import read_tensors, torch_layout
from keras_elmo.formats.weight_mapping import AS_IS, WeightMapping, make_mapping
from keras_elmo.utils.checks import invalid

_EMBEDDER = "_elmo_lstm._token_embedder."
_CHARACTERS = f"{_EMBEDDER}_char_embedding_weights"
_LAYOUT = [
    (_CHARACTERS, "C e", AS_IS, "char_cnn/embeddings"),
    *torch_layout(
        convolution=f"{_EMBEDDER}char_conv_",
        highway=f"{_EMBEDDER}_highways._layers.",
        projection=f"{_EMBEDDER}_projection",
        lstms="_elmo_lstm._elmo_lstm.",
    ),
]


class AllenNlpArchive(Format):
    """``model.tar.gz`` of AllenNLP, or the folder of a training: ``config.json``, ``weights.th``.

    ``config.json`` does not contain the options of the biLM.
    """

    name = "AllenNLP archive"
    tokenizer = "penn"
    released_config = BiLMConfig()

    @classmethod
    def recognises(cls, folder: Folder) -> bool:
        return bool(folder.ending(".th") and folder.named("config.json"))

    @property
    def source(self) -> str:
        return f"PyTorch file {self._file}"

    @functools.cached_property
    def tensors(self) -> dict[str, np.ndarray]:
        return read_tensors(self._file)

    def mapping(self) -> WeightMapping:
        return make_mapping(_LAYOUT, self.config, self._prefix)

    def belongs_to_bilm(self, name: str) -> bool:
        return name.startswith(f"{self._prefix}_elmo_lstm.")

    def read_mixes(self) -> list[Mix]:
        has_layer_norm = bool(re.search(r'"do_layer_norm":\s*true', self._settings))
        mixes: list[Mix] = []
        while (gamma := f"{self._prefix}scalar_mix_{len(mixes)}.gamma") in self.tensors:
            stem = gamma.removesuffix("gamma") + "scalar_parameters."
            names = [gamma]
            while (scalar := f"{stem}{len(names) - 1}") in self.tensors:
                names.append(scalar)
            arrays = self.read_tensors(names)
            check_tensors(self.source, arrays, dict.fromkeys(names, (1,)), fits="scalar mixes")
            value, *scalars = (array.item() for array in arrays.values())
            mixes.append(Mix(tuple(scalars), value, has_layer_norm))
        return mixes

    @functools.cached_property
    def _file(self) -> pathlib.Path:
        choices = self.folder.named("weights.th"), self.folder.named("best.th")
        return self.folder.pick("weights.th or best.th", *choices)

    @functools.cached_property
    def _settings(self) -> str:
        """The text of ``config.json``. It can describe any model."""
        return self.folder.pick("config.json").read_text("utf-8", "replace")

    @functools.cached_property
    def _prefix(self) -> str:
        """The prefix of the names of the biLM's tensors."""
        found = [name for name in self.tensors if name.endswith(_CHARACTERS)]
        if len(found) == 1:
            return found[0].removesuffix(_CHARACTERS)
        types = sorted(set(re.findall(r'"type":\s*"([^"]*)"', self._settings)))
        raise invalid(
            f"AllenNLP archive {self.folder.path} must contain one biLM of bilm-tf's kind, as "
            f"'elmo' and 'elmo_token_embedder' have it, with one tensor *{_CHARACTERS}",
            f"modules of the types {types[:20]}, and the tensors {found} in {self._file.name}",
            "Transformers, and language models trained by AllenNLP itself, are other models",
        )
