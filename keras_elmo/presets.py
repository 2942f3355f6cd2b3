"""Presets: biLMs by name, and paths of files in any format of ``FORMATS``."""

import dataclasses
import pathlib
from typing import Any

from keras_elmo.config import BiLMConfig
from keras_elmo.formats.allennlp import AllenNlpArchive
from keras_elmo.formats.base import BiLMFile, Format, Mix, SoftmaxFile
from keras_elmo.formats.bilm_hdf5 import BilmHdf5, bilm_writers
from keras_elmo.formats.folder import Folder, checkpoint_prefix
from keras_elmo.formats.hdf5 import write_arrays
from keras_elmo.formats.many_langs import ManyLangs
from keras_elmo.formats.tensorflow import BilmTfCheckpoint, HubModule
from keras_elmo.formats.vocabulary import write_vocabulary
from keras_elmo.released_models import bundled, download, is_released, released_models, suggestion
from keras_elmo.utils.checks import invalid
from keras_elmo.utils.files import (
    PathLike,
    check_new_directory,
    local_path,
    read_options,
    read_vocabulary_lines,
    write_files,
    write_json,
)

# The first format that recognises the files reads them. If none does, the first one of the
# list explains which files are missing.
FORMATS: list[type[Format]] = [BilmHdf5, HubModule, BilmTfCheckpoint, AllenNlpArchive, ManyLangs]
TOKENIZER_FILE = "tokenizer.json"
_EXPECTED = (
    "the name of a preset or released model, or the path of a directory, archive or checkpoint"
)


def bundled_facts() -> dict[str, dict[str, Any]]:
    """Return facts about each bundled preset, by name, without reading the weights.

    The ``description`` is the first paragraph of the model card.
    """
    facts = {}
    for name, directory in bundled().items():
        preset = Preset(name)
        # The title, which metadata can precede.
        _, _, body = f"\n{preset.card()}".partition("\n# ")
        config = preset.read_config()
        facts[name] = {
            "description": " ".join(body.split("\n\n")[1:2]).replace("\n", " "),
            "layers": config.n_layers + 1,
            "width": 2 * config.projection_dim,
            "max_characters": config.max_characters_per_token,
            "path": str(directory),
        }
    return facts


def absolute_preset(preset: Any) -> Any:
    """Return a preset that means the same in every working directory.

    Names of presets, and values that are not paths, are returned unchanged.
    """
    # A path is never the name of a bundled preset.
    is_path = isinstance(preset, PathLike) and str(preset) and preset not in bundled()
    if not is_path or is_released(preset):
        return preset
    return str(local_path(preset).absolute())


class Preset:
    """The files of a biLM. See ``Folder`` for archives.

    Args:
        preset: str or path. Name of a bundled or released model, address on the Hugging Face Hub,
            or path of a directory, archive or checkpoint in one of ``FORMATS``. For a directory
            that has the name of a preset pass a ``pathlib.Path`` or ``"./NAME"``.
        options: dict, path of an options file, or None. They replace the options in the files.

    Attributes:
        path: path. The files.
        format: ``Format`` of the files.

    Raises:
        ValueError: If the preset does not exist, or a directory contains several models.
        OSError: If an archive is damaged.
    """

    def __init__(self, preset: PathLike, options: dict | PathLike | None = None) -> None:
        if not isinstance(preset, PathLike) or not str(preset):
            raise invalid(f"from_preset expects {_EXPECTED}", f"preset={preset!r}")
        if not (options is None or isinstance(options, dict | PathLike)):
            raise invalid(
                "from_preset expects options as a dict, or as the path of an options file",
                type(options).__name__,
                "Pass to_options() of a BiLMConfig",
            )
        self._released = released_models().get(preset) if isinstance(preset, str) else None
        self.path = _find(preset)
        self._folder = Folder(self.path)
        found = next((f for f in FORMATS if f.recognises(self._folder)), FORMATS[0])
        self.format = found(self._folder, options)

    @property
    def files(self) -> list[pathlib.Path]:
        """The files of the preset, which no output may replace; for an archive the archive."""
        return [self.path] if self.path.is_file() else self._folder.files

    def read_config(self) -> BiLMConfig:
        """Read the options only. For errors see ``read``."""
        return self.format.config

    def read(self) -> BiLMFile:
        """Read the options and the weights.

        Raises:
            OSError: If a file is missing or damaged.
            ValueError: If there is not exactly one options file and one weight file, or if they
                do not fit together.
            ImportError: If the files need PyTorch or TensorFlow and it is not installed.
        """
        return self.format.read()

    def read_mixes(self) -> list[Mix]:
        """Read the learned scalar mixes. For errors see ``read``."""
        return self.format.read_mixes()

    def read_softmax(self) -> SoftmaxFile | None:
        """Read the softmax and its vocabulary, if there are any. For errors see ``read``."""
        return self.format.read_softmax()

    def read_tokenizer(self) -> str | None:
        """Read the name of the ``WordTokenizer`` whose tokens the biLM was trained on, if known.

        Presets record it in ``tokenizer.json``. The released models of AllenNLP and TF-Hub were
        trained on Penn Treebank tokens.

        Raises:
            ValueError: If ``tokenizer.json`` is damaged.
        """
        for file in self._folder.named(TOKENIZER_FILE):
            name = read_options(file, "Tokenizer file").get("name")
            if isinstance(name, str):  # other programs write other files of this name
                return name
        return (self._released or {}).get("tokenizer") or self.format.tokenizer

    @property
    def tokens(self) -> str:
        """The tokens that the biLM was trained on, in words; empty if they are not known."""
        return (self._released or {"tokens": self.format.tokens})["tokens"]

    def card(self) -> str:
        """Return the text of the model card ``README.md``, or an empty text without one."""
        cards = sorted(self._folder.named("README.md"), key=lambda file: len(file.parts))
        return cards[0].read_text("utf-8", "replace") if cards else ""


def _find(preset: PathLike) -> pathlib.Path:
    """Return the path of a preset, which is downloaded if it is the name of a released model."""
    if is_released(preset):
        return download(str(preset))
    # A path is never a bundled name, although str(Path("./elmo_mini_en")) is one.
    names = bundled()
    path = names.get(preset) or local_path(preset)  # type: ignore[arg-type]
    if not (path.is_dir() or path.is_file() or checkpoint_prefix(path)):
        raise invalid(
            f"from_preset expects {_EXPECTED}", f"preset={preset!r}", suggestion(path.name)
        )
    return path


def convert(
    source: PathLike, directory: PathLike, options: dict | PathLike | None = None
) -> dict[str, Any]:
    """Convert a biLM in any format to a preset in bilm-tf's layout.

    The preset contains ``options.json`` and ``weights.hdf5``. If the source has them, it also
    contains the vocabulary ``vocab.txt`` and the softmax ``softmax.hdf5`` of a language model,
    the learned mixes ``scalar_mix.json``, and ``tokenizer.json`` if the tokenizer is known.

    Args:
        source: str or path. A checkpoint of bilm-tf, a TF-Hub module, an AllenNLP archive, a model
            of ELMoForManyLangs, or any other preset of ``ElmoLayer.from_preset``.
        directory: str or path. A new or empty directory.
        options: dict, path or None. The ``options`` of ``ElmoLayer.from_preset``.

    Returns:
        dict with ``recognised`` (the format) and ``files`` (written).

    Raises:
        OSError: If a file is missing or damaged, or cannot be written.
        ValueError: If the source is not a biLM over characters, its files do not fit together,
            or the directory is not empty. Then nothing is written.
        ImportError: If the source needs PyTorch or TensorFlow and it is not installed.
    """
    directory = local_path(directory)
    check_new_directory(directory, "convert", "Choose another directory")
    preset = Preset(source, options)
    bilm, softmax, mixes = preset.read(), preset.read_softmax(), preset.read_mixes()
    writers = bilm_writers(bilm.config, bilm.bilm_arrays())
    if softmax is not None:
        writers["vocab.txt"] = lambda path: write_vocabulary(path, softmax.vocabulary)
        arrays = {name: array.astype("float32") for name, array in softmax.arrays.items()}
        writers["softmax.hdf5"] = lambda path: write_arrays(path, arrays)
    elif vocabulary := preset.format.vocabulary_file():
        lines = read_vocabulary_lines(vocabulary)
        writers["vocab.txt"] = lambda path: path.write_text("\n".join(lines) + "\n", "utf-8")
    if mixes:
        values = [dataclasses.asdict(mix) for mix in mixes]
        writers["scalar_mix.json"] = lambda path: write_json(path, values)
    if tokenizer := preset.read_tokenizer():
        writers[TOKENIZER_FILE] = lambda path: write_json(path, {"name": tokenizer})
    write_files(directory, writers)
    return {"recognised": preset.format.name, "files": list(writers)}
