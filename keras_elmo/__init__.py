"""ELMo for Keras 3: deep contextualized word representations (Peters et al., 2018)."""

import importlib
import importlib.abc
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keras_elmo.config import BiLMConfig
    from keras_elmo.embedding.embedder import Embedder
    from keras_elmo.embedding.layer_dataset import LayerDataset
    from keras_elmo.layers.bilm import BiLM
    from keras_elmo.layers.crf import CRF
    from keras_elmo.layers.elmo_layer import ElmoLayer
    from keras_elmo.layers.scalar_mix import ScalarMix
    from keras_elmo.tokenizer import CharacterTokenizer, CodePointTokenizer
    from keras_elmo.words import WordTokenizer

__version__ = "0.1.0"

__all__ = [
    "BiLM",
    "BiLMConfig",
    "CRF",
    "CharacterTokenizer",
    "CodePointTokenizer",
    "ElmoLayer",
    "Embedder",
    "LayerDataset",
    "ScalarMix",
    "WordTokenizer",
]

# Keras and its backend take seconds to import, and not all that the package does needs them.
_MODULE_OF = {
    "BiLM": "keras_elmo.layers.bilm",
    "BiLMConfig": "keras_elmo.config",
    "CRF": "keras_elmo.layers.crf",
    "CharacterTokenizer": "keras_elmo.tokenizer",
    "CodePointTokenizer": "keras_elmo.tokenizer",
    "ElmoLayer": "keras_elmo.layers.elmo_layer",
    "Embedder": "keras_elmo.embedding.embedder",
    "LayerDataset": "keras_elmo.embedding.layer_dataset",
    "ScalarMix": "keras_elmo.layers.scalar_mix",
    "WordTokenizer": "keras_elmo.words",
}


def __getattr__(name):
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'keras_elmo' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__():
    return sorted({*globals(), *__all__})


def _register_layers():
    """Make the layers known to Keras, so that saved models that hold them load."""
    for name in ("keras_elmo.tokenizer", "keras_elmo.layers"):
        importlib.import_module(name)


class _OnceKerasIsThere(importlib.abc.MetaPathFinder):
    """Register the layers right behind the import of Keras, whoever asks for it."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname != "keras":
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next(filter(None, specs), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module):
                execute(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                _register_layers()

            spec.loader.exec_module = execute_and_register
        return spec


if "keras" in sys.modules:
    _register_layers()
else:
    sys.meta_path.insert(0, _OnceKerasIsThere())
