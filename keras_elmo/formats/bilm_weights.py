"""The layouts of bilm-tf: its hdf5 files, which AllenNLP and simple_elmo read, and checkpoints."""

import numpy as np

from keras_elmo.config import BiLMConfig
from keras_elmo.formats.weight_mapping import AS_IS, Layout, Transform, WeightMapping, make_mapping


def swap_gates(x: np.ndarray) -> np.ndarray:
    """Swap the second and third of four gates: bilm-tf has i, c, f, o, Keras has i, f, c, o."""
    i, second, third, o = np.split(x, 4, axis=-1)
    return np.concatenate([i, third, second, o], axis=-1)


# The file has no row for the padding id 0.
PREPEND_PADDING_ROW = Transform(
    load=lambda x: (np.concatenate([np.zeros_like(x[:1]), x]),), save=lambda x: x[1:]
)
# The file stores two-dimensional convolutions, whose first axis has length one.
DROP_LEADING_AXIS = Transform(load=lambda x: (x[0],), save=lambda x: x[None])
SWAP_GATES = Transform(load=lambda x: (swap_gates(x),), save=swap_gates)
# The first half of the rows is the kernel, the second half the recurrent kernel.
SPLIT_ROWS = Transform(
    load=lambda x: tuple(map(swap_gates, np.split(x, 2))),
    save=lambda kernel, recurrent: swap_gates(np.concatenate([kernel, recurrent])),
)

_CHARACTER_CNN: Layout = [
    ("CNN/W_cnn_{i}", "1 w e n", DROP_LEADING_AXIS, "char_cnn/conv_{i}_kernel"),
    ("CNN/b_cnn_{i}", "n", AS_IS, "char_cnn/conv_{i}_bias"),
    ("CNN_high_{k}/W_transform", "F F", AS_IS, "char_cnn/highway_{k}/transform_kernel"),
    ("CNN_high_{k}/b_transform", "F", AS_IS, "char_cnn/highway_{k}/transform_bias"),
    ("CNN_high_{k}/W_carry", "F F", AS_IS, "char_cnn/highway_{k}/gate_kernel"),
    ("CNN_high_{k}/b_carry", "F", AS_IS, "char_cnn/highway_{k}/gate_bias"),
    ("CNN_proj/W_proj", "F P", AS_IS, "char_cnn/projection_kernel"),
    ("CNN_proj/b_proj", "P", AS_IS, "char_cnn/projection_bias"),
    # These two are ours, for biLMs of ELMoForManyLangs.
    ("word_embed", "V v", PREPEND_PADDING_ROW, "char_cnn/word_embeddings"),
    ("CNN_proj/W_word", "v P", AS_IS, "char_cnn/word_kernel"),
]
_CHARACTERS: Layout = [("char_embed", "c e", PREPEND_PADDING_ROW, "char_cnn/embeddings")]
_PADDED_CHARACTERS: Layout = [("char_embed", "C e", AS_IS, "char_cnn/embeddings")]


def _lstms(cell: str, kernel: str, bias: str, projection: str) -> Layout:
    lstm = "{direction}_{layer}"
    return [
        (f"{cell}/{kernel}", "2P 4D", SPLIT_ROWS, f"{lstm}/kernel", f"{lstm}/recurrent_kernel"),
        (f"{cell}/{bias}", "4D", SWAP_GATES, f"{lstm}/bias"),
        (f"{cell}/{projection}", "D P", AS_IS, f"{lstm}/projection"),
    ]


def variables_layout(cell: str, is_padded: bool) -> Layout:
    """Return the layout of the variables of a checkpoint.

    ``cell`` is the start of the names of an LSTM. ``is_padded`` says whether the characters have
    a row for the padding.
    """
    characters = _PADDED_CHARACTERS if is_padded else _CHARACTERS
    return [*characters, *_CHARACTER_CNN, *_lstms(cell, "kernel", "bias", "projection/kernel")]


_HDF5: Layout = [
    *_CHARACTERS,
    *_CHARACTER_CNN,
    *_lstms("RNN_{d}/RNN/MultiRNNCell/Cell{l}/LSTMCell", "W_0", "B", "W_P_0"),
]


def bilm_mapping(config: BiLMConfig) -> WeightMapping:
    """Return the weight mapping of an hdf5 file."""
    return make_mapping(_HDF5, config)
