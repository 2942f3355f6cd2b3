"""The Keras layers of the package."""

from keras_elmo.layers.bilm import BiLM
from keras_elmo.layers.char_cnn import CharCNN
from keras_elmo.layers.crf import CRF
from keras_elmo.layers.elmo_layer import ElmoLayer
from keras_elmo.layers.lstm import ProjectedLSTM
from keras_elmo.layers.scalar_mix import ScalarMix

__all__ = [
    "BiLM",
    "CRF",
    "CharCNN",
    "ElmoLayer",
    "ProjectedLSTM",
    "ScalarMix",
]
