"""Pretraining: raw text to a biLM."""

from keras_elmo.pretraining.language_model import BiLanguageModel
from keras_elmo.pretraining.language_model_files import read_language_model, write_language_model
from keras_elmo.pretraining.recipe import Recipe
from keras_elmo.pretraining.scores import Scorer
from keras_elmo.pretraining.train import Pretraining, read_run

__all__ = [
    "BiLanguageModel",
    "Pretraining",
    "Recipe",
    "Scorer",
    "read_language_model",
    "read_run",
    "write_language_model",
]
