"""Sentences to batches: what both directions read and predict, and the order."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_elmo.alphabets import ByteAlphabet
from keras_elmo.pretraining.corpus import START, Batcher, Corpus
from keras_elmo.text_input import read_sentences

VOCABULARY = ["<S>", "</S>", "<UNK>", "a", "b", "c", "long"]
TOKENS = st.sampled_from(["a", "b", "c", "longer", "x", "Ünïcödé", "a" * 70])


def rows_of(tokens, width=50):
    return ByteAlphabet(50).rows([t.encode() for t in tokens])[:, :width]


def test_blank_lines_are_no_sentences(tmp_path):
    (tmp_path / "a.txt").write_text("\na b\n \t\nc\n\n")
    assert read_sentences(tmp_path / "a.txt") == [["a", "b"], ["c"]]


@settings(max_examples=50)
@given(
    st.lists(st.lists(TOKENS, min_size=1, max_size=9), min_size=1, max_size=20),
    st.integers(1, 3),
    st.integers(8, 40),
    st.booleans(),
)
def test_batches_hold_every_sentence_once_in_both_directions(
    sentences, devices, batch_tokens, fixed_shapes
):
    batcher = Batcher(
        VOCABULARY,
        widest_filter=3,
        batch_tokens=batch_tokens,
        devices=devices,
        fixed_shapes=fixed_shapes,
    )
    encoded = batcher.encode(sentences)
    rng = np.random.default_rng(0)
    seen = []
    for rows in batcher.arrange(encoded.lengths, rng):
        batch = batcher.batch(encoded, rows)
        seen += list(rows)
        lengths = [len(sentences[row]) + 1 for row in rows]
        words, targets, weights = batch["words"], batch["targets"], batch["weights"]
        n, _, tokens, size = words.shape
        assert n == devices and targets.shape == words.shape
        assert weights.shape == words.shape and size * tokens <= max(batch_tokens, tokens)
        assert batch["characters"].shape[0] == devices and batch["characters"].dtype == "int32"
        np.testing.assert_allclose(weights.sum(axis=(0, 2, 3)), devices, rtol=1e-5)
        # The same in both directions, if no sentence is cut.
        np.testing.assert_array_equal(weights[:, 0], weights[:, 1])
        inside = weights[:, 0] > 0
        assert inside.sum() == sum(lengths)
        for k, row in enumerate(rows):
            device, column = k % devices, k // devices
            sentence, length = sentences[row], lengths[k]
            assert inside[device, :length, column].all()
            assert not inside[device, length:, column].any()
            width = batch["characters"].shape[2]
            ids = [VOCABULARY.index(t) if t in VOCABULARY else 2 for t in sentence]
            for d, (read, predicted) in enumerate(
                (
                    (["<S>", *sentence], [*ids, 1]),
                    (["</S>", *sentence[::-1]], [*ids[::-1], 0]),
                )
            ):
                characters = batch["characters"][device][words[device, d, :length, column]]
                np.testing.assert_array_equal(characters, rows_of(read, width))
                np.testing.assert_array_equal(targets[device, d, :length, column], predicted)
                assert (targets[device, d, length:, column] == 0).all()
            longest = max(len(t.encode()) + 2 for t in sentence)
            assert width >= min(50, longest + 3)
    assert sorted(seen) == list(range(len(sentences)))


def test_distinct_tokens_occur_once():
    batcher = Batcher(VOCABULARY)
    encoded = batcher.encode([["a", "b", "a"], ["b", "a", "b"]])
    [rows] = batcher.arrange(encoded.lengths)
    assert batcher.batch(encoded, rows)["characters"].shape[1] == 4  # a, b and both boundaries


def test_fixed_shapes_are_few():
    rng = np.random.default_rng(0)
    tokens = ["x" * n for n in rng.integers(1, 20, 3000)]
    tokens = [f"{token}{i}" for i, token in enumerate(tokens)]
    sentences = [rng.choice(tokens, n).tolist() for n in rng.integers(1, 40, 400)]
    shapes = {}
    for fixed in (False, True):
        batcher = Batcher(VOCABULARY, batch_tokens=512, fixed_shapes=fixed)
        encoded = batcher.encode(sentences)
        batches = [batcher.batch(encoded, rows) for rows in batcher.arrange(encoded.lengths)]
        shapes[fixed] = {tuple(x.shape for x in batch.values()) for batch in batches}
    assert len(shapes[True]) <= 6 < 15 < len(shapes[False])


def write_files(folder):
    for i in range(3):
        lines = [" ".join(["a"] * (1 + k % 5) + [f"{i}-{k}"]) for k in range(20)]
        (folder / f"{i}.txt").write_text("\n".join(lines) + "\n\n")
    return sorted(folder.glob("*.txt"))


def take(corpus, n, position=START, step=0, parts=lambda step: 1):
    return list(itertools.islice(corpus.batches(position, step, parts), n))


def assert_same(one, two):
    assert one[1:] == two[1:]
    for name in one[0]:
        np.testing.assert_array_equal(one[0][name], two[0][name])


def halves(step):
    """A ramp: every batch in four parts, then in two, then whole."""
    return 4 if step < 9 else 2 if step < 20 else 1


@pytest.mark.parametrize("parts", [lambda step: 1, halves])
def test_any_position_can_be_entered(tmp_path, parts):
    files = write_files(tmp_path)
    batcher = Batcher([*VOCABULARY, *(f"{i}-{k}" for i in range(3) for k in range(20))])
    batcher.batch_tokens = 30
    corpus = Corpus(files, batcher, seed=5)
    all_of_them = take(corpus, 80, parts=parts)
    for start in range(79):
        again = take(corpus, 1, all_of_them[start][2], start + 1, parts)
        assert_same(again[0], all_of_them[start + 1])
    # The batch behind the last one of an epoch is the first that stands in the next one.
    epochs = [position[0] for _, _, position in all_of_them]
    n = epochs.count(0)
    assert 10 < n < 40 and corpus.steps(1, parts) == n
    # Every sentence is read once in every epoch.
    ids = [batch["targets"][:, 0][batch["targets"][:, 0] > 6] for batch, _, _ in all_of_them]
    for epoch in (ids[:n], ids[n : n + epochs.count(1)]):
        assert sorted(np.concatenate(epoch)) == list(range(7, 67))
    assert sum(tokens for _, tokens, _ in all_of_them[:n]) == 3 * 4 * (2 + 3 + 4 + 5 + 6)
    # Another epoch, another order; another seed too; the same seed the same.
    sets = list(map(set, ids))
    assert sets[:n] != sets[n : 2 * n]
    assert_same(take(Corpus(files, batcher, seed=5), 1, parts=parts)[0], all_of_them[0])
    other = take(Corpus(files, batcher, seed=6), n)
    assert [set(b["targets"][b["targets"] > 6]) for b, _, _ in other] != sets[:n]


def test_a_whole_batch_is_split_into_parts_of_about_its_size(tmp_path):
    (tmp_path / "a.txt").write_text("a b\n" * 10)
    corpus = Corpus([tmp_path / "a.txt"], Batcher(VOCABULARY, batch_tokens=30))

    def rows(parts):
        return [
            batch["words"].shape[3] for batch, _, _ in take(corpus, parts, parts=lambda _: parts)
        ]

    assert rows(1) == [10] and rows(2) == [5, 5] and rows(4) == [3, 3, 2, 2]
    assert rows(16)[:10] == [1] * 10  # and no part is empty
    assert [position for _, _, position in take(corpus, 3, parts=lambda _: 2)] == [
        *((0, 0, 0, 1, 2), (0, 0, 1, 0, 2), (1, 0, 0, 1, 2))
    ]


@settings(max_examples=30)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=30),
    st.integers(1, 3),
    st.sampled_from([8, 20, 60]),
    st.sampled_from([1, 2, 2.5, 0.4]),
    st.integers(0, 12),
)
def test_steps_of_epochs(tmp_path_factory, lengths, files, batch_tokens, epochs, ramp):
    folder = tmp_path_factory.mktemp("epochs")
    for i in range(files):
        lines = [" ".join("a" * n) for n in lengths[i::files]]
        (folder / f"{i}.txt").write_text("\n".join(lines) + "\n")

    def parts(step):
        return 1 if step >= ramp else 4

    corpus = Corpus(sorted(folder.iterdir()), Batcher(VOCABULARY, batch_tokens=batch_tokens), 7, 3)
    steps = corpus.steps(epochs, parts)
    read = take(corpus, steps, parts=parts)
    whole = sum(1 for _, _, position in read if position[3] == 0)
    assert whole == max(1, round(epochs * corpus.steps(1)))
    assert read[-1][2][3] == 0  # no batch is left half read
    if epochs == 1:
        assert sum(tokens for _, tokens, _ in read) == sum(lengths)


def predictions(batch):
    """Return, for each direction, pairs of the tokens read before and the token to predict."""
    found = []
    for d in range(2):
        pairs = []
        for column in range(batch["words"].shape[3]):
            weights, targets = batch["weights"][0, d, :, column], batch["targets"][0, d, :, column]
            characters = batch["characters"][0][batch["words"][0, d, :, column]]
            read = ["".join(chr(c - 1) for c in row[1:] if c < 256) for row in characters]
            pairs += [
                (tuple(read[: step + 1]), VOCABULARY[targets[step]])
                for step in np.flatnonzero(weights)
            ]
        found.append(sorted(pairs))
    return found


def test_a_long_sentence_is_read_in_pieces_without_false_boundaries(tmp_path):
    """The boundary tokens are read at every cut, but nothing is predicted across it."""
    (tmp_path / "a.txt").write_text("a b c a b c c\nb a\n")
    corpus = Corpus([tmp_path / "a.txt"], Batcher(VOCABULARY), max_tokens=3)
    [(batch, tokens, _)] = take(corpus, 1)
    assert tokens == 9
    begin, end = "", ""  # boundary tokens have no bytes
    forward, backward = predictions(batch)
    # The pieces are "a b", "c a" and "b c c".
    assert forward == sorted(
        [
            ((begin,), "a"),
            ((begin, "a"), "b"),
            ((begin, "c"), "a"),
            ((begin, "b"), "c"),
            ((begin, "b", "c"), "c"),
            ((begin, "b", "c", "c"), "</S>"),
            ((begin,), "b"),
            ((begin, "b"), "a"),
            ((begin, "b", "a"), "</S>"),
        ]
    )
    assert backward == sorted(
        [
            ((end, "b"), "a"),
            ((end, "b", "a"), "<S>"),
            ((end, "a"), "c"),
            ((end,), "c"),
            ((end, "c"), "c"),
            ((end, "c", "c"), "b"),
            ((end,), "a"),
            ((end, "a"), "b"),
            ((end, "a", "b"), "<S>"),
        ]
    )
    for d in range(2):
        np.testing.assert_allclose(batch["weights"][0, d].sum(), 1, rtol=1e-6)
        counted = batch["weights"][0, d][batch["weights"][0, d] > 0]
        np.testing.assert_allclose(counted, 1 / 9, rtol=1e-6)


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=8),
    st.integers(1, 12),
    st.integers(8, 60),
    st.integers(1, 3),
)
def test_pieces_hold_every_token_once(lengths, max_tokens, batch_tokens, devices):
    """And lose one prediction of a direction for every cut: that of the token behind it."""
    batcher = Batcher(
        [*VOCABULARY[:3], *(f"w{i}" for i in range(sum(lengths)))],
        batch_tokens=batch_tokens,
        devices=devices,
    )
    ends = np.cumsum(lengths)
    sentences = [[f"w{i}" for i in range(end - n, end)] for n, end in zip(lengths, ends)]
    encoded = batcher.encode(sentences, max_tokens)
    assert encoded.lengths.max() <= max_tokens and encoded.lengths.sum() == sum(lengths)
    # Of about equal length, in order: neighbours differ by one token at most.
    pieces = np.split(encoded.lengths, np.flatnonzero(encoded.is_begin)[1:])
    assert [piece.sum() for piece in pieces] == lengths
    assert all(piece.max() - piece.min() <= 1 for piece in pieces)
    starts = np.concatenate(
        [end - n + np.cumsum(p)[:-1] for n, end, p in zip(lengths, ends, pieces)]
    )
    counted = [[], []]
    for rows in batcher.arrange(encoded.lengths):
        batch = batcher.batch(encoded, rows)
        for d in range(2):
            counted[d] += batch["targets"][:, d][batch["weights"][:, d] > 0].tolist()
    n, everything = len(lengths), set(range(3, 3 + sum(lengths)))
    assert sorted(counted[0]) == sorted([*(everything - {3 + i for i in starts}), *[1] * n])
    assert sorted(counted[1]) == sorted([*(everything - {2 + i for i in starts}), *[0] * n])


def test_files_without_sentences(tmp_path):
    (tmp_path / "a.txt").write_text("\n\n")
    (tmp_path / "b.txt").write_text("a b\n")
    both = Corpus([tmp_path / "a.txt", tmp_path / "b.txt"], Batcher(VOCABULARY))
    epochs = [position[0] for _, _, position in take(both, 3)]
    assert epochs == [0, 1, 2]
    assert both.steps(3) == 3
    empty = Corpus([tmp_path / "a.txt"], Batcher(VOCABULARY))
    for read in (lambda: take(empty, 1), lambda: empty.steps(1)):
        with pytest.raises(ValueError, match="Corpus expects sentences, .* Received: none in"):
            read()


def test_files_that_are_emptied_while_they_are_read(tmp_path):
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path in paths:
        path.write_text("a b\n" * 4)
    batches = Corpus(paths, Batcher(VOCABULARY, batch_tokens=8)).batches()
    next(batches)
    for path in paths:
        path.write_text("")
    with pytest.raises(ValueError, match="Corpus expects sentences, .* Received: none in"):
        list(batches)


def test_long_and_short_batches_come_in_any_order():
    lengths = np.repeat(np.arange(1, 21), 8)
    batcher = Batcher(VOCABULARY, batch_tokens=40)

    def longest(*rng):
        return [lengths[rows].max() for rows in batcher.arrange(lengths, *rng)]

    shuffled = longest(np.random.default_rng(0))
    assert len(shuffled) > 20 and longest() == sorted(longest(), reverse=True)
    assert shuffled not in (sorted(shuffled), sorted(shuffled, reverse=True))


def test_every_epoch_reads_the_files_in_another_order(tmp_path):
    for n in range(1, 9):
        (tmp_path / f"{n}.txt").write_text(" ".join("a" * n) + "\n")
    corpus = Corpus(sorted(tmp_path.iterdir()), Batcher(VOCABULARY))
    tokens = [n for _, n, _ in take(corpus, 24)]
    orders = {tuple(tokens[start : start + 8]) for start in (0, 8, 16)}
    assert len(orders) == 3 and {tuple(sorted(order)) for order in orders} == {tuple(range(1, 9))}


def test_lone_surrogates_are_left_out():
    encoded = Batcher(VOCABULARY).encode([["\ud800x", "a"]])
    np.testing.assert_array_equal(encoded.characters[2:], rows_of(["x", "a"]))
