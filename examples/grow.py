"""Grow a biLM to larger sizes without changing its predictions (Chen et al., 2016).

    python examples/grow.py elmo_mini_en grown --size small
    keras-elmo pretrain corpus run --init-from grown

The preset needs vocab.txt and softmax.hdf5. The old features keep their positions:

- New cells are copies of old cells, with noise on the incoming weights. The copies of a cell share
  its outgoing weights.
- New features of characters, filters, token representation and layer outputs are random. Their
  outgoing weights are 0, so no old feature reads them. The softmax does not read them either.

Reference: Chen et al., 2016, https://arxiv.org/abs/1511.05641 (Net2WiderNet).
"""

import argparse
import dataclasses
import json
import pathlib

import numpy as np

from keras_elmo import BiLMConfig
from keras_elmo.pretraining import (
    SIZES,
    BiLanguageModel,
    read_language_model,
    tokenizer_of,
    write_language_model,
)

# Without noise, copies of a cell would stay equal. A share of the weights' standard deviation.
NOISE = 0.02


def grow_language_model(model, config, seed=0, noise=NOISE):
    """Return a larger ``BiLanguageModel`` with the same predictions, except for a little noise.

    Args:
        model: BiLanguageModel. The smaller model.
        config: BiLMConfig. Sizes of the larger biLM; see ``check_growth``.
        seed: int. Seed of the noise, the copies and the new weights.
        noise: float. Standard deviation of the noise, as a share of the weights' one.
    """
    check_growth(model.config, config)
    larger = BiLanguageModel(config, model.vocabulary_size, n_negatives=None, seed=seed)
    rng = np.random.default_rng(seed)
    arrays = {path: variable.numpy() for path, variable in _by_path(model.bilm).items()}
    grown = _grow_characters(arrays, model.config, config, rng)
    for direction in ("forward", "backward"):
        for layer in range(1, config.n_layers + 1):
            lstm = f"{direction}_{layer}"
            grown |= _grow_lstm(lstm, arrays, model.config, config, rng, noise)
    for path, variable in _by_path(larger.bilm).items():
        variable.assign(grown[path].astype("float32"))
    larger.softmax_kernel.assign(_widened(model.softmax_kernel.numpy(), config.projection_dim))
    larger.softmax_bias.assign(model.softmax_bias.numpy())
    return larger


def _by_path(bilm):
    """Return the variables of a biLM by their paths, as in ``char_cnn/embeddings``."""
    return {weight.path.partition("bilm/")[2]: weight for weight in bilm.weights}


def check_growth(config, larger):
    """Raise a ``ValueError`` unless a biLM of these sizes can grow to the larger ones.

    ``lstm_dim``, ``projection_dim``, ``character_embedding_dim`` and the filters may grow. Filters
    of equal width are matched in their order. All else must be equal.
    """
    problems = []
    for field in dataclasses.fields(BiLMConfig):
        name, old, new = field.name, getattr(config, field.name), getattr(larger, field.name)
        if name in ("lstm_dim", "projection_dim", "character_embedding_dim"):
            if new < old:
                problems.append(f"{name}={new} is less than {old}")
        elif name != "filters" and new != old:
            problems.append(f"{name}={new!r} is not {old!r}")
    if _places_of_filters(config.filters, larger.filters) is None:
        problems.append(f"filters={larger.filters} do not contain {config.filters}")
    for name, sizes in (("smaller", config), ("larger", larger)):
        if sizes.n_filters == sizes.projection_dim or sizes.projection_dim == sizes.lstm_dim:
            problems.append(f"the {name} biLM lacks a projection")
    if problems:
        raise ValueError(
            "A biLM can grow in lstm_dim, projection_dim, character_embedding_dim and filters "
            f"only. Received: {'; '.join(problems)}"
        )


def _places_of_filters(filters, larger):
    """Return the index in ``larger`` of each filter width, None if one does not fit."""
    places = []
    start = 0
    for width, count in filters:
        fits = (i for i in range(start, len(larger)) if larger[i][0] == width)
        place = next(fits, None)
        if place is None or larger[place][1] < count:
            return None
        places.append(place)
        start = place + 1
    return places


def _grow_characters(arrays, config, larger, rng):
    old, new = config.character_embedding_dim, larger.character_embedding_dim
    embeddings = arrays["char_cnn/embeddings"]
    fresh = rng.uniform(-1, 1, (len(embeddings), new))
    fresh[:, :old] = embeddings
    if not embeddings[0].any():
        fresh[0] = 0
    grown = {"char_cnn/embeddings": fresh}
    places = _places_of_filters(config.filters, larger.filters) or []
    starts = np.cumsum([0] + [count for _, count in larger.filters])
    features = np.concatenate(
        [np.arange(starts[p], starts[p] + n) for p, (_, n) in zip(places, config.filters)]
    )
    for i, (width, count) in enumerate(larger.filters):
        kernel = _glorot(rng, (width * new, count)).reshape(width, new, count)
        bias = np.zeros(count)
        if i in places:
            source = places.index(i)
            known = config.filters[source][1]
            kernel[:, old:, :known] = 0
            kernel[:, :old, :known] = arrays[f"char_cnn/conv_{source}_kernel"]
            bias[:known] = arrays[f"char_cnn/conv_{source}_bias"]
        grown[f"char_cnn/conv_{i}_kernel"], grown[f"char_cnn/conv_{i}_bias"] = kernel, bias
    n = larger.n_filters
    for k in range(config.n_highway):
        for part, new_bias in (("transform", 0.0), ("gate", -2.0)):
            path = f"char_cnn/highway_{k}/{part}"
            kernel = rng.normal(0, n**-0.5, (n, n))
            kernel[:, features] = 0  # the old features do not read the new ones
            kernel[np.ix_(features, features)] = arrays[f"{path}_kernel"]
            bias = np.full(n, new_bias)
            bias[features] = arrays[f"{path}_bias"]
            grown[f"{path}_kernel"], grown[f"{path}_bias"] = kernel, bias
    width = config.projection_dim
    projection = _glorot(rng, (n, larger.projection_dim))
    projection[:, :width] = 0
    projection[features, :width] = arrays["char_cnn/projection_kernel"]
    grown["char_cnn/projection_kernel"] = projection
    grown["char_cnn/projection_bias"] = _widened(
        arrays["char_cnn/projection_bias"], larger.projection_dim
    )
    return grown


def _grow_lstm(name, arrays, config, larger, rng, noise):
    width, cells = config.projection_dim, config.lstm_dim
    copies = np.concatenate([rng.permutation(cells) for _ in range(-(-larger.lstm_dim // cells))])
    # The old cells in their order, then copies; every cell is copied before one is copied twice.
    source = np.concatenate([np.arange(cells), copies])[: larger.lstm_dim]
    is_copy = np.arange(larger.lstm_dim) >= cells
    grown = {}
    for path in ("kernel", "recurrent_kernel"):
        gates = arrays[f"{name}/{path}"].reshape(width, 4, cells)
        wide = np.zeros((larger.projection_dim, 4, larger.lstm_dim))
        wide[:width] = gates[:, :, source]
        wide[:width, :, is_copy] += rng.normal(0, noise * gates.std(), (width, 4, is_copy.sum()))
        grown[f"{name}/{path}"] = wide.reshape(larger.projection_dim, -1)
    grown[f"{name}/bias"] = arrays[f"{name}/bias"].reshape(4, cells)[:, source].ravel()
    shares = rng.uniform(0.3, 0.7, larger.lstm_dim)
    shares /= np.bincount(source, shares)[source]
    projection = _glorot(rng, (larger.lstm_dim, larger.projection_dim))
    projection[:, :width] = arrays[f"{name}/projection"][source] * shares[:, None]
    grown[f"{name}/projection"] = projection
    return grown


def _glorot(rng, shape):
    bound = (6 / sum(shape)) ** 0.5
    return rng.uniform(-bound, bound, shape)


def _widened(array, size):
    """Return an array with zeros for new features on its last axis."""
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, size - array.shape[-1])])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("preset")
    parser.add_argument("output", help="directory of the larger preset")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--options", type=pathlib.Path, help="options.json, instead of --size")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    config = SIZES[arguments.size]
    if arguments.options:
        config = BiLMConfig.from_options(json.loads(arguments.options.read_text()))
    model, vocabulary = read_language_model(arguments.preset)
    larger = grow_language_model(model, config, arguments.seed)
    card = f"# A larger copy of {arguments.preset}, to train further"
    tokenizer = tokenizer_of(arguments.preset)
    write_language_model(arguments.output, larger, vocabulary, card, 23, tokenizer)
    print(f"{model.count_params():,} weights became {larger.count_params():,}: {arguments.output}")


if __name__ == "__main__":
    main()
