"""Sentences to layer representations, as NumPy or as a file."""

from keras_elmo.embedding.embedder import Embedder
from keras_elmo.embedding.layer_dataset import LayerDataset

__all__ = ["Embedder", "LayerDataset"]
