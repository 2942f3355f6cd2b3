"""ELMo for Keras 3: deep contextualized word representations (Peters et al., 2018)."""

from keras_elmo.utils.quiet import import_keras, is_command

if not is_command():  # the command parses its arguments before it imports Keras
    import_keras()

    from keras_elmo.config import BiLMConfig
    from keras_elmo.embed import Embedder, LayerDataset
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
