"""Turn sentences into layer representations, as NumPy arrays or as a file."""

from keras_elmo.embed.embedder import Embedder
from keras_elmo.embed.layer_dataset import LayerDataset

__all__ = ["Embedder", "LayerDataset"]
