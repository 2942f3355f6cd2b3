"""The folder of a run: its settings, vocabulary, checkpoint and log."""

import contextlib
import csv
import dataclasses
import functools
import pathlib
from collections.abc import Callable

from keras_elmo.config import BiLMConfig
from keras_elmo.formats.vocabulary import read_vocabulary, write_vocabulary
from keras_elmo.presets import TOKENIZER_FILE, absolute_preset
from keras_elmo.pretraining.checkpoint import CheckpointWriter, load_checkpoint
from keras_elmo.pretraining.recipe import CHANGEABLE, Recipe
from keras_elmo.utils.file_lock import locked
from keras_elmo.utils.files import (
    PathLike,
    atomic_write,
    local_path,
    read_object,
    read_vocabulary_lines,
    write_files,
    write_json,
)

_SETTINGS = ("options", "recipe", "origin")
# Defaults for fields that older runs did not record.
_ADDED_LATER = {"frozen_bilm": False}
# The keys of origin.json.
ORIGIN = ("corpus", "init_from", "own_vocabulary", "devices", "backend")


class RunFolder:
    """Read and write the files of a run.

    The files are ``options.json``, ``recipe.json`` and ``origin.json`` (corpus, preset, devices
    and backend of the run), ``vocab.txt``, ``tokenizer.json`` if the tokenizer is known,
    ``checkpoint.hdf5`` (the state of the run) and ``log.csv`` (one row per checkpoint).

    Args:
        path: str or path. The folder; it need not exist.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = local_path(path)
        self.writer = CheckpointWriter(self.path / "checkpoint.hdf5")
        self._log = self.path / "log.csv"

    @property
    def has_checkpoint(self) -> bool:
        """Return whether the folder contains a checkpoint."""
        return self.writer.path.is_file()

    @property
    def has_settings(self) -> bool:
        """Return whether the folder contains settings; a run writes them before its first step."""
        return (self.path / "origin.json").is_file()

    def files_of_others(self) -> list[str]:
        """Return files that are not of a run and that a new run would replace, as of a preset."""
        if self.has_settings or self.has_checkpoint:
            return []
        names = "options.json", "vocab.txt", TOKENIZER_FILE
        return [name for name in names if (self.path / name).exists()]

    def read_settings(self) -> tuple[BiLMConfig, Recipe, dict]:
        """Read the sizes of the biLM, the recipe and ``origin.json``.

        Raises:
            FileNotFoundError: If the folder contains no run.
            ValueError: If a file is invalid.
        """
        if not self.has_settings:
            raise FileNotFoundError(
                "Expected a folder of keras-elmo pretrain. "
                f"Received: {self.path}, without origin.json"
            )
        options, recipe, origin = (read_object(self.path / f"{x}.json") for x in _SETTINGS)
        recipe = {**_ADDED_LATER, **recipe}
        if differing := sorted(
            recipe.keys() ^ {field.name for field in dataclasses.fields(Recipe)}
        ):
            raise ValueError(
                f"{self.path / 'recipe.json'} must contain the recipe of a run. "
                f"Received: {', '.join(differing)} missing or unknown"
            )
        if missing := [name for name in ORIGIN if name not in origin]:
            raise ValueError(
                f"{self.path / 'origin.json'} must contain {', '.join(ORIGIN)}. "
                f"Received: no {', '.join(missing)}"
            )
        config = BiLMConfig.from_options(options, str(self.path / "options.json"))
        return config, Recipe(**recipe), origin

    def read_vocabulary(self) -> list[str]:
        """Read the vocabulary of the run."""
        return read_vocabulary(self.path / "vocab.txt")

    def locked(self) -> contextlib.AbstractContextManager:
        """Make the folder and hold its lock, so that only one process trains in it.

        Raises:
            OSError: If another process trains there.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        return locked(self.path / "run.lock", f"trains {self.path}")

    def write_settings(
        self,
        config: BiLMConfig,
        recipe: Recipe,
        origin: dict,
        vocabulary: list[str],
        tokenizer: dict | None = None,
    ) -> None:
        """Write the settings, the vocabulary and the tokenizer; the caller holds the lock."""
        for unfinished in self.path.glob("checkpoint.hdf5.*.tmp"):  # a killed run left it
            unfinished.unlink()
        contents = zip(_SETTINGS, (config.to_options(), dataclasses.asdict(recipe), origin))
        files = {f"{name}.json": content for name, content in contents}
        if tokenizer is not None:
            files[TOKENIZER_FILE] = tokenizer
        writers: dict[str, Callable] = {
            name: functools.partial(write_json, value=content) for name, content in files.items()
        }
        writers["vocab.txt"] = functools.partial(write_vocabulary, tokens=vocabulary)
        if tokenizer is None and not self.has_checkpoint:  # there may be one of an unsaved run
            (self.path / TOKENIZER_FILE).unlink(missing_ok=True)
        write_files(self.path, writers)

    def load(self, variables: dict, digests: dict[str, str]) -> dict:
        """Read the checkpoint into variables, as ``load_checkpoint`` does, and return its facts.

        The ``digests`` of the corpus and the vocabulary must equal those in the checkpoint; older
        checkpoints contain none.

        Raises:
            FileNotFoundError: If there is no checkpoint.
            ValueError: If the checkpoint does not fit the variables or the digests.
        """
        if not self.has_checkpoint:
            raise FileNotFoundError(
                "Expected a folder with a checkpoint of keras-elmo pretrain. "
                f"Received: {self.path}, without checkpoint.hdf5"
            )
        facts = load_checkpoint(self.writer.path, variables)
        stored = facts.get("digests", digests)
        if differing := [name for name in digests if stored.get(name) != digests[name]]:
            raise ValueError(
                f"{self.writer.path} was trained with another {' and '.join(differing)}. Expected "
                f"SHA-256: {[stored.get(name) for name in differing]}. Received: "
                f"{[digests[name] for name in differing]}. Restore the earlier files, or begin anew"
            )
        return facts

    def log(self, row: dict) -> None:
        """Append a row to the log."""
        is_new = not self._log.exists()
        with open(self._log, "a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, row)
            if is_new:
                writer.writeheader()
            writer.writerow(row)

    def cut_log(self, step: int) -> None:
        """Remove the rows after a step, because the run continues from there."""
        if not self._log.exists():
            return
        if not self._log.stat().st_size:  # the run was killed before the first row
            self._log.unlink()
            return
        with atomic_write(self._log) as temporary:
            self.copy_log(step, temporary)

    def copy_log(self, step: int, output: pathlib.Path) -> None:
        """Write the rows of the log up to a step to another file; no rows if there is no log."""
        lines = ["step,tokens,loss,perplexity"]
        if self._log.exists():
            lines = read_vocabulary_lines(self._log, kind="Log")
        try:
            header, *rows = csv.reader(lines)
        except csv.Error as error:
            raise ValueError(f"Log {self._log} is damaged ({error}). Remove it") from None
        if header[:1] != ["step"]:
            raise ValueError(
                f"Log {self._log} must start with a row of names, step first. "
                f"Received: {header!r:.80}. Remove it"
            )
        rows = [row for row in rows if len(row) == len(header)]  # a kill may cut the last row
        rows = [row for row in rows if row[0].isdecimal() and int(row[0]) <= step]
        for values in (dict(zip(header, row)) for row in rows):
            try:
                [float(values.get(name) or 0) for name in ("tokens", "loss", "perplexity")]
            except ValueError:
                raise ValueError(
                    f"Log {self._log} must contain the numbers tokens, loss and perplexity. "
                    f"Received: {values}. Remove it"
                ) from None
        with open(output, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([header, *rows])

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
        # Older runs recorded a relative path.
        found = {**stored_origin, "init_from": absolute_preset(stored_origin["init_from"])}
        differing += [name for name in origin if origin[name] != found[name]]
        if differing:
            raise ValueError(
                "A resumed run expects the settings that it began with, except "
                f"{', '.join(CHANGEABLE)}. "
                f"Received for {self.path}: another value of {', '.join(differing)}"
            )
        return stored


def read_tokenizer(folder: pathlib.Path) -> dict | None:
    """Read the ``tokenizer.json`` of a corpus or a run; None if the tokenizer is not known."""
    path = folder / TOKENIZER_FILE
    return read_object(path, "Tokenizer file") if path.is_file() else None
