"""The folder of a run: its settings, vocabulary, checkpoint and log."""

import contextlib
import csv
import dataclasses
import json
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_elmo.config import BiLMConfig
from keras_elmo.formats.vocabulary import write_vocabulary
from keras_elmo.presets import TOKENIZER_FILE
from keras_elmo.recipe import Recipe
from keras_elmo.utils.files import (
    PathLike,
    atomic_write,
    library_errors,
    local_path,
    locked,
    read_options,
    write_files,
    write_json,
)

# A new run begins in a folder without these files of a run or a preset.
FILES = ("run.json", "vocab.txt", TOKENIZER_FILE, "checkpoint.npz", "log.csv", "options.json")


class RunFolder:
    """Read and write the files of a run.

    The files are ``run.json`` (the sizes of the biLM, the recipe, and the origin: corpus, preset
    and backend), ``vocab.txt``, ``tokenizer.json`` if the tokenizer is known, ``checkpoint.npz``
    (the state and the log of the run) and ``log.csv`` (the log, one row per checkpoint).

    Args:
        path: str or path. The folder; it need not exist.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = local_path(path)
        self.settings = self.path / "run.json"
        self.vocabulary = self.path / "vocab.txt"
        self.checkpoint = self.path / "checkpoint.npz"
        self.log = self.path / "log.csv"

    def locked(self) -> contextlib.AbstractContextManager:
        """Make the folder, and lock it. Raises an ``OSError`` if another process trains there."""
        self.path.mkdir(parents=True, exist_ok=True)
        return locked(self.path / "run.lock", f"trains {self.path}")

    def read_settings(self) -> tuple[BiLMConfig, Recipe, dict]:
        """Read the sizes of the biLM, the recipe and the origin of the run.

        Raises:
            FileNotFoundError: If the folder contains no run.
        """
        content = read_options(self.settings, "Run of keras-elmo pretrain")
        config = BiLMConfig.from_options(content["options"], str(self.settings))
        return config, Recipe(**content["recipe"]), content["origin"]

    def write_settings(
        self,
        config: BiLMConfig,
        recipe: Recipe,
        origin: dict,
        vocabulary: list[str],
        tokenizer: str | None = None,
    ) -> None:
        """Write the settings, the vocabulary and the tokenizer; the caller holds the lock."""
        sections = {
            "options": config.to_options(),
            "recipe": dataclasses.asdict(recipe),
            "origin": origin,
        }
        writers: dict[str, Callable] = {
            self.vocabulary.name: lambda path: write_vocabulary(path, vocabulary),
            self.settings.name: lambda path: write_json(path, sections),
        }
        if tokenizer is not None:
            writers[TOKENIZER_FILE] = lambda path: write_json(path, {"name": tokenizer})
        write_files(self.path, writers)

    def save(self, variables: dict, facts: dict) -> None:
        """Write the log and a checkpoint, which replace those before.

        Args:
            variables: dict. Lists of Keras variables by the name of their group.
            facts: dict. Anything that JSON can hold. ``log`` is a list of rows, each a dict.
        """
        write_log(self.log, facts["log"])
        arrays: dict[str, Any] = {name: to_numpy(x) for name, x in _named(variables).items()}
        with atomic_write(self.checkpoint) as temporary, temporary.open("wb") as opened:
            np.savez(opened, facts=np.array(json.dumps(facts)), **arrays)

    def load(self, variables: dict) -> dict:
        """Read some groups of variables from the checkpoint, and return its facts.

        Raises:
            OSError: If the checkpoint is missing or damaged, or does not fit the variables.
        """
        problem = f"Expected a complete checkpoint of a run: {self.checkpoint}"
        with library_errors(problem, "Begin anew"), self.checkpoint.open("rb") as opened:
            arrays = np.load(opened)
            for name, variable in _named(variables).items():
                variable.assign(arrays[name])
            return json.loads(str(arrays["facts"]))


def write_log(path: PathLike, rows: list[dict]) -> None:
    """Write a log as CSV, one row per checkpoint."""
    with atomic_write(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def to_numpy(variable: Any) -> np.ndarray:
    """Return the value of a variable that is equal on all devices."""
    # Copy: on several devices, TensorFlow has a value for each.
    return keras.ops.convert_to_numpy(keras.ops.copy(variable))


def _named(variables: dict) -> dict:
    """Give every variable a unique name.

    Its path would not do: Keras numbers optimizers and seed generators across the process.
    """
    return {
        f"{group}/{i:04}_{variable.name.replace('/', '.')}": variable
        for group, members in variables.items()
        for i, variable in enumerate(members)
    }
