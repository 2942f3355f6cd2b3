"""A language model as a preset: the biLM's files, and beside them its vocabulary and softmax."""

import json
import pathlib

import numpy as np

from keras_elmo.formats.bilm_weights import bilm_mapping
from keras_elmo.formats.hdf5 import write_arrays
from keras_elmo.formats.weight_mapping import extract, to_float32, variables_by_path
from keras_elmo.presets import Preset
from keras_elmo.pretraining.language_model import BiLanguageModel
from keras_elmo.pretraining.vocabulary import (
    SPECIAL_TOKENS,
    check_vocabulary,
    write_vocabulary,
)
from keras_elmo.utils.files import atomic_write, digest_of

# Significant bits that are kept of the weights of the biLM, and of the softmax.
BITS = (16, 12)
_FILES = ("options.json", "weights.hdf5", "vocab.txt", "softmax.hdf5", "README.md")


def read_language_model(
    preset, vocabulary=None, n_negatives=None, options=None, softmax_needed=True, **kwargs
):
    """Read a biLM and its softmax.

    Args:
        preset: As for ``ElmoLayer.from_preset``; with ``vocab.txt`` and ``softmax.hdf5``, or a
            checkpoint of bilm-tf with ``vocab.txt``.
        vocabulary: List of tokens to predict instead of those of ``vocab.txt``. Tokens of
            both keep their weights; new ones share what ``<UNK>`` had, evenly.
        n_negatives: Of a sampled softmax in training; None for the full softmax.
        options: As for ``ElmoLayer.from_preset``.
        softmax_needed: Whether the preset must hold a softmax. If not, that of one which holds
            none is random, over ``vocabulary``.
        **kwargs: Passed on to ``BiLanguageModel``.

    Returns:
        The ``BiLanguageModel`` and its vocabulary.

    Raises:
        OSError: If a file is missing or damaged.
        ValueError: If the files do not fit together.
    """
    files = Preset(preset, options)
    bilm, config, softmax = files.read(), files.read_config(), files.read_softmax()
    if softmax is not None:
        own = softmax.vocabulary
        check_vocabulary(own, softmax.file_name)
        kernel, bias = softmax.arrays["softmax/W"], softmax.arrays["softmax/b"]
        vocabulary = own if vocabulary is None else list(vocabulary)
        if vocabulary != own:
            kernel, bias = _moved(kernel, bias, own, vocabulary)
    elif softmax_needed or vocabulary is None:
        raise FileNotFoundError(
            f"Preset {preset} holds no softmax.hdf5 with a vocab.txt, so it can embed tokens but "
            "not predict them. A preset of keras-elmo export has both, and so has a checkpoint of "
            "bilm-tf beside its vocabulary. keras-elmo pretrain --own-vocabulary trains a new "
            "softmax, with --frozen-bilm that alone"
        )
    model = BiLanguageModel(config, len(vocabulary), n_negatives=n_negatives, **kwargs)
    bilm.assign(variables_by_path(model.bilm))
    if softmax is not None:
        model.softmax_kernel.assign(kernel)
        model.softmax_bias.assign(bias)
    return model, vocabulary


def _moved(kernel, bias, own, vocabulary):
    """Return the softmax of one vocabulary for another."""
    row_of = {token: row for row, token in enumerate(own)}
    rows = np.array([row_of.get(token, -1) for token in vocabulary])
    is_new = rows < 0
    unknown = SPECIAL_TOKENS.index("<UNK>")
    kernel, bias = kernel[np.where(is_new, unknown, rows)], bias[np.where(is_new, unknown, rows)]
    bias[is_new] -= np.log(1 + is_new.sum())
    bias[unknown] -= np.log(1 + is_new.sum())
    return kernel, bias


def write_language_model(directory, model, vocabulary, card="", bits=BITS) -> None:
    """Write a preset: all its files, or none.

    The weights are float32 rounded to fewer significant bits and compressed: about the size of
    float16, and read by AllenNLP, bilm-tf and simple_elmo; only keras-elmo reads the softmax.

    Args:
        directory: Where to; made if it does not exist. Files of these names are replaced.
        model: The ``BiLanguageModel``.
        vocabulary: Its vocabulary, a list of tokens.
        card: Text of ``README.md``. The checksums of the files are added to it.
        bits: Significant bits to keep of the biLM's weights and of the softmax's, 2 to 23.
    """
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    arrays = extract(bilm_mapping(model.config), variables_by_path(model.bilm))
    softmax = {
        "softmax/W": to_float32(model.softmax_kernel),
        "softmax/b": to_float32(model.softmax_bias),
    }
    with atomic_write(*(directory / name for name in _FILES)) as (o, w, v, s, readme):
        o.write_text(json.dumps(model.config.to_options(), indent=2) + "\n")
        _write_rounded(w, arrays, bits[0])
        write_vocabulary(v, vocabulary)
        _write_rounded(s, softmax, bits[1])
        sums = [f"{digest_of(path)}  {name}" for path, name in zip((o, w, v, s), _FILES)]
        readme.write_text(
            card.rstrip() + "\n\n## Checksums (SHA-256)\n\n```\n" + "\n".join(sums) + "\n```\n",
            "utf-8",
        )


def _write_rounded(path, arrays, bits):
    filters = {"shuffle": True, "compression": "gzip", "compression_opts": 9}
    write_arrays(path, {name: rounded(a, bits) for name, a in arrays.items()}, **filters)


def round_weights(model, bits=BITS) -> None:
    """Round the weights of a ``BiLanguageModel`` to what ``write_language_model`` keeps."""
    for_bilm, for_softmax = bits
    for weight in model.weights:
        is_softmax = any(weight is w for w in (model.softmax_kernel, model.softmax_bias))
        kept = for_softmax if is_softmax else for_bilm
        weight.assign(rounded(to_float32(weight), kept))


def average_weights(model, vocabulary, preset, share) -> None:
    """Replace the weights of a ``BiLanguageModel`` by an average of them and of a preset's.

    The weights must be of one descent: one biLM trained on from the other, or both from a third.

    Args:
        model: The ``BiLanguageModel``.
        vocabulary: Its vocabulary; other tokens of the preset's are left out as
            ``read_language_model`` does.
        preset: As for ``read_language_model``.
        share: Of the preset's weights, between 0 and 1.

    Raises:
        ValueError: If the sizes differ, or ``share`` is not as above.

    Reference:
        Wortsman et al., 2022, https://arxiv.org/abs/2109.01903
    """
    if not 0 < share < 1:
        raise ValueError(f"Expected a share between 0 and 1. Received: {share} of {preset}")
    other, _ = read_language_model(preset, vocabulary)
    if other.config != model.config:
        raise ValueError(
            f"Expected a preset with the options of the run. Received: {preset}, with "
            f"{other.config}, where the run has {model.config}"
        )
    for weight, its in zip(model.weights, other.weights, strict=True):
        weight.assign((1 - share) * to_float32(weight) + share * to_float32(its))


def rounded(array, bits) -> np.ndarray:
    """Round float32 to so many significant bits, at most 23, to nearest, ties to even."""
    values = np.ascontiguousarray(array, "float32").view("uint32")
    dropped = np.uint32(24 - bits)
    half = np.uint32((1 << (23 - bits)) - 1)
    odd = (values >> dropped) & np.uint32(1)
    return ((values + half + odd) >> dropped << dropped).view("float32")
