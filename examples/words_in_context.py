"""Find the nearest neighbours of a word in context, and see a biLM separate its senses.

    python examples/words_in_context.py
    python examples/words_in_context.py --word bank --text corpus.txt --plot bank.png
    python examples/words_in_context.py --word play --static weights/elmo_small_en/vocab.txt
    python examples/words_in_context.py --language ko --plot bae.png

This repeats table 4 of the paper, the neighbours of "play". For every occurrence of --word the
script lists the other occurrences with the highest cosine in a contextual layer. It also says
whether their vectors are equal in layer 0, which reads no context. A word may be several tokens
separated by spaces; its vector is then their mean. --text reads tokenised sentences, one per line.
Without it the script uses built-in sentences. The Korean sentences are morphemes of Kiwi: 배 means
ship, pear or belly, and 잘한다 praises or mocks. --static also lists the nearest words without
context, as the paper does. It takes a vocabulary with one word per line, compared by layer 0, or
word vectors as text (GloVe, word2vec, fastText). --plot draws the occurrences on their first two
principal components, with a colour for each paragraph of the text. Each built-in paragraph has one
sense. The font is --font, or the first installed font that has all characters.
"""

import argparse
import pathlib
import re

import numpy as np

import keras_elmo

PRESETS = {"en": "elmo_small_en", "ko": "elmo_mini_ko"}
WORDS = {"en": ["play", "bank", "bear"], "ko": ["배", "잘 하 ㄴ다"]}
BUILT_IN_TEXT = {
    "en": """
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
""",
    "ko": """
배 가 항구 를 떠나 어 멀 ㄴ 바다 로 나가 었 다 .
어부 들 은 새벽 에 배 를 타 고 고기 를 잡 으러 나가 었 다 .
배 는 태풍 을 피하 어 부두 에 닻 을 내리 었 다 .
섬 까지 는 배 로 두 시간 이 걸리 ㄴ다 .
선장 은 배 의 속력 을 줄이 고 항로 를 바꾸 었 다 .
크 ㄴ 배 한 척 이 부산항 에 들어오 었 다 .

농부 는 과수원 에서 잘 익 은 배 를 따 었 다 .
시장 에서 사과 와 배 를 한 상자 씩 사 었 다 .
이 배 는 달 고 물 이 많 어 맛있 다 .
어머니 가 배 를 깎 어 접시 에 담 으시 었 다 .
가을 에 는 포도 와 배 가 제철 이 다 .
나주 는 배 재배 로 유명 하 ㄴ 고장 이 다 .

밥 을 너무 많이 먹 어서 배 가 부르 다 .
점심 을 굶 었 더니 배 가 고프 다 .
아이 가 배 가 아프 다며 울 었 다 .
차 ㄴ 음식 을 먹 고 배 에 탈 이 나 었 다 .
그 는 배 를 움켜쥐 고 병원 에 실리 어 가 었 다 .
눕 어서 배 에 손 을 얹 고 깊이 숨 을 쉬 었 다 .

그 배우 는 표정 연기 를 정말 잘 하 ㄴ다 .
노래 도 잘 하 고 춤 도 잘 하 ㄴ다 , 최고 이 다 !
우리 선수 들 오늘 정말 잘 하 ㄴ다 , 자랑 스럽 다 .
주인공 이 연기 를 참 잘 하 ㄴ다 , 감동 하 었 다 .
이 감독 은 이야기 를 풀 어 가 는 일 을 잘 하 ㄴ다 .
신인 이 ㄴ데 도 기대 보다 훨씬 잘 하 ㄴ다 .

또 돈 만 날리 었 네 , 참 잘 하 ㄴ다 .
이런 영화 를 돈 주 고 보 다니 아주 잘 하 ㄴ다 , 쯧쯧 .
그렇게 망치 어 놓 고 잠 이 오 니 , 잘 하 ㄴ다 잘 하 어 .
약속 을 또 어기 었 구나 , 아주 잘 하 ㄴ다 .
결말 을 이렇 게 끝내 다니 잘 하 ㄴ다 진짜 , 시간 이 아깝 다 .
잘 하 ㄴ다 , 이제 는 거짓말 까지 하 는구나 .
""",
}


def neighbours(vectors, count):
    """Return the most similar other rows of every row, and their cosines."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    order = np.argsort(-cosines, axis=1)[:, : min(count, len(vectors) - 1)]
    return order, np.take_along_axis(cosines, order, axis=1)


def static_neighbours(embedder, path, word, count):
    """Return the words nearest to a word without context, and their cosines.

    Raises:
        ValueError: If the file has no vector for a token of the word.
    """
    tokens = word.split()
    with open(path, encoding="utf-8", errors="replace") as file:
        rows = [line.split() for line in file]
    if len(rows[0]) == 2:  # the header of word2vec: number of words and width
        rows = rows[1:]
    words = list(dict.fromkeys([*tokens, *(row[0] for row in rows if row)]))
    if len(rows[0]) > 1:
        table = {row[0]: row[1:] for row in rows if len(row) == len(rows[0])}
        for token in tokens:
            if token not in table:
                raise ValueError(f"--static expects vectors with {token!r}. Received: {path}")
        words = [w for w in words if w in table]
        vectors = np.array([table[w] for w in words], "float32")
    else:
        vectors = embedder.embed_tokens(words)
    own = [words.index(token) for token in tokens]
    vectors = np.concatenate([vectors, vectors[own].mean(axis=0, keepdims=True)])
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    cosines = unit[:-1] @ unit[-1]
    cosines[own] = -np.inf
    order = np.argsort(-cosines)[: min(count, len(words) - len(set(own)))]
    return [words[i] for i in order], cosines[order]


def plane(vectors):
    """Project rows on their first two principal components."""
    centred = vectors - vectors.mean(axis=0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    return centred @ axes[:2].T


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
    """Return the first font that has all characters of a text.

    Raises:
        ValueError: If no font has them.
    """
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


def draw(points, labels, senses, title, path, font_file=None):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.style.use(pathlib.Path(__file__).parents[1] / "docs" / "pictures.mplstyle")
    font = find_font("".join([title, *labels]), font_file)
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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--language", choices=WORDS, default="en", help="language of the built-in words and text"
    )
    parser.add_argument("--word", nargs="*", help="words to use instead of the built-in ones")
    parser.add_argument("--text", type=pathlib.Path, help="tokenised sentences, one per line")
    parser.add_argument("--preset", help="biLM: name, directory or .zip; default: bundled biLM")
    parser.add_argument("--layer", type=int, default=1, help="contextual layer to compare")
    parser.add_argument("--neighbours", type=int, default=2)
    parser.add_argument("--static", type=pathlib.Path, help="vocabulary, or word vectors as text")
    parser.add_argument("--plot", type=pathlib.Path, help="picture of the first word to write")
    parser.add_argument("--font", type=pathlib.Path, help="font file for the picture")
    arguments = parser.parse_args()

    preset = arguments.preset or PRESETS[arguments.language]
    words = arguments.word or WORDS[arguments.language]
    built_in = BUILT_IN_TEXT[arguments.language]
    text = arguments.text.read_text("utf-8-sig") if arguments.text else built_in
    paragraphs = re.split(r"\n\s*\n", text)
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
        order, cosines = neighbours(vectors[:, arguments.layer], arguments.neighbours)
        same = np.allclose(vectors[:, 0], vectors[:1, 0], atol=1e-5)
        print(f"{word}: {len(places)} tokens, {'equal' if same else 'not equal'} in layer 0")
        if arguments.static:
            static, values = static_neighbours(embedder, arguments.static, word, 10)
            nearest = ", ".join(f"{w} {v:.2f}" for w, v in zip(static, values, strict=True))
            print(f"  without context: {nearest}")
        for place, others, values in zip(places, order, cosines, strict=True):
            print(f"  {marked(*place)}")
            for other, cosine in zip(others, values, strict=True):
                print(f"     {cosine:.2f}  {marked(*places[other])}")
        if arguments.plot and word == words[0]:
            labels = [" ".join(s[max(0, i.start - 3) : i.stop + 3]) for s, i in places]
            title = f'"{word}" in layer {arguments.layer} of {preset}'
            points = plane(vectors[:, arguments.layer])
            draw(points, labels, senses, title, arguments.plot, arguments.font)
            print(f"wrote {arguments.plot}")


if __name__ == "__main__":
    main()
