"""AllenNLP's archives: the biLM and the scalar mixes inside a trained model."""

import functools
import re

from keras_elmo.formats.base import Mix, Source
from keras_elmo.formats.bilm_files import BiLMFile
from keras_elmo.formats.hdf5 import misfit_error, misfits
from keras_elmo.formats.torch_file import read_tensors
from keras_elmo.formats.torch_table import (
    TorchNames,
    infer_sizes,
    read_torch_bilm,
    torch_rows,
)
from keras_elmo.utils.files import read_options

_FIRST = "_elmo_lstm._token_embedder._char_embedding_weights"
_MIX = re.compile(r"scalar_mix_(\d+)\.(gamma|scalar_parameters\.(\d+))")


class AllenNlpArchive(Source):
    """``model.tar.gz`` of AllenNLP, or the folder of a training: ``config.json``, ``weights.th``.

    The options of the biLM are mostly not in it: only in archives of old, below ``fta/``.
    """

    kind = "AllenNLP archive"

    @classmethod
    def recognises(cls, files):
        return bool(files.ending(".th") and files.named("config.json"))

    def read_options(self):
        archived = [n for n in self.files.names if n.endswith("options_file") and "fta/" in n]
        if self.given_options is not None or not archived:
            return super().read_options()
        return self.options_of(self.files.pick("fta/*options_file", archived))

    def infer_config(self):
        sizes = infer_sizes(self._names, self._tensors)
        if sizes is None:
            raise misfit_error(
                f"PyTorch file {self._origin}",
                ["the tensors of a character CNN and of LSTMs are not all there"],
            )
        return self.make_config(self._origin, **sizes)

    def read(self) -> BiLMFile:
        config = self.read_config()
        rows = torch_rows(config, self._names)
        parts = tuple(
            self._prefix + part
            for part in ("_elmo_lstm._token_embedder.", "_elmo_lstm._elmo_lstm.")
        )
        arrays = {name: x for name, x in self._tensors.items() if name.startswith(parts)}
        return read_torch_bilm(config, rows, arrays, self._origin)

    def read_mixes(self):
        kept: dict[int, dict] = {}
        for name in self._mix_names():
            number, leaf, layer = _MIX.fullmatch(name.removeprefix(self._prefix)).groups()
            kept.setdefault(int(number), {})[-1 if layer is None else int(layer)] = name
        mixes = []
        for number, names in sorted(kept.items()):
            names = [names[i] for i in sorted(names)]
            gamma, *scalars = names
            arrays = {name: self._tensors[name] for name in names}
            problems = misfits(dict.fromkeys(names, (1,)), arrays)
            problems += misfits({}, arrays, values_only=True)
            if not gamma.endswith("gamma") or number != len(mixes):
                problems.append(f"a part of scalar_mix_{len(mixes)} is missing")
            if problems:
                raise misfit_error(f"PyTorch file {self._origin}", problems, "scalar mixes")
            mixes.append(
                Mix(
                    tuple(float(arrays[name][0]) for name in scalars),
                    float(arrays[gamma][0]),
                    self._has_layer_norm,
                )
            )
        return mixes

    def tensors(self):
        used = [*torch_rows(self.read_config(), self._names), *self._mix_names()]
        used = {n if isinstance(n, str) else n.sources[0] for n in used}
        return sorted(used), sorted(name for name in self._tensors if name not in used)

    @functools.cached_property
    def _tensors(self):
        return read_tensors(self.files, self._file)

    @functools.cached_property
    def _file(self):
        return self.files.pick(
            "weights.th or best.th", self.files.named("weights.th"), self.files.named("best.th")
        )

    @property
    def _origin(self):
        return self.files.origin(self._file)

    @functools.cached_property
    def _settings(self):
        """What ``config.json`` says, as a text: of whatever model, at whatever depth."""
        name = self.files.pick("config.json", self.files.named("config.json"))
        origin = self.files.origin(name)
        return read_options(self.files.file(name, 1 << 24), origin, "Configuration")

    @property
    def _has_layer_norm(self):
        return any(objects.get("do_layer_norm") is True for objects in _objects(self._settings))

    @functools.cached_property
    def _prefix(self):
        """Return what stands in front of the tensors of the one ELMo."""
        found = [name for name in self._tensors if name.endswith(_FIRST)]
        if len(found) == 1:
            return found[0].removesuffix(_FIRST)
        if found:
            raise ValueError(
                f"AllenNLP archive {self.files.path} must hold one biLM. Received: {sorted(found)}"
            )
        types = sorted({str(x["type"]) for x in _objects(self._settings) if "type" in x})
        raise ValueError(
            f"AllenNLP archive {self.files.path} must hold a biLM of bilm-tf's kind, as 'elmo' and "
            f"'elmo_token_embedder' have. Received: parts of the types {types[:20]}, and no tensor "
            f"*{_FIRST} in {self._file}. Transformers, and language models that AllenNLP trained "
            "itself, are other models"
        )

    @functools.cached_property
    def _names(self):
        embedder = self._prefix + "_elmo_lstm._token_embedder"
        return TorchNames(
            characters=f"{embedder}._char_embedding_weights",
            convolution=f"{embedder}.char_conv_{{}}",
            highway=f"{embedder}._highways._layers.{{}}",
            projection=f"{embedder}._projection",
            lstms=f"{self._prefix}_elmo_lstm._elmo_lstm.",
        )

    def _mix_names(self):
        prefix = self._prefix
        return [
            name
            for name in self._tensors
            if name.startswith(prefix) and _MIX.fullmatch(name.removeprefix(prefix))
        ]


def _objects(value):
    """Yield all objects of a JSON, at whatever depth."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _objects(inner)
