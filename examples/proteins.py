"""Predict the secondary structure of proteins, with a biLM over amino acids or without one.

    python examples/proteins.py --data FOLDER --no-elmo
    python examples/proteins.py --data FOLDER --run RUN
    python examples/proteins.py --data FOLDER --preset seqvec.zip

FOLDER contains secondary_structure_train.tsv.xz, and such files for dev and test. A line has an id,
a sequence, a label for each residue (H, E or C) and a mask (1: scored), separated by tabs. A
residue is a token, and a protein is a sentence. --run trains a tiny biLM on the training sequences
in the folder RUN, or continues the training there. SeqVec (Heinzinger et al., 2019) trained a biLM
of the original size on 33 million sequences: --preset reads its weights. The frozen biLM reads each
protein once. The classifier of residues is a biLSTM over [x_k; ELMo_k]. The score is Q3, the share
of the scored residues with the right label. Runs on every Keras backend.
"""

import pathlib

import keras
import numpy as np
from cached_layers import open_elmo
from keras import layers, ops
from parts import (
    JIT,
    TextLayers,
    layer_folder,
    make_parser,
    open_text,
    padded_batches,
    report,
    train,
)

import keras_elmo
from keras_elmo.pretraining import Pretraining, Recipe, export_run, prepare

RESIDUES = "ACDEFGHIKLMNPQRSTVWY"  # ids start at 2; 1 is any other letter, 0 padding
LABELS = "HEC"  # -1 is a residue that is not scored, or padding


def read_proteins(path, limit=None):
    """Read a file; return the residues of each protein, and the ids of their labels."""
    sequences, labels = [], []
    with open_text(path) as file:
        for number, line in enumerate(file, start=1):
            fields = line.rstrip("\r\n").split("\t")
            lengths = {len(field) for field in fields[1:]}
            if len(fields) != 4 or len(lengths) != 1 or set(fields[2]) - set(LABELS):
                raise ValueError(
                    "Expected an id, a sequence, its labels H, E or C, and its mask, separated by "
                    f"tabs. Received: line {number} of {path}: {line[:60]!r}"
                )
            _, sequence, structure, mask = fields
            sequences.append(list(sequence))
            ids = [LABELS.index(x) if scored == "1" else -1 for x, scored in zip(structure, mask)]
            labels.append(np.array(ids))
            if len(sequences) == limit:
                break
    if not sequences:
        raise ValueError(f"Expected a protein or more. Received: path={str(path)!r}")
    return sequences, labels


def pretrain(sequences, folder, epochs):
    """Train a biLM on sequences, or continue, and return the folder of the preset."""
    corpus, preset = folder / "corpus", folder / "preset"
    folder.mkdir(parents=True, exist_ok=True)
    if not corpus.exists():
        text = folder / "sequences.txt"
        text.write_text("".join("".join(x) + "\n" for x in sequences), "utf-8")
        settings = {"sentences": "lines", "tokenizer": "letters", "heldout_share": 0.02}
        prepare(text, corpus, **settings, progress=False)
    config = keras_elmo.BiLMConfig(
        filters=((1, 32),),
        character_embedding_dim=16,
        n_highway=1,
        lstm_dim=256,
        projection_dim=64,
    )
    recipe = Recipe(epochs=epochs, batch_tokens=4096, warmup=50, negatives=None)
    Pretraining(folder / "run", corpus, config, recipe, save_every=100, resume=True).run()
    heldout = sorted(corpus.glob("heldout-*.txt"))
    export_run(folder / "run", preset, heldout, overwrite=True, license="afl-3.0")
    return preset


def build(elmo_shape, units, dropout=0.3):
    """Return a model of residues; its output is the scores of the labels."""
    inputs = {"residues": keras.Input((None,), dtype="int32", name="residues")}
    mask = ops.not_equal(inputs["residues"], 0)
    x = layers.Embedding(2 + len(RESIDUES), 32)(inputs["residues"])
    if elmo_shape:
        inputs["layers"] = keras.Input((None, *elmo_shape), name="layers")
        mix = keras_elmo.ScalarMix(l2=1e-3, name="at_input")
        x = layers.Concatenate()([x, mix(inputs["layers"], mask=mask)])
    h = layers.Dropout(dropout)(x)
    h = layers.Bidirectional(layers.LSTM(units, return_sequences=True))(h, mask=mask)
    return keras.Model(inputs, {"labels": layers.Dense(len(LABELS))(layers.Dropout(dropout)(h))})


def main(arguments=None):
    parser = make_parser(__doc__, epochs=10, patience=2)
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder of the files")
    parser.add_argument("--run", type=pathlib.Path, help="folder to train a biLM in")
    parser.add_argument("--run-epochs", type=float, default=2.0, help="epochs of the biLM")
    parser.add_argument("--limit", type=int, help="training proteins for the classifier")
    parser.add_argument("--units", type=int, default=128, help="units of the biLSTM")
    parser.set_defaults(preset="")
    settings = parser.parse_args(arguments)
    if bool(settings.run) == (settings.preset != ""):
        parser.error("expected --run, --preset or --no-elmo")
    if settings.vectors:
        parser.error("residues have no word vectors: leave --vectors out")
    keras.utils.set_random_seed(settings.seed)

    names = "train", "dev", "test"
    files = {x: settings.data / f"secondary_structure_{x}.tsv.xz" for x in names}
    if settings.run:
        sequences, _ = read_proteins(files["train"])
        settings.preset = pretrain(sequences, settings.run, settings.run_epochs)
        keras.utils.set_random_seed(settings.seed)
    elmo = open_elmo(settings.preset)
    ids = {residue: n for n, residue in enumerate(RESIDUES, start=2)}
    with layer_folder(settings.cache) as folder:
        batches, targets, shape = {}, {}, None
        for part, file in files.items():
            limit = settings.limit if part == "train" else None
            sequences, labels = read_proteins(file, limit)
            inputs = {"residues": [np.array([ids.get(x, 1) for x in s]) for s in sequences]}
            if elmo:
                inputs["layers"] = TextLayers(elmo, sequences, folder, split=False)
                shape = inputs["layers"].shape
            seed = settings.seed if part == "train" else None
            lengths = list(map(len, sequences))
            targets[part] = {"labels": labels}
            batches[part] = padded_batches(
                inputs, targets[part], lengths, settings.batch_size, seed
            )

        model = build(shape, settings.units)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
        optimizer = keras.optimizers.Adam(settings.learning_rate, global_clipnorm=5.0)
        model.compile(optimizer, {"labels": loss}, jit_compile=JIT)

        def score(part):
            right, scored = 0, 0
            found_by_protein = zip(targets[part]["labels"], batches[part].predict(model))
            for labels, found in found_by_protein:
                best = found["labels"][: len(labels)].argmax(-1)
                right += (best == labels).sum()
                scored += (labels >= 0).sum()
            return right / scored

        facts = train(model, batches["train"], lambda: score("dev"), settings, measure="Q3")
        test = score("test")
    report(settings, model, test=test, **facts)


if __name__ == "__main__":
    main()
