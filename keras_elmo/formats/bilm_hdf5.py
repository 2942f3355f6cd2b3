"""bilm-tf's layout: an options and an hdf5 file, by any of their usual names."""

from keras_elmo.formats.base import Mix, SoftmaxFile, Source
from keras_elmo.formats.bilm_files import BiLMFile, largest_weight_file, read_weights
from keras_elmo.formats.files import base
from keras_elmo.formats.hdf5 import open_hdf5, read_arrays
from keras_elmo.formats.tensorflow import BilmTfCheckpoint
from keras_elmo.utils.files import read_options

_WEIGHTS = "*weights.hdf5, model.hdf5, any other *.hdf5 but softmax.hdf5, or weights_file"
_LARGEST_MIXES = 1 << 20


class BilmHdf5(Source):
    """The files of bilm-tf's ``dump_weights``, of AllenNLP's releases, and of our own presets.

    The biLM is in one options file, named ``*options.json`` or ``options_file``, and one weight
    file: the one ``*weights.hdf5``, else ``model.hdf5``, else the only ``*.hdf5`` beside
    ``softmax.hdf5``, else ``weights_file``. A softmax is in ``softmax.hdf5``, or in a
    checkpoint that lies beside, with ``vocab.txt``; scalar mixes are in ``scalar_mix.json``.
    """

    kind = "bilm-tf hdf5"

    @classmethod
    def recognises(cls, files):
        return files.prefix is None and bool(_hdf5(files) or files.named("weights_file"))

    def read(self) -> BiLMFile:
        config = self.read_config()
        name = self._weights()
        file = self.files.file(name, largest_weight_file(config))
        return read_weights(config, file, self.files.origin(name), self.read_options()[1])

    def read_mixes(self):
        names = self.files.named("scalar_mix.json")
        if not names:
            return []
        origin = self.files.origin(self.files.pick("scalar_mix.json", names))
        kept = read_options(self.files.file(names[0], _LARGEST_MIXES), origin, "Scalar mixes")
        try:
            mixes = [
                Mix(tuple(map(float, m["scalars"])), float(m["gamma"]), bool(m["layer_norm"]))
                for m in kept
            ]
        except (TypeError, ValueError, KeyError, OverflowError) as error:
            raise ValueError(
                f"Scalar mixes {origin} must be a list of objects with scalars, gamma and "
                f"layer_norm. Received: {error!r:.200}"
            ) from None
        return mixes

    def read_softmax(self):
        beside = self.files.named("softmax.hdf5")
        if not beside and self.files.ending(".index"):
            return BilmTfCheckpoint(self.files, self.given_options).read_softmax()
        vocabulary, origin = self.read_vocabulary()
        if not beside or vocabulary is None:
            return None
        name = self.files.pick("softmax.hdf5", beside)
        size, width = len(vocabulary), self.read_config().projection_dim
        arrays = read_arrays(
            self.files.file(name, 16 * (size + 64) * (width + 64)),
            self.files.origin(name),
            expected={"softmax/W": (size, width), "softmax/b": (size,)},
            kind="Softmax file",
            fits="the options and vocabulary",
            advice="Do options.json, vocab.txt and softmax.hdf5 belong together?",
        )
        return SoftmaxFile(vocabulary, arrays, origin)

    def tensors(self):
        name = self._weights()
        file = self.files.file(name, largest_weight_file(self.read_config()))
        with open_hdf5(file, self.files.origin(name)) as opened:
            used = opened.walk()
        left = []
        if not self.files.named("softmax.hdf5") and self.files.ending(".index"):
            used_too, left = BilmTfCheckpoint(self.files, self.given_options).softmax_tensors()
            used = used + used_too
        return used, left

    def _weights(self):
        hdf5 = _hdf5(self.files)
        return self.files.pick(
            _WEIGHTS,
            [n for n in hdf5 if n.endswith("weights.hdf5")],
            [n for n in hdf5 if base(n) == "model.hdf5"],
            hdf5,
            self.files.named("weights_file"),
        )


def _hdf5(files):
    return [n for n in files.ending(".hdf5") if base(n) != "softmax.hdf5"]
