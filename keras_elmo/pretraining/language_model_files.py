"""Read and write a language model as a preset: biLM, vocabulary and softmax."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_elmo.formats.base import SoftmaxFile
from keras_elmo.formats.bilm_hdf5 import bilm_writers, write_softmax
from keras_elmo.formats.bilm_weights import bilm_mapping
from keras_elmo.formats.vocabulary import SPECIAL_TOKENS, UNKNOWN, write_vocabulary
from keras_elmo.formats.weight_mapping import extract, to_float32, variables_by_path
from keras_elmo.presets import TOKENIZER_FILE, open_preset
from keras_elmo.pretraining.language_model import BiLanguageModel
from keras_elmo.utils.checks import invalid
from keras_elmo.utils.files import PathLike, local_path, write_files, write_json


def read_language_model(
    preset: PathLike,
    vocabulary: Sequence[str] | None = None,
    n_negatives: int | None = None,
    options: Any = None,
    softmax_needed: bool = True,
    **kwargs: Any,
) -> tuple[BiLanguageModel, list[str]]:
    """Read a biLM and its softmax.

    Args:
        preset: str or path. A preset of ``ElmoLayer.from_preset`` that contains ``vocab.txt`` and
            ``softmax.hdf5``, or a checkpoint of bilm-tf with ``vocab.txt``.
        vocabulary: list of str. Tokens to predict instead of ``vocab.txt``. Tokens in both keep
            their weights. New tokens share the probability of ``<UNK>`` evenly.
        n_negatives: int or None. Negatives of a sampled softmax; None for the full softmax.
        options: dict or path. Options for formats that do not record them.
        softmax_needed: bool. Whether the preset must contain a softmax. Otherwise a missing
            softmax is initialised at random, over ``vocabulary``.
        **kwargs: Arguments for ``BiLanguageModel``.

    Returns:
        The ``BiLanguageModel`` and its vocabulary.

    Raises:
        OSError: If a file is missing or damaged.
        ValueError: If the files do not fit together.
    """
    files = open_preset(preset, options)
    bilm, softmax = files.read(), files.read_softmax()
    if vocabulary is None and softmax is not None:
        vocabulary = softmax.vocabulary
    if vocabulary is None or (softmax is None and softmax_needed):
        raise FileNotFoundError(
            f"Expected a preset with softmax.hdf5 and vocab.txt. Received: {preset}, which cannot "
            "predict tokens. keras-elmo pretrain --own-vocabulary trains a new softmax; "
            "--frozen-bilm keeps the biLM as it was"
        )
    model = BiLanguageModel(bilm.config, len(vocabulary), n_negatives=n_negatives, **kwargs)
    bilm.assign(variables_by_path(model.bilm))
    if softmax is not None:
        kernel, bias = _for_vocabulary(softmax, vocabulary)
        model.softmax_kernel.assign(kernel)
        model.softmax_bias.assign(bias)
    return model, list(vocabulary)


def _for_vocabulary(
    softmax: SoftmaxFile, vocabulary: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the kernel and the bias of a softmax for another vocabulary."""
    row_of = {token: row for row, token in enumerate(softmax.vocabulary)}
    unknown = SPECIAL_TOKENS.index(UNKNOWN)
    rows = np.array([row_of.get(token, -1) for token in vocabulary])
    is_new = rows < 0
    rows[is_new] = unknown
    kernel, bias = softmax.arrays["softmax/W"][rows], softmax.arrays["softmax/b"][rows]
    bias[rows == unknown] -= np.log(1 + is_new.sum())
    return kernel, bias


def write_language_model(
    directory: PathLike,
    model: BiLanguageModel,
    vocabulary: list[str],
    card: str = "",
    bits: int = 16,
    tokenizer: str | None = None,
) -> None:
    """Write the files of a preset.

    The weights of the biLM are float32, rounded to fewer significant bits and compressed, about
    the size of float16. AllenNLP, bilm-tf and simple_elmo read them. The softmax, which only
    keras-elmo reads, has 8 bits for each number, and a scale for each token.

    Args:
        directory: str or path. Directory to write to; made if it does not exist. Existing files
            of a preset are replaced or removed.
        model: BiLanguageModel. The model.
        vocabulary: list of str. Vocabulary of the model.
        card: str. Text of ``README.md``.
        bits: int. Significant bits of the stored biLM, 2 to 23.
        tokenizer: str or None. Name of the ``WordTokenizer`` that made the tokens.

    Raises:
        OSError: If a file cannot be written.
        ValueError: If ``bits`` is out of range.
    """
    if not 2 <= bits <= 23:
        raise invalid("Expected bits from 2 to 23", f"bits={bits}")
    arrays = extract(bilm_mapping(model.config), variables_by_path(model.bilm))
    arrays = {name: rounded(array, bits) for name, array in arrays.items()}
    kernel, bias = to_float32(model.softmax_kernel), to_float32(model.softmax_bias)
    filters = {"shuffle": True, "compression": "gzip", "compression_opts": 9}
    writers = bilm_writers(model.config, arrays, **filters) | {
        "vocab.txt": lambda path: write_vocabulary(path, vocabulary),
        "softmax.hdf5": lambda path: write_softmax(path, kernel, bias),
        "README.md": lambda path: path.write_text(card.rstrip() + "\n", "utf-8"),
    }
    if tokenizer is not None:
        writers[TOKENIZER_FILE] = lambda path: write_json(path, {"name": tokenizer})
    write_files(directory, writers)
    # Files of an older preset, which belong to another biLM.
    for name in {TOKENIZER_FILE, "scalar_mix.json"} - writers.keys():
        (local_path(directory) / name).unlink(missing_ok=True)


def tokenizer_of(*sources: PathLike | None) -> str | None:
    """Return the name of the ``WordTokenizer`` that made the tokens of a corpus or preset.

    Args:
        *sources: str, path or None. Presets, folders of ``prepare`` and runs, in the order in
            which they are asked. None is skipped.

    Returns:
        The name, or None if no source records it.

    Raises:
        ValueError: If a source does not exist.

    Examples:
        >>> tokenizer_of("elmo_mini_en")
        'penn'
    """
    names = (open_preset(source).tokenizer for source in sources if source is not None)
    return next(filter(None, names), None)


def rounded(array: np.ndarray, bits: int) -> np.ndarray:
    """Round float32 to at most 23 significant bits, to nearest, ties to even."""
    values = np.ascontiguousarray(array, "float32").view("uint32")
    dropped = np.uint32(24 - bits)
    half = np.uint32((1 << (23 - bits)) - 1)
    odd = (values >> dropped) & np.uint32(1)
    return ((values + half + odd) >> dropped << dropped).view("float32")
