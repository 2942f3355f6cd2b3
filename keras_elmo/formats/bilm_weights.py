"""The weight mapping of a biLM in bilm-tf's layout, which AllenNLP and simple_elmo read too."""

import dataclasses
from collections.abc import Container, Sequence

import numpy as np

from keras_elmo.config import BiLMConfig
from keras_elmo.formats.checks import Shape, Shapes
from keras_elmo.formats.weight_mapping import Transform, WeightMapping


@dataclasses.dataclass(frozen=True)
class LstmNames:
    """How a kind of file names the tensors of the LSTMs.

    ``cell`` has places for direction and layer, or for the direction only if files of one layer do
    not name the layer. The others are the names of the tensors of a cell.
    """

    cell: str
    kernel: str
    bias: str
    projection: str


MISSING_TENSORS = (
    "{} must contain the tensors of a character CNN and of LSTMs. Received: a file without some "
    "of them"
)
HDF5_NAMES = (
    LstmNames("RNN_{}/RNN/MultiRNNCell/Cell{}/LSTMCell", "W_0", "B", "W_P_0"),
    LstmNames("RNN_{}/RNN/LSTMCell", "W_0", "B", "W_P_0"),
)


def find_lstm_names(choices: Sequence[LstmNames], names: Container[str]) -> LstmNames:
    """Return the choice for a file that contains the tensors ``names``, or the first one."""
    found = (x for x in choices if f"{x.cell.format(0, 0)}/{x.kernel}" in names)
    return next(found, choices[0])


def _swap_gates(x: np.ndarray) -> np.ndarray:
    """Swap the second and third of four gates: bilm-tf has i, c, f, o, Keras has i, f, c, o."""
    i, second, third, o = np.split(x, 4, axis=-1)
    return np.concatenate([i, third, second, o], axis=-1)


AS_IS = Transform(load=lambda x: (x,), save=lambda x: x)
# The file has no row for the padding id 0.
PREPEND_PADDING_ROW = Transform(
    load=lambda x: (np.concatenate([np.zeros_like(x[:1]), x]),), save=lambda x: x[1:]
)
# The file stores two-dimensional convolutions, whose first axis has length one.
DROP_LEADING_AXIS = Transform(load=lambda x: (x[0],), save=lambda x: x[None])
SWAP_GATES = Transform(load=lambda x: (_swap_gates(x),), save=_swap_gates)


def _split_rows(recurrent_rows: int) -> Transform:
    """Return the split of the rows [x; h] into the kernel and the recurrent kernel."""
    return Transform(
        load=lambda x: (_swap_gates(x[:-recurrent_rows]), _swap_gates(x[-recurrent_rows:])),
        save=lambda kernel, recurrent: _swap_gates(np.concatenate([kernel, recurrent])),
    )


def bilm_mapping(
    config: BiLMConfig,
    names: Container[str] = (),
    choices: Sequence[LstmNames] = HDF5_NAMES,
    has_padding_row: bool = False,
) -> WeightMapping:
    """Return the weight mapping of a biLM. Targets are relative to the ``BiLM``.

    ``names`` are the tensors in the file. They show which of the ``choices`` it uses.
    ``has_padding_row`` says whether ``char_embed`` has a row for the padding id 0.
    """
    if config.n_layers > 1:
        choices = [x for x in choices if x.cell.count("{}") == 2]
    lstm = find_lstm_names(choices, names)
    characters, cells = config.character_embedding_dim, config.lstm_dim
    features, width = config.n_filters, config.projection_dim
    n_rows = config.n_characters - (not has_padding_row)
    embeddings = AS_IS if has_padding_row else PREPEND_PADDING_ROW
    mapping = WeightMapping()
    mapping.add("char_embed", (n_rows, characters), embeddings, "char_cnn/embeddings")
    for i, (wide, count) in enumerate(config.filters):
        source, target, shape = f"CNN/W_cnn_{i}", f"char_cnn/conv_{i}", (1, wide, characters, count)
        mapping.add(source, shape, DROP_LEADING_AXIS, f"{target}_kernel")
        mapping.add(f"CNN/b_cnn_{i}", (count,), AS_IS, f"{target}_bias")
    for i in range(config.n_highway):
        for theirs, ours in (("transform", "transform"), ("carry", "gate")):
            source, target = f"CNN_high_{i}", f"char_cnn/highway_{i}/{ours}"
            mapping.add(f"{source}/W_{theirs}", (features, features), AS_IS, f"{target}_kernel")
            mapping.add(f"{source}/b_{theirs}", (features,), AS_IS, f"{target}_bias")
    if config.has_projection:
        mapping.add("CNN_proj/W_proj", (features, width), AS_IS, "char_cnn/projection_kernel")
        mapping.add("CNN_proj/b_proj", (width,), AS_IS, "char_cnn/projection_bias")
    if config.code_points is not None and config.code_points.words:
        words, size = len(config.code_points.words), config.code_points.word_dim
        mapping.add("word_embed", (words, size), PREPEND_PADDING_ROW, "char_cnn/word_embeddings")
        mapping.add("CNN_proj/W_word", (size, width), AS_IS, "char_cnn/word_kernel")
    for d, direction in enumerate(("forward", "backward")):
        for layer in range(config.n_layers):
            source, target = lstm.cell.format(d, layer), f"{direction}_{layer + 1}"
            mapping.add(
                f"{source}/{lstm.kernel}",
                (2 * width, 4 * cells),
                _split_rows(width),
                f"{target}/kernel",
                f"{target}/recurrent_kernel",
            )
            mapping.add(f"{source}/{lstm.bias}", (4 * cells,), SWAP_GATES, f"{target}/bias")
            if width != cells:
                source = f"{source}/{lstm.projection}"
                mapping.add(source, (cells, width), AS_IS, f"{target}/projection")
    return mapping


def shapes_of_series(shapes: Shapes, template: str, n_axes: int) -> list[Shape]:
    """Return the shapes of the tensors ``template.format(0)``, ``template.format(1)`` and so on.

    The series ends before the first tensor that is missing or has another number of axes. A
    template without ``{}`` is the name of one tensor.
    """
    series: list[Shape] = []
    while len(shape := shapes.get(template.format(len(series)), ())) == n_axes:
        series.append(shape)
        if "{}" not in template:
            break
    return series
