"""What a biLM knows of words in context: nearest neighbours of a token, by its sense.

    python examples/words_in_context.py
    python examples/words_in_context.py --word bank --text corpus.txt --plot bank.png
    python examples/words_in_context.py --word play --static weights/elmo_mini_en/vocab.txt

Repeats table 4 of the paper, the neighbours of "play": for every token of --word it lists
the closest other tokens of the same spelling, by the cosine of a contextual layer, and says
whether the context-free layer 0 tells them apart. --text takes tokenised sentences, one a
line; without it the script has its own. --static sets beside it, as the paper does, the nearest
words without context: those of a vocabulary, a word a line, by layer 0, or those of word vectors
as text (GloVe, word2vec, fastText). --plot draws all tokens of the word in the plane of
their two principal components.
"""

import argparse
import pathlib

import numpy as np

import keras_elmo

OWN_TEXT = """
The children play in the garden until it is dark .
They play with a ball behind the house .
Boys play football in the street after school .
She will play for the first team in the next match .
The team did not play well in the second half .
He was ready to play against his old club .
The new play was performed at the theatre in London .
He wrote a play about the life of a king .
The play opened on Broadway and ran for two years .
Her first play was published in three acts .
The actors of the play were praised by the critics .
She went to see a play by Shakespeare .
He learned to play the piano when he was a child .
The band will play its new songs at the festival .
They play guitar and drums in a small band .
The money was paid into a bank in the city .
The bank lent the company two million dollars .
She works as a clerk in a bank .
The bank raised its interest rates again .
They sat on the bank of the river and fished .
The boat was tied to the left bank of the stream .
Trees grew along the bank of the canal .
The village lies on the south bank of the river .
He can not bear the noise any longer .
She could not bear to see him leave .
The ice was too thin to bear his weight .
A brown bear came out of the forest .
The bear climbed the tree to reach the honey .
Hunters killed a large bear in the mountains .
"""


def neighbours(vectors, count):
    """Return for every row the other rows, the most similar first, and their cosines."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    order = np.argsort(-cosines, axis=1)[:, : min(count, len(vectors) - 1)]
    return order, np.take_along_axis(cosines, order, axis=1)


def static_neighbours(embedder, path, word, count):
    """Return the nearest words without context, and their cosines.

    Raises:
        ValueError: If the word vectors of the file have none for the word.
    """
    with open(path, encoding="utf-8", errors="replace") as file:
        rows = [line.split() for line in file]
    if len(rows[0]) == 2:  # the header of word2vec: how many words, how many numbers
        rows = rows[1:]
    words = list(dict.fromkeys([word, *(row[0] for row in rows if row)]))
    if len(rows[0]) > 1:
        table = {row[0]: row[1:] for row in rows if len(row) == len(rows[0])}
        if word not in table:
            raise ValueError(f"--static expects vectors with {word!r}. Received: {path}")
        words = [w for w in words if w in table]
        vectors = np.array([table[w] for w in words], "float32")
    else:
        vectors = embedder.embed_tokens(words)
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    cosines = unit @ unit[0]
    cosines[0] = -np.inf
    order = np.argsort(-cosines)[: min(count, len(words) - 1)]
    return [words[i] for i in order], cosines[order]


def plane(vectors):
    """Return the first two principal components of rows."""
    centred = vectors - vectors.mean(axis=0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    return centred @ axes[:2].T


def marked(sentence, place):
    return " ".join([*sentence[:place], f"[{sentence[place]}]", *sentence[place + 1 :]])


def draw(points, labels, title, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(10, 6))
    axes.scatter(*points.T)
    line, height = 0.04 * np.ptp(points[:, 1]), -np.inf
    for i in np.argsort(points[:, 1]):  # upwards, so that no label covers another
        height = max(points[i, 1], height + line)
        axes.annotate(f"  {labels[i]}", points[i], (points[i, 0], height), fontsize=8, va="center")
    axes.set_title(title)
    axes.margins(0.3, 0.1)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--word", nargs="*", default=["play", "bank", "bear"])
    parser.add_argument("--text", type=pathlib.Path, help="tokenised sentences, one a line")
    parser.add_argument("--preset", default="elmo_mini_en", help="name, directory or .zip")
    parser.add_argument("--layer", type=int, default=1, help="contextual layer to compare")
    parser.add_argument("--neighbours", type=int, default=2)
    parser.add_argument("--static", type=pathlib.Path, help="a vocabulary, or word vectors as text")
    parser.add_argument("--plot", type=pathlib.Path, help="picture to write, of the first word")
    arguments = parser.parse_args()

    text = arguments.text.read_text("utf-8") if arguments.text else OWN_TEXT
    sentences = [line.split() for line in text.splitlines()]
    found = {
        word: [(s, i) for s in sentences for i, token in enumerate(s) if token == word]
        for word in arguments.word
    }
    embedder = keras_elmo.Embedder(arguments.preset)
    for word, places in found.items():
        if len(places) < 2:
            parser.error(f"the text holds {word!r} {len(places)} times, 2 are needed")
        layers = embedder.embed([sentence for sentence, _ in places])
        vectors = np.stack([x[:, i] for x, (_, i) in zip(layers, places, strict=True)])
        order, cosines = neighbours(vectors[:, arguments.layer], arguments.neighbours)
        same = np.allclose(vectors[:, 0], vectors[:1, 0], atol=1e-5)
        print(f"{word}: {len(places)} tokens, {'all alike' if same else 'not alike'} in layer 0")
        if arguments.static:
            words, values = static_neighbours(embedder, arguments.static, word, 10)
            nearest = ", ".join(f"{w} {v:.2f}" for w, v in zip(words, values, strict=True))
            print(f"  without context: {nearest}")
        for (sentence, i), others, values in zip(places, order, cosines, strict=True):
            print(f"  {marked(sentence, i)}")
            for other, cosine in zip(others, values, strict=True):
                print(f"     {cosine:.2f}  {marked(*places[other])}")
        if arguments.plot and word == arguments.word[0]:
            labels = [" ".join(s[max(0, i - 3) : i + 4]) for s, i in places]
            title = f'"{word}" in layer {arguments.layer} of {arguments.preset}'
            draw(plane(vectors[:, arguments.layer]), labels, title, arguments.plot)
            print(f"wrote {arguments.plot}")


if __name__ == "__main__":
    main()
