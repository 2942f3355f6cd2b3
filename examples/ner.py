"""Train a tagger of named entities on your column files, with ELMo, and tag text with it.

    python examples/ner.py --load weights/ner_small_en --tag "Ada Lovelace lived in London."
    python examples/ner.py --train train.conll --save tagger
    python examples/ner.py --train train.conll --dev dev.conll --test test.conll --save tagger

A file has one token per line: first the token, last its tag in IOB1, IOB2 or BIOES, separated by
tabs or spaces. --token-column and --tag-column choose other columns. An empty line ends a
sentence. Comments and token numbers are skipped, as in CoNLL-U. The model is the
paper's: two biLSTMs and a CRF over word embeddings, a CNN over the characters of each word, and
ELMo (--no-elmo leaves it out). --vectors reads the word embeddings from a word2vec text file, such
as GloVe; without it they start random. The frozen biLM runs inside the model; --cache computes its
layers once instead. The learning rate falls to zero over --epochs. The script keeps the epoch with
the best F1 on --dev, and saves each epoch that is better than all before. The saved tagger does
not contain the biLM: --load reads it from its preset. Without --dev the script holds out every
tenth sentence of --train. A few hundred sentences need small batches and more epochs:
--batch-size 4 --epochs 100. Runs on every Keras backend.
"""

import json
import pathlib

import keras
from cached_layers import Batches, StoredLayers, open_elmo, representations_of
from conll import read_columns, tag_set
from keras import layers, ops
from keras.utils import pad_sequences
from parts import JIT, draw_share, fraction, make_parser, report, train
from seqeval.metrics import f1_score
from seqeval.metrics.sequence_labeling import get_entities
from word_vectors import PADDING, lower, read_words, word_embedding, word_ids

import keras_elmo

CHARACTERS = 50  # ids per token, as in all released biLMs


def make_inputs(known, sentences, elmo=None, rare=(), random=None):
    """Return word ids and character ids, padded, and the layers if ``elmo`` stores them."""
    ids = word_ids(lower(sentences), known["words"], rare, random)
    characters = keras_elmo.CharacterTokenizer(CHARACTERS)(sentences)
    stored = [elmo.inputs(sentences)] if isinstance(elmo, StoredLayers) else []
    return ids, ops.convert_to_numpy(characters), *stored


def build(known, elmo, vectors=None, learning_rate=1e-3):
    """Return the model to train, and the tagger that shares its weights."""
    words = keras.Input((None,), dtype="int32")
    characters = keras.Input((None, CHARACTERS), dtype="int32")
    inputs = [words, characters]
    mask = ops.not_equal(words, PADDING)  # passed explicitly: Concatenate loses it
    letters = layers.Embedding(262, 16)(characters[:, :, :25])
    letters = layers.Conv2D(128, (1, 3), padding="same", activation="relu")(letters)
    embedded = word_embedding(known["words"], 100, vectors)(words)
    # As in the paper, dropout removes the same features at all tokens of a sentence.
    h = layers.SpatialDropout1D(0.5)(layers.Concatenate()([embedded, ops.max(letters, axis=2)]))
    if elmo:
        mix = keras_elmo.ScalarMix(dropout=0.5, l2=0.1, name="at_input")
        representations = representations_of(elmo, inputs, characters)
        h = layers.Concatenate()([h, mix(representations, mask=mask)])
    for units in (200, 100):
        birnn = layers.Bidirectional(layers.LSTM(units, return_sequences=True))
        h = layers.SpatialDropout1D(0.5)(birnn(h, mask=mask))
    return with_crf(inputs, h, len(known["tags"]), mask, learning_rate)


def with_crf(inputs, h, n_tags, mask, learning_rate):
    """Return a compiled model of tags with a CRF, and the tagger that shares its weights."""
    scores = layers.Dense(n_tags)(h)
    crf = keras_elmo.CRF()
    model = keras.Model(inputs, crf(scores, mask=mask))
    optimizer = keras.optimizers.Adam(learning_rate, global_clipnorm=5.0)
    model.compile(optimizer, crf.loss, jit_compile=JIT)
    return model, keras.Model(inputs, crf.decode(scores, mask))


def batches(known, sentences, tags=None, inputs=make_inputs, size=32, seed=None, **more):
    """Return batches of sentences of similar length, with their tag ids; a seed shuffles them.

    ``inputs`` makes the inputs of some sentences; ``more`` are its arguments. Padding, and tags
    that training does not have, get the tag id -1.
    """
    numbers = {tag: n for n, tag in enumerate(known["tags"])}

    def make_batch(indices, random):
        some = [sentences[i] for i in indices]
        ids = [[numbers.get(tag, -1) for tag in tags[i]] if tags else [] for i in indices]
        targets = pad_sequences(ids, max(map(len, some)), padding="post", value=-1)
        return inputs(known, some, random=random, **more), targets

    return Batches(make_batch, [*map(len, sentences)], range(len(sentences)), size, seed)


def tag(tagger, known, some):
    """Return the tags of sentences in batches."""
    rows = zip(some.predict(tagger), some.lengths)
    return [[known["tags"][n] for n in row[:length]] for row, length in rows]


def score(tagger, known, some, tags):
    """Return the F1 of the entities in batches."""
    return f1_score(tags, tag(tagger, known, some), zero_division=0)


def save_tagger(folder, tagger, known):
    """Write a tagger with its vocabulary, tag set and preset; they replace an earlier tagger."""
    folder.mkdir(parents=True, exist_ok=True)
    tagger.save(folder / "new.keras")
    (folder / "known.json").write_text(json.dumps(known, ensure_ascii=False), "utf-8")
    (folder / "new.keras").replace(folder / "tagger.keras")


def load_tagger(folder):
    """Return a tagger that ``save_tagger`` wrote, with its biLM, and what it knows."""
    known = json.loads((folder / "known.json").read_text("utf-8"))
    tagger = keras.saving.load_model(folder / "tagger.keras")
    for layer in tagger.layers:
        if isinstance(layer, keras_elmo.ElmoLayer):
            layer.load_preset(known["preset"])
    return tagger, known


def read_splits(settings):
    """Return the sentences and the tags of train and dev, and of test if there is one."""
    files = settings.train, settings.dev, settings.test
    columns = settings.token_column, settings.tag_column
    splits = [read_columns(file, *columns) if file else None for file in files]
    if not settings.dev:
        sentences, tags = splits[0]
        if len(sentences) < 2:
            raise ValueError(
                f"Without --dev expected two sentences. Received: one in {settings.train}"
            )
        splits[1] = sentences[::10], tags[::10]
        del sentences[::10], tags[::10]
        held_out = len(splits[1][0])
        print(f"{len(sentences)} sentences of {settings.train} train, {held_out} choose the epoch")
    return [split for split in splits if split]


def train_tagger(settings):
    """Train a tagger, score it on test, and return it with its vocabulary and tag set."""
    (sentences, tags), (dev, dev_tags), *tested = read_splits(settings)
    everything = [*sentences, *dev, *(sentence for split in tested for sentence in split[0])]
    elmo = open_elmo(settings.preset, everything, settings.cache)
    sentences, tags = draw_share(settings.share, settings.seed, sentences, tags)
    words, rare, vectors = read_words(settings.vectors, lower(sentences), lower(everything))
    known = {"words": words, "tags": tag_set(tags), "preset": settings.preset}
    shuffled = {"size": settings.batch_size, "seed": settings.seed, "rare": rare}
    on_train = batches(known, sentences, tags, elmo=elmo, **shuffled)
    steps = settings.epochs * len(on_train)
    rate = keras.optimizers.schedules.CosineDecay(settings.learning_rate, steps)
    model, tagger = build(known, elmo, vectors, rate)
    on_dev = batches(known, dev, elmo=elmo)
    # The tagger to save computes the layers itself.
    whole = tagger
    if isinstance(elmo, StoredLayers) and (settings.save or settings.tag):
        whole = build(known, open_elmo(settings.preset))[1]

    def save():
        for variable, trained in zip(whole.trainable_variables, tagger.trainable_variables):
            variable.assign(trained)
        if settings.save:
            save_tagger(settings.save, whole, known)

    facts = train(model, on_train, lambda: score(tagger, known, on_dev, dev_tags), settings, save)
    save()
    for test, test_tags in tested:
        f1 = score(tagger, known, batches(known, test, elmo=elmo), test_tags)
        report(settings, model, test=f1, **facts)
    return whole, known


def main(arguments=None):
    parser = make_parser(__doc__, epochs=30, patience=None)
    add = parser.add_argument
    for name in ("train", "dev", "test"):
        add(f"--{name}", type=pathlib.Path, help="column file")
    add("--token-column", type=int, metavar="N", help="column of the tokens, from 1")
    add("--tag-column", type=int, metavar="N", help="column of the tags, from 1")
    add("--share", type=fraction, default=1.0, help="share of the training sentences to draw")
    add("--save", type=pathlib.Path, help="folder to write the tagger to, without the biLM")
    add("--load", type=pathlib.Path, help="folder written by --save; no training then")
    add("--tag", nargs="+", default=[], help="texts whose entities to print")
    add("--tokenizer", default="penn", help="WordTokenizer for these texts")
    settings = parser.parse_args(arguments)
    if settings.scores and not (settings.train and settings.test):
        parser.error("--scores needs --train and --test")
    keras.utils.set_random_seed(settings.seed)

    if settings.load:
        tagger, known = load_tagger(settings.load)
        if settings.test:
            test, tags = read_columns(settings.test, settings.token_column, settings.tag_column)
            print(f"test F1 {score(tagger, known, batches(known, test), tags):.4f}")
    elif settings.train:
        tagger, known = train_tagger(settings)
    else:
        parser.error("expected --train, to train a tagger, or --load")
    tokenize = keras_elmo.WordTokenizer(settings.tokenizer)
    sentences = [tokenize(text) for text in settings.tag]
    tags = tag(tagger, known, batches(known, sentences)) if sentences else []
    for tokens, found in zip(sentences, tags):
        for kind, first, last in get_entities(found):
            print(*tokens[first : last + 1], kind)


if __name__ == "__main__":
    main()
