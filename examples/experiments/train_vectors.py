"""Train word vectors on tokenised text: the control for what a biLM knows without context.

    python examples/experiments/train_vectors.py vectors.txt corpus/train-*.txt

The text has a sentence a line and tokens between spaces, as ``keras-elmo prepare`` writes it
for the biLM. Words are lower-cased. The vectors are those of word2vec's skip-gram, by gensim,
in the text format that --vectors of ner_runs.py and sst5_runs.py takes. With one of --workers
the same text gives the same vectors.
"""

import argparse
import pathlib


class LowerCased:
    """The sentences of text files, as lists of lower-case words, from the start each time."""

    def __init__(self, files):
        self.files = files

    def __iter__(self):
        for file in self.files:
            with open(file, encoding="utf-8", newline="\n") as lines:
                yield from (line.lower().split() for line in lines)


def train_vectors(path, files, dimension=100, epochs=5, min_count=5, seed=1, workers=1):
    """Write word vectors trained on text files.

    Args:
        path: Of the file to write.
        files: Paths of tokenised text, a sentence a line.
        dimension: Of a vector.
        epochs: Times that the text is read, after once for its words.
        min_count: How often a word occurs that gets a vector.
        seed: Of initial vectors and negatives.
        workers: Threads.

    Raises:
        ImportError: If gensim is missing.
        OSError: If a file cannot be read or written.
        ValueError: If no word occurs so often.
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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("vectors", type=pathlib.Path, help="file to write")
    parser.add_argument(
        "text", type=pathlib.Path, nargs="+", help="tokenised sentences, one a line"
    )
    parser.add_argument("--dimension", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--min-count", type=int, default=5, help="of a word that gets a vector")
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
