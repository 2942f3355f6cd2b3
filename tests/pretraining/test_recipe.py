"""Recipes: the values that they refuse, the named sizes, and the schedule of the learning rate."""

import dataclasses
import json

import numpy as np
import pytest

from keras_elmo.presets import open_preset
from keras_elmo.pretraining.optimizers import Schedule
from keras_elmo.recipe import SIZES, Recipe
from tests.conftest import numpy


@pytest.mark.parametrize(
    "shape, falling",
    [("linear", np.linspace(1, 0, 51)), ("1-sqrt", 1 - np.sqrt(np.linspace(0, 1, 51)))],
)
def test_schedule(shape, falling):
    recipe = Recipe(steps=100, warmup=10, decay=0.5, decay_shape=shape, learning_rate=2.0)
    schedule = Schedule(recipe)
    rates = [float(numpy(schedule(step))) for step in range(101)]
    np.testing.assert_allclose(rates[:10], np.arange(1, 11) / 5, rtol=1e-6)
    np.testing.assert_allclose(rates[10:51], 2.0)
    np.testing.assert_allclose(rates[50:], 2 * falling, atol=1e-6)
    constant = Schedule(Recipe(warmup=0, decay=0.0, learning_rate=0.5, steps=9))
    assert [float(numpy(constant(step))) for step in (0, 8)] == [0.5, 0.5]


def test_defaults():
    recipe = Recipe()
    assert (recipe.steps, recipe.epochs) == (30_000, None)
    assert Recipe(epochs=2.5).steps is None
    assert Recipe(**json.loads(json.dumps(dataclasses.asdict(Recipe(epochs=1))))) == Recipe(
        epochs=1
    )


def test_named_sizes():
    sizes = {
        name: (config.lstm_dim, config.projection_dim, config.n_filters, config.n_highway)
        for name, config in SIZES.items()
    }
    assert sizes == {
        "mini": (512, 128, 512, 1),
        "small": (1024, 256, 768, 1),
        "medium": (2048, 256, 1024, 1),
        "original": (4096, 512, 2048, 2),
    }
    assert SIZES["mini"] == open_preset("elmo_mini_en").config


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"steps": 0}, "Recipe expects steps to be whole, 1 or more, or None. Received: steps=0"),
        ({"warmup": -1}, "warmup to be whole, 0 or more. Received: warmup=-1"),
        ({"max_tokens": None}, "max_tokens to be whole, 1 or more. Received: max_tokens=None"),
        ({"learning_rate": float("nan")}, "learning_rate to be more than 0. .*=nan"),
        ({"decay": 1.5}, "decay to be from 0 to 1. Received: decay=1.5"),
        ({"dropout": 1}, "dropout to be 0 or more and below 1. Received: dropout=1"),
        ({"negatives": -1}, "negatives to be whole, 0 or more, or None. Received: negatives=-1"),
        ({"seed": 2**32}, r"seed to be whole, from 0 to 2\*\*32 - 1. Received: seed=4294967296"),
        ({"epochs": 0}, "epochs to be more than 0, or None. Received: epochs=0"),
        ({"epochs": 1, "steps": 9}, "steps or epochs, not both. Received: steps=9, epochs=1"),
        ({"frozen_bilm": 1}, "frozen_bilm to be True or False. Received: frozen_bilm=1"),
        ({"precision": "float16"}, "precision to be float32 or bfloat16. .*precision='float16'"),
        ({"optimizer": "sgd"}, "optimizer to be adam or muon. Received: optimizer='sgd'"),
        ({"decay_shape": []}, r"decay_shape to be linear or 1-sqrt. .*decay_shape=\[\]"),
    ],
)
def test_recipe_errors(changes, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**changes)
