"""The tensors of a biLM in PyTorch, as AllenNLP and ELMoForManyLangs have them."""

import dataclasses

import numpy as np

from keras_elmo.formats.bilm_files import BiLMFile
from keras_elmo.formats.bilm_weights import AS_IS, bilm_rows
from keras_elmo.formats.hdf5 import misfit_error, misfits
from keras_elmo.formats.weight_mapping import WORDS, Row, Transform, expected_shapes, extract, load

# (filters, characters, width) there, (width, characters, filters) here.
CONVOLUTION = Transform(
    "reverse_axes", lambda x: (x.transpose(2, 1, 0),), lambda x: (x.transpose(2, 1, 0),)
)
TRANSPOSE = Transform("transpose", lambda x: (x.T,), lambda x: (x.T,))
# One linear map gives transform and gate, and its gate is open where ours is closed.
SPLIT_HIGHWAY = Transform(
    "split_highway",
    lambda x: (np.split(x, 2)[0].T, -np.split(x, 2)[1].T),
    lambda transform, gate: (np.concatenate([transform.T, -gate.T]),),
)


def _shift_forget_gate(x, shift):
    """Shift the second of the four gates, i, f, g and o."""
    i, forget, g, o = np.split(x, 4)
    return np.concatenate([i, forget + np.asarray(shift, x.dtype), g, o])


# The bias holds the 1 that bilm-tf adds at run time.
SUBTRACT_FORGET_BIAS = Transform(
    "subtract_forget_bias",
    lambda x: (_shift_forget_gate(x, -1),),
    lambda x: (_shift_forget_gate(x, 1),),
)


def _split_columns(first):
    """Split a projection into the columns of the word and those of the characters."""
    return Transform(
        "split_columns",
        lambda x: (x[:, :first].T, x[:, first:].T),
        lambda words, characters: (np.concatenate([words.T, characters.T], axis=1),),
    )


@dataclasses.dataclass(frozen=True)
class TorchNames:
    """What tensors are called.

    Attributes:
        characters: The character embeddings.
        convolution: A convolution, ``{}`` for its number.
        highway: A highway, likewise.
        projection: The projection.
        lstms: What stands in front of ``forward_layer_0``.
        words: The word embeddings.
    """

    characters: str
    convolution: str
    highway: str
    projection: str
    lstms: str
    words: str = ""


def torch_rows(
    config,
    names: TorchNames,
    embeddings: Transform = AS_IS,
    word_embeddings: Transform = AS_IS,
    padding=1,
) -> list[Row]:
    """Return the weight table of a biLM in PyTorch.

    Args:
        config: The ``BiLMConfig``.
        names: The ``TorchNames``.
        embeddings: Between the character embeddings there and ours.
        word_embeddings: Likewise of the words.
        padding: Rows of those there that belong to the padding.

    Returns:
        List of ``Row``; targets are relative to the ``BiLM``.
    """
    features, width, cells = config.n_filters, config.projection_dim, config.lstm_dim
    characters = config.character_embedding_dim
    rows = [
        _row(
            names.characters,
            "char_cnn/embeddings",
            embeddings,
            (config.n_characters - 1 + padding, characters),
        )
    ]
    for i, (wide, count) in enumerate(config.filters):
        source, target = names.convolution.format(i), f"char_cnn/conv_{i}"
        rows += [
            _row(f"{source}.weight", f"{target}_kernel", CONVOLUTION, (count, characters, wide)),
            _row(f"{source}.bias", f"{target}_bias", AS_IS, (count,)),
        ]
    for i in range(config.n_highway):
        source, target = names.highway.format(i), f"char_cnn/highway_{i}"
        for leaf, part, shape in (
            ("weight", "kernel", (2 * features, features)),
            ("bias", "bias", (2 * features,)),
        ):
            targets = (f"{target}/transform_{part}", f"{target}/gate_{part}")
            rows.append(Row((f"{source}.{leaf}",), targets, SPLIT_HIGHWAY, (shape,)))
    if config.has_projection:
        bias, kernel = (f"{names.projection}.{leaf}" for leaf in ("bias", "weight"))
        rows.append(_row(bias, "char_cnn/projection_bias", AS_IS, (width,)))
        known = config.code_points
        if known is None or not known.words:
            rows.append(_row(kernel, "char_cnn/projection_kernel", TRANSPOSE, (width, features)))
        else:
            rows += [
                Row(
                    (kernel,),
                    ("char_cnn/word_kernel", "char_cnn/projection_kernel"),
                    _split_columns(known.word_dim),
                    ((width, known.word_dim + features),),
                ),
                _row(
                    names.words,
                    "char_cnn/word_embeddings",
                    word_embeddings,
                    (len(known.words), known.word_dim),
                ),
            ]
    for direction in ("forward", "backward"):
        for layer in range(config.n_layers):
            source, target = f"{names.lstms}{direction}_layer_{layer}", f"{direction}_{layer + 1}"
            for theirs, ours in (("input", "kernel"), ("state", "recurrent_kernel")):
                name = f"{source}.{theirs}_linearity.weight"
                rows.append(_row(name, f"{target}/{ours}", TRANSPOSE, (4 * cells, width)))
            bias = f"{source}.state_linearity.bias"
            rows.append(_row(bias, f"{target}/bias", SUBTRACT_FORGET_BIAS, (4 * cells,)))
            if width != cells:
                name, shape = f"{source}.state_projection.weight", (width, cells)
                rows.append(_row(name, f"{target}/projection", TRANSPOSE, shape))
    return rows


def infer_sizes(names: TorchNames, arrays: dict) -> dict | None:
    """Return the fields of a ``BiLMConfig`` that shapes tell; None if tensors are missing."""

    def shape(name):
        return arrays[name].shape if name in arrays else ()

    filters: list[tuple[int, int]] = []
    n_highway = n_layers = 0
    while len(kernel := shape(names.convolution.format(len(filters)) + ".weight")) == 3:
        filters.append((kernel[2], kernel[0]))
    while shape(names.highway.format(n_highway) + ".weight"):
        n_highway += 1
    while shape(f"{names.lstms}forward_layer_{n_layers}.state_linearity.bias"):
        n_layers += 1
    characters = shape(names.characters)
    inputs = shape(f"{names.lstms}forward_layer_0.input_linearity.weight")
    if not (filters and n_layers and len(characters) == 2 and len(inputs) == 2):
        return None
    return {
        "filters": filters,
        "character_embedding_dim": characters[1],
        "n_highway": n_highway,
        "lstm_dim": inputs[0] // 4,
        "projection_dim": inputs[1],
        "n_layers": n_layers,
    }


def read_torch_bilm(config, rows, arrays, origin) -> BiLMFile:
    """Return the biLM that tensors in PyTorch's layout hold, in bilm-tf's.

    Args:
        config: The ``BiLMConfig``.
        rows: Of ``torch_rows``.
        arrays: The tensors of the biLM by name, no others.
        origin: Name of the file, for errors.

    Raises:
        ValueError: If a tensor is missing, left over, of another shape or not finite.
    """
    expected = expected_shapes(rows)
    if problems := misfits(expected, arrays) + misfits({}, arrays, values_only=True):
        raise misfit_error(f"PyTorch file {origin}", problems, **WORDS)
    return BiLMFile(config, extract(bilm_rows(config), load(rows, arrays)), origin)


def _row(source, target, transform, shape):
    return Row((source,), (target,), transform, (shape,))
