"""ELMo for Keras 3: deep contextualized word representations (Peters et al., 2018).

A name of this package is imported at its first use, because importing Keras takes ten seconds and
a gigabyte of memory. ``Embedder`` computes with ONNX Runtime and without Keras.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from keras_elmo.utils.extras import import_keras

if TYPE_CHECKING:
    from keras_elmo.config import BiLMConfig
    from keras_elmo.embed.embedder import Embedder
    from keras_elmo.embed.layer_dataset import LayerDataset
    from keras_elmo.layers import CRF, BiLM, ElmoLayer, ScalarMix
    from keras_elmo.tokenizers.characters import CharacterTokenizer, CodePointTokenizer
    from keras_elmo.tokenizers.words import WordTokenizer

__version__ = "0.2.0"

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

_WITHOUT_KERAS = {"BiLMConfig": "config", "Embedder": "embed.embedder"}
_WITH_KERAS = {
    "BiLM": "layers",
    "CRF": "layers",
    "CharacterTokenizer": "tokenizers.characters",
    "CodePointTokenizer": "tokenizers.characters",
    "ElmoLayer": "layers",
    "LayerDataset": "embed.layer_dataset",
    "ScalarMix": "layers",
    "WordTokenizer": "tokenizers.words",
}


def __getattr__(name: str) -> Any:
    """Import a public name, which Python does not find in the module before its first use."""
    if name in _WITH_KERAS:
        import_keras()
    elif name not in _WITHOUT_KERAS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = (_WITHOUT_KERAS | _WITH_KERAS)[name]
    value = getattr(importlib.import_module(f"keras_elmo.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# Keras loads a saved model only if the classes of its layers are imported.
if "keras" in sys.modules:
    for _name in _WITH_KERAS:
        __getattr__(_name)
