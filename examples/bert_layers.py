"""Train one task model on the layers of ELMo, of a BERT, or of both, or fine-tune the BERT.

    python examples/bert_layers.py --task ner --data FOLDER --bert FOLDER_OF_BERT --input elmo
    python examples/bert_layers.py --task sst5 --data FOLDER --bert FOLDER_OF_BERT --input both

--task ner reads the column files eng.train, eng.testa and eng.testb, as ner.py does; the score is
F1. --task sst5 reads the sentences of train.txt, dev.txt and test.txt, as sst5.py does; the score
is the accuracy. KerasHub reads the BERT (pip install keras-hub): --bert takes a preset of KerasHub,
or a folder of Hugging Face. --input elmo, bert and both compute the frozen layers once. A ScalarMix
for each of ELMo and BERT mixes them, and a biLSTM reads the mixes. --input tuned fine-tunes the
BERT with a linear output. BERT's vector of a word is the vector of its first word piece. --scores
also writes the seconds of an epoch and of computing the layers. Runs on every Keras backend.
"""

import pathlib
import re
import time

import keras
import keras_hub
import numpy as np
import parts
from cached_layers import open_elmo
from conll import read_columns
from keras import layers, ops
from seqeval.metrics import f1_score
from sst5 import plain, read_trees
from word_vectors import ids_of, words_and_embedding

import keras_elmo

FILES = {
    "ner": ("eng.train", "eng.testa", "eng.testb"),
    "sst5": ("train.txt", "dev.txt", "test.txt"),
}


def read(task, path, limit=None):
    """Return the sentences of a file, and their tags or labels."""
    if task == "ner":
        sentences, labels = read_columns(path)
    else:
        sentences, labels = zip(*map(plain, read_trees(path)))
    return list(map(list, sentences))[:limit], list(labels)[:limit]


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


def first_pieces(tokenizer, sentences, longest):
    """Return the ids of each sentence's word pieces, and the places of its words' first pieces."""
    words = {token for sentence in sentences for token in sentence}
    # A word without any piece, such as a control character, becomes one unknown piece.
    unknown = [tokenizer.token_to_id("[UNK]")]
    pieces = {word: np.asarray(tokenizer(word)).tolist() or unknown for word in words}
    ids, places = [], []
    for number, sentence in enumerate(sentences, start=1):
        split = [pieces[word] for word in sentence]
        counts = list(map(len, split))
        row = [tokenizer.start_token_id, *sum(split, []), tokenizer.end_token_id]
        if len(row) > longest:
            raise ValueError(
                f"Expected sentences of at most {longest} word pieces. "
                f"Received: one of {len(row)}, sentence {number}. Split it"
            )
        ids.append(np.array(row))
        places.append(1 + np.cumsum([0, *counts[:-1]]))
    return ids, places


def bert_inputs(ids):
    """Return the inputs of a BERT for padded ids; 0 is padding."""
    return {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": (ids != 0).astype("int32")}


def represent(model, ids, places, size=32):
    """Return the hidden layers of each word's first piece: float16, (words, layers, width)."""
    found = [None] * len(ids)
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    for start in range(0, len(order), size):
        indices = order[start : start + size]
        hidden = model.predict_on_batch(bert_inputs(parts.pad([ids[i] for i in indices])))
        hidden = np.stack([np.asarray(x) for x in hidden], axis=2)
        for i, row in zip(indices, hidden):
            found[i] = row[places[i]].astype("float16")
    return found


def build(task, n_labels, shapes, embedding, units, backbone=None):
    """Return the model to train, and the model that predicts."""
    inputs = {"words": keras.Input((None,), dtype="int32", name="words")}
    mask = ops.not_equal(inputs["words"], 0)
    if backbone:
        ids = inputs["ids"] = keras.Input((None,), dtype="int32", name="ids")
        places = inputs["places"] = keras.Input((None,), dtype="int32", name="places")
        real = ops.cast(ops.not_equal(ids, 0), "int32")
        given = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": real}
        h = backbone(given)["sequence_output"]
        h = layers.Dropout(0.1)(ops.take_along_axis(h, places[..., None], axis=1))
    else:
        joined = [] if embedding is None else [embedding(inputs["words"])]
        for name, shape in shapes.items():
            inputs[name] = keras.Input((None, *shape), name=name)
            mix = keras_elmo.ScalarMix("token", l2=1e-3, name=f"mix_of_{name}")
            joined.append(mix(inputs[name], mask=mask))
        h = layers.Concatenate()(joined) if len(joined) > 1 else joined[0]
        birnn = layers.Bidirectional(layers.LSTM(units, return_sequences=True))
        h = layers.Dropout(0.5)(birnn(layers.Dropout(0.5)(h), mask=mask))
    if task == "ner":
        scores, crf = layers.Dense(n_labels)(h), keras_elmo.CRF()
        model = keras.Model(inputs, {"labels": crf(scores, mask=mask)})
        tagger = keras.Model(inputs, {"labels": crf.decode(scores, mask)})
        return model, tagger, crf.loss
    real = ops.cast(mask, h.dtype)[..., None]
    mean = ops.sum(h * real, axis=1) / ops.sum(real, axis=1)
    pooled = layers.Concatenate()([mean, ops.max(h - 1e4 * (1 - real), axis=1)])
    model = keras.Model(inputs, {"labels": layers.Dense(n_labels)(pooled)})
    return model, model, keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def main(arguments=None):
    parser = parts.make_parser(__doc__, epochs=10, patience=3)
    add = parser.add_argument
    add("--task", choices=FILES, required=True)
    add("--data", type=pathlib.Path, required=True, help="folder of the files of the task")
    add("--bert", help="preset of KerasHub, or a folder of Hugging Face")
    add("--input", choices=("elmo", "bert", "both", "tuned"), default="both")
    add("--limit", type=int, help="sentences to train on")
    add("--units", type=int, default=100, help="units of the biLSTM in each direction")
    settings = parser.parse_args(arguments)
    uses = {"both": ("elmo", "bert")}.get(settings.input, (settings.input,))
    if ("elmo" in uses and not settings.preset) or (uses != ("elmo",) and not settings.bert):
        parser.error("expected --preset for ELMo, and --bert for every other --input")
    if settings.vectors and uses == ("tuned",):
        parser.error("--input tuned has no word embeddings: leave --vectors out")
    keras.utils.set_random_seed(settings.seed)

    texts, labels = {}, {}
    for part, name in zip(("train", "dev", "test"), FILES[settings.task]):
        limit = settings.limit if part == "train" else None
        texts[part], labels[part] = read(settings.task, settings.data / name, limit)
    is_ner = settings.task == "ner"
    kinds = sorted({tag for tags in labels["train"] for tag in tags}) if is_ner else range(5)
    given = settings.vectors, texts["train"], texts["dev"] + texts["test"]
    vocabulary, embedding = words_and_embedding(*given)
    embedding = embedding if settings.vectors else None
    with parts.layer_folder(settings.cache) as folder:
        if uses != ("elmo",):
            backbone = keras_hub.models.BertBackbone.from_preset(settings.bert)
            tokenizer = keras_hub.models.BertTokenizer.from_preset(settings.bert)
            longest = (backbone.max_sequence_length - 1) // 8 * 8  # Batches may add one
        begin, batches, inputs = time.perf_counter(), {}, {}
        elmo = open_elmo(settings.preset) if "elmo" in uses else None
        for part, text in texts.items():
            inputs = {"words": ids_of(vocabulary, text)}
            if uses != ("elmo",):
                ids, places = first_pieces(tokenizer, text, longest)
                if uses == ("tuned",):
                    inputs |= {"ids": ids, "places": places}
                else:
                    inputs["bert"] = represent(hidden_layers(backbone), ids, places)
            if elmo:
                inputs["elmo"] = parts.TextLayers(elmo, text, folder, split=False)
            targets = labels[part]
            if is_ner:
                known = {kind: n for n, kind in enumerate(kinds)}
                targets = [np.array([known.get(tag, -1) for tag in tags]) for tags in targets]
            seed = settings.seed if part == "train" else None
            given = inputs, {"labels": targets}, list(map(len, text))
            batches[part] = parts.padded_batches(*given, settings.batch_size, seed)
        shapes = {x: inputs[x][0].shape[1:] for x in ("elmo", "bert") if x in inputs}
        seconds = round(time.perf_counter() - begin, 1)
        given = settings.task, len(kinds), shapes, embedding, settings.units
        model, predictor, loss = build(*given, backbone if uses == ("tuned",) else None)
        optimizer = keras.optimizers.Adam(settings.learning_rate, global_clipnorm=5.0)
        model.compile(optimizer, {"labels": loss}, jit_compile=parts.JIT)

        def score(part):
            found = [x["labels"] for x in batches[part].predict(predictor)]
            if settings.task == "sst5":
                return np.mean([x.argmax() == y for x, y in zip(found, labels[part])])
            tags = [[kinds[n] for n in x[: len(y)]] for x, y in zip(found, labels[part])]
            return f1_score(labels[part], tags, zero_division=0)

        measure = "F1" if is_ner else "accuracy"
        facts = parts.train(
            model, batches["train"], lambda: score("dev"), settings, measure=measure
        )
        test = score("test")
    parts.report(settings, model, test=test, seconds_for_layers=seconds, **facts)


if __name__ == "__main__":
    main()
