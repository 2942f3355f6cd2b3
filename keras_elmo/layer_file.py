"""Layer representations of many sentences in one hdf5 file: written in parts, read in batches.

The layout is that of bilm-tf and AllenNLP: a dataset for each line of the input, named
by its index from 0, ``(layers, tokens, width)`` or ``(tokens, width)``. Beside them
stands ``sentences``, the lines as strings.
"""

import hashlib
import itertools
import json
import os
import pathlib
import shutil

import h5py
import keras
import numpy as np

from keras_elmo.checkpoints.files import atomic_write, read_options
from keras_elmo.checkpoints.hdf5 import open_hdf5

SENTENCES_IN_A_PART = 2000


def write_layer_file(lines, embed, output_file, settings, resume, compression, done):
    """Embed lines into an hdf5 file, in parts that outlive an interruption.

    The parts stand in a folder beside the output, ``OUTPUT.parts``, until the last of
    them is there; each is written to a temporary name and renamed, and so is the
    output. A run with ``resume=True`` keeps the parts that an earlier one finished.

    Args:
        lines: Iterable of strings, tokens between spaces.
        embed: Function from a list of token lists to a list of arrays.
        output_file: Path of the hdf5 file.
        settings: Dict for JSON: all that the arrays depend on, except for the lines.
        resume: Whether to go on with the parts of an earlier run.
        compression: Of ``h5py``: None, ``"gzip"`` or ``"lzf"``.
        done: Called with the number of tokens and sentences after each part, and
            whether it was there already.

    Raises:
        ValueError: If there are parts of an earlier run and ``resume`` is False, or if
            those are of other settings or other lines.
        OSError: If a file cannot be written.
    """
    output_file = pathlib.Path(output_file)
    if not output_file.parent.is_dir():
        raise FileNotFoundError(f"There is no folder {output_file.parent} for the output")
    folder = output_file.with_name(output_file.name + ".parts")
    _claim(folder, settings, resume)
    parts, stored = [], json.dumps(settings)
    for number, part_lines in enumerate(_batched(lines, SENTENCES_IN_A_PART)):
        for i, line in enumerate(part_lines, start=number * SENTENCES_IN_A_PART + 1):
            if "\0" in line:
                raise ValueError(
                    "The file of layers keeps the sentences, and hdf5 strings hold no NUL "
                    f"character. Received: one in line {i}"
                )
        sentences = [line.split() for line in part_lines]
        digest = hashlib.sha256("\n".join(part_lines).encode()).hexdigest()
        part = folder / f"{number:08}.hdf5"
        there = part.exists()
        if there:
            with _open_part(part) as file:
                if (file.attribute("lines"), file.attribute("settings")) != (digest, stored):
                    raise ValueError(
                        f"{part} holds other lines or settings than these. Was the input changed? "
                        f"Remove {folder} to start anew"
                    )
        else:
            arrays = embed(sentences)
            with atomic_write(part) as (temporary,), h5py.File(temporary, "w") as file:
                file.attrs["lines"], file.attrs["settings"] = digest, stored
                file["sentences"] = np.array(part_lines, h5py.string_dtype())
                for i, array in enumerate(arrays, start=number * SENTENCES_IN_A_PART):
                    kind = compression if array.size else None
                    file.create_dataset(str(i), data=array, compression=kind)
        parts.append(part)
        done(sum(map(len, sentences)), len(sentences), there)
    _merge(parts, folder / "merged.hdf5", settings)
    os.replace(folder / "merged.hdf5", output_file)
    shutil.rmtree(folder)


def _claim(folder, settings, resume):
    """Make the folder of the parts, or check that an earlier one can be continued."""
    stored = folder / "settings.json"
    if stored.exists():
        if not resume:
            raise ValueError(
                f"{folder} holds the parts of a run that did not finish. Resume it "
                "(resume=True, --resume), or remove the folder"
            )
        earlier = read_options(stored, kind="Settings of the parts,")
        if earlier != settings:
            raise ValueError(
                f"{folder} holds the parts of a run with other settings. "
                f"Expected: {earlier}. Received: {settings}"
            )
        return
    folder.mkdir(exist_ok=True)
    with atomic_write(stored) as (temporary,):
        temporary.write_text(json.dumps(settings))


def _batched(items, size):
    items = iter(items)
    while batch := list(itertools.islice(items, size)):
        yield batch


def _merge(parts, path, settings):
    with h5py.File(path, "w") as whole:
        whole.attrs["settings"] = json.dumps(settings)
        lines = whole.create_dataset("sentences", (0,), h5py.string_dtype(), maxshape=(None,))
        for part in parts:
            with _open_part(part) as file:
                for name in file.names():
                    if name != "sentences":
                        file.copy(name, whole)
                sentences = file.read_strings("sentences")
                start = len(lines)
                lines.resize(start + len(sentences), axis=0)
                lines[start:] = sentences


def _open_part(part):
    return open_hdf5(part, kind="Part", remedy="Remove it, and resume")


class LayerDataset(keras.utils.PyDataset):
    """Batches of the layer representations in an hdf5 file, padded, with their mask.

    A task model then trains on layers that were computed once, with a ``ScalarMix`` in
    front: the paper's third way to use a biLM. ``fit``, ``evaluate`` and ``predict``
    take it on every backend.

    Args:
        file: Path of an hdf5 file that ``Embedder.embed_file``, bilm-tf or AllenNLP
            wrote with all layers.
        labels: One for each sentence: a number, or a list of numbers, one a token,
            padded with 0. None to give inputs only.
        batch_size: Sentences in a batch.
        shuffle: Whether to draw new batches for every epoch.
        seed: Of the shuffling.
        **kwargs: Passed on to ``keras.utils.PyDataset``.

    A batch is a dict of ``layers``, float32 ``(batch, tokens, layers, width)``, and
    ``mask``, bool ``(batch, tokens)``; with labels, the pair of it and their array.
    Batches of your own making, with other inputs beside the layers, come from ``gather``.

    Raises:
        ValueError: If the file does not hold all layers, or the labels do not fit it.

    Example:

    >>> layers = keras.Input((None, 3, 8), name="layers")
    >>> mask = keras.Input((None,), dtype="bool", name="mask")
    >>> mixed = keras_elmo.ScalarMix()(layers, mask=mask)
    >>> model = keras.Model({"layers": layers, "mask": mask}, mixed)

    Reference:
        Peters et al., 2018, section 3.2, https://arxiv.org/abs/1802.05365
    """

    def __init__(self, file, labels=None, batch_size=32, shuffle=False, seed=0, **kwargs):
        super().__init__(**kwargs)
        self._path = pathlib.Path(file)
        self._file = None
        with self._open() as layers:
            count = sum(name.isdigit() for name in layers.names())
            shape = layers.declared("0").shape if count else ()
        if len(shape) != 3:
            raise ValueError(
                f"LayerDataset expects a file with all layers, (layers, tokens, width) for each "
                f"line. Received: {self._path}, which holds {count} lines of shape {shape}"
            )
        if labels is not None and len(labels) != count:
            raise ValueError(
                f"LayerDataset expects a label for each of the {count} sentences of {self._path}. "
                f"Received: {len(labels)} labels"
            )
        self._labels = labels
        # One type for all: a batch's own could cut 0.5 to 0.
        arrays = [np.asarray(label) for label in ([] if labels is None else labels)]
        self._dtype = np.result_type(*(array.dtype for array in arrays if array.size), "int8")
        self._order = np.arange(count)
        self._batch_size = batch_size
        self._random = np.random.default_rng(seed) if shuffle else None
        self.on_epoch_end()

    def __len__(self):
        return -(-len(self._order) // self._batch_size)

    def on_epoch_end(self):
        """Draw the batches of the next epoch."""
        if self._random is not None:
            self._random.shuffle(self._order)

    def __getitem__(self, index):
        if not 0 <= index < len(self):
            raise IndexError(f"LayerDataset has batches 0 to {len(self) - 1}. Received: {index}")
        # Keras on TensorFlow takes a width that the first two batches share for that of all,
        # so the second one is a column of padding wider then.
        alike = index == 1 and self._width(self._rows(0)) == self._width(self._rows(1))
        return self._gather(self._rows(index), more=int(alike))

    def _rows(self, index):
        return self._order[index * self._batch_size : (index + 1) * self._batch_size]

    def _width(self, sentences):
        return max(self._layers.declared(str(i)).shape[1] for i in sentences)

    @property
    def _layers(self):
        if self._file is None:  # opened late, so that worker processes open their own
            self._file = self._open()
        return self._file

    def _open(self):
        return open_hdf5(self._path, kind="File of layers", remedy="Write it again")

    def gather(self, sentences):
        """Return the batch of the sentences you choose.

        Args:
            sentences: Their indices in the file, one or more, in the order of the rows.

        Returns:
            As the batches of the class.

        Raises:
            ValueError: If there is no index, or one that the file does not have.
        """
        chosen = np.asarray(sentences)
        count = len(self._order)
        if not chosen.size or chosen.min() < 0 or chosen.max() >= count:
            raise ValueError(
                f"LayerDataset.gather expects indices of 0 to {count - 1}, one or more. "
                f"Received: sentences={sentences}"
            )
        return self._gather(chosen)

    def _gather(self, chosen, more=0):
        arrays = [self._layers.read(str(i), kinds="f") for i in chosen]
        for i, array in zip(chosen, arrays, strict=True):
            if array.ndim != 3 or array.shape[::2] != arrays[0].shape[::2]:
                raise ValueError(
                    f"LayerDataset expects all layers of every line, (layers, tokens, width). "
                    f"Received: shape={array.shape} of line {i} in {self._path}"
                )
        arrays = [np.moveaxis(array, 0, 1) for array in arrays]
        lengths = np.array([len(array) for array in arrays])
        width = lengths.max() + more
        layers = np.zeros((len(arrays), width, *arrays[0].shape[1:]), "float32")
        for row, array in zip(layers, arrays, strict=True):
            row[: len(array)] = array
        inputs = {"layers": layers, "mask": np.arange(width) < lengths[:, None]}
        if self._labels is None:
            return inputs
        return inputs, self._padded_labels(chosen, lengths, width)

    def _padded_labels(self, chosen, lengths, width):
        labels = [self._labels[i] for i in chosen]
        if np.ndim(labels[0]) == 0:
            return np.array(labels, self._dtype)
        padded = np.zeros((len(labels), width), self._dtype)
        for row, label, length, i in zip(padded, labels, lengths, chosen, strict=True):
            if len(label) != length:
                raise ValueError(
                    f"LayerDataset expects {length} labels for sentence {i}, one a token. "
                    f"Received: {len(label)} labels"
                )
            row[:length] = label
        return padded

    def to_tf_dataset(self):
        """Return a ``tf.data.Dataset``; with ``shuffle`` each time through it is another epoch."""
        import tensorflow as tf

        signature = tf.nest.map_structure(
            lambda x: tf.TensorSpec((None, None, *x.shape[2:])[: x.ndim], x.dtype), self[0]
        )

        def epoch():
            yield from (self[i] for i in range(len(self)))
            self.on_epoch_end()

        return tf.data.Dataset.from_generator(epoch, output_signature=signature)
