"""ELMo for Keras 3: deep contextualized word representations (Peters et al., 2018)."""

from keras_elmo.characters import CharacterTokenizer
from keras_elmo.config import BiLMConfig
from keras_elmo.embedding.embedder import Embedder
from keras_elmo.embedding.layer_dataset import LayerDataset
from keras_elmo.layers.bilm import BiLM
from keras_elmo.layers.crf import CRF
from keras_elmo.layers.elmo_layer import ElmoLayer
from keras_elmo.layers.scalar_mix import ScalarMix

__version__ = "0.1.0"

__all__ = [
    "BiLM",
    "BiLMConfig",
    "CRF",
    "CharacterTokenizer",
    "ElmoLayer",
    "Embedder",
    "LayerDataset",
    "ScalarMix",
]
