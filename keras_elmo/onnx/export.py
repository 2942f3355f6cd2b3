"""A preset as one ONNX file."""

from keras_elmo.formats.bilm_weights import bilm_mapping
from keras_elmo.formats.weight_mapping import load
from keras_elmo.onnx.models import bilm_model
from keras_elmo.presets import read_preset
from keras_elmo.utils.files import atomic_write


def export_onnx(preset, file, int8=False, stateful=False, options=None) -> dict:
    """Write the biLM of a preset as ONNX, for any runtime of it.

    Strings stay outside: the input are the character ids that ``CharacterTokenizer`` makes
    (the bytes of a token plus 1, between 259 and 260, then 261 up to ``max_characters``; all
    0 in padding). Boundary tokens are added inside.

    Args:
        preset: As for ``ElmoLayer.from_preset``.
        file: Path of the file to write.
        int8: Keep the kernels of LSTMs and highways as eight bits, a quarter of the size, and
            multiply so.
        stateful: Take and give the state, as ``ElmoLayer(stateful=True)`` carries it.
        options: As for ``ElmoLayer.from_preset``.

    Returns:
        Dict of ``fingerprint``, ``bytes``, ``inputs`` and ``outputs``, both dicts of name to
        shape, in which unknown sizes have names.

    Raises:
        ImportError: If ONNX is not installed.
        OSError, ValueError: Those of ``ElmoLayer.from_preset``; if the biLM does not read bytes
            (ELMoForManyLangs); if the file cannot be written.

    Example:

    >>> export_onnx("elmo_mini_en", "elmo.onnx")["outputs"]["layers"]
    ['batch', 'tokens', 3, 256]
    """
    try:
        import onnx  # noqa: F401
    except ImportError:
        raise ImportError(
            "export_onnx needs ONNX. Received: no module onnx. Install it: "
            "pip install 'keras-elmo[onnx]'"
        ) from None
    bilm = read_preset(preset, options)
    digest = bilm.fingerprint()
    metadata = {"fingerprint": digest, "max_characters": str(bilm.config.max_characters_per_token)}
    weights = load(bilm_mapping(bilm.config, bilm.arrays), bilm.arrays)
    weights = {path: array.astype("float32") for path, array in weights.items()}
    model = bilm_model(bilm.config, weights, int8, stateful, metadata)
    content = model.SerializeToString()
    with atomic_write(file) as (temporary,):
        temporary.write_bytes(content)
    return {
        "fingerprint": digest,
        "bytes": len(content),
        "inputs": {value.name: _shape(value) for value in model.graph.input},
        "outputs": {value.name: _shape(value) for value in model.graph.output},
    }


def _shape(value):
    sizes = value.type.tensor_type.shape.dim
    return [size.dim_param or size.dim_value for size in sizes]
