"""Train word vectors on tokenised text, as a control without context for a biLM.

    python examples/experiments/train_vectors.py vectors.txt corpus/train-*.txt

The text has one sentence a line and spaces between tokens, as ``keras-elmo prepare`` writes it for
the biLM. Words are lower-cased. gensim trains skip-gram vectors (word2vec) and writes the text
format that --vectors of ner_runs.py and sst5_runs.py takes. With --workers 1, equal text gives
equal vectors.
"""

import argparse
import pathlib


class LowerCased:
    """Iterate over the sentences of text files, as lists of lower-case words."""

    def __init__(self, files):
        self.files = files

    def __iter__(self):
        for file in self.files:
            with open(file, encoding="utf-8", newline="\n") as lines:
                yield from (line.lower().split() for line in lines)


def train_vectors(path, files, dimension=100, epochs=5, min_count=5, seed=1, workers=1):
    """Write word vectors trained on text files.

    Args:
        path: path. File to write.
        files: list of paths. Tokenised text, one sentence a line.
        dimension: int. Width of a vector.
        epochs: int. Passes over the text, after a first one that counts the words.
        min_count: int. Words that occur less often get no vector.
        seed: int. Seed for initial vectors and negatives.
        workers: int. Number of threads.

    Raises:
        ImportError: If gensim is missing.
        OSError: If a file cannot be read or written.
        ValueError: If no word occurs ``min_count`` times.
    """
    try:
        from gensim.models import Word2Vec
    except ImportError as error:
        raise ImportError(
            'Word vectors are trained by gensim: pip install "keras-elmo[examples]"'
        ) from error
    sentences = LowerCased(files)
    settings = {"vector_size": dimension, "epochs": epochs, "min_count": min_count}
    model = Word2Vec(sg=1, seed=seed, workers=workers, **settings)
    model.build_vocab(sentences)
    if not len(model.wv):
        raise ValueError(
            f"train_vectors expects words that occur {min_count} times or more. "
            f"Received: files={[str(file) for file in files]}, which have none"
        )
    model.train(sentences, total_examples=model.corpus_count, epochs=epochs)
    path = pathlib.Path(path)
    written = path.with_suffix(".tmp")
    model.wv.save_word2vec_format(str(written))
    written.replace(path)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("vectors", type=pathlib.Path, help="file to write")
    parser.add_argument(
        "text", type=pathlib.Path, nargs="+", help="tokenised sentences, one a line"
    )
    parser.add_argument("--dimension", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--min-count", type=int, default=5, help="least count of a word")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1, help="threads")
    settings = vars(parser.parse_args(arguments))
    path, files = settings.pop("vectors"), settings.pop("text")
    train_vectors(path, files, **settings)
    with open(path, encoding="utf-8") as lines:
        count, dimension = next(lines).split()
    print(f"{count} vectors of {dimension} numbers in {path}")


if __name__ == "__main__":
    main()
