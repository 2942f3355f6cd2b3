"""The weights of a biLM in PyTorch files, as AllenNLP and ELMoForManyLangs name them."""

import dataclasses
import os
import re
import warnings
from typing import Any

import numpy as np

from keras_elmo.config import BiLMConfig
from keras_elmo.formats.bilm_weights import AS_IS, MISSING_TENSORS, shapes_of_series
from keras_elmo.formats.checks import Arrays, largest_size
from keras_elmo.formats.weight_mapping import Transform, WeightMapping
from keras_elmo.utils.extras import import_extra
from keras_elmo.utils.files import PathLike

_NEEDS_PICKLE = re.compile("unsupported (global|class)|unrecognized function|blocked", re.I)

# The axes of a matrix are (outputs, inputs) in PyTorch and (inputs, outputs) in Keras. Those of a
# convolution are (filters, characters, width) and (width, characters, filters).
TRANSPOSE = Transform(load=lambda x: (x.T,), save=lambda x: x.T)
# One linear map computes transform and gate. Their gate is 1 - ours, hence the minus sign.
SPLIT_HIGHWAY = Transform(
    load=lambda x: (np.split(x, 2)[0].T, -np.split(x, 2)[1].T),
    save=lambda transform, gate: np.concatenate([transform.T, -gate.T]),
)


def _shift_forget_gate(x: np.ndarray, shift: int) -> np.ndarray:
    """Add a number to the second of four gates: i, f, g, o."""
    i, forget, g, o = np.split(x, 4)
    return np.concatenate([i, forget + np.asarray(shift, x.dtype), g, o])


# PyTorch's bias includes the 1 that bilm-tf adds to the forget gate at run time.
SUBTRACT_FORGET_BIAS = Transform(
    load=lambda x: (_shift_forget_gate(x, -1),),
    save=lambda x: _shift_forget_gate(x, 1),
)


def _split_columns(word_dim: int) -> Transform:
    """Return the split of a projection into the columns of words and of characters."""
    return Transform(
        load=lambda x: (x[:, :word_dim].T, x[:, word_dim:].T),
        save=lambda words, characters: np.concatenate([words.T, characters.T], axis=1),
    )


@dataclasses.dataclass(frozen=True)
class TorchNames:
    """The names of the parts of a biLM.

    In ``convolution`` and ``highway``, ``{}`` is the place of the number. ``lstms`` is the prefix
    of ``forward_layer_0``.
    """

    characters: str
    convolution: str
    highway: str
    projection: str
    lstms: str
    words: str = ""


def torch_mapping(
    config: BiLMConfig,
    names: TorchNames,
    embeddings: Transform = AS_IS,
    word_embeddings: Transform = AS_IS,
    padding_rows: int = 1,
) -> WeightMapping:
    """Return the weight mapping of a biLM in PyTorch. Targets are relative to the ``BiLM``.

    ``embeddings`` and ``word_embeddings`` transform the embeddings of characters and of words.
    ``padding_rows`` is the number of rows for padding in the character embeddings.
    """
    features, width, cells = config.n_filters, config.projection_dim, config.lstm_dim
    characters = config.character_embedding_dim
    n_rows = config.n_characters - 1 + padding_rows
    mapping = WeightMapping()
    mapping.add(names.characters, (n_rows, characters), embeddings, "char_cnn/embeddings")
    for i, (wide, count) in enumerate(config.filters):
        source, target = names.convolution.format(i), f"char_cnn/conv_{i}"
        mapping.add(f"{source}.weight", (count, characters, wide), TRANSPOSE, f"{target}_kernel")
        mapping.add(f"{source}.bias", (count,), AS_IS, f"{target}_bias")
    for i in range(config.n_highway):
        source, target = names.highway.format(i), f"char_cnn/highway_{i}"
        kernels = f"{target}/transform_kernel", f"{target}/gate_kernel"
        biases = f"{target}/transform_bias", f"{target}/gate_bias"
        mapping.add(f"{source}.weight", (2 * features, features), SPLIT_HIGHWAY, *kernels)
        mapping.add(f"{source}.bias", (2 * features,), SPLIT_HIGHWAY, *biases)
    if config.has_projection:
        kernel, target = f"{names.projection}.weight", "char_cnn/projection_kernel"
        mapping.add(f"{names.projection}.bias", (width,), AS_IS, "char_cnn/projection_bias")
        alphabet = config.code_points
        if alphabet is None or not alphabet.words:
            mapping.add(kernel, (width, features), TRANSPOSE, target)
        else:
            n_words, size = len(alphabet.words), alphabet.word_dim
            targets = "char_cnn/word_kernel", target
            mapping.add(kernel, (width, size + features), _split_columns(size), *targets)
            target = "char_cnn/word_embeddings"
            mapping.add(names.words, (n_words, size), word_embeddings, target)
    for direction in ("forward", "backward"):
        for layer in range(config.n_layers):
            source, target = f"{names.lstms}{direction}_layer_{layer}", f"{direction}_{layer + 1}"
            for theirs, ours in (("input", "kernel"), ("state", "recurrent_kernel")):
                name = f"{source}.{theirs}_linearity.weight"
                mapping.add(name, (4 * cells, width), TRANSPOSE, f"{target}/{ours}")
            name = f"{source}.state_linearity.bias"
            mapping.add(name, (4 * cells,), SUBTRACT_FORGET_BIAS, f"{target}/bias")
            if width != cells:
                name = f"{source}.state_projection.weight"
                mapping.add(name, (width, cells), TRANSPOSE, f"{target}/projection")
    return mapping


def infer_sizes(names: TorchNames, arrays: Arrays, file: str) -> dict[str, Any]:
    """Return the fields of a ``BiLMConfig`` that the shapes of the tensors show."""
    shapes = {name: array.shape for name, array in arrays.items()}
    kernels = shapes_of_series(shapes, names.convolution + ".weight", 3)
    biases = shapes_of_series(shapes, names.lstms + "forward_layer_{}.state_linearity.bias", 1)
    characters = shapes_of_series(shapes, names.characters, 2)
    inputs = shapes_of_series(shapes, f"{names.lstms}forward_layer_0.input_linearity.weight", 2)
    if not (kernels and biases and characters and inputs):
        raise ValueError(MISSING_TENSORS.format(file))
    return {
        "filters": [(kernel[2], kernel[0]) for kernel in kernels],
        "character_embedding_dim": characters[0][1],
        "n_highway": len(shapes_of_series(shapes, names.highway + ".weight", 2)),
        "lstm_dim": inputs[0][0] // 4,
        "projection_dim": inputs[0][1],
        "n_layers": len(biases),
    }


def read_tensors(file: PathLike) -> dict[str, np.ndarray]:
    """Read a PyTorch file of tensors by name, zipped or in the format before PyTorch 1.6.

    Half precision becomes float32. Without PyTorch an ``ImportError`` says how to install it.
    """
    name = f"PyTorch file {file}"
    torch = import_extra("torch", f"Reading {file}", "PyTorch", "torch")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about old pickles, which load nevertheless
            state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        # PyTorch begins with advice on how to run what the file contains.
        _, _, reason = str(error).rpartition("trusted source.")
        reason = " ".join(reason.partition("Check the documentation")[0].split())
        if _NEEDS_PICKLE.search(reason):
            raise ValueError(
                f"{name} must contain tensors only. Received: a pickle that needs more: "
                f"{reason[:200]} It is not loaded"
            ) from None
        raise OSError(
            f"{name} is damaged, or not a PyTorch file ({reason[:300]}). Fetch it again"
        ) from error
    if not isinstance(state, dict) or not all(isinstance(key, str) for key in state):
        raise ValueError(f"{name} must contain tensors by name. Received: {type(state).__name__}")
    tensors = {key: x.detach() for key, x in state.items() if isinstance(x, torch.Tensor)}
    total, size = sum(x.numel() * x.element_size() for x in tensors.values()), os.path.getsize(file)
    if total > largest_size(size):  # an expanded tensor declares more values than it stores
        raise ValueError(
            f"{name} must contain the values of its tensors. Received: {total} bytes in a file of "
            f"{size} bytes"
        )
    try:
        return {key: _as_numpy(x) for key, x in tensors.items()}
    except Exception as error:
        raise ValueError(f"{name} must contain plain tensors. Received: {error!r:.200}") from error


def _as_numpy(tensor: Any) -> np.ndarray:
    is_half = tensor.is_floating_point() and tensor.element_size() < 4
    return (tensor.float() if is_half else tensor).numpy()
