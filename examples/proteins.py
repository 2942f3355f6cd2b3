"""Predict the secondary structure of proteins, without ELMo and with a biLM over amino acids.

    python examples/proteins.py --data FOLDER --no-elmo
    python examples/proteins.py --data FOLDER --run RUN
    python examples/proteins.py --data FOLDER --bilm seqvec.zip

FOLDER contains secondary_structure_train.tsv.xz, and so for dev and test. A line has an id, a
sequence, a label of each residue (H, E or C) and a mask (1: scored), separated by tabs. A residue
is a token, and a protein is a sentence. --run trains a tiny biLM on the training sequences into
the folder RUN, or continues there. SeqVec (Heinzinger et al., 2019) trained a biLM of the original
size on 33 million sequences: --bilm reads its weights. The frozen biLM reads each protein once.
The classifier of residues is a biLSTM over [x_k; ELMo_k]. The score is Q3, the share of the scored
residues with the right label. Runs on every Keras backend.
"""

import lzma
import pathlib

import keras
import numpy as np
from keras import layers, ops
from parts import JIT, Batches, FrozenLayers, layer_weights, make_parser, predict, report, train

import keras_elmo
from keras_elmo.pretraining import Pretraining, Recipe
from keras_elmo.pretraining.export import export_run
from keras_elmo.pretraining.prepare import prepare

RESIDUES = "ACDEFGHIKLMNPQRSTVWY"  # ids start at 2; 1 is any other letter, 0 padding
LABELS = "HEC"  # ids start at 1; 0 is a residue that is not scored, or padding


def read_proteins(path, limit=None):
    """Read a file; return the residues of each protein, and the ids of their labels."""
    sequences, labels = [], []
    with lzma.open(path, "rt", encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            fields = line.rstrip("\n").split("\t")
            lengths = {len(field) for field in fields[1:]}
            if len(fields) != 4 or len(lengths) != 1 or set(fields[2]) - set(LABELS):
                raise ValueError(
                    "Expected an id, a sequence, its labels H, E or C, and its mask, separated by "
                    f"tabs. Received: line {number} of {path}: {line[:60]!r}"
                )
            _, sequence, structure, mask = fields
            sequences.append(list(sequence))
            ids = [
                LABELS.index(x) + 1 if scored == "1" else 0 for x, scored in zip(structure, mask)
            ]
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
    export_run(folder / "run", preset, sorted(corpus.glob("heldout-*.txt")))
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
    return keras.Model(
        inputs, {"labels": layers.Dense(1 + len(LABELS))(layers.Dropout(dropout)(h))}
    )


def main(arguments=None):
    parser = make_parser(__doc__, epochs=10, patience=2)
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder of the files")
    parser.add_argument("--bilm", dest="elmo", metavar="PRESET", help="as --preset")
    parser.add_argument("--run", type=pathlib.Path, help="folder to train a biLM in")
    parser.add_argument("--run-epochs", type=float, default=2.0, help="epochs of the biLM")
    parser.add_argument("--limit", type=int, help="proteins of --train for the classifier")
    parser.add_argument("--units", type=int, default=128, help="units of the biLSTM")
    parser.set_defaults(elmo=None)
    settings = parser.parse_args(arguments)
    if bool(settings.run) == bool(settings.elmo):
        parser.error("expected --run, --bilm or --no-elmo")
    keras.utils.set_random_seed(settings.seed)

    names = "train", "dev", "test"
    files = {x: settings.data / f"secondary_structure_{x}.tsv.xz" for x in names}
    if settings.run:
        sequences, _ = read_proteins(files["train"])
        settings.elmo = pretrain(sequences, settings.run, settings.run_epochs)
        keras.utils.set_random_seed(settings.seed)
    embedder = None if settings.elmo == "none" else keras_elmo.Embedder(settings.elmo)
    ids = {residue: n for n, residue in enumerate(RESIDUES, start=2)}
    with settings.folder() as temporary:
        batches, shape = {}, None
        for part, file in files.items():
            limit = settings.limit if part == "train" else None
            sequences, labels = read_proteins(file, limit)
            inputs = {"residues": [np.array([ids.get(x, 1) for x in s]) for s in sequences]}
            if embedder:
                stored = (settings.cache or pathlib.Path(temporary)) / f"{part}.hdf5"
                inputs["layers"] = FrozenLayers(embedder, sequences, stored, split=False)
                shape = inputs["layers"].shape
            seed = settings.seed if part == "train" else None
            lengths = list(map(len, sequences))
            targets = {"labels": labels}
            batches[part] = Batches(inputs, targets, lengths, settings.batch_size, seed)

        model = build(shape, settings.units)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
        optimizer = keras.optimizers.Adam(settings.learning_rate, global_clipnorm=5.0)
        model.compile(optimizer, {"labels": loss}, jit_compile=JIT)

        def score(part):
            right, scored = 0, 0
            gold = batches[part].targets["labels"]
            for labels, found in zip(gold, predict(model, batches[part])):
                best = 1 + found["labels"][: len(labels), 1:].argmax(-1)
                right += (best == labels).sum()
                scored += (labels > 0).sum()
            return right / scored

        facts = train(model, batches["train"], lambda: score("dev"), settings)
        dev, test = score("dev"), score("test")
    facts |= {"task": "proteins", "layer_weights": layer_weights(model)}
    report(settings, float(dev), float(test), **facts)


if __name__ == "__main__":
    main()
