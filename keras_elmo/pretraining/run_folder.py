"""The folder of a run: its settings, vocabulary, checkpoint and log."""

import csv
import dataclasses
import json
import pathlib

from keras_elmo.config import BiLMConfig
from keras_elmo.pretraining.checkpoint import CheckpointWriter, load_checkpoint
from keras_elmo.pretraining.recipe import CHANGEABLE, Recipe
from keras_elmo.pretraining.vocabulary import read_vocabulary, write_vocabulary
from keras_elmo.utils.file_lock import locked
from keras_elmo.utils.files import atomic_write, read_options

_SETTINGS = ("options", "recipe", "origin")
# What the recipes of earlier runs do not tell, and what it was.
_LATER = {"frozen_bilm": False}
# What origin.json tells.
ORIGIN = ("corpus", "init_from", "own_vocabulary", "devices", "backend")


class RunFolder:
    """What a run keeps on disk.

    ``options.json``, ``recipe.json`` and ``origin.json`` (what the run began with),
    ``vocab.txt``, ``checkpoint.hdf5`` (its whole state), ``log.csv`` (a row a checkpoint).

    Args:
        path: The folder; it need not exist.

    Attributes:
        writer: The ``CheckpointWriter``.

    Example:

    >>> RunFolder("run").is_begun
    False
    """

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self._checkpoint = self.path / "checkpoint.hdf5"
        self.writer = CheckpointWriter(self._checkpoint)
        self._log = self.path / "log.csv"

    @property
    def is_begun(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return self._checkpoint.is_file()

    @property
    def has_settings(self) -> bool:
        """Whether there are the settings of a run, which stand there before its first step."""
        return (self.path / "origin.json").is_file()

    def read_settings(self) -> dict:
        """Return the ``options``, ``recipe`` and ``origin`` as dicts.

        Raises:
            FileNotFoundError: If the folder holds no run.
            ValueError: If a file is not what a run writes.
        """
        if not self.has_settings:
            raise FileNotFoundError(f"Folder {self.path} holds no run of keras-elmo pretrain")
        settings = {}
        for name in _SETTINGS:
            path = self.path / f"{name}.json"
            settings[name] = read_options(path, str(path))
            if not isinstance(settings[name], dict):
                raise ValueError(
                    f"{path} must hold a JSON object. Received: {type(settings[name]).__name__}"
                )
        if missing := [name for name in ORIGIN if name not in settings["origin"]]:
            raise ValueError(
                f"{self.path / 'origin.json'} is not what a run begins with. "
                f"Received: no {', '.join(missing)}"
            )
        return settings

    def read_recipe(self) -> Recipe:
        """Return the ``Recipe`` of the run."""
        settings = {**_LATER, **self.read_settings()["recipe"]}
        path = self.path / "recipe.json"
        names = [field.name for field in dataclasses.fields(Recipe)]
        if odd := sorted(settings.keys() ^ set(names)):
            raise ValueError(
                f"{path} is not the recipe of a run. Received: {', '.join(odd)} missing or unknown"
            )
        return Recipe(**settings)

    def read_config(self) -> BiLMConfig:
        """Return the ``BiLMConfig`` of the run."""
        path = self.path / "options.json"
        return BiLMConfig.from_options(self.read_settings()["options"], str(path))

    def read_vocabulary(self) -> list[str]:
        """Return the vocabulary of the run."""
        return read_vocabulary(self.path / "vocab.txt")

    def locked(self):
        """Make the folder, and hold its lock: of two runs in it each would spoil the other.

        Raises:
            OSError: If another process trains there.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        return locked(self.path / "run.lock", f"trains {self.path}")

    def write_settings(self, config, recipe, origin, vocabulary) -> None:
        """Write all that does not change from step to step; the folder is ``locked``."""
        for unfinished in self.path.glob("checkpoint.hdf5.*.tmp"):  # of a run that was killed
            unfinished.unlink()
        contents = dict(zip(_SETTINGS, (config.to_options(), dataclasses.asdict(recipe), origin)))
        names = (*(f"{name}.json" for name in contents), "vocab.txt")
        with atomic_write(*(self.path / name for name in names)) as temporary:
            for path, content in zip(temporary, contents.values()):
                path.write_text(json.dumps(content, indent=2) + "\n")
            write_vocabulary(temporary[-1], vocabulary)

    def load(self, variables: dict) -> dict:
        """Read the checkpoint into variables, all or none, and return its facts.

        Raises:
            FileNotFoundError: If there is none.
            ValueError: If it does not fit.
        """
        if not self.is_begun:
            raise FileNotFoundError(
                f"Folder {self.path} holds no checkpoint of keras-elmo pretrain"
            )
        return load_checkpoint(self._checkpoint, variables)

    def log(self, row: dict) -> None:
        """Append a row to the log."""
        is_new = not self._log.exists()
        with open(self._log, "a", newline="") as file:
            writer = csv.DictWriter(file, row)
            if is_new:
                writer.writeheader()
            writer.writerow(row)

    def cut_log(self, step: int) -> None:
        """Drop what was logged behind a step: the run goes on from there."""
        if not self._log.exists():
            return
        if not self._log.stat().st_size:  # killed before the first line
            self._log.unlink()
            return
        with atomic_write(self._log) as (temporary,):
            self.copy_log(step, temporary)

    def copy_log(self, step: int, output) -> None:
        """Write the rows of the log up to a step to a file."""
        with open(self._log, newline="") as file:
            header, *rows = csv.reader(file)
        rows = [row for row in rows if len(row) == len(header)]  # a kill may cut one
        rows = [row for row in rows if row[0].isdecimal() and int(row[0]) <= step]
        with open(output, "w", newline="") as file:
            csv.writer(file).writerows([header, *rows])

    def check_same(self, config, recipe, origin) -> None:
        """Check that settings are those of this run, but for what may change.

        Args:
            config: The ``BiLMConfig``, or None.
            recipe: The ``Recipe``.
            origin: Dict of what the run begins with.

        Raises:
            ValueError: If anything else differs.
        """
        stored = self.read_settings()
        before, after = dataclasses.asdict(self.read_recipe()), dataclasses.asdict(recipe)
        other = [n for n in after if before[n] != after[n] and n not in CHANGEABLE]
        if config not in (None, self.read_config()):
            other.append("options of the biLM")
        other += [name for name in origin if origin[name] != stored["origin"].get(name)]
        if other:
            raise ValueError(
                f"A run is resumed with the settings that it began with, but for "
                f"{', '.join(CHANGEABLE)}. Received for {self.path}: another {', '.join(other)}"
            )
