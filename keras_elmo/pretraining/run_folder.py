"""The folder of a run: its settings, vocabulary, checkpoint and log."""

import contextlib
import dataclasses
import json
import zipfile
from typing import Any

import keras
import numpy as np

from keras_elmo.config import BiLMConfig
from keras_elmo.formats.vocabulary import read_vocabulary, write_vocabulary
from keras_elmo.presets import TOKENIZER_FILE
from keras_elmo.pretraining.recipe import CHANGEABLE, Recipe
from keras_elmo.utils.checks import invalid
from keras_elmo.utils.file_lock import locked
from keras_elmo.utils.files import PathLike, atomic_write, local_path, read_object, write_json


class RunFolder:
    """Read and write the files of a run.

    The files are ``run.json`` (the sizes of the biLM, the recipe, and the origin: corpus, preset
    and backend), ``vocab.txt``, ``tokenizer.json`` if the tokenizer is known, ``checkpoint.npz``
    (the state of the run) and ``log.csv`` (one row per checkpoint).

    Args:
        path: str or path. The folder; it need not exist.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = local_path(path)
        self.checkpoint = self.path / "checkpoint.npz"
        self.settings = self.path / "run.json"
        self.log = self.path / "log.csv"

    @property
    def has_checkpoint(self) -> bool:
        """Return whether the folder contains a checkpoint."""
        return self.checkpoint.is_file()

    @property
    def has_settings(self) -> bool:
        """Return whether the folder contains settings; a run writes them before its first step."""
        return self.settings.is_file()

    def locked(self) -> contextlib.AbstractContextManager:
        """Make the folder and hold its lock, so that only one process trains in it.

        Raises:
            OSError: If another process trains there.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        return locked(self.path / "run.lock", f"trains {self.path}")

    def read_settings(self) -> tuple[BiLMConfig, Recipe, dict]:
        """Read the sizes of the biLM, the recipe and the origin of the run.

        Raises:
            FileNotFoundError: If the folder contains no run.
            ValueError: If ``run.json`` is invalid.
        """
        if not self.has_settings:
            raise FileNotFoundError(
                f"Expected a folder of keras-elmo pretrain. Received: {self.path}, without run.json"
            )
        content = read_object(self.settings, "Settings")
        try:
            config = BiLMConfig.from_options(content["options"], str(self.settings))
            return config, Recipe(**content["recipe"]), dict(content["origin"])
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"{self.settings} must contain the options, recipe and origin of a run. "
                f"Received: {error!r}"
            ) from None

    def write_settings(
        self,
        config: BiLMConfig,
        recipe: Recipe,
        origin: dict,
        vocabulary: list[str],
        tokenizer: dict | None = None,
    ) -> None:
        """Write the settings, the vocabulary and the tokenizer; the caller holds the lock."""
        write_vocabulary(self.path / "vocab.txt", vocabulary)
        (self.path / TOKENIZER_FILE).unlink(missing_ok=True)  # of a run that saved nothing
        if tokenizer is not None:
            write_json(self.path / TOKENIZER_FILE, tokenizer)
        sections = {
            "options": config.to_options(),
            "recipe": dataclasses.asdict(recipe),
            "origin": origin,
        }
        with atomic_write(self.settings) as temporary:
            write_json(temporary, sections)

    def read_vocabulary(self) -> list[str]:
        """Read the vocabulary of the run."""
        return read_vocabulary(self.path / "vocab.txt")

    def read_tokenizer(self) -> dict | None:
        """Read ``tokenizer.json``; None if the tokenizer is not known."""
        path = self.path / TOKENIZER_FILE
        return read_object(path, "Tokenizer file") if path.is_file() else None

    def save(self, variables: dict, facts: dict) -> None:
        """Write a checkpoint, which replaces the one before.

        Args:
            variables: dict. Lists of Keras variables by the name of their group.
            facts: dict. Anything that JSON can hold.
        """
        arrays: dict[str, Any] = {
            name: to_numpy(variable) for name, variable in _named(variables).items()
        }
        with atomic_write(self.checkpoint) as temporary, open(temporary, "wb") as file:
            np.savez(file, facts=np.array(json.dumps(facts)), **arrays)

    def load(self, variables: dict) -> dict:
        """Read some groups of variables from the checkpoint, and return its facts.

        Raises:
            FileNotFoundError: If there is no checkpoint.
            ValueError: If the checkpoint is damaged or does not fit the variables.
        """
        if not self.has_checkpoint:
            raise FileNotFoundError(
                "Expected a folder with a checkpoint of keras-elmo pretrain. "
                f"Received: {self.path}, without {self.checkpoint.name}"
            )
        named = _named(variables)
        try:
            with open(self.checkpoint, "rb") as opened, np.load(opened) as file:
                arrays = {name: file[name] for name in (*named, "facts")}
        except (zipfile.BadZipFile, EOFError, KeyError, ValueError) as error:
            expected = f"Expected a complete checkpoint of the run in {self.path}"
            raise invalid(expected, f"{self.checkpoint}, {error}", "Begin anew") from error
        for name, variable in named.items():
            if arrays[name].shape != tuple(variable.shape):
                raise invalid(
                    f"Expected a checkpoint of the run in {self.path}",
                    f"{self.checkpoint}, with the shape {arrays[name].shape} of {name}",
                    "Begin anew",
                )
            variable.assign(arrays[name])
        return json.loads(str(arrays["facts"]))

    def append_to_log(self, row: dict) -> None:
        """Append a row to the log, below a row of names."""
        lines = [row.values()] if self.log.exists() else [row, row.values()]
        with open(self.log, "a", encoding="utf-8") as file:
            for line in lines:
                file.write(",".join("" if x is None else str(x) for x in line) + "\n")

    def read_log(self, step: int) -> str:
        """Return the row of names and the rows up to a step. A killed run may have cut a row."""
        text = self.log.read_text("utf-8") if self.log.exists() else ""
        rows = (row for row in text.splitlines(keepends=True) if row.endswith("\n"))
        numbered = ((row.partition(",")[0], row) for row in rows)
        return "".join(row for n, row in numbered if not n.isdecimal() or int(n) <= step)

    def cut_log(self, step: int) -> None:
        """Remove the rows after a step, because the run continues from there."""
        rows = self.read_log(step)
        if rows:
            with atomic_write(self.log) as temporary:
                temporary.write_text(rows, "utf-8")
        else:
            self.log.unlink(missing_ok=True)

    def check_same(
        self, config: BiLMConfig | None, recipe: Recipe, origin: dict
    ) -> tuple[BiLMConfig, Recipe, dict]:
        """Return the settings of this run; check that only changeable settings differ from them.

        A ``config`` of None and entries that ``origin`` lacks are not compared.

        Raises:
            ValueError: If another setting differs.
        """
        stored_config, stored_recipe, stored_origin = stored = self.read_settings()
        before, after = dataclasses.asdict(stored_recipe), dataclasses.asdict(recipe)
        differing = [n for n in after if before[n] != after[n] and n not in CHANGEABLE]
        if config is not None:
            sizes = (field.name for field in dataclasses.fields(config))
            differing += [n for n in sizes if getattr(config, n) != getattr(stored_config, n)]
        differing += [name for name in origin if origin[name] != stored_origin.get(name)]
        if differing:
            raise invalid(
                "A resumed run expects the settings that it began with, except "
                + ", ".join(CHANGEABLE),
                f"for {self.path}, another value of {', '.join(differing)}",
            )
        return stored


def to_numpy(variable: Any) -> np.ndarray:
    """Return the value of a variable that is equal on all devices."""
    if keras.backend.backend() == "tensorflow":
        variable = keras.ops.copy(variable)  # TensorFlow keeps one value per device
    return keras.ops.convert_to_numpy(variable)


def _named(variables: dict) -> dict:
    """Give every variable a unique name.

    Its path would not do: Keras numbers optimizers and seed generators across the process.
    """
    return {
        f"{group}/{i:04}_{variable.name.replace('/', '.')}": variable
        for group, members in variables.items()
        for i, variable in enumerate(members)
    }
