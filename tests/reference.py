"""A biLM in plain float64 NumPy loops: the executable specification.

It uses the tensor names of a bilm-tf file and shares no code with the package. It computes
one sentence and one token at a time.
"""

import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def character_row(token, max_characters):
    """Return the ids of a token or boundary token."""
    marker = {"<S>": 256, "</S>": 257}.get(token)
    inner = [marker] if marker else list(token.encode("utf-8", "ignore")[: max_characters - 2])
    row = [258, *inner, 259]
    return [i + 1 for i in row + [260] * (max_characters - len(row))]


def token_representation(row, options, weights):
    """Return the token representation: character CNN, highways, projection."""
    cnn = options["char_cnn"]
    embedded = np.array([weights["char_embed"][i - 1] for i in row])
    features = []
    for i, (width, _) in enumerate(cnn["filters"]):
        kernel, bias = weights[f"CNN/W_cnn_{i}"][0], weights[f"CNN/b_cnn_{i}"]
        windows = [embedded[p : p + width] for p in range(len(row) - width + 1)]
        features.append(np.max([np.einsum("we,wef->f", w, kernel) + bias for w in windows], axis=0))
    x = np.concatenate(features)
    x = np.maximum(x, 0) if cnn["activation"] == "relu" else np.tanh(x)
    for i in range(cnn["n_highway"]):
        w = {
            name: weights[f"CNN_high_{i}/{name}"]
            for name in ("W_carry", "b_carry", "W_transform", "b_transform")
        }
        gate = sigmoid(x @ w["W_carry"] + w["b_carry"])
        x = gate * np.maximum(x @ w["W_transform"] + w["b_transform"], 0) + (1 - gate) * x
    if "CNN_proj/W_proj" in weights:
        x = x @ weights["CNN_proj/W_proj"] + weights["CNN_proj/b_proj"]
    return x


def clip(x, bound):
    return x if bound is None else np.clip(x, -bound, bound)


def lstm(inputs, prefix, options, weights, state):
    """Return the outputs of an LSTM over one sentence, and the final (h, c)."""
    settings = options["lstm"]
    h, c = state
    outputs = []
    for x in inputs:
        gates = np.concatenate([x, h]) @ weights[f"{prefix}/W_0"] + weights[f"{prefix}/B"]
        i, j, f, o = np.split(gates, 4)  # the order of bilm-tf; j is the candidate
        c = clip(sigmoid(f + 1) * c + sigmoid(i) * np.tanh(j), settings["cell_clip"])
        h = sigmoid(o) * np.tanh(c)
        if f"{prefix}/W_P_0" in weights:
            h = clip(h @ weights[f"{prefix}/W_P_0"], settings["proj_clip"])
        outputs.append(h)
    return np.array(outputs), (h, c)


def bilm(rows, options, weights, states=None, word_vectors=0):
    """Return all representations of a sentence of character rows, with boundary rows.

    ``word_vectors``, (tokens, projection_dim), are added to the token representations.
    ``states`` are the initial states, zeros if None.

    Returns a dict of (tokens, projection_dim) arrays, and a dict of the final states.
    """
    weights = {name: np.asarray(array, "float64") for name, array in weights.items()}
    settings = options["lstm"]
    zero = (np.zeros(settings["projection_dim"]), np.zeros(settings["dim"]))
    token = np.array([token_representation(r, options, weights) for r in rows]) + word_vectors
    found = {"token": token}
    final = {}
    for d, direction in enumerate(("forward", "backward")):
        order = slice(None, None, -1 if direction == "backward" else 1)
        x = found["token"][order]
        for layer in range(settings["n_layers"]):
            name = f"{direction}_{layer + 1}"
            prefix = f"RNN_{d}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            y, final[name] = lstm(x, prefix, options, weights, (states or {}).get(name, zero))
            x = x + y if layer > 0 and settings["use_skip_connections"] else y
            found[name] = x[order]
    return found, final


def stacked(found, n_layers):
    """Return the layer representations, (..., tokens, layers, 2 * projection_dim)."""
    layers = [np.concatenate([found["token"], found["token"]], -1)]
    for layer in range(1, n_layers + 1):
        layers.append(np.concatenate([found[f"forward_{layer}"], found[f"backward_{layer}"]], -1))
    return np.stack(layers, -2)


def elmo_layers(sentence, options, weights):
    """Return the layer representations of a list of tokens, without boundaries."""
    most = options["char_cnn"]["max_characters_per_token"]
    rows = [character_row(t, most) for t in ["<S>", *sentence, "</S>"]]
    found, _ = bilm(rows, options, weights)
    return stacked(found, options["lstm"]["n_layers"])[1:-1]


def scalar_mix(layers, scalars, gamma):
    """Return gamma * sum_j softmax(scalars)_j * layers_j; layers: (..., layers, width)."""
    weights = np.exp(scalars) / np.exp(scalars).sum()
    return gamma * np.einsum("...lw,l->...w", layers, weights)


def layer_norm(sentences):
    """Apply bilm-tf's layer norm to a batch: a list of (tokens, layers, width) arrays."""
    values = np.concatenate(sentences)
    mean = values.mean(axis=(0, 2), keepdims=True)[0]
    variance = values.var(axis=(0, 2), keepdims=True)[0]
    return [(s - mean) / np.sqrt(variance + 1e-12) for s in sentences]
