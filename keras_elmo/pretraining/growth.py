"""Grow a biLM to larger sizes without changing its predictions (Chen et al., 2016)."""

import dataclasses
from typing import Any

import numpy as np

from keras_elmo.config import BiLMConfig
from keras_elmo.formats.weight_mapping import to_float32, variables_by_path
from keras_elmo.layers.bilm import lstm_names
from keras_elmo.pretraining.language_model import BiLanguageModel

# Without noise, copies of a cell would stay equal. A share of the weights' standard deviation.
_NOISE = 0.02


def grow_language_model(
    model: BiLanguageModel, config: BiLMConfig, **kwargs: Any
) -> BiLanguageModel:
    """Return a larger ``BiLanguageModel`` with the same predictions, except for a little noise.

    The old features keep their positions:

    - New cells are copies of old cells, with noise on the incoming weights. The copies of a cell
      share its outgoing weights.
    - New features of characters, filters, token representation and layer outputs are random.
      Their outgoing weights are 0, so no old feature reads them. The softmax does not read them
      either.

    Args:
        model: BiLanguageModel. The smaller model.
        config: BiLMConfig. Sizes of the larger biLM; see ``check_growth``.
        **kwargs: Arguments for ``BiLanguageModel``. The noise, the copies and the new weights
            depend on its ``seed`` too.

    Raises:
        ValueError: If the biLM cannot grow to these sizes.

    Reference:
        Chen et al., 2016, https://arxiv.org/abs/1511.05641 (Net2WiderNet).
    """
    check_growth(model.config, config)
    larger = BiLanguageModel(config, model.vocabulary_size, **kwargs)
    rng = np.random.default_rng(larger.seed)
    arrays = {path: to_float32(v) for path, v in variables_by_path(model.bilm).items()}
    grown = _grow_characters(arrays, model.config, config, rng)
    for name in lstm_names(config):
        grown |= _grow_lstm(name, arrays, model.config, config, rng)
    for path, variable in variables_by_path(larger.bilm).items():
        variable.assign(grown[path].astype("float32"))
    kernel = to_float32(model.softmax_kernel)
    larger.softmax_kernel.assign(_widened(kernel, config.projection_dim))
    larger.softmax_bias.assign(to_float32(model.softmax_bias))
    return larger


def check_growth(config: BiLMConfig, larger: BiLMConfig) -> None:
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


def _places_of_filters(filters: tuple, larger: tuple) -> list[int] | None:
    """Return the index in ``larger`` of each filter width, None if one does not fit."""
    places: list[int] = []
    start = 0
    for width, count in filters:
        fits = (i for i in range(start, len(larger)) if larger[i][0] == width)
        place = next(fits, None)
        if place is None or larger[place][1] < count:
            return None
        places.append(place)
        start = place + 1
    return places


def _grow_characters(
    arrays: dict, config: BiLMConfig, larger: BiLMConfig, rng: np.random.Generator
) -> dict:
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


def _grow_lstm(
    name: str, arrays: dict, config: BiLMConfig, larger: BiLMConfig, rng: np.random.Generator
) -> dict:
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
        wide[:width, :, is_copy] += rng.normal(0, _NOISE * gates.std(), (width, 4, is_copy.sum()))
        grown[f"{name}/{path}"] = wide.reshape(larger.projection_dim, -1)
    grown[f"{name}/bias"] = arrays[f"{name}/bias"].reshape(4, cells)[:, source].ravel()
    shares = rng.uniform(0.3, 0.7, larger.lstm_dim)
    shares /= np.bincount(source, shares)[source]
    projection = _glorot(rng, (larger.lstm_dim, larger.projection_dim))
    projection[:, :width] = arrays[f"{name}/projection"][source] * shares[:, None]
    grown[f"{name}/projection"] = projection
    return grown


def _glorot(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    bound = (6 / sum(shape)) ** 0.5
    return rng.uniform(-bound, bound, shape)


def _widened(array: np.ndarray, size: int) -> np.ndarray:
    """Return an array with zeros for new features on its last axis."""
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, size - array.shape[-1])])
