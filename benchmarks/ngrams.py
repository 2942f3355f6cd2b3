"""Measure the forward perplexity of n-grams on the tokens that keras-elmo perplexity scores.

    python benchmarks/ngrams.py CORPUS TEXT... [--kenlm BIN]

CORPUS is a folder of ``keras-elmo prepare``; the n-grams count its training files. TEXT is
tokenised, one sentence a line. As in ``keras-elmo perplexity``, tokens outside the vocabulary
count as one word, and every sentence ends with a predicted ``</S>``. In the unigram, so do tokens
of the vocabulary that the training files lack. Prints the perplexity of a
unigram for each text. --kenlm, the folder of KenLM's programs, adds its modified Kneser-Ney 5-gram.
"""

import argparse
import collections
import math
import pathlib
import subprocess
import tempfile

from keras_elmo.formats.vocabulary import SPECIAL_TOKENS, read_vocabulary
from keras_elmo.text_input import read_sentences

UNKNOWN = "UNKNOWN-TOKEN"  # KenLM reserves <unk>.


def known_only(files, vocabulary):
    """Yield the sentences, with ``UNKNOWN`` for every token outside the vocabulary."""
    known = set(vocabulary) - set(SPECIAL_TOKENS)
    for file in files:
        for sentence in read_sentences(file):
            yield [token if token in known else UNKNOWN for token in sentence]


def unigram(counts, sentences):
    total = math.log(counts.total())
    tokens = [token for sentence in sentences for token in (*sentence, "</S>")]
    seen = [counts[token] or counts[UNKNOWN] for token in tokens]
    if not all(seen):
        raise ValueError(
            "Expected a token outside the vocabulary in the training files, because the text has "
            f"one, or one that they lack. Received: none in {counts.total()} tokens"
        )
    nll = sum(total - math.log(count) for count in seen)
    return math.exp(nll / len(tokens))


def kenlm_query(folder, model, sentences):
    """Return the perplexity that KenLM's ``query`` prints, ends of sentences included."""
    text = "\n".join(map(" ".join, sentences)) + "\n"
    command = [folder / "query", "-v", "summary", model]
    finished = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    [line] = [x for x in finished.stdout.split("\n") if x.startswith("Perplexity including OOVs")]
    return float(line.split(":")[1])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("texts", type=pathlib.Path, nargs="+")
    parser.add_argument("--kenlm", type=pathlib.Path, help="folder of lmplz, build_binary, query")
    arguments = parser.parse_args()
    vocabulary = read_vocabulary(arguments.corpus / "vocab.txt")
    files = sorted(arguments.corpus.glob("train-*.txt"))
    counts = collections.Counter()
    with tempfile.TemporaryDirectory() as name:
        text, arpa, model = (pathlib.Path(name) / x for x in ("text", "arpa", "model"))
        with open(text, "w", encoding="utf-8") as written:
            for sentence in known_only(files, vocabulary):
                counts.update((*sentence, "</S>"))
                written.write(" ".join(sentence) + "\n")
        if arguments.kenlm:
            command = [arguments.kenlm / "lmplz", "-o", "5", "--discount_fallback"]
            command += ["--text", text, "--arpa", arpa]
            subprocess.run(command, check=True)
            subprocess.run([arguments.kenlm / "build_binary", "trie", arpa, model], check=True)
        for path in arguments.texts:
            sentences = list(known_only([path], vocabulary))
            print(f"{path.name}: unigram {unigram(counts, sentences):.0f}", end="")
            if arguments.kenlm:
                print(f", 5-gram {kenlm_query(arguments.kenlm, model, sentences):.1f}", end="")
            print(flush=True)


if __name__ == "__main__":
    main()
