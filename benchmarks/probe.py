"""Train a linear layer over ScalarMix on a biLM, and on a random biLM of equal sizes.

    python benchmarks/probe.py --preset elmo_mini_en --sst SST_FOLDER --ud UD_FOLDER --conll FOLDER

The biLM is frozen, and its layers are computed once. --int8 adds the int8 layers of ONNX
Runtime.

--sst: train.txt, dev.txt and test.txt of the Stanford Sentiment Treebank. The label is the root's,
and a sentence is the mean of its tokens. --ud: files *-train.conllu, *-dev.conllu and
*-test.conllu (or .xz), for universal parts of speech. --conll: eng.train, eng.testa and eng.testb
of CoNLL-2003; each tag is predicted separately. Scores are accuracies, and the F1 of names for
CoNLL-2003.
"""

import argparse
import json
import pathlib
import sys
import tempfile

import keras
import numpy as np
from seqeval.metrics import f1_score

import keras_elmo

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))
from conll import read_columns  # noqa: E402
from parts_of_speech import read_conllu  # noqa: E402
from sst5 import plain, read_trees  # noqa: E402


def read_ud(folder, split):
    [path] = folder.glob(f"*-{split}.conllu*")
    sentences, tags = read_conllu(path, column=3)
    return sentences, [tags]


def read_conll(folder, split):
    name = {"train": "eng.train", "dev": "eng.testa", "test": "eng.testb"}[split]
    return read_columns(folder / name)


def sst_data(embedder, folder):
    data = {}
    for split in ("train", "dev", "test"):
        sentences, labels = zip(*map(plain, read_trees(folder / f"{split}.txt")))
        means = [x.mean(axis=1) for x in embedder.embed([list(tokens) for tokens in sentences])]
        data[split] = np.stack(means)[:, None], np.array(labels)[:, None]
    return data


def tag_data(read):
    def prepare(embedder, folder):
        data, names = {}, None
        for split in ("train", "dev", "test"):
            sentences, tags = read(folder, split)
            names = names or sorted({tag for sentence in tags for tag in sentence})
            tokens = np.concatenate([x.transpose(1, 0, 2) for x in embedder.embed(sentences)])
            labels = np.array([names.index(tag) for sentence in tags for tag in sentence])
            data[split] = tokens[:, None], labels[:, None]
        data["names"], data["tags"] = names, tags
        return data

    return prepare


def accuracy(predicted, data):
    return float((predicted == data["test"][1][:, 0]).mean())


def f1_of_names(predicted, data):
    tags = iter(predicted)
    found = [[data["names"][next(tags)] for _ in sentence] for sentence in data["tags"]]
    return f1_score(data["tags"], found)


def train_and_predict(data, seed, epochs, batch_size):
    """Return the test predictions of the epoch with the best dev score, and the layer weights."""
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
    predicted = model.predict(data["test"][0], verbose=0, batch_size=1024)
    return predicted[:, 0].argmax(axis=-1), mix.layer_weights.tolist()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="elmo_mini_en")
    parser.add_argument("--sst", type=pathlib.Path)
    parser.add_argument("--ud", type=pathlib.Path)
    parser.add_argument("--conll", type=pathlib.Path)
    parser.add_argument("--int8", action="store_true", help="also measure the layers in int8")
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    arguments = parser.parse_args()

    results = {}
    with tempfile.TemporaryDirectory() as folder:
        config = keras_elmo.ElmoLayer.from_preset(arguments.preset).config
        keras.utils.set_random_seed(0)
        random = keras_elmo.ElmoLayer(config)
        random.build((None, None, config.max_characters_per_token))
        random.save_hdf5(folder)
        embedders = {arguments.preset: keras_elmo.Embedder(arguments.preset)}
        if arguments.int8:
            embedders[f"{arguments.preset} in int8"] = keras_elmo.Embedder(
                arguments.preset, engine="onnxruntime", dtype="int8"
            )
        embedders["random"] = keras_elmo.Embedder(folder)
        for task, path, prepare, metric, epochs, batch_size in (
            ("SST-5", arguments.sst, sst_data, accuracy, 60, 32),
            ("UD parts of speech", arguments.ud, tag_data(read_ud), accuracy, 15, 256),
            ("CoNLL-2003", arguments.conll, tag_data(read_conll), f1_of_names, 15, 256),
        ):
            for name, embedder in embedders.items() if path else ():
                data = prepare(embedder, path)
                runs = [
                    train_and_predict(data, seed, epochs, batch_size) for seed in arguments.seeds
                ]
                scores = [100 * metric(predicted, data) for predicted, _ in runs]
                results[f"{task}, {name}"] = {
                    "score": float(np.mean(scores)),
                    "spread": float(np.std(scores, ddof=len(scores) > 1)),
                    "layer_weights": runs[0][1],
                }
                print(f"{task}, {name}: {np.mean(scores):.1f}", flush=True)
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
