"""Write a preset as one ONNX file."""

from typing import Any

from keras_elmo.onnx.models import bilm_model
from keras_elmo.presets import open_preset
from keras_elmo.utils.extras import import_extra
from keras_elmo.utils.files import PathLike, atomic_write, check_output


def export_onnx(
    preset: PathLike,
    file: PathLike,
    int8: bool = False,
    options: dict | PathLike | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write the biLM of a preset to an ONNX file.

    The input of the model are character ids, as ``CharacterTokenizer`` makes them: the bytes of
    a token plus 1, between 259 and 260, then 261 up to ``max_characters``; all 0 in padding.
    The model adds the boundary tokens.

    Args:
        preset: str or path. As in ``ElmoLayer.from_preset``.
        file: str or path. ONNX file to write.
        int8: bool. Whether to store the kernels of LSTMs and highways in eight bits, a quarter
            of the size, and multiply in eight bits. ONNX Runtime computes such a file wrongly
            on a CPU with AVX2 but without VNNI: sums overflow.
        options: dict, path or None. As in ``ElmoLayer.from_preset``.
        overwrite: bool. Whether to replace a file that exists.

    Returns:
        A dict of ``fingerprint``, ``bytes``, ``inputs`` and ``outputs``. The last two are dicts
        of name to shape; unknown sizes have names.

    Raises:
        ImportError: If ONNX is not installed.
        OSError: If a file cannot be read or written.
        ValueError: If the preset is invalid, the file exists, or the biLM does not read bytes
            (ELMoForManyLangs).

    Examples:
        >>> export_onnx("elmo_mini_en", "elmo.onnx")["outputs"]["layers"]
        ['batch', 'tokens', 3, 256]
    """
    import_extra("onnx", "export_onnx", "ONNX", "onnx")
    source = open_preset(preset, options)
    file = check_output(file, overwrite, source.files)
    bilm = source.read()
    digest = bilm.fingerprint()
    metadata = {"fingerprint": digest, "max_characters": str(bilm.config.max_characters_per_token)}
    weights = {path: array.astype("float32") for path, array in bilm.values.items()}
    model = bilm_model(bilm.config, weights, "int8" if int8 else "float32", metadata)
    content = model.SerializeToString()
    with atomic_write(file) as temporary:
        temporary.write_bytes(content)
    return {
        "fingerprint": digest,
        "bytes": len(content),
        "inputs": {value.name: _shape(value) for value in model.graph.input},
        "outputs": {value.name: _shape(value) for value in model.graph.output},
    }


def _shape(value: Any) -> list[int | str]:
    sizes = value.type.tensor_type.shape.dim
    return [size.dim_param or size.dim_value for size in sizes]
