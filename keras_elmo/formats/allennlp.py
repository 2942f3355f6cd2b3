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
    characters = _CHARACTERS
    released_config = BiLMConfig()
    released_tokenizer = "penn"

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
        return make_mapping(_LAYOUT, self.config, self.prefix)

    def belongs_to_bilm(self, name: str) -> bool:
        return name.startswith(f"{self.prefix}_elmo_lstm.")

    def read_mixes(self) -> list[Mix]:
        settings = self.folder.pick("config.json").read_text("utf-8", "replace")
        has_layer_norm = bool(re.search(r'"do_layer_norm":\s*true', settings))
        mixes: list[Mix] = []
        while (gamma := f"{self.prefix}scalar_mix_{len(mixes)}.gamma") in self.tensors:
            stem = gamma.removesuffix("gamma") + "scalar_parameters."
            names = [gamma]
            while (scalar := f"{stem}{len(names) - 1}") in self.tensors:
                names.append(scalar)
            arrays = self.read_tensors(names)
            check_tensors(self.source, arrays, dict.fromkeys(names, (1,)))
            value, *scalars = (array.item() for array in arrays.values())
            mixes.append(Mix(tuple(scalars), value, has_layer_norm))
        return mixes

    @functools.cached_property
    def _file(self) -> pathlib.Path:
        choices = self.folder.named("weights.th"), self.folder.named("best.th")
        return self.folder.pick("weights.th or best.th", *choices)
