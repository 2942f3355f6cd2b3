"""Train the same tagger on the layers of a BERT and on the layers of ELMo, and compare.

    python examples/bert_layers.py --train train.conll --dev dev.conll --test test.conll \
        --bert bert_tiny_en_uncased --continue-on reports.txt

KerasHub provides BERT and its masked language modelling (pip install keras-hub). ScalarMix mixes
the hidden layers of BERT as it mixes the layers of a biLM. --bert takes a KerasHub preset with a
masked language model: a name, which KerasHub downloads, or a folder. BERT and the biLM are frozen.
The vector of a word is the mean over its word pieces. --continue-on first trains the masked
language model of BERT further, on raw text with one sentence per line. The column files are those
of ner.py. The script prints the F1 and the weight of every layer.
"""

import argparse
import pathlib
import re

import keras
import keras_hub
import numpy as np
from keras import layers, ops
from keras.utils import pad_sequences
from ner import batches, read_columns
from seqeval.metrics import f1_score

import keras_elmo


def hidden_layers(backbone):
    """Return a model whose outputs are the embeddings and every transformer layer."""
    names = [x.name for x in backbone.layers if re.fullmatch(r"transformer_layer_\d+", x.name)]
    if not names:
        raise ValueError(
            "Expected a backbone with layers named transformer_layer_0, ... "
            f"Received: {type(backbone).__name__}"
        )
    first = backbone.get_layer("embeddings_dropout").output
    return keras.Model(backbone.input, [first, *(backbone.get_layer(n).output for n in names)])


def word_pieces(tokenizer, sentences, max_pieces):
    """Return the word pieces of every word of every sentence.

    Raises:
        ValueError: If a sentence has more than ``max_pieces`` pieces, start and end included.
    """
    words = {token for sentence in sentences for token in sentence}
    # A word without any piece, such as a control character, becomes one unknown piece.
    unknown = [tokenizer.token_to_id("[UNK]")]
    pieces = {word: np.asarray(tokenizer(word)).tolist() or unknown for word in words}
    for number, sentence in enumerate(sentences, start=1):
        count = 2 + sum(len(pieces[word]) for word in sentence)
        if count > max_pieces:
            raise ValueError(
                f"Expected sentences of at most {max_pieces} word pieces. "
                f"Received: one of {count}, sentence {number}. Split it"
            )
    return [[pieces[word] for word in sentence] for sentence in sentences]


def represent(model, tokenizer, sentences, max_pieces):
    """Return the hidden layers of each sentence, (tokens, layers, width), one vector per word.

    Args:
        model: keras.Model. The model from ``hidden_layers``.
        tokenizer: KerasHub tokenizer into word pieces.
        sentences: list of lists of str. Tokenised sentences.
        max_pieces: int. Longest input of the model, start and end pieces included.

    """
    start, end = tokenizer.start_token_id, tokenizer.end_token_id
    pieces = word_pieces(tokenizer, sentences, max_pieces)
    found = [None] * len(sentences)
    for indices in batches(sentences):
        ids = [[start, *sum(pieces[i], []), end] for i in indices]
        longest = max(map(len, ids))
        padded = pad_sequences(ids, padding="post", value=tokenizer.pad_token_id)
        lengths = np.array([len(x) for x in ids])[:, None]
        mask = (np.arange(longest) < lengths).astype("int32")
        inputs = {"token_ids": padded, "segment_ids": 0 * padded, "padding_mask": mask}
        inputs = {name: inputs[name] for name in model.input}
        hidden = np.stack([np.asarray(x) for x in model.predict_on_batch(inputs)], axis=2)
        for i, row in zip(indices, hidden, strict=True):
            counts = list(map(len, pieces[i]))
            ends = 1 + np.cumsum(counts)
            spans = zip(ends - counts, ends, strict=True)
            found[i] = np.stack([row[a:b].mean(axis=0) for a, b in spans]).astype("float16")
    return found


def train(parts, tags, settings):
    """Train one tagger on frozen layers; return its F1 on test and the layer weights.

    Args:
        parts: dict. The layers of each sentence of ``train``, ``dev`` and ``test``.
        tags: dict. The tags of the sentences, in BIOES.
        settings: argparse.Namespace. The settings of the command line.
    """
    keras.utils.set_random_seed(settings.seed)
    names = sorted({tag for sentence in tags["train"] for tag in sentence})
    inputs = keras.Input((None, *parts["train"][0].shape[1:]))
    mask = keras.Input((None,), dtype="bool")
    mix = keras_elmo.ScalarMix(dropout=0.5, layer_norm="token")
    birnn = layers.Bidirectional(layers.LSTM(settings.units, return_sequences=True))
    scores = layers.Dense(len(names))(birnn(mix(inputs, mask=mask), mask=mask))
    crf = keras_elmo.CRF()
    model = keras.Model([inputs, mask], crf(scores))
    model.compile(keras.optimizers.Adam(settings.learning_rate, global_clipnorm=5.0), crf.loss)
    tagger = keras.Model([inputs, mask], crf.decode(scores, mask))

    def batch(part, indices):
        arrays = [parts[part][i] for i in indices]
        x = np.zeros((len(arrays), max(map(len, arrays)), *arrays[0].shape[1:]), "float32")
        for row, array in zip(x, arrays, strict=True):
            row[: len(array)] = array
        lengths = np.array([len(array) for array in arrays])
        return [x, np.arange(x.shape[1]) < lengths[:, None]]

    def score(part):
        found = [[]] * len(parts[part])
        for indices in batches(parts[part]):
            best = tagger.predict_on_batch(batch(part, indices))
            for i, row in zip(indices, best, strict=True):
                found[i] = [names[n] for n in row[: len(parts[part][i])]]
        return f1_score(tags[part], found, zero_division=0)

    best = -1.0, 0.0, None
    for _ in range(settings.epochs):
        for indices in batches(parts["train"]):
            ids = [[names.index(tag) for tag in tags["train"][i]] for i in indices]
            model.train_on_batch(
                batch("train", indices), pad_sequences(ids, padding="post", value=-1)
            )
        dev = score("dev")
        if dev > best[0]:
            best = dev, score("test"), ops.convert_to_numpy(mix.layer_weights)
    return best[1:]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    for name in ("train", "dev", "test"):
        add(f"--{name}", type=pathlib.Path, required=True, help="column file")
    add("--bert", required=True, help="KerasHub preset: a name or a folder")
    add("--continue-on", type=pathlib.Path, help="raw text, one sentence per line")
    add("--steps", type=int, default=1000, help="training steps on --continue-on")
    add("--preset", default="elmo_small_en", help="biLM: name, directory or .zip")
    add("--epochs", type=int, default=10)
    add("--units", type=int, default=100, help="units of the biLSTM in each direction")
    add("--learning-rate", type=float, default=0.001)
    add("--seed", type=int, default=1)
    settings = parser.parse_args()

    read = {part: read_columns(getattr(settings, part)) for part in ("train", "dev", "test")}
    tags = {part: tags for part, (_, tags) in read.items()}
    task = keras_hub.models.MaskedLM.from_preset(settings.bert)
    tokenizer, limit = task.preprocessor.tokenizer, task.backbone.max_sequence_length
    for sentences, _ in read.values():
        word_pieces(tokenizer, sentences, limit)  # raise before the long training
    if settings.continue_on:
        lines = [x for x in settings.continue_on.read_text("utf-8-sig").splitlines() if x.strip()]
        lines = np.random.default_rng(settings.seed).choice(lines, (settings.steps, 16))
        losses = task.fit(lines.ravel(), batch_size=16, verbose=0, shuffle=False).history["loss"]
        print(f"masked language model: loss {losses[-1]:.3f}, mean of {settings.steps} steps")
    model = hidden_layers(task.backbone)
    embedder = keras_elmo.Embedder(settings.preset)
    for name, of in {
        "ELMo": lambda x: [a.swapaxes(0, 1).astype("float16") for a in embedder.embed(x)],
        "BERT": lambda x: represent(model, tokenizer, x, limit),
    }.items():
        f1, weights = train({part: of(x) for part, (x, _) in read.items()}, tags, settings)
        print(f"{name}: test F1 {f1:.4f}, layer weights {[round(float(w), 3) for w in weights]}")


if __name__ == "__main__":
    main()
