"""Find the nearest neighbours of a word in context, and see a biLM separate its senses.

    python examples/words_in_context.py
    python examples/words_in_context.py --word bank --text corpus.txt --plot bank.png
    python examples/words_in_context.py --word play --static weights/elmo_small_en/vocab.txt
    python examples/words_in_context.py --language ko --plot bae.png

This repeats table 4 of the paper, the neighbours of "play". For every occurrence of --word the
script lists the other occurrences with the highest cosine in a contextual layer. It also says
whether their vectors are equal in layer 0, which reads no context. A word may be several tokens
separated by spaces; its vector is then their mean. --text reads tokenised sentences, one per line.
The default is words_in_context_LANGUAGE.txt. Its Korean sentences are morphemes of Kiwi: 배 means
ship, pear or belly, and 잘한다 praises or mocks. --static also lists the nearest words without
context, as the paper does. It takes a vocabulary with one word per line, compared by layer 0, or
word vectors as text (GloVe, word2vec, fastText). --plot draws the occurrences on their first two
principal components, with a colour for each paragraph of the text. In the default texts each
paragraph has one sense, so the script counts the nearest neighbours in the same paragraph. The
font is --font, or the first installed font that has all characters.

--centre subtracts the mean of all occurrences before the cosines. The mean is what the occurrences
share, so the cosines depend more on the context (Mu and Viswanath, 2018).
"""

import argparse
import pathlib
import re

import numpy as np

import keras_elmo

HERE = pathlib.Path(__file__).parent
PRESETS = {"en": "elmo_small_en", "ko": "elmo_small_ko"}
WORDS = {"en": ["play", "bank", "bear"], "ko": ["배", "잘 하 ㄴ다"]}


def nearest(vectors, query, excluded, count):
    """Return the indices with the highest cosines to a query, without some, and the cosines."""
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
    cosines = vectors @ query / np.maximum(norms, 1e-12)
    order = np.argsort(-cosines)
    order = order[~np.isin(order, excluded)][:count]
    return order, cosines[order]


def read_static(embedder, path, tokens):
    """Return the words of a file, and some tokens, with their vectors without context.

    Raises:
        ValueError: If the file has no vector for one of the tokens.
    """
    with open(path, encoding="utf-8", errors="replace") as file:
        rows = [line.split() for line in file]
    if len(rows[0]) == 2:  # the header of word2vec: number of words and width
        rows = rows[1:]
    if len(rows[0]) == 1:  # a vocabulary
        words = list(dict.fromkeys([*tokens, *(row[0] for row in rows if row)]))
        return words, embedder.embed_tokens(words)
    table = {row[0]: row[1:] for row in rows if len(row) == len(rows[0])}
    for token in tokens:
        if token not in table:
            raise ValueError(f"--static expects vectors with {token!r}. Received: {path}")
    return list(table), np.array(list(table.values()), "float32")


def find_places(sentences, word):
    """Return each occurrence of a word: its sentence, and the slice of its tokens."""
    tokens = word.split()
    return [
        (sentence, slice(i, i + len(tokens)))
        for sentence in sentences
        for i in range(len(sentence))
        if tokens and sentence[i : i + len(tokens)] == tokens
    ]


def marked(sentence, place):
    before, word, after = sentence[: place.start], sentence[place], sentence[place.stop :]
    return " ".join([*before, f"[{' '.join(word)}]", *after])


def find_font(text, file=None):
    """Return the first font that has all characters of a text; without one, raise ValueError."""
    from matplotlib import font_manager
    from matplotlib.ft2font import FT2Font

    installed = sorted(font_manager.findSystemFonts(), key=lambda x: ("Regular" not in str(x), x))
    files = [font_manager.findfont(font_manager.FontProperties()), *installed]
    for name in map(str, [file] if file else files):
        try:
            known = FT2Font(name).get_charmap()
        except (OSError, RuntimeError):  # FreeType cannot read the file
            continue
        if all(ord(character) in known for character in text if not character.isspace()):
            return font_manager.FontProperties(fname=name)
    raise ValueError(
        f"--plot expects a font with the characters of the sentences. Received: {file or 'none'}. "
        "Pass a font file with --font, or install one: Noto Sans CJK and Nanum Gothic have Hangul"
    )


def spread(heights, gap):
    """Return heights in the same order, at least ``gap`` apart."""
    heights = np.array(heights, float)
    order = np.argsort(heights)
    steps = gap * np.arange(len(heights))
    # The largest of the earlier heights, each shifted by the labels between.
    heights[order] = np.maximum.accumulate(heights[order] - steps) + steps
    return heights


def draw(vectors, labels, senses, title, path, font_file=None):
    """Draw vectors on their first two principal components, with labels at the sides."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.style.use(HERE.parent / "docs" / "pictures.mplstyle")
    font = find_font("".join([title, *labels]), font_file)
    centred = vectors - vectors.mean(axis=0)
    points = centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T
    figure, axes = plt.subplots(figsize=(10, 5))
    colours = [f"C{sorted(set(senses)).index(sense)}" for sense in senses]
    axes.scatter(*points.T, c=colours, zorder=2)
    (left, bottom), (right, top) = points.min(axis=0), points.max(axis=0)
    is_left = points[:, 0] < (left + right) / 2
    margin = 0.06 * (right - left)
    # Labels in a column on each side, so that no label covers another or a point.
    for side, x, align in ((is_left, left - margin, "right"), (~is_left, right + margin, "left")):
        gap = min(0.055 * (top - bottom), 1.1 * (top - bottom) / max(1, side.sum()))
        heights = spread(points[side, 1], gap)
        heights -= max(0, (heights.max(initial=top) - top) / 2)
        for i, height in zip(np.flatnonzero(side), heights):
            arrow = {"arrowstyle": "-", "color": colours[i], "alpha": 0.4, "shrinkB": 4}
            label = axes.annotate(labels[i], points[i], (x, height), arrowprops=arrow)
            label.set(fontproperties=font, fontsize=9, color=colours[i], ha=align, va="center")
    axes.set_title(title).set(fontproperties=font, fontsize=12)
    axes.set(xlim=(left - 1.5 * margin, right + 1.5 * margin), xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(False)
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--language", choices=WORDS, default="en", help="language of the defaults")
    add("--word", nargs="*", help="words to use instead of the built-in ones")
    add("--text", type=pathlib.Path, help="tokenised sentences, one per line")
    add("--preset", help="biLM: name, directory or .zip; default: bundled biLM")
    add("--layer", type=int, default=1, help="contextual layer to compare")
    add("--centre", action="store_true", help="subtract the mean of the occurrences")
    add("--neighbours", type=int, default=2)
    add("--static", type=pathlib.Path, help="vocabulary, or word vectors as text")
    add("--plot", type=pathlib.Path, help="picture of the first word to write")
    add("--font", type=pathlib.Path, help="font file for the picture")
    arguments = parser.parse_args()

    preset = arguments.preset or PRESETS[arguments.language]
    words = arguments.word or WORDS[arguments.language]
    text = arguments.text or HERE / f"words_in_context_{arguments.language}.txt"
    paragraphs = re.split(r"\n\s*\n", text.read_text("utf-8-sig"))
    paragraphs = [[line.split() for line in lines.splitlines()] for lines in paragraphs]
    embedder = keras_elmo.Embedder(preset)
    for word in words:
        found = [(n, place) for n, x in enumerate(paragraphs) for place in find_places(x, word)]
        senses, places = [n for n, _ in found], [place for _, place in found]
        if len(places) < 2:
            parser.error(f"expected {word!r} twice or more in the text, found {len(places)}")
        layers = embedder.embed([sentence for sentence, _ in places])
        vectors = np.stack(
            [x[:, place].mean(axis=1) for x, (_, place) in zip(layers, places, strict=True)]
        )
        same = np.allclose(vectors[:, 0], vectors[:1, 0], atol=1e-5)
        print(f"{word}: {len(places)} tokens, {'equal' if same else 'not equal'} in layer 0")
        if arguments.static:
            tokens = word.split()
            known, table = read_static(embedder, arguments.static, tokens)
            own = [known.index(token) for token in tokens]
            found = zip(*nearest(table, table[own].mean(axis=0), own, 10))
            print("  without context:", ", ".join(f"{known[i]} {x:.2f}" for i, x in found))
        vectors = vectors[:, arguments.layer]
        if arguments.centre:
            vectors = vectors - vectors.mean(axis=0)
        right = 0
        for i, place in enumerate(places):
            others, cosines = nearest(vectors, vectors[i], i, arguments.neighbours)
            right += [senses[x] for x in others[:1]] == [senses[i]]
            print(f"  {marked(*place)}")
            for other, cosine in zip(others, cosines):
                print(f"     {cosine:.2f}  {marked(*places[other])}")
        if len(set(senses)) > 1:
            print(f"  nearest neighbour in the same paragraph: {right} of {len(places)}")
        if arguments.plot and word == words[0]:
            labels = [" ".join(s[max(0, i.start - 3) : i.stop + 3]) for s, i in places]
            title = f'"{word}" in layer {arguments.layer} of {preset}'
            draw(vectors, labels, senses, title, arguments.plot, arguments.font)
            print(f"wrote {arguments.plot}")


if __name__ == "__main__":
    main()
