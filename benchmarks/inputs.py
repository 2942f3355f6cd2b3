"""Time the inputs of a batch for a task model: cached layers and character ids.

    python benchmarks/inputs.py

``LayerDataset.gather`` is compared with h5py, which reads without checking. ``CharacterTokenizer``
is compared with its alphabet, which makes the ids without Keras. Prints the median processor time
of a batch in milliseconds. The layers have the shape of elmo_mini_en's.
"""

import argparse
import pathlib
import statistics
import tempfile
import time

import h5py
import numpy as np

import keras_elmo

LAYERS, WIDTH = 3, 256


def milliseconds(work, arguments):
    """Return the median processor time of ``work`` over the arguments."""
    times = []
    for argument in arguments:
        start = time.thread_time()
        work(argument)
        times.append(1e3 * (time.thread_time() - start))
    return statistics.median(times)


def write_layers(path, lengths, random):
    with h5py.File(path, "w") as file:
        for i, tokens in enumerate(lengths):
            array = random.normal(size=(LAYERS, tokens, WIDTH)).astype("float16")
            file.create_dataset(str(i), data=array)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sentences", type=int, default=3200)
    parser.add_argument("--tokens", type=int, default=15, help="mean length of a sentence")
    parser.add_argument("--batch-size", type=int, default=32, help="sentences in a batch")
    settings = parser.parse_args()
    random = np.random.default_rng(0)
    lengths = random.integers(1, 2 * settings.tokens, settings.sentences)
    order = random.permutation(settings.sentences)
    chosen = np.array_split(order, -(-len(order) // settings.batch_size))
    batches = [[["word"] * length for length in lengths[part]] for part in chosen]
    tokenizer = keras_elmo.CharacterTokenizer()

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "layers.hdf5")
        write_layers(path, lengths, random)
        with h5py.File(path) as file:
            plain = milliseconds(lambda part: [file[str(i)][()] for i in part], chosen)
        layers = milliseconds(keras_elmo.LayerDataset(path).gather, chosen)
    flat = [[token.encode() for sentence in batch for token in sentence] for batch in batches]
    rows = milliseconds(tokenizer.alphabet.rows, flat)
    ids = milliseconds(tokenizer, batches)
    print(f"layers, h5py alone          {plain:6.2f} ms")
    print(f"layers, LayerDataset        {layers:6.2f} ms  {layers / plain:.1f} x")
    print(f"character ids, rows alone   {rows:6.2f} ms")
    print(f"character ids, a tokenizer  {ids:6.2f} ms  {ids / rows:.1f} x")


if __name__ == "__main__":
    main()
