"""What a layer with a pretrained biLM does besides computing: files, fingerprints, saving."""

import keras
import numpy as np

from keras_elmo.formats.bilm_hdf5 import read_bilm, write_bilm
from keras_elmo.formats.weight_mapping import fingerprint, variables_by_path
from keras_elmo.presets import Preset, bundled_facts, read_preset
from keras_elmo.tokenizers.alphabets import alphabet_of


class _BundledFacts:
    """An attribute of the class, read from the files whenever it is asked for."""

    def __get__(self, layer, owner):
        return bundled_facts()


class PretrainedLayer(keras.layers.Layer):
    """Load, save and check the biLM of a layer.

    A subclass takes ``config`` as its first argument, keeps it under that name and
    ``save_bilm`` under its own, and makes ``bilm`` in ``build``. It calls ``check_weights`` before
    it uses the biLM, and sets ``_is_compiled`` once a compiled program holds its weights.

    Args:
        **kwargs: Passed on to ``keras.layers.Layer``.
    """

    presets = _BundledFacts()

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self._is_pretrained = False
        self._is_compiled = False
        self._awaited_fingerprint = None

    @classmethod
    def from_hdf5(cls, options_file, weight_file, **kwargs):
        """Build the layer from an options and a weight file of bilm-tf's layout.

        Args:
            options_file: Path of the ``options.json``.
            weight_file: Path of the ``weights.hdf5``.
            **kwargs: Passed on to ``ElmoLayer``.

        Returns:
            A built ``ElmoLayer``.

        Raises:
            OSError: If a file is missing or damaged.
            ValueError: If the options are not those of a biLM over characters, or the
                weights do not fit them; the error names every tensor that does not.
        """
        return cls._from_files(read_bilm(options_file, weight_file), kwargs)

    @classmethod
    def from_preset(cls, preset, load_weights=True, options=None, **kwargs):
        """Build the layer from a preset, or from what other programs keep a biLM in.

        Args:
            preset: Name of a bundled preset, or the path of a directory, .zip or .tar.gz:
                options and hdf5 file of bilm-tf's layout by any of their usual names, a
                checkpoint of bilm-tf, a TF-Hub module, an AllenNLP archive, a model of
                ELMoForManyLangs. A checkpoint can also be given without its ending, as
                ``model.ckpt-400``.
            load_weights: With False only the options are read, and the weights random.
            options: Options for what the source does not tell, or tells wrongly: a dict, or
                the path of an options file. Without them those of the released models stand
                in, and a warning names them.
            **kwargs: Passed on to ``ElmoLayer``.

        Returns:
            A built ``ElmoLayer``.

        Raises:
            OSError: If a file is missing or damaged.
            ValueError: If there is no such preset, or its files do not fit together.
            ImportError: If it takes PyTorch to read it, and there is none.
        """
        if load_weights:
            return cls._from_files(read_preset(preset, options), kwargs)
        layer = cls(Preset(preset, options).read_config(), **kwargs)
        layer._build_unbuilt()
        return layer

    @classmethod
    def _from_files(cls, bilm, kwargs):
        layer = cls(bilm.config, **kwargs)
        layer._load(bilm)
        return layer

    def load_hdf5(self, options_file, weight_file) -> None:
        """Load weights into this layer, built or not; arguments and errors of ``from_hdf5``."""
        self._load(read_bilm(options_file, weight_file))

    def load_preset(self, preset, options=None) -> None:
        """Load the weights of a preset into this layer, as ``load_hdf5`` does."""
        self._load(read_preset(preset, options))

    def _load(self, bilm):
        if bilm.config != self.config:
            raise ValueError(
                "ElmoLayer expects the options that it was made with. "
                f"Expected: {self.config}. Received: {bilm.config}, for {bilm.file_name}"
            )
        if self._awaited_fingerprint:
            received = bilm.fingerprint(self.variable_dtype)
            if received != self._awaited_fingerprint:
                raise ValueError(
                    "ElmoLayer expects the biLM that the model was saved with, and still waits "
                    f"for it. Expected: fingerprint={self._awaited_fingerprint}. "
                    f"Received: fingerprint={received}, of {bilm.file_name}"
                )
        self._build_unbuilt()
        bilm.assign(variables_by_path(self.bilm))
        self._awaited_fingerprint = None
        self._is_pretrained = True

    def _build_unbuilt(self):
        if not self.built:
            self.build((None, None, alphabet_of(self.config).row_length))

    def save_hdf5(self, directory) -> None:
        """Write ``options.json`` and ``weights.hdf5``, which AllenNLP and bilm-tf load.

        Args:
            directory: Where to; made if it does not exist. Files of these names are
                replaced, both or none.

        Raises:
            ValueError: If the layer is not built, or waits for its biLM.
            OSError: If the files cannot be written.
        """
        self.check_weights()
        write_bilm(directory, self.config, variables_by_path(self.bilm))

    def save_to_preset(self, directory) -> None:
        """Write what ``from_preset`` reads back; ``save_hdf5`` by the name that KerasHub has."""
        self.save_hdf5(directory)

    def fingerprint(self) -> str:
        """Return the SHA-256 of the biLM's weights, in hexadecimal."""
        self.check_weights()
        return fingerprint(variables_by_path(self.bilm))

    def check_weights(self) -> None:
        """Raise a ``ValueError`` if the layer is not built, or waits for its biLM."""
        if not self.built:
            raise ValueError("ElmoLayer has no weights before it is built. Call it first")
        if self._awaited_fingerprint:
            raise ValueError(
                "ElmoLayer was saved without its biLM (save_bilm=False) and has no weights yet. "
                "Call load_preset or load_hdf5 with the biLM of fingerprint "
                f"{self._awaited_fingerprint}"
            )

    def save_own_variables(self, store):
        if not self.save_bilm:
            digest = self._awaited_fingerprint or self.fingerprint()
            store["fingerprint"] = np.frombuffer(bytes.fromhex(digest), "uint8")

    def load_own_variables(self, store):
        if ("fingerprint" in store.keys()) == self.save_bilm:
            raise ValueError(
                "ElmoLayer expects a file written with the same save_bilm. "
                f"Received: save_bilm={self.save_bilm}, and a file written with the opposite"
            )
        if not self.save_bilm:
            saved = np.asarray(store["fingerprint"]).tobytes().hex()
            own = fingerprint(variables_by_path(self.bilm))
            if saved != own and (self._is_pretrained or self._is_compiled):
                raise ValueError(
                    "ElmoLayer expects a file that was saved with its own biLM. "
                    f"Expected: fingerprint={own}. Received: fingerprint={saved}. Before the "
                    "first call of fit or predict, load the biLM of that fingerprint with "
                    "load_preset or load_hdf5"
                )
            self._awaited_fingerprint = None if saved == own else saved
