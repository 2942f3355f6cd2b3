"""Find word senses by nearest neighbour, and compare the layers of a biLM.

    python examples/wsd.py --train semcor.data.xml --test ALL.data.xml --senses index.sense

This repeats table 5 of the paper. Every sense in --train gets a centroid: the mean representation
of its tokens. A token of --test gets the sense of its lemma and part of speech with the nearest
centroid by cosine. A lemma that --train does not contain gets the first sense of WordNet. The
script prints F1 for every layer of the biLM and for the average of the layers. The baseline takes
the most frequent sense in --train. Every token gets an answer, so F1 equals accuracy.

Both texts are in the format of Raganato et al., 2017 (http://lcl.uniroma1.it/wsdeval/): an XML
file, with a .gold.key.txt file in the same folder. --senses takes index.sense of WordNet 3.0, or a
table with the columns sense_key and sense_number; either may be compressed with xz.
"""

import argparse
import collections
import json
import xml.etree.ElementTree as ElementTree

import numpy as np
from parts import open_text

import keras_elmo

# The biLM was trained on plain quotes and brackets; the texts escape them.
PLAIN = {"``": '"', "''": '"', "`": "'", "-LRB-": "(", "-RRB-": ")", "-LCB-": "{", "-RCB-": "}"}
# The part of speech in a sense key; 5 is an adjective satellite.
PARTS_OF_SPEECH = {"1": "NOUN", "2": "VERB", "3": "ADJ", "4": "ADV", "5": "ADJ"}
SENTENCES_AT_ONCE = 2000

Instance = collections.namedtuple("Instance", "name lemma first last keys")


def read_text(path):
    """Read a text; return the tokens of each sentence, and the instances that have a sense.

    A compound such as "New York" becomes one token per word.
    """
    gold_path = str(path).removesuffix(".data.xml") + ".gold.key.txt"
    with open(gold_path, encoding="utf-8") as file:
        gold = {name: keys for name, *keys in map(str.split, file)}
    sentences = []
    for _, element in ElementTree.iterparse(path):
        if element.tag != "sentence":
            continue
        tokens, instances = [], []
        for word in element:
            first = len(tokens)
            tokens += [PLAIN.get(x, x) for x in (word.text or "").split()] or ["_"]
            if word.tag == "instance":
                lemma, name = (word.get("lemma"), word.get("pos")), word.get("id")
                if name not in gold:
                    raise ValueError(
                        f"Expected the senses of every instance of {path} in {gold_path}. "
                        f"Received: none of {name!r}"
                    )
                instances.append(Instance(name, lemma, first, len(tokens), gold[name]))
        sentences.append((tokens, instances))
        element.clear()
    return sentences


def first_senses(path):
    """Return the first sense key of each lemma and part of speech."""
    columns, first = (0, 2), {}
    with open_text(path) as file:
        for line in file:
            fields = line.split()
            if "sense_key" in fields:
                columns = fields.index("sense_key"), fields.index("sense_number")
            elif fields[columns[1]] == "1":
                key = fields[columns[0]]
                lemma, _, rest = key.partition("%")
                first[lemma, PARTS_OF_SPEECH[rest[0]]] = key
    return first


def represent(embedder, sentences):
    """Yield every instance with its layers, (layers + 1, width); the last row is the average."""
    for start in range(0, len(sentences), SENTENCES_AT_ONCE):
        some = sentences[start : start + SENTENCES_AT_ONCE]
        arrays = embedder.embed([tokens for tokens, _ in some])
        for (_, instances), array in zip(some, arrays, strict=True):
            for instance in instances:
                layers = array[:, instance.first : instance.last].mean(axis=1)
                yield instance, np.concatenate([layers, layers.mean(axis=0, keepdims=True)])


def centroids(embedder, sentences):
    """Return the unit centroids, (senses, layers + 1, width), and the senses of each lemma."""
    place, of_lemma = {}, collections.defaultdict(collections.Counter)
    for _, instances in sentences:
        for instance in instances:
            of_lemma[instance.lemma].update(instance.keys)
            for key in instance.keys:
                place.setdefault(key, len(place))
    sums = None
    for instance, vectors in represent(embedder, sentences):
        if sums is None:
            sums = np.zeros((len(place), *vectors.shape), "float32")
        for key in instance.keys:
            sums[place[key]] += vectors
    sums /= np.maximum(np.linalg.norm(sums, axis=-1, keepdims=True), 1e-12)
    return sums, place, of_lemma


def scores(right):
    """Return F1 in percent for all instances and for each evaluation set."""
    sets = collections.defaultdict(list)
    for name, values in right:
        sets["ALL"].append(values)
        if name.count(".") == 3:  # set, document, sentence and instance
            sets[name.split(".")[0]].append(values)
    if len(sets) == 2:  # with a single set, ALL is enough
        sets = {"ALL": sets["ALL"]}
    return {name: 100 * np.mean(values, axis=0) for name, values in sets.items()}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--train", required=True, help="SemCor, .data.xml")
    parser.add_argument("--test", required=True, help="an evaluation set, .data.xml")
    parser.add_argument(
        "--senses", required=True, help="index.sense of WordNet 3.0, or a table of senses"
    )
    parser.add_argument("--preset", default="elmo_small_en", help="name, directory or .zip")
    parser.add_argument("--limit", type=int, help="largest number of sentences of --train")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()

    first = first_senses(arguments.senses)
    embedder = keras_elmo.Embedder(arguments.preset)
    units, place, of_lemma = centroids(embedder, read_text(arguments.train)[: arguments.limit])
    test, right, covered = read_text(arguments.test), [], 0
    for instance, vectors in represent(embedder, test):
        senses = of_lemma.get(instance.lemma)
        if senses:
            covered += 1
            keys = list(senses)
            cosines = np.einsum("slw,lw->sl", units[[place[key] for key in keys]], vectors)
            answers = [keys[best] for best in cosines.argmax(axis=0)]
            answers.append(
                max(keys, key=lambda key: (senses[key], key == first.get(instance.lemma)))
            )
        else:
            answers = [first.get(instance.lemma)] * (units.shape[1] + 1)
        right.append((instance.name, [answer in instance.keys for answer in answers]))
    rows = [f"layer {j}" for j in range(units.shape[1] - 1)] + ["average", "most frequent"]
    found = scores(right)
    if arguments.json:
        table = {name: dict(zip(rows, values.round(2).tolist())) for name, values in found.items()}
        print(json.dumps({"preset": arguments.preset, "senses": len(place), "f1": table}))
        return
    print(f"{len(place)} senses; {covered} of {len(right)} tokens have a centroid")
    print(f"{'F1':<14}" + "".join(f"{name:>14}" for name in found))
    for j, row in enumerate(rows):
        print(f"{row:<14}" + "".join(f"{values[j]:>14.1f}" for values in found.values()))


if __name__ == "__main__":
    main()
