"""Presets: a bundled name, a directory, .zip or .tar.gz with one options and one weight file."""

import hashlib
import os
import pathlib
import re

from keras_elmo.checkpoints.archives import open_archive, read_member
from keras_elmo.checkpoints.bilm_files import (
    BiLMFile,
    largest_weight_file,
    read_config,
    read_weights,
)
from keras_elmo.config import BiLMConfig

_OPTIONS = "*options.json or options_file"
_WEIGHTS = "*weights.hdf5, model.hdf5, any other *.hdf5 but softmax.hdf5, or weights_file"
_LARGEST_JSON = 1 << 20
_LARGEST_CARD = 1 << 20
_EXPECTED = "the name of a bundled preset or the path of a directory, .zip or .tar.gz"


def bundled() -> dict:
    """Return the directories of the presets that come with the package, by name."""
    package = pathlib.Path(__file__).parents[1]
    # Inside the package once installed, beside it in a checkout.
    for folder in (package / "weights", package.parent / "weights"):
        if folder.is_dir():
            return {d.name: d for d in sorted(folder.iterdir()) if d.is_dir()}
    return {}


def bundled_facts() -> dict:
    """Return what there is to know of each bundled preset, by name, without its weights.

    Returns:
        Dicts of ``description`` (the first sentence of its model card), ``layers``, ``width``,
        ``max_characters`` and ``path``.
    """
    facts = {}
    for name, directory in bundled().items():
        preset = Preset(name)
        paragraphs = preset.card().split("\n\n")
        prose = (p for p in paragraphs if p.strip() and not p.lstrip().startswith(("#", "```")))
        config = preset.read_config()
        facts[name] = {
            "description": " ".join(next(prose, "").split()),
            "layers": config.n_layers + 1,
            "width": 2 * config.projection_dim,
            "max_characters": config.max_characters_per_token,
            "path": str(directory),
        }
    return facts


class Preset:
    """The files of a preset, of which nothing is unpacked to disk.

    Args:
        preset: Name of a bundled preset, or path of a directory, .zip or .tar.gz. It
            holds one options file, named ``*options.json`` or ``options_file``, and one
            weight file: the one ``*weights.hdf5``, else ``model.hdf5``, else the only
            ``*.hdf5`` beside ``softmax.hdf5``, else ``weights_file``.

    Raises:
        ValueError: If there is no such preset, or if a member of an archive points outside
            it, is a link, or would unpack to far more than a biLM.
        OSError: If an archive is damaged.
    """

    def __init__(self, preset):
        if not isinstance(preset, str | os.PathLike) or not str(preset):
            raise ValueError(f"from_preset expects {_EXPECTED}. Received: preset={preset!r}")
        self.path = bundled().get(str(preset), pathlib.Path(preset))
        if not (self.path.is_dir() or self.path.is_file()):
            raise ValueError(
                f"from_preset expects {_EXPECTED}. Received: preset={str(preset)!r}. "
                f"Bundled are: {', '.join(bundled()) or 'none'}"
            )
        if self.path.is_file() and self.path.name.endswith((".json", ".hdf5", "_file")):
            raise ValueError(
                "from_preset expects a directory, .zip or .tar.gz. Received: one of its two "
                f"files, {self.path}. Pass the directory, or both files to from_hdf5"
            )
        self._archive = open_archive(self.path)
        # macOS leaves resource forks, ._name, beside or below the files.
        self._names = [n for n in self._archive.names if not _base(n).startswith("._")]

    def read_config(self) -> BiLMConfig:
        """Read the options only.

        Raises:
            OSError: If the file is missing or damaged.
            ValueError: If there is not one options file, or not of a biLM over characters.
        """
        name = self._options()
        return read_config(self._archive.file(name, _LARGEST_JSON), self._archive.origin(name))

    def read(self) -> BiLMFile:
        """Read options and weights.

        Raises:
            OSError: If a file is missing or damaged.
            ValueError: If there are not one options and one weight file that fit together.
        """
        config = self.read_config()
        hdf5 = [n for n in self._names if n.endswith(".hdf5") and _base(n) != "softmax.hdf5"]
        name = self._pick(
            _WEIGHTS,
            [n for n in hdf5 if n.endswith("weights.hdf5")],
            [n for n in hdf5 if _base(n) == "model.hdf5"],
            hdf5,
            [n for n in self._names if _base(n) == "weights_file"],
        )
        file = self._archive.file(name, largest_weight_file(config))
        return read_weights(
            config, file, self._archive.origin(name), self._archive.origin(self._options())
        )

    def card(self) -> str:
        """Return the text of the model card, README.md; empty if there is none."""
        cards = [n for n in self._names if _base(n) == "README.md"]
        if not cards:
            return ""
        card = min(cards, key=lambda n: n.count("/"))
        return read_member(self._archive, card, _LARGEST_CARD).decode("utf-8", "replace")

    def check_sums(self) -> str:
        """Hold the files against the checksums that the model card states.

        Returns:
            ``"ok"``, ``"none stated"``, or ``"mismatch: "`` and the names of files that are
            missing or of another content.
        """
        _, _, section = self.card().partition("## Checksums (SHA-256)")
        stated = re.findall(r"^([0-9a-f]{64})  (\S+)$", section, re.MULTILINE)
        if not stated:
            return "none stated"
        wrong = [file for digest, file in stated if digest != self._digest(file)]
        return f"mismatch: {', '.join(wrong)}" if wrong else "ok"

    def _options(self):
        return self._pick(
            _OPTIONS,
            [n for n in self._names if n.endswith("options.json")],
            [n for n in self._names if _base(n) == "options_file"],
        )

    def _digest(self, file):
        names = [name for name in self._names if _base(name) == file]
        if len(names) != 1:
            return None
        digest = hashlib.sha256()
        for block in self._archive.blocks(names[0]):
            digest.update(block)
        return digest.hexdigest()

    def _pick(self, expected, *choices):
        """Return the one file of the first choice that has any."""
        candidates = next((names for names in choices if names), [])
        if len(candidates) != 1:
            raise ValueError(
                f"Preset {self.path} must hold exactly one file named {expected}. "
                f"Received: {sorted(candidates)[:20]}"
            )
        return candidates[0]


def read_preset(preset) -> BiLMFile:
    """Read options and weights of a preset; argument and errors of ``Preset`` and ``read``."""
    return Preset(preset).read()


def _base(name):
    return name.rpartition("/")[2]
