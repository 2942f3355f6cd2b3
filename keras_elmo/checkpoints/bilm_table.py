"""The tensors of a bilm-tf hdf5 file, which AllenNLP and simple_elmo read too."""

import numpy as np

from keras_elmo.checkpoints.rows import Row, Transform
from keras_elmo.config import BiLMConfig


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
    rows = [Row(("char_embed",), ("char_cnn/embeddings",), PREPEND_PADDING_ROW)]
    for i in range(len(config.filters)):
        rows += [
            Row((f"CNN/W_cnn_{i}",), (f"char_cnn/conv_{i}_kernel",), DROP_LEADING_AXIS),
            Row((f"CNN/b_cnn_{i}",), (f"char_cnn/conv_{i}_bias",), AS_IS),
        ]
    for i in range(config.n_highway):
        source, target = f"CNN_high_{i}", f"char_cnn/highway_{i}"
        rows += [
            Row((f"{source}/W_transform",), (f"{target}/transform_kernel",), AS_IS),
            Row((f"{source}/b_transform",), (f"{target}/transform_bias",), AS_IS),
            Row((f"{source}/W_carry",), (f"{target}/gate_kernel",), AS_IS),
            Row((f"{source}/b_carry",), (f"{target}/gate_bias",), AS_IS),
        ]
    if config.n_filters != config.projection_dim:
        rows += [
            Row(("CNN_proj/W_proj",), ("char_cnn/projection_kernel",), AS_IS),
            Row(("CNN_proj/b_proj",), ("char_cnn/projection_bias",), AS_IS),
        ]
    without_level = config.n_layers == 1 and "RNN_0/RNN/LSTMCell/W_0" in names
    for d, direction in enumerate(("forward", "backward")):
        for layer in range(config.n_layers):
            level = "" if without_level else f"MultiRNNCell/Cell{layer}/"
            source = f"RNN_{d}/RNN/{level}LSTMCell"
            target = f"{direction}_{layer + 1}"
            kernels = (f"{target}/kernel", f"{target}/recurrent_kernel")
            rows += [
                Row((f"{source}/W_0",), kernels, _split_rows(config.projection_dim)),
                Row((f"{source}/B",), (f"{target}/bias",), SWAP_GATES),
            ]
            if config.projection_dim != config.lstm_dim:
                rows.append(Row((f"{source}/W_P_0",), (f"{target}/projection",), AS_IS))
    return rows
