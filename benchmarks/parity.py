"""Compare the layers of a preset with those that AllenNLP computes from its files.

    python benchmarks/parity.py elmo_mini_en --text TOKENISED --allennlp-python PYTHON

TOKENISED has one sentence a line, with spaces between the tokens. README.md says how to install
AllenNLP. Prints the largest difference; the exit status is 1 if it is above 1e-5.
"""

import argparse
import pathlib
import sys

import numpy as np
from peer import ask_allennlp

import keras_elmo
from keras_elmo.presets import bundled
from keras_elmo.text_input import read_sentences

# Rare cases: accents, another script, and words near the limit of 50 characters.
ODD = "Antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis naïve 日本語 !"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("preset", help="a bundled name, or a directory")
    parser.add_argument("--text", type=pathlib.Path, required=True)
    parser.add_argument("--sentences", type=int, default=20)
    parser.add_argument("--allennlp-python", required=True, help="a Python that has AllenNLP")
    arguments = parser.parse_args()
    sentences = [*read_sentences(arguments.text)[: arguments.sentences], ODD.split()]
    folder = bundled().get(arguments.preset, pathlib.Path(arguments.preset))
    job = {"sentences": sentences, "single": 1, "threads": 1, "check": len(sentences)}
    files = folder / "options.json", folder / "weights.hdf5"
    theirs = ask_allennlp(arguments.allennlp_python, *files, job)["layers"]
    ours = keras_elmo.Embedder(arguments.preset).embed(sentences)
    worst = max(float(np.abs(a - np.array(b)).max()) for a, b in zip(ours, theirs, strict=True))
    tokens = sum(map(len, sentences))
    print(f"{len(sentences)} sentences, {tokens} tokens: largest difference {worst:.1e}")
    sys.exit(worst > 1e-5)


if __name__ == "__main__":
    main()
