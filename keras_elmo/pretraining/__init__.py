"""Pretraining: raw text to a biLM."""

from keras_elmo.utils.extras import import_keras

import_keras()

from keras_elmo.prepare import prepare
from keras_elmo.pretraining.export import export_run
from keras_elmo.pretraining.language_model import BiLanguageModel
from keras_elmo.pretraining.language_model_files import (
    read_language_model,
    tokenizer_of,
    write_language_model,
)
from keras_elmo.pretraining.scores import Scorer
from keras_elmo.pretraining.train import Pretraining, read_run
from keras_elmo.recipe import SIZES, Recipe

__all__ = [
    "SIZES",
    "BiLanguageModel",
    "Pretraining",
    "Recipe",
    "Scorer",
    "export_run",
    "prepare",
    "read_language_model",
    "read_run",
    "tokenizer_of",
    "write_language_model",
]
