"""The weights of a biLM in PyTorch files, as AllenNLP and ELMoForManyLangs store them."""

import warnings

import numpy as np

from keras_elmo.formats.weight_mapping import AS_IS, Layout, Transform
from keras_elmo.utils.extras import import_extra
from keras_elmo.utils.files import PathLike

# The axes of a matrix are (outputs, inputs) in PyTorch and (inputs, outputs) in Keras. Those of a
# convolution are (filters, characters, width) and (width, characters, filters).
TRANSPOSE = Transform(lambda x: (x.T,))
# One linear map computes transform and gate. Their gate is 1 - ours, hence the minus sign.
SPLIT_HIGHWAY = Transform(lambda x: (np.split(x, 2)[0].T, -np.split(x, 2)[1].T))
# PyTorch's bias includes the 1 that bilm-tf adds to the forget gate at run time: i, f, g, o.
SUBTRACT_FORGET_BIAS = Transform(
    lambda x: (x - np.repeat(np.array([0, 1, 0, 0], x.dtype), len(x) // 4),)
)


def torch_layout(convolution: str, highway: str, projection: str, lstms: str) -> Layout:
    """Return the layout of all tensors but the embeddings of characters and words.

    The arguments are the beginnings of the names of the tensors.
    """
    lstm, ours = lstms + "{direction}_layer_{l}", "{direction}_{layer}"
    transform, gate = "char_cnn/highway_{k}/transform_", "char_cnn/highway_{k}/gate_"
    return [
        (f"{convolution}{{i}}.weight", "n e w", TRANSPOSE, "char_cnn/conv_{i}_kernel"),
        (f"{convolution}{{i}}.bias", "n", AS_IS, "char_cnn/conv_{i}_bias"),
        (f"{highway}{{k}}.weight", "2F F", SPLIT_HIGHWAY, f"{transform}kernel", f"{gate}kernel"),
        (f"{highway}{{k}}.bias", "2F", SPLIT_HIGHWAY, f"{transform}bias", f"{gate}bias"),
        (f"{projection}.weight", "P F", TRANSPOSE, "char_cnn/projection_kernel"),
        (f"{projection}.bias", "P", AS_IS, "char_cnn/projection_bias"),
        (f"{lstm}.input_linearity.weight", "4D P", TRANSPOSE, f"{ours}/kernel"),
        (f"{lstm}.state_linearity.weight", "4D P", TRANSPOSE, f"{ours}/recurrent_kernel"),
        (f"{lstm}.state_linearity.bias", "4D", SUBTRACT_FORGET_BIAS, f"{ours}/bias"),
        (f"{lstm}.state_projection.weight", "P D", TRANSPOSE, f"{ours}/projection"),
    ]


def read_tensors(file: PathLike) -> dict[str, np.ndarray]:
    """Read a PyTorch file of tensors by name, zipped or in the format before PyTorch 1.6.

    The arrays are float32. Without PyTorch an ``ImportError`` says how to install it.
    """
    torch = import_extra("torch", f"Reading {file}", "PyTorch", "torch")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about old pickles, which load nevertheless
            state = torch.load(file, map_location="cpu", weights_only=True)
        tensors = {key: x for key, x in state.items() if isinstance(x, torch.Tensor)}
        return {key: x.detach().float().numpy() for key, x in tensors.items()}
    except Exception as error:
        raise OSError(
            f"PyTorch file {file} is damaged, or contains something else than tensors by name. "
            "It is not loaded. Fetch it again"
        ) from error
