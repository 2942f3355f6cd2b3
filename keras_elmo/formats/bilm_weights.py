"""The tensors of a bilm-tf hdf5 file, which AllenNLP and simple_elmo read too."""

import numpy as np

from keras_elmo.config import BiLMConfig
from keras_elmo.formats.weight_mapping import Row, Transform


def _swap_gates(x):
    """Exchange the middle two of the four gates: bilm-tf has i, c, f, o and Keras i, f, c, o."""
    i, second, third, o = np.split(x, 4, axis=-1)
    return np.concatenate([i, third, second, o], axis=-1)


AS_IS = Transform("as_is", lambda x: (x,), lambda x: (x,))
# The file has no row for the padding id 0.
PREPEND_PADDING_ROW = Transform(
    "prepend_padding_row",
    lambda x: (np.concatenate([np.zeros_like(x[:1]), x]),),
    lambda x: (x[1:],),
)
# The file keeps convolutions in two dimensions, the first of length one.
DROP_LEADING_AXIS = Transform("drop_leading_axis", lambda x: (x[0],), lambda x: (x[None],))
SWAP_GATES = Transform("swap_gates", lambda x: (_swap_gates(x),), lambda x: (_swap_gates(x),))


def _split_rows(recurrent_rows):
    """Split the rows [x; h] of the file into kernel and recurrent kernel."""
    return Transform(
        "split_rows_and_swap_gates",
        lambda x: (_swap_gates(x[:-recurrent_rows]), _swap_gates(x[-recurrent_rows:])),
        lambda kernel, recurrent: (_swap_gates(np.concatenate([kernel, recurrent])),),
    )


def bilm_rows(config: BiLMConfig, names=()) -> list[Row]:
    """Return the weight table of a biLM.

    Args:
        config: The ``BiLMConfig``.
        names: Names of the tensors in the file at hand. bilm-tf leaves out the level
            ``MultiRNNCell/Cell0`` if there is a single layer.

    Returns:
        List of ``Row``; targets are relative to the ``BiLM``.
    """
    characters, cells = config.character_embedding_dim, config.lstm_dim
    features, width = config.n_filters, config.projection_dim
    rows = [
        _row(
            "char_embed",
            "char_cnn/embeddings",
            PREPEND_PADDING_ROW,
            (config.n_characters - 1, characters),
        )
    ]
    for i, (wide, count) in enumerate(config.filters):
        kernel = (1, wide, characters, count)
        rows += [
            _row(f"CNN/W_cnn_{i}", f"char_cnn/conv_{i}_kernel", DROP_LEADING_AXIS, kernel),
            _row(f"CNN/b_cnn_{i}", f"char_cnn/conv_{i}_bias", AS_IS, (count,)),
        ]
    for i in range(config.n_highway):
        source, target = f"CNN_high_{i}", f"char_cnn/highway_{i}"
        for part, ours in (("transform", "transform"), ("carry", "gate")):
            rows += [
                _row(f"{source}/W_{part}", f"{target}/{ours}_kernel", AS_IS, (features, features)),
                _row(f"{source}/b_{part}", f"{target}/{ours}_bias", AS_IS, (features,)),
            ]
    if config.has_projection:
        rows += [
            _row("CNN_proj/W_proj", "char_cnn/projection_kernel", AS_IS, (features, width)),
            _row("CNN_proj/b_proj", "char_cnn/projection_bias", AS_IS, (width,)),
        ]
    if config.code_points is not None and config.code_points.words:
        words, size = len(config.code_points.words), config.code_points.word_dim
        rows += [
            _row("word_embed", "char_cnn/word_embeddings", PREPEND_PADDING_ROW, (words, size)),
            _row("CNN_proj/W_word", "char_cnn/word_kernel", AS_IS, (size, width)),
        ]
    without_level = config.n_layers == 1 and "RNN_0/RNN/LSTMCell/W_0" in names
    for d, direction in enumerate(("forward", "backward")):
        for layer in range(config.n_layers):
            level = "" if without_level else f"MultiRNNCell/Cell{layer}/"
            source = f"RNN_{d}/RNN/{level}LSTMCell"
            target = f"{direction}_{layer + 1}"
            kernels = (f"{target}/kernel", f"{target}/recurrent_kernel")
            stacked = (2 * width, 4 * cells)
            rows += [
                Row((f"{source}/W_0",), kernels, _split_rows(width), (stacked,)),
                _row(f"{source}/B", f"{target}/bias", SWAP_GATES, (4 * cells,)),
            ]
            if width != cells:
                target = f"{target}/projection"
                rows.append(_row(f"{source}/W_P_0", target, AS_IS, (cells, width)))
    return rows


def _row(source, target, transform, shape):
    return Row((source,), (target,), transform, (shape,))
