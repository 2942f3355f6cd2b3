"""The settings of a run: which of the places where they can stand wins."""

import dataclasses
import json
import types

import pytest

from keras_elmo.config import BiLMConfig
from keras_elmo.presets import Preset
from keras_elmo.pretraining import settings as run_settings
from keras_elmo.pretraining.recipe import Recipe
from keras_elmo.pretraining.run_folder import RunFolder
from keras_elmo.pretraining.settings import SIZES
from tests.conftest import make_config

VOCABULARY = ["<S>", "</S>", "<UNK>", "a"]
ORIGIN = {
    **{"corpus": "0", "init_from": None, "own_vocabulary": False},
    "backend": "tensorflow",
}


def merge_settings(folder, **arguments):
    return types.SimpleNamespace(**run_settings.merge_settings(folder, **arguments))


@pytest.fixture
def begin(tmp_path):
    """Returns a function that makes the folder of a run which has a checkpoint."""

    def make(config=None, recipe=None, **origin):
        run = RunFolder(tmp_path / "run")
        recipe = recipe or Recipe(steps=70, learning_rate=0.7, seed=7)
        with run.locked():
            run.write_settings(config or make_config(), recipe, ORIGIN | origin, VOCABULARY)
        run.save({}, {"step": 7})
        return tmp_path / "run"

    return make


@pytest.fixture
def write(tmp_path):
    """Returns a function that writes a file of settings."""

    def make(**content):
        (tmp_path / "settings.json").write_text(json.dumps(content))
        return tmp_path / "settings.json"

    return make


def test_defaults(tmp_path):
    settings = merge_settings(tmp_path / "run")
    assert settings.config == BiLMConfig() and settings.recipe == Recipe()
    assert (settings.init_from, settings.own_vocabulary) == (None, False)
    assert not (tmp_path / "run").exists()


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
    assert SIZES["mini"] == Preset("elmo_mini_en").read_config()


def test_what_is_given_wins_over_the_file(tmp_path, write):
    options = make_config(lstm_dim=12).to_options()
    file = write(options=options, recipe={"steps": 50, "warmup": 5, "seed": 5})
    settings = merge_settings(
        tmp_path / "run",
        sizes={"projection_dim": 8},
        recipe={"steps": 40},
        file=file,
    )
    assert settings.config == make_config(lstm_dim=12, projection_dim=8)
    assert settings.recipe == Recipe(steps=40, warmup=5, seed=5)
    assert merge_settings(tmp_path / "run", size="small", file=file).config == SIZES["small"]
    of_size = merge_settings(tmp_path / "run", sizes={"n_highway": 2}, size="mini")
    assert of_size.config == dataclasses.replace(SIZES["mini"], n_highway=2)
    no_size = merge_settings(tmp_path / "run", sizes={"n_highway": 1})
    assert no_size.config == BiLMConfig(n_highway=1)


def test_a_run_keeps_its_settings_when_it_is_resumed(begin, write):
    folder = begin(init_from="elmo_mini_en", own_vocabulary=True)
    settings = merge_settings(folder, resume=True)
    assert settings.config == make_config()
    assert settings.recipe == Recipe(steps=70, learning_rate=0.7, seed=7)
    assert (settings.init_from, settings.own_vocabulary) == ("elmo_mini_en", True)
    # The file wins over them, and what is given over both; a check of the run comes later.
    file = write(recipe={"learning_rate": 0.6, "seed": 6})
    settings = merge_settings(folder, recipe={"learning_rate": 0.5}, file=file, resume=True)
    assert settings.recipe == Recipe(steps=70, learning_rate=0.5, seed=6)
    settings = merge_settings(folder, sizes={"lstm_dim": 600}, size="mini", resume=True)
    assert settings.config == dataclasses.replace(SIZES["mini"], lstm_dim=600)
    # Killed before its first checkpoint it is the same run.
    (folder / "checkpoint.npz").unlink()
    assert merge_settings(folder, resume=True).recipe == Recipe(steps=70, learning_rate=0.7, seed=7)
    # Only to resume.
    assert merge_settings(folder).recipe == Recipe()
    assert merge_settings(folder.parent / "new", resume=True).recipe == Recipe()


def test_steps_and_epochs_take_each_others_place(begin, write, tmp_path):
    folder = begin()
    epochs = merge_settings(folder, recipe={"epochs": 2.0}, resume=True).recipe
    assert epochs == Recipe(epochs=2.0, learning_rate=0.7, seed=7)
    file = write(recipe={"steps": 50, "epochs": None, "seed": 5})  # as a run keeps it
    assert merge_settings(tmp_path, file=file).recipe == Recipe(steps=50, seed=5)
    assert merge_settings(tmp_path, file=file, recipe={"epochs": 3}).recipe == Recipe(
        epochs=3, seed=5
    )
    folder = begin(recipe=Recipe(epochs=2.0))
    assert merge_settings(folder, resume=True).recipe == Recipe(epochs=2.0)
    assert merge_settings(folder, file=file, resume=True).recipe == Recipe(steps=50, seed=5)
    assert merge_settings(folder, recipe={"steps": 9}, resume=True).recipe == Recipe(steps=9)


def test_sizes_of_a_preset_to_start_from(tmp_path):
    mini = Preset("elmo_mini_en").read_config()
    settings = merge_settings(tmp_path / "run", init_from="elmo_mini_en")
    assert settings.config is None and settings.init_from == "elmo_mini_en"
    grown = merge_settings(tmp_path / "run", init_from="elmo_mini_en", sizes={"lstm_dim": 700})
    assert grown.config == dataclasses.replace(mini, lstm_dim=700)
    named = merge_settings(
        tmp_path / "run", init_from="elmo_mini_en", size="small", own_vocabulary=True
    )
    assert named.config == SIZES["small"] and named.own_vocabulary


@pytest.mark.parametrize(
    "arguments, content, message",
    [
        ({"size": "tiny"}, None, "Expected a size of mini, .* Received: size='tiny'"),
        ({"recipe": {"rate": 1}}, None, "A recipe has the settings steps, .* Received: rate"),
        ({}, {"recipe": {"rate": 1}}, "A recipe has the settings steps, .* Received: rate"),
        ({}, {"lstm": {}}, "Expected settings as .* Received: lstm in .*settings.json"),
        ({}, {"recipe": [1]}, "Expected settings as .* Received: recipe in .*settings.json"),
        ({}, {"options": {}}, "settings.json"),
        ({"own_vocabulary": True}, None, "requires init_from. Received: init_from=None"),
        ({"init_from": "x", "sizes": {"lstm_dim": 8}}, None, "from_preset expects .*preset='x'"),
        ({"recipe": {"steps": 1, "epochs": 1}}, None, "steps or epochs, not both"),
        ({"sizes": {"lstm_dim": 0}}, None, "lstm_dim to be a whole number, 1 or more"),
    ],
)
def test_errors(tmp_path, write, arguments, content, message):
    if content is not None:
        arguments = {**arguments, "file": write(**content)}
    with pytest.raises(ValueError, match=message):
        merge_settings(tmp_path / "run", **arguments)


def test_the_settings_of_a_run_are_a_file_of_settings(begin, tmp_path):
    file = begin() / "run.json"
    assert merge_settings(tmp_path / "new", file=file).recipe == Recipe(
        steps=70, learning_rate=0.7, seed=7
    )
    file.write_text("[]")
    with pytest.raises(ValueError, match="run.json must contain a JSON object. Received: list"):
        merge_settings(file.parent, resume=True)


def test_a_log_that_was_cut_anywhere(tmp_path):
    run = RunFolder(tmp_path)
    for step in (4, 8, 12):
        run.append_to_log({"step": step, "loss": 0.5, "perplexity": None})
    log = tmp_path / "log.csv"
    log.write_text(log.read_text() + "16,0")
    run.cut_log(8)
    assert log.read_text().splitlines() == ["step,loss,perplexity", "4,0.5,", "8,0.5,"]
    log.write_text("step,lo")
    run.cut_log(0)
    assert not log.exists()
