"""What a biLM's layers hold: a linear layer over ScalarMix, against a random biLM of its size.

    python benchmarks/probe.py --preset elmo_mini_en --sst SST_FOLDER --ud UD_FOLDER

The biLM is frozen, its layers are computed once. --sst: train.txt, dev.txt and test.txt of the
Stanford Sentiment Treebank, root labels; a sentence is the mean of its tokens. --ud: files
*-train.conllu, *-dev.conllu and *-test.conllu (or .xz), universal parts of speech.
"""

import argparse
import json
import lzma
import pathlib
import tempfile

import keras
import nltk
import numpy as np

import keras_elmo

PLAIN = {"-LRB-": "(", "-RRB-": ")", "``": '"', "''": '"'}


def read_sst(folder, split):
    lines = (folder / f"{split}.txt").read_text("utf-8").splitlines()
    trees = [nltk.Tree.fromstring(line) for line in lines if line.strip()]
    sentences = [[PLAIN.get(token, token) for token in tree.leaves()] for tree in trees]
    return sentences, np.array([int(tree.label()) for tree in trees])


def read_ud(folder, split):
    [path] = folder.glob(f"*-{split}.conllu*")
    text = lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else path.open()
    sentences, tags = [[]], [[]]
    with text:
        for line in text:
            fields = line.rstrip("\n").split("\t")
            if fields[0].isdigit():  # not a multiword or an empty token
                sentences[-1].append(fields[1].replace(" ", ""))
                tags[-1].append(fields[3])
            elif not line.strip() and sentences[-1]:
                sentences.append([])
                tags.append([])
    return [s for s in sentences if s], [t for t in tags if t]


def sst_data(embedder, folder):
    data = {}
    for split in ("train", "dev", "test"):
        sentences, labels = read_sst(folder, split)
        means = [x.mean(axis=1) for x in embedder.embed(sentences)]
        data[split] = np.stack(means)[:, None], labels[:, None]
    return data


def ud_data(embedder, folder):
    data, names = {}, None
    for split in ("train", "dev", "test"):
        sentences, tags = read_ud(folder, split)
        names = names or sorted({tag for sentence in tags for tag in sentence})
        tokens = np.concatenate([x.transpose(1, 0, 2) for x in embedder.embed(sentences)])
        labels = np.array([names.index(tag) for sentence in tags for tag in sentence])
        data[split] = tokens[:, None], labels[:, None]
    return data


def score(data, seed, epochs, batch_size):
    """Return the test accuracy of the epoch that was best on dev, and the layer weights."""
    keras.utils.set_random_seed(seed)
    n_classes = int(data["train"][1].max()) + 1
    layers_in = keras.Input(data["train"][0].shape[1:])
    mix = keras_elmo.ScalarMix()
    x = keras.layers.Dense(n_classes, activation="softmax")(mix(layers_in))
    model = keras.Model(layers_in, x)
    model.compile(
        keras.optimizers.Adam(2e-3), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    stopping = keras.callbacks.EarlyStopping(
        "val_accuracy", mode="max", patience=5, restore_best_weights=True
    )
    model.fit(
        *data["train"],
        validation_data=data["dev"],
        epochs=epochs,
        batch_size=batch_size,
        callbacks=[stopping],
        verbose=0,
    )
    accuracy = model.evaluate(*data["test"], verbose=0, batch_size=1024)[1]
    return accuracy, mix.layer_weights.tolist()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="elmo_mini_en")
    parser.add_argument("--sst", type=pathlib.Path)
    parser.add_argument("--ud", type=pathlib.Path)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    arguments = parser.parse_args()

    results = {}
    with tempfile.TemporaryDirectory() as folder:
        config = keras_elmo.ElmoLayer.from_preset(arguments.preset).config
        keras.utils.set_random_seed(0)
        random = keras_elmo.ElmoLayer(config)
        random.build((None, None, config.max_characters_per_token))
        random.save_hdf5(folder)
        for name, preset in ((arguments.preset, arguments.preset), ("random", folder)):
            embedder = keras_elmo.Embedder(preset)
            for task, path, prepare, epochs, batch_size in (
                ("SST-5", arguments.sst, sst_data, 60, 32),
                ("UD parts of speech", arguments.ud, ud_data, 15, 256),
            ):
                if path:
                    data = prepare(embedder, path)
                    runs = [score(data, seed, epochs, batch_size) for seed in arguments.seeds]
                    accuracies = [100 * accuracy for accuracy, _ in runs]
                    results[f"{task}, {name}"] = {
                        "accuracy": float(np.mean(accuracies)),
                        "spread": float(np.std(accuracies)),
                        "layer_weights": runs[0][1],
                    }
                    print(f"{task}, {name}: {np.mean(accuracies):.1f}", flush=True)
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
