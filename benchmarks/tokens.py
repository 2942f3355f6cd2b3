"""Compare the Penn tokens of Python, of a TensorFlow graph and of NLTK on real sentences.

    python benchmarks/tokens.py wikipedia_en.txt.xz congress_press_en.txt.xz --lines 5000

Prints a Markdown table. Texts are plain, .gz, .bz2 or .xz, with paragraphs as lines; Punkt cuts
them into sentences.
"""

import argparse
import itertools
import time

import tensorflow as tf
from nltk.tokenize import NLTKWordTokenizer
from nltk.tokenize.punkt import PunktSentenceTokenizer

from keras_elmo.text_input import read_lines
from keras_elmo.tokenizers.penn import penn_tokens, penn_tokens_in_graph
from keras_elmo.tokenizers.text_tokens import plain_quotes


def read_sentences(file: str, lines: int) -> list[str]:
    paragraphs = [plain_quotes(line) for line in itertools.islice(read_lines(file), lines)]
    punkt = PunktSentenceTokenizer("\n".join(paragraphs))
    return [sentence for p in paragraphs for sentence in punkt.tokenize(p) if sentence.strip()]


def timed(function, argument):
    start = time.process_time()
    return function(argument), time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--lines", type=int, default=5000)
    arguments = parser.parse_args()
    nltk = NLTKWordTokenizer().tokenize
    graph = tf.function(
        lambda texts: penn_tokens_in_graph(texts, split_sentences=False),
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    print("| text | sentences | NLTK differs | graph differs | NLTK, s | Python, s | graph, s |")
    print("|---|---|---|---|---|---|---|")
    for file in arguments.texts:
        sentences = read_sentences(file, arguments.lines)
        ours, seconds = timed(
            lambda x: [penn_tokens(s, split_sentences=False) for s in x], sentences
        )
        theirs, nltk_seconds = timed(lambda x: [nltk(s) for s in x], sentences)
        theirs = [['"' if t in ("``", "''") else t for t in tokens] for tokens in theirs]
        ragged, graph_seconds = timed(lambda x: graph(tf.constant(x)), sentences)
        in_graph = [[t.decode() for t in tokens] for tokens in ragged.to_list()]
        cells = [
            file.rpartition("/")[2].partition(".")[0],
            len(sentences),
            sum(a != b for a, b in zip(ours, theirs, strict=True)),
            sum(a != b for a, b in zip(ours, in_graph, strict=True)),
            *(f"{x:.1f}" for x in (nltk_seconds, seconds, graph_seconds)),
        ]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
