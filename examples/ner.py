"""Train a tagger of named entities on your column files, with ELMo, and tag text with it.

    python examples/ner.py --train train.conll --save tagger
    python examples/ner.py --train train.conll --dev dev.conll --test test.conll --save tagger
    python examples/ner.py --load tagger --tag "Ada Lovelace met Charles Babbage in London."

A file has one token per line: first the token, last its tag in IOB1, IOB2 or BIOES, separated by
tabs or spaces. --token-column and --tag-column choose other columns. An empty line ends a
sentence. Comments and the numbers of the tokens are skipped, as in CoNLL-U. The model is the
paper's: two biLSTMs and a CRF over word embeddings, a CNN over the characters of each word, and
ELMo (--no-elmo leaves it out). --vectors reads the word embeddings from a word2vec text file, such
as GloVe; without it they start random. The frozen biLM runs inside the model; --cache computes its
layers once instead. The script keeps the epoch with the best F1 on --dev, and saves each epoch that
is better than all before. Without --dev it holds out every tenth sentence of --train for this. A
few hundred sentences need more epochs, such as --epochs 100 --patience 20. Runs on every Keras
backend.
"""

import argparse
import collections
import functools
import json
import pathlib
import re

import keras
import numpy as np
from experiments.cached_layers import StoredLayers, open_elmo, representations_of, write_scores
from experiments.word_vectors import read_vectors, word_embedding
from keras import layers, ops
from keras.utils import pad_sequences
from seqeval.metrics import f1_score
from seqeval.metrics.sequence_labeling import get_entities
from tqdm import tqdm

import keras_elmo

PADDING, UNKNOWN = 0, 1  # word ids; the ids of the vocabulary start at 2
CHARACTERS = 50  # ids per token, as in all released biLMs


def read_columns(path, token_column=None, tag_column=None):
    """Read a column file; return its sentences as lists of tokens, and their tags in BIOES.

    The numbers of the columns start at 1. By default tags are in the last column, and tokens in
    the first, or in the second if the first one counts the tokens, as in CoNLL-U.
    """
    lines = path.read_text("utf-8-sig").split("\n")
    rows = [line.strip().split("\t" if "\t" in line else None) for line in lines]
    widths = collections.Counter(len(row) for row in rows if len(row) > 1)
    width = max(widths, key=widths.get, default=0)
    numbers = [row[0] for row in rows if len(row) == width > 1 and row[0] != "#"]
    # Numbers such as 1-2 and 1.1 are of words that the next lines split, and of words left out.
    counted = width > 2 and all(re.fullmatch(r"\d+([-.]\d+)?", number) for number in numbers)
    token_column = token_column or (2 if counted else 1)
    sentences = [[]]
    for number, (line, row) in enumerate(zip(lines, rows), start=1):
        fits = len(row) >= max(2, token_column, tag_column or 0)
        tag = row[(tag_column or 0) - 1] if fits else ""
        is_tag = re.fullmatch("O|[BIES]-.+", tag)
        if not line.strip() or line.startswith("-DOCSTART-"):
            sentences.append([])
        elif line.startswith("#") and not (is_tag and len(row) == width):
            continue  # a comment
        elif not is_tag:
            column = f"column {tag_column}" if tag_column else "the last column"
            raise ValueError(
                f"Expected a token and, in {column}, O, or B-, I-, E-, S- and a type. "
                f"Received: line {number} of {path}: {line[:60]!r}. See --tag-column"
            )
        elif not counted or row[0].isdigit():
            sentences[-1].append((row[token_column - 1], tag))
    columns = [list(zip(*sentence)) for sentence in sentences if sentence]
    if not columns:
        raise ValueError(f"Expected a sentence or more. Received: path={str(path)!r}")
    return [list(tokens) for tokens, _ in columns], [to_bioes(list(tags)) for _, tags in columns]


def to_bioes(tags):
    """Convert the tags of a sentence to BIOES."""
    bioes = ["O"] * len(tags)
    for kind, first, last in get_entities(tags):
        letters = "B" + "I" * (last - first - 1) + "E" if last > first else "S"
        bioes[first : last + 1] = [f"{letter}-{kind}" for letter in letters]
    return bioes


def batches(sentences, size=32):
    """Return the indices of sentences of similar length in batches, in random order."""
    order = sorted(np.random.permutation(len(sentences)), key=lambda i: len(sentences[i]))
    starts = np.random.permutation(range(0, len(order), size))
    return [order[start : start + size] for start in starts]


def make_inputs(known, sentences, elmo=None):
    """Return word ids and character ids, padded, and the layers if ``elmo`` stores them."""
    ids = [[known["words"].get(token.lower(), UNKNOWN) for token in x] for x in sentences]
    characters = keras_elmo.CharacterTokenizer(CHARACTERS)(sentences)
    stored = [elmo.inputs(sentences)] if isinstance(elmo, StoredLayers) else []
    return [pad_sequences(ids, padding="post"), ops.convert_to_numpy(characters), *stored]


def build(known, elmo, vectors=None):
    """Return the model to train, and the tagger that shares its weights."""
    words = keras.Input((None,), dtype="int32")
    characters = keras.Input((None, CHARACTERS), dtype="int32")
    inputs = [words, characters]
    mask = ops.not_equal(words, PADDING)  # passed explicitly: Concatenate loses it
    letters = layers.Embedding(262, 16)(characters[:, :, :25])
    letters = layers.Conv2D(128, (1, 3), padding="same", activation="relu")(letters)
    embedded = word_embedding(known["words"], 100, vectors)(words)
    h = layers.Dropout(0.5)(layers.Concatenate()([embedded, ops.max(letters, axis=2)]))
    if elmo:
        mix = keras_elmo.ScalarMix(dropout=0.5, l2=0.1, name="at_input")
        representations = representations_of(elmo, characters, inputs)
        h = layers.Concatenate()([h, mix(representations, mask=mask)])
    for units in (200, 100):
        birnn = layers.Bidirectional(layers.LSTM(units, return_sequences=True))
        h = layers.Dropout(0.5)(birnn(h, mask=mask))
    scores = layers.Dense(len(known["tags"]))(h)
    crf = keras_elmo.CRF()
    model = keras.Model(inputs, crf(scores))
    model.compile(keras.optimizers.Adam(1e-3, global_clipnorm=5.0), crf.loss)
    return model, keras.Model(inputs, crf.decode(scores, mask))


def tag(tagger, known, sentences, make_inputs=make_inputs):
    """Return the tags of sentences, in BIOES."""
    tags = [[]] * len(sentences)
    for indices in batches(sentences):
        best = tagger.predict_on_batch(make_inputs(known, [sentences[i] for i in indices]))
        for i, row in zip(indices, best):
            tags[i] = [known["tags"][n] for n in row[: len(sentences[i])]]
    return tags


def names_of(sentences, tags, vectors=()):
    """Return the vocabulary and the tag set, and the ids of words that occur once.

    Words with a vector join the vocabulary, and are not among the words that occur once.
    """
    seen = collections.Counter(token.lower() for x in sentences for token in x)
    types = sorted({tag[2:] for x in tags for tag in x if tag != "O"})
    known = {
        "words": {word: id for id, word in enumerate(sorted({*seen, *vectors}), UNKNOWN + 1)},
        "tags": ["O", *(f"{letter}-{kind}" for kind in types for letter in "BIES")],
    }
    rare = {word for word in seen if seen[word] == 1} - {*vectors}
    return known, [known["words"][word] for word in sorted(rare)]


def vectors_of(path, sentences):
    """Return the vectors of the words of sentences from a file; none without a file."""
    return read_vectors(path, {token.lower() for x in sentences for token in x}) if path else {}


def make_batch(known, rare, sentences, tags, make_inputs=make_inputs):
    """Return the inputs and tag ids of a training batch; padding has the tag id -1."""
    inputs = make_inputs(known, sentences)
    # Half of the rare words become UNKNOWN, so that its embedding is trained.
    drop = np.isin(inputs[0], rare) & (np.random.random(inputs[0].shape) < 0.5)
    inputs[0][drop] = UNKNOWN
    ids = [[known["tags"].index(tag) for tag in x] for x in tags]
    return inputs, pad_sequences(ids, padding="post", value=-1)


def fit(model, tagger, sentences, batch_of, score, settings, save=lambda: None):
    """Train the model, and give the tagger the weights of the epoch with the best score on dev.

    ``batch_of`` makes a batch from indices of sentences. ``score`` returns the F1 on dev. ``save``
    is called after each epoch that is better than all before.
    """
    best = -1, 0
    for epoch in range(1, settings.epochs + 1):
        losses = [
            model.train_on_batch(*batch_of(indices))
            for indices in tqdm(batches(sentences), f"epoch {epoch}", leave=False)
        ]
        loss, f1 = np.mean(losses), score()
        print(f"epoch {epoch}: loss {loss:.3f}, dev F1 {f1:.4f}", flush=True)
        if (f1, -loss) > best:  # while F1 is 0, compare the loss
            best, best_epoch, weights = (f1, -loss), epoch, tagger.get_weights()
            save()
        elif epoch == best_epoch + settings.patience:
            break
    tagger.set_weights(weights)


def save_tagger(folder, tagger, known):
    """Write a tagger with its vocabulary and tag set; an interrupt leaves the earlier one."""
    folder.mkdir(parents=True, exist_ok=True)
    tagger.save(folder / "new.keras")
    (folder / "known.json").write_text(json.dumps(known), "utf-8")
    (folder / "new.keras").replace(folder / "tagger.keras")


def train(settings):
    """Return the tagger of the best epoch, its vocabulary and tag set, and what makes inputs."""
    columns = settings.token_column, settings.tag_column
    sentences, tags = read_columns(settings.train, *columns)
    if settings.dev:
        dev, dev_tags = read_columns(settings.dev, *columns)
    elif len(sentences) > 1:
        dev, dev_tags = sentences[::10], tags[::10]
        del sentences[::10], tags[::10]
        print(f"{len(sentences)} sentences of {settings.train} train, {len(dev)} choose the epoch")
    else:
        raise ValueError(f"Without --dev expected two sentences. Received: one in {settings.train}")
    test = read_columns(settings.test, *columns)[0] if settings.test else []
    everything = [*sentences, *dev, *test]
    vectors = vectors_of(settings.vectors, everything)
    known, rare = names_of(sentences, tags, vectors)
    elmo = open_elmo(settings.preset, everything, settings.cache) if settings.elmo else None
    make = functools.partial(make_inputs, elmo=elmo)
    model, tagger = build(known, elmo, vectors)

    def batch_of(indices):
        some = ([x[i] for i in indices] for x in (sentences, tags))
        return make_batch(known, rare, *some, make)

    def score():
        return f1_score(dev_tags, tag(tagger, known, dev, make), zero_division=0)

    def save():
        if settings.save:
            save_tagger(settings.save, tagger, known)

    fit(model, tagger, sentences, batch_of, score, settings, save)
    return tagger, known, make


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--train", type=pathlib.Path, help="column file")
    add(
        "--dev",
        type=pathlib.Path,
        help="column file to choose the epoch with; default: a tenth of --train",
    )
    add("--test", type=pathlib.Path, help="column file to score the tagger on")
    add("--token-column", type=int, metavar="N", help="column of the tokens, from 1")
    add("--tag-column", type=int, metavar="N", help="column of the tags, from 1")
    add("--save", type=pathlib.Path, help="folder to write the tagger to, biLM included")
    add("--load", type=pathlib.Path, help="folder written by --save; no training then")
    add("--tag", nargs="+", default=[], help="texts to tag")
    add("--tokenizer", default="penn", help="WordTokenizer for these texts")
    add("--elmo", action=argparse.BooleanOptionalAction, default=True, help="use ELMo or not")
    add("--preset", default="elmo_small_en", help="biLM: name, directory or .zip")
    add("--vectors", type=pathlib.Path, help="word2vec text file for the word embeddings")
    add("--cache", type=pathlib.Path, help="folder for the biLM's layers; not with --save, --tag")
    add("--epochs", type=int, default=30, help="largest number of epochs")
    add(
        "--patience",
        type=int,
        default=5,
        help="stop after this many epochs without a better F1 on dev",
    )
    add("--seed", type=int, default=1)
    add("--scores", type=pathlib.Path, help="JSON file to write the F1 on test to")
    settings = parser.parse_args(arguments)
    if settings.cache and (settings.save or settings.tag):
        parser.error("--cache leaves the biLM out of the tagger: use it without --save and --tag")
    keras.utils.set_random_seed(settings.seed)

    make = make_inputs
    if settings.load:
        tagger = keras.saving.load_model(settings.load / "tagger.keras")
        known = json.loads((settings.load / "known.json").read_text("utf-8"))
    elif settings.train:
        tagger, known, make = train(settings)
    else:
        parser.error("expected --train, to train a tagger, or --load")
    if settings.test:
        columns = settings.token_column, settings.tag_column
        sentences, tags = read_columns(settings.test, *columns)
        f1 = f1_score(tags, tag(tagger, known, sentences, make), zero_division=0)
        print(f"test F1 {f1:.4f}")
        if settings.scores:
            write_scores(settings.scores, f1, tagger)
    tokenize = keras_elmo.WordTokenizer(settings.tokenizer)
    sentences = [tokenize(text) for text in settings.tag]
    for tokens, tags in zip(sentences, tag(tagger, known, sentences)):
        print("\n".join(map(" ".join, zip(tokens, tags))), end="\n\n")


if __name__ == "__main__":
    main()
