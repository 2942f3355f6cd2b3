"""AllenNLP's archives: a trained model that contains a biLM and its scalar mixes."""

import functools
import itertools
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_elmo.config import BiLMConfig
from keras_elmo.formats.base import Format, Mix
from keras_elmo.formats.checks import check_tensors
from keras_elmo.formats.folder import Folder, PresetFile
from keras_elmo.formats.torch_weights import read_tensors, torch_layout
from keras_elmo.formats.weight_mapping import AS_IS, WeightMapping, infer_fields, make_mapping
from keras_elmo.utils.files import read_options

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

    Only old archives contain the options of the biLM, in ``fta/``.
    """

    name = "AllenNLP archive"
    tokenizer = "penn"

    @classmethod
    def recognises(cls, folder: Folder) -> bool:
        return bool(folder.ending(".th") and folder.named("config.json"))

    def options_file(self) -> PresetFile | None:
        names = [n for n in self.folder.names if n.endswith("options_file") and "fta/" in n]
        return self.folder.pick("fta/*options_file", names) if names else super().options_file()

    @property
    def source(self) -> str:
        return f"PyTorch file {self._file}"

    @functools.cached_property
    def tensors(self) -> dict[str, np.ndarray]:
        return read_tensors(self._file)

    def infer_config(self) -> BiLMConfig:
        shapes = {
            name.removeprefix(self._prefix): x.shape
            for name, x in self.tensors.items()
            if name.startswith(self._prefix)
        }
        return self.config_of(**infer_fields(_LAYOUT, shapes, self.source))

    def mapping(self) -> WeightMapping:
        return make_mapping(_LAYOUT, self.config, self._prefix)

    def belongs_to_bilm(self, name: str) -> bool:
        return name.startswith(f"{self._prefix}_elmo_lstm.")

    def more_names(self) -> set[str]:
        mix = re.compile(r"scalar_mix_\d+\.(gamma|scalar_parameters\.\d+)")
        return {n for n in self.tensors if mix.fullmatch(n.removeprefix(self._prefix))}

    def read_mixes(self) -> list[Mix]:
        arrays = self.read_tensors(self.more_names())
        check_tensors(self.source, arrays, dict.fromkeys(arrays, (1,)), fits="scalar mixes")
        has_layer_norm = any(x.get("do_layer_norm") is True for x in _objects(self._settings))
        mixes: list[Mix] = []
        while (gamma := f"{self._prefix}scalar_mix_{len(mixes)}.gamma") in arrays:
            stem = gamma.removesuffix("gamma") + "scalar_parameters."
            names = (f"{stem}{j}" for j in itertools.count())
            found = itertools.takewhile(arrays.__contains__, names)
            scalars = tuple(arrays[name].item() for name in found)
            mixes.append(Mix(scalars, arrays[gamma].item(), has_layer_norm))
        return mixes

    @functools.cached_property
    def _file(self) -> PresetFile:
        choices = self.folder.named("weights.th"), self.folder.named("best.th")
        return self.folder.pick("weights.th or best.th", *choices)

    @functools.cached_property
    def _settings(self) -> Any:
        """The content of ``config.json``. It can describe any model."""
        return read_options(self.folder.pick("config.json"), "Configuration")

    @functools.cached_property
    def _prefix(self) -> str:
        """The prefix of the names of the biLM's tensors."""
        found = [name for name in self.tensors if name.endswith(_CHARACTERS)]
        if len(found) == 1:
            return found[0].removesuffix(_CHARACTERS)
        if found:
            raise ValueError(
                f"AllenNLP archive {self.folder.path} must contain one biLM. "
                f"Received: {sorted(found)}"
            )
        types = sorted({str(x["type"]) for x in _objects(self._settings) if "type" in x})
        raise ValueError(
            f"AllenNLP archive {self.folder.path} must contain a biLM of bilm-tf's kind, as "
            "'elmo' and 'elmo_token_embedder' do. "
            f"Received: parts of the types {types[:20]}, and no tensor *{_CHARACTERS} in "
            f"{self._file.name}. Transformers, and language models trained by AllenNLP itself, are "
            "other models"
        )


def _objects(value: Any) -> Iterator[dict]:
    """Yield all objects in a JSON value, at any depth."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _objects(inner)
