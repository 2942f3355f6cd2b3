"""How a layer gets the weights of its biLM from files, and gives them to files."""

from collections.abc import Callable
from typing import Any, Self

import keras
import numpy as np
from keras import ops

from keras_elmo.alphabets import Alphabet
from keras_elmo.config import BiLMConfig
from keras_elmo.formats.base import BiLMFile
from keras_elmo.formats.bilm_hdf5 import bilm_writers, read_bilm
from keras_elmo.formats.bilm_weights import bilm_mapping
from keras_elmo.formats.weight_mapping import extract, fingerprint, variables_by_path
from keras_elmo.layers.bilm import BiLM
from keras_elmo.presets import bundled_facts, open_preset
from keras_elmo.utils.checks import invalid
from keras_elmo.utils.files import PathLike, check_output, local_path, write_files
from keras_elmo.utils.forks import check_fork


class LiveWeights(str):
    """The entry ``"weights"`` in the config of a layer. It carries the layer to ``from_config``.

    ``from_config`` copies the weights of that layer, so ``clone_model`` does too. In JSON and in a
    pickle the entry becomes a plain str, because a config itself contains no weights.
    """

    layer: "PretrainedLayer"

    def __new__(cls, layer: "PretrainedLayer") -> Self:
        weights = super().__new__(cls, "saved apart from the config")
        weights.layer = layer
        return weights

    def __deepcopy__(self, memo: dict) -> Self:
        return self

    def __reduce__(self) -> tuple:
        return str, (str(self),)


class _ClassProperty:
    """An attribute of a class that is computed at every access."""

    def __init__(self, compute: Callable) -> None:
        self.compute = compute

    def __get__(self, instance: Any, owner: type) -> Any:
        return self.compute()


class PretrainedLayer(keras.layers.Layer):
    """A layer with a biLM: the part of ``ElmoLayer`` that reads and writes weights.

    Missing weights are NaN. Everything that loads weights overwrites them.
    """

    config: BiLMConfig
    alphabet: Alphabet
    bilm: BiLM
    save_bilm: bool
    presets = _ClassProperty(bundled_facts)

    # Whether ``build`` fills the biLM with NaN, which loading replaces.
    _builds_missing = False
    # The fingerprint of the biLM that a file with save_bilm=False expects.
    _awaited: str | None = None

    @classmethod
    def from_hdf5(cls, options_file: PathLike, weight_file: PathLike, **kwargs: Any) -> Self:
        """Build the layer from an options file and a weight file in bilm-tf's layout.

        Args:
            options_file: path. The ``options.json``.
            weight_file: path. The ``weights.hdf5``.
            **kwargs: Arguments of ``ElmoLayer``.

        Returns:
            A built ``ElmoLayer``.

        Raises:
            OSError: If a file is missing or damaged.
            ValueError: If the options describe no biLM over characters, or the weights do not
                fit them. The error names every tensor that does not fit.
        """
        return cls._from_bilm(read_bilm(options_file, weight_file), kwargs)

    @classmethod
    def from_preset(
        cls, preset: Any, load_weights: bool = True, options: Any = None, **kwargs: Any
    ) -> Self:
        """Build the layer from a preset, or from the files of another program.

        Args:
            preset: str or path. Name of a bundled preset; name of a released model, or
                ``"hf://user/model"``, which is downloaded once; or path of a directory, .zip or
                .tar.gz with a biLM: options and hdf5 file in bilm-tf's layout, checkpoint of
                bilm-tf, TF-Hub module, AllenNLP archive or model of ELMoForManyLangs. The path
                of a checkpoint may lack its ending, as in ``model.ckpt-400``.
            load_weights: bool. With False, read the options only. The weights are then random,
                or missing with ``save_bilm=False``.
            options: dict or path of an options file. It replaces the options of the preset.
                If a format does not record all options and this is None, the layer takes the
                values of the released models, and a warning names them.
            **kwargs: Arguments of ``ElmoLayer``.

        Returns:
            A built ``ElmoLayer``.

        Raises:
            OSError: If a file is missing or damaged, or a download fails.
            ValueError: If the preset does not exist, or its files do not fit together.
            ImportError: If the format needs PyTorch or the Hub needs huggingface_hub, and it is
                missing.
        """
        files = open_preset(preset, options)
        if load_weights:
            return cls._from_bilm(files.read(), kwargs)
        layer = cls(files.config, **kwargs)
        layer._build_for_rows()
        return layer

    @classmethod
    def _from_bilm(cls, bilm: BiLMFile, kwargs: dict) -> Self:
        layer = cls(bilm.config, **kwargs)
        layer._load(bilm)
        return layer

    def load_hdf5(self, options_file: PathLike, weight_file: PathLike) -> None:
        """Build this layer and load its weights. Arguments and errors are as in ``from_hdf5``."""
        self._load(read_bilm(options_file, weight_file))

    def load_preset(self, preset: Any, options: Any = None) -> None:
        """Load the weights of a preset into this layer; see ``from_preset``."""
        self._load(open_preset(preset, options).read())

    def _load(self, bilm: BiLMFile) -> None:
        if bilm.config != self.config:
            raise invalid(
                f"ElmoLayer expects a biLM with the options of this layer, {self.config}",
                f"{bilm.config}, from {bilm.file_name}",
            )
        if self._awaited:
            received = bilm.fingerprint(self.variable_dtype)
            if received != self._awaited:
                raise invalid(
                    "ElmoLayer expects the biLM that the model was saved with, "
                    f"fingerprint={self._awaited}",
                    f"fingerprint={received}, of {bilm.file_name}",
                )
        if not self.built:
            self._builds_missing = True  # random weights would only be replaced
            self._build_for_rows()
        bilm.assign(variables_by_path(self.bilm))
        self._awaited = None

    def _build_for_rows(self) -> None:
        self.build((None, None, self.alphabet.row_length))

    def _copy_weights(self, other: Self) -> None:
        """Copy the weights of a layer with the same config; NaN stays NaN."""
        self._builds_missing, self._awaited = other._builds_missing, other._awaited
        if other.built:
            self._builds_missing = True
            self._build_for_rows()
            self.bilm.set_weights(other.bilm.get_weights())

    def save_hdf5(self, directory: PathLike, overwrite: bool = False) -> None:
        """Write ``options.json`` and ``weights.hdf5``, which AllenNLP and bilm-tf load.

        Args:
            directory: path. The directory is created if it does not exist.
            overwrite: bool. Replace existing files with these names.

        Raises:
            ValueError: If the layer has no weights yet, or a file exists and ``overwrite`` is
                False.
            OSError: If the files cannot be written.
        """
        self.check_weights()
        directory = local_path(directory)
        arrays = extract(bilm_mapping(self.config), variables_by_path(self.bilm))
        writers = bilm_writers(self.config, arrays)
        if directory.is_dir():
            for name in writers:
                check_output(directory / name, overwrite)
        write_files(directory, writers)

    def save_to_preset(self, directory: PathLike, overwrite: bool = False) -> None:
        """Write a preset, as ``save_hdf5`` does. KerasHub uses this name."""
        self.save_hdf5(directory, overwrite)

    def fingerprint(self) -> str:
        """Return the SHA-256 of the weights of the biLM, in hexadecimal."""
        check_fork()  # weights in bfloat16 are cast
        self.check_weights()
        return fingerprint(variables_by_path(self.bilm))

    def check_weights(self) -> None:
        """Raise a ``ValueError`` if the layer is not built or has no weights yet."""
        if not self.built:
            raise ValueError("ElmoLayer has no weights before it is built. Call it first")
        if not self._has_weights():
            which = f" with the biLM of fingerprint {self._awaited}" if self._awaited else ""
            raise invalid(
                "ElmoLayer expects the weights of its biLM",
                "weights of NaN, because the layer was made from a config, or with "
                "save_bilm=False; or its training diverged",
                f"Call load_preset or load_hdf5{which}, or set_weights of the model",
            )

    def _has_weights(self) -> bool:
        return not np.isnan(ops.convert_to_numpy(self._last_bias)).any()

    @property
    def _last_bias(self) -> Any:
        """The bias of the last LSTM: a small weight that shows whether the weights are missing."""
        return self.bilm.lstms[-1].bias.value

    def save_own_variables(self, store: Any) -> None:
        if not self.save_bilm:
            # Without weights, ``fingerprint`` raises the error that says so.
            has_weights = self.built and self._has_weights()
            digest = self.fingerprint() if has_weights or not self._awaited else self._awaited
            store["fingerprint"] = np.frombuffer(bytes.fromhex(digest), "uint8")

    def load_own_variables(self, store: Any) -> None:
        # A file has a fingerprint exactly if it was written with save_bilm=False.
        if ("fingerprint" in store.keys()) == self.save_bilm:
            raise invalid(
                "ElmoLayer expects a file written with the same save_bilm",
                f"save_bilm={self.save_bilm}, and a file written with the opposite",
            )
        if self.save_bilm:
            return
        saved = np.asarray(store["fingerprint"]).tobytes().hex()
        if not self._has_weights():
            self._awaited = saved
        elif saved != self.fingerprint():
            raise invalid(
                "ElmoLayer expects a file that was saved with the biLM of this layer, "
                f"fingerprint={self.fingerprint()}",
                f"fingerprint={saved}",
                "Make the layer from the biLM that the file was saved with",
            )
