"""Measure tokens/s of a user's training step with a frozen biLM of the original size.

    python benchmarks/fit.py --data test.txt

--data is as for throughput.py. The model has ElmoLayer, ScalarMix, a maximum over the tokens and a
Dense layer; its input is character ids. Sentences of similar length share a batch.
"""

import argparse
import itertools
import pathlib

import keras
import numpy as np
from limit import cpu_name, seconds
from throughput import SIZES, read_sentences

import keras_elmo


def make_model(dtype):
    ids = keras.Input((None, 50), dtype="int32")
    layers = keras_elmo.ElmoLayer(SIZES["original"], dtype=dtype)(ids)
    x = keras.layers.GlobalMaxPooling1D()(keras_elmo.ScalarMix()(layers))
    model = keras.Model(ids, keras.layers.Dense(5, activation="softmax")(x))
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


def fit_seconds(sentences, batch_size, dtype):
    model, tokenizer = make_model(dtype), keras_elmo.CharacterTokenizer()
    parts = [sentences[i : i + batch_size] for i in range(0, len(sentences), batch_size)]
    batches = [(tokenizer(part), np.zeros(len(part), "int32")) for part in parts]

    def one_pass():
        for batch in batches:
            model.train_on_batch(*batch)

    one_pass()  # The first pass compiles the step.
    return seconds(one_pass)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=pathlib.Path, help="Penn Treebank trees, one a line")
    parser.add_argument("--limit", type=int, default=256, help="number of sentences")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[32, 128])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    arguments = parser.parse_args()

    sentences = sorted(read_sentences(arguments.data, arguments.limit), key=len)
    tokens = sum(map(len, sentences))
    print(f"{cpu_name()}, {keras.backend.backend()}, {tokens} tokens")
    for dtype, size in itertools.product(arguments.dtypes, arguments.batch_sizes):
        rate = tokens / fit_seconds(sentences, size, dtype)
        print(f"{dtype}, batches of {size}: {rate:.0f} tokens/s", flush=True)


if __name__ == "__main__":
    main()
