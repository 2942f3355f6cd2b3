"""Presets: biLMs by name, and paths of files in any format of ``FORMATS``."""

import dataclasses
from typing import Any

from keras_elmo.formats.allennlp import AllenNlpArchive
from keras_elmo.formats.base import TOKENIZER_FILE, Format
from keras_elmo.formats.bilm_hdf5 import BilmHdf5, bilm_writers
from keras_elmo.formats.folder import Folder, checkpoint_index
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
    read_vocabulary_lines,
    write_files,
    write_json,
)

# The first format that recognises the files reads them. If none does, the first one of the
# list explains which files are missing.
FORMATS: list[type[Format]] = [BilmHdf5, HubModule, BilmTfCheckpoint, AllenNlpArchive, ManyLangs]
_EXPECTED = (
    "the name of a preset or released model, or the path of a directory, archive or checkpoint"
)


def bundled_facts() -> dict[str, dict[str, Any]]:
    """Return facts about each bundled preset, by name, without reading the weights.

    The ``description`` is the first paragraph of the model card.
    """
    facts = {}
    for name, directory in bundled().items():
        files = open_preset(name)
        # The title. Metadata can precede it.
        _, _, body = f"\n{files.card}".partition("\n# ")
        config = files.config
        facts[name] = {
            "description": " ".join(body.split("\n\n")[1:2]).replace("\n", " "),
            "layers": config.n_layers + 1,
            "width": 2 * config.projection_dim,
            "max_characters": config.max_characters_per_token,
            "path": str(directory),
        }
    return facts


def absolute_preset(preset: Any) -> Any:
    """Return a preset with an absolute path; names and addresses stay as they are."""
    # A path is never the name of a bundled preset.
    if not isinstance(preset, PathLike) or preset in bundled() or is_released(preset):
        return preset
    return str(local_path(preset).absolute())


def open_preset(preset: PathLike, options: dict | PathLike | None = None) -> Format:
    """Find the files of a biLM and recognise their format. A released model is downloaded.

    Args:
        preset: str or path. Name of a bundled or released model, address on the Hugging Face Hub,
            or path of a directory, archive or checkpoint in one of ``FORMATS``. For a directory
            that has the name of a preset pass a ``pathlib.Path`` or ``"./NAME"``.
        options: dict, path of an options file, or None. They replace the options in the files.

    Returns:
        ``Format``. Its methods read the files.

    Raises:
        ValueError: If the preset does not exist.
        OSError: If an archive is damaged, or a download fails.
    """
    if not isinstance(preset, PathLike) or not str(preset):
        raise invalid(f"from_preset expects {_EXPECTED}", f"preset={preset!r}")
    if not (options is None or isinstance(options, dict | PathLike)):
        raise invalid(
            "from_preset expects options as a dict, or as the path of an options file",
            type(options).__name__,
            "Pass to_options() of a BiLMConfig",
        )
    released = None
    if is_released(preset):
        path, released = download(str(preset)), released_models().get(str(preset))
    else:
        # A path is never a bundled name, although str(Path("./elmo_mini_en")) is one.
        path = bundled().get(preset) or local_path(preset)  # type: ignore[arg-type]
    if not (path.exists() or checkpoint_index(path)):
        raise invalid(
            f"from_preset expects {_EXPECTED}", f"preset={preset!r}", suggestion(path.name)
        )
    folder = Folder(path)
    found = next((f for f in FORMATS if f.recognises(folder)), FORMATS[0])
    return found(folder, options, released)


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
    files = open_preset(source, options)
    bilm, softmax, mixes = files.read(), files.read_softmax(), files.read_mixes()
    writers = bilm_writers(bilm.config, bilm.bilm_arrays())
    if softmax is not None:
        writers["vocab.txt"] = lambda path: write_vocabulary(path, softmax.vocabulary)
        arrays = {name: array.astype("float32") for name, array in softmax.arrays.items()}
        writers["softmax.hdf5"] = lambda path: write_arrays(path, arrays)
    elif vocabulary := files.vocabulary_file:
        lines = read_vocabulary_lines(vocabulary)
        writers["vocab.txt"] = lambda path: path.write_text("\n".join(lines) + "\n", "utf-8")
    if mixes:
        values = [dataclasses.asdict(mix) for mix in mixes]
        writers["scalar_mix.json"] = lambda path: write_json(path, values)
    if tokenizer := files.tokenizer:
        writers[TOKENIZER_FILE] = lambda path: write_json(path, {"name": tokenizer})
    write_files(directory, writers)
    return {"recognised": files.name, "files": list(writers)}
