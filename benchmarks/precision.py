"""Measure the error of bfloat16 and int8 against float32, in every layer.

    python benchmarks/precision.py [--text TOKENISED] [--presets elmo_mini_en elmo_small_en]

TOKENISED has one sentence a line, with spaces between the tokens; the default is this file. Random
biLMs of the released sizes are measured too. Prints for each layer the root mean square of the
error, divided by the root mean square of the layer, the same of the token with the largest error,
and the largest error of a number.
"""

import argparse
import pathlib
import tempfile

import numpy as np
from throughput import SIZES

import keras_elmo
from keras_elmo.text_input import read_sentences


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=pathlib.Path, default=pathlib.Path(__file__))
    parser.add_argument("--sentences", type=int, default=100)
    parser.add_argument("--presets", nargs="*", default=["elmo_mini_en", "elmo_small_en"])
    arguments = parser.parse_args()
    sentences = read_sentences(arguments.text)[: arguments.sentences]
    with tempfile.TemporaryDirectory() as folder:
        presets = {preset: preset for preset in arguments.presets}
        for name in ("original", "small"):
            layer = keras_elmo.ElmoLayer(SIZES[name])
            layer.build((None, None, 50))
            layer.save_hdf5(f"{folder}/{name}")
            presets[f"{name}, random"] = f"{folder}/{name}"
        for name, preset in presets.items():
            exact = embed(sentences, preset)
            for how in (("bfloat16", "keras"), ("int8", "onnxruntime")):
                rounded = embed(sentences, preset, *how)
                for layer, (x, error) in enumerate(zip(exact, rounded - exact, strict=True)):
                    share = np.sqrt((error**2).mean() / (x**2).mean())
                    worst = np.sqrt((error**2).mean(-1) / (x**2).mean(-1)).max()
                    print(
                        f"{name}, {how[0]}, layer {layer}: {share:.2%}, worst token {worst:.2%}, "
                        f"largest {np.abs(error).max():.3f}"
                    )


def embed(sentences, preset, dtype="float32", engine="keras"):
    arrays = keras_elmo.Embedder(preset, dtype=dtype, engine=engine).embed(sentences)
    return np.concatenate(arrays, axis=1)


if __name__ == "__main__":
    main()
