"""Presets: a bundled name, or the path of any container of a biLM that ``SOURCES`` knows."""

import hashlib
import os
import pathlib
import re

from keras_elmo.config import BiLMConfig
from keras_elmo.formats.allennlp import AllenNlpArchive
from keras_elmo.formats.base import Mix, SoftmaxFile
from keras_elmo.formats.bilm_files import BiLMFile
from keras_elmo.formats.bilm_hdf5 import BilmHdf5
from keras_elmo.formats.files import Files, base, checkpoint_prefix
from keras_elmo.formats.many_langs import ManyLangs
from keras_elmo.formats.tensorflow import BilmTfCheckpoint, HubModule

# In the order in which they are looked for; the first stands for what none recognises.
SOURCES = (BilmHdf5, HubModule, BilmTfCheckpoint, AllenNlpArchive, ManyLangs)
_LARGEST_CARD = 1 << 20
_EXPECTED = "the name of a bundled preset or the path of a directory, .zip, .tar.gz or checkpoint"


def bundled() -> dict:
    """Return the directories of the presets that come with the package, by name."""
    package = pathlib.Path(__file__).parent
    # Inside the package once installed, beside it in a checkout.
    for folder in (package / "weights", package.parent / "weights"):
        if folder.is_dir():
            return {d.name: d for d in sorted(folder.iterdir()) if d.is_dir()}
    return {}


def bundled_facts() -> dict:
    """Return what there is to know of each bundled preset, by name, without its weights.

    Returns:
        Dicts of ``description`` (the first paragraph of its model card), ``layers``, ``width``,
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
        preset: Name of a bundled preset, or the path of a directory, .zip or .tar.gz that holds
            a biLM in one of the formats of ``SOURCES``, or of a checkpoint of TensorFlow
            without its ending. A string that is a name is the bundled preset; pass a
            ``pathlib.Path``, or "./NAME", for a directory of that name.
        options: Options in place of those that the preset holds, if any: a dict, or the path of
            an options file.

    Attributes:
        path: Of the preset.
        source: The ``Source``, whose ``kind`` names the format.

    Raises:
        ValueError: If there is no such preset, or if a member of an archive points outside
            it, is a link, or would unpack to far more than a biLM.
        OSError: If an archive is damaged.
    """

    def __init__(self, preset, options=None):
        if not isinstance(preset, str | os.PathLike) or not str(preset):
            raise ValueError(f"from_preset expects {_EXPECTED}. Received: preset={preset!r}")
        if not (options is None or isinstance(options, dict | str | os.PathLike)):
            raise ValueError(
                "from_preset expects options as a dict, or the path of an options file. "
                f"Received: {type(options).__name__}. Of a BiLMConfig pass to_options()"
            )
        # A path is never a name: Path("./elmo_mini_en") and "elmo_mini_en" are the same string.
        self.path = bundled().get(preset, pathlib.Path(preset))
        if not (self.path.is_dir() or self.path.is_file() or checkpoint_prefix(self.path)):
            raise ValueError(
                f"from_preset expects {_EXPECTED}. Received: preset={preset!r}. "
                f"Bundled are: {', '.join(bundled()) or 'none'}"
            )
        if self.path.is_file() and self.path.name.endswith((".json", ".hdf5", "_file")):
            raise ValueError(
                "from_preset expects a directory, .zip or .tar.gz. Received: one of its two "
                f"files, {self.path}. Pass the directory, or both files to from_hdf5"
            )
        if (self.path / "origin.json").is_file() and (self.path / "checkpoint.hdf5").is_file():
            raise ValueError(
                f"from_preset expects {_EXPECTED}. Received: {self.path}, a folder of keras-elmo "
                f"pretrain. Make a preset of it: keras-elmo export {self.path} DIRECTORY"
            )
        self._files = Files(self.path)
        kind = next((kind for kind in SOURCES if kind.recognises(self._files)), SOURCES[0])
        self.source = kind(self._files, options)

    def read_config(self) -> BiLMConfig:
        """Read the options only.

        Raises:
            OSError: If the file is missing or damaged.
            ValueError: If there is not one options file, or not of a biLM over characters.
        """
        return self.source.read_config()

    def read(self) -> BiLMFile:
        """Read options and weights.

        Raises:
            OSError: If a file is missing or damaged.
            ValueError: If there are not one options and one weight file that fit together.
        """
        return self.source.read()

    def read_mixes(self) -> list[Mix]:
        """Read the learned scalar mixes; errors of ``read``."""
        return self.source.read_mixes()

    def read_softmax(self) -> SoftmaxFile | None:
        """Read the softmax and its vocabulary, None if there are none; errors of ``read``."""
        return self.source.read_softmax()

    def card(self) -> str:
        """Return the text of the model card, README.md; empty if there is none."""
        cards = self._files.named("README.md")
        if not cards:
            return ""
        card = min(cards, key=lambda n: n.count("/"))
        return self._files.read(card, _LARGEST_CARD).decode("utf-8", "replace")

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

    def _digest(self, file):
        names = [name for name in self._files.names if base(name) == file]
        if len(names) != 1:
            return None
        digest = hashlib.sha256()
        for block in self._files.blocks(names[0]):
            digest.update(block)
        return digest.hexdigest()


def read_preset(preset, options=None) -> BiLMFile:
    """Read options and weights of a preset; arguments and errors of ``Preset`` and ``read``."""
    return Preset(preset, options).read()
