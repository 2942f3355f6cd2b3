"""Write small models in the formats of other programs.

The functions start from the tensors of a bilm-tf file, and share no code with the readers.
"""

import json
import re

import numpy as np

LEAVES = {"W_0": "kernel", "B": "bias", "W_P_0": "projection/kernel"}
SPECIAL = ["<bos>", "<eos>", "<oov>", "<pad>", "<bow>", "<eow>"]


def checkpoint_variables(arrays, prefix="lm/"):
    """Return the variables of bilm-tf's training."""
    variables = {}
    for name, array in arrays.items():
        if cell := re.fullmatch(r"RNN_(\d)/RNN/(MultiRNNCell/Cell(\d)/)?LSTMCell/(\w+)", name):
            level = f"multi_rnn_cell/cell_{cell[3]}/" if cell[2] else ""
            name = f"RNN_{cell[1]}/rnn/{level}lstm_cell/{LEAVES[cell[4]]}"
        variables[prefix + name] = array
    return variables


def hub_variables(arrays, prefix="bilm/"):
    """Return the variables of a TF-Hub module."""
    variables = {}
    for name, array in arrays.items():
        if cell := re.fullmatch(r"(RNN_\d/RNN/MultiRNNCell/Cell\d)/LSTMCell/(\w+)", name):
            name = f"{cell[1]}/rnn/lstm_cell/{LEAVES[cell[2]]}"
        if name == "char_embed":
            array = np.concatenate([np.zeros_like(array[:1]), array])
        variables[prefix + name] = array
    return variables


def write_checkpoint(prefix, variables, shards=1):
    """Write variables with TensorFlow, in several shards."""
    import tensorflow as tf

    prefix.parent.mkdir(parents=True, exist_ok=True)
    names = sorted(variables)
    parts = [names[i::shards] for i in range(shards)]
    for i, part in enumerate(parts):
        tf.raw_ops.SaveV2(
            prefix=f"{prefix}-part{i}" if shards > 1 else str(prefix),
            tensor_names=part,
            shape_and_slices=[""] * len(part),
            tensors=[tf.constant(variables[name]) for name in part],
        )
    if shards > 1:
        tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=[f"{prefix}-part{i}" for i in range(shards)],
            destination_prefix=str(prefix),
        )


def _reordered(x):
    """Move the gates i, j, f, o on the last axis to i, f, j, o on the first axis."""
    i, j, f, o = np.split(x, 4, axis=-1)
    return np.concatenate([i, f, j, o], axis=-1).T


def torch_tensors(arrays, embedder, lstms, words=None):
    """Return the tensors of the layers of AllenNLP or ELMoForManyLangs, by name."""
    tensors = {}
    for name, array in arrays.items():
        if found := re.fullmatch(r"CNN/(W|b)_cnn_(\d+)", name):
            array = array[0].transpose(2, 1, 0) if found[1] == "W" else array
            leaf = "weight" if found[1] == "W" else "bias"
            tensors[embedder["conv"].format(found[2]) + "." + leaf] = array
        elif found := re.fullmatch(r"CNN_high_(\d+)/(W|b)_transform", name):
            carry = arrays[f"CNN_high_{found[1]}/{found[2]}_carry"]
            leaf = "weight" if found[2] == "W" else "bias"
            highway = np.concatenate([array.T, -carry.T])
            tensors[embedder["highway"].format(found[1]) + "." + leaf] = highway
        elif name == "CNN_proj/W_proj":
            columns = array if words is None else np.concatenate([words, array])
            tensors[embedder["projection"] + ".weight"] = columns.T
        elif name == "CNN_proj/b_proj":
            tensors[embedder["projection"] + ".bias"] = array
        elif found := re.fullmatch(r"RNN_(\d)/RNN/MultiRNNCell/Cell(\d)/LSTMCell/(\w+)", name):
            layer = f"{lstms}{['forward', 'backward'][int(found[1])]}_layer_{found[2]}"
            if found[3] == "W_0":
                inputs, states = np.split(array, 2)
                tensors[f"{layer}.input_linearity.weight"] = _reordered(inputs)
                tensors[f"{layer}.state_linearity.weight"] = _reordered(states)
            elif found[3] == "B":
                bias = _reordered(array)
                size = len(bias) // 4
                bias[size : 2 * size] += 1
                tensors[f"{layer}.state_linearity.bias"] = bias
            else:
                tensors[f"{layer}.state_projection.weight"] = array.T
    return tensors


def allennlp_tensors(arrays, prefix="text_field_embedder.token_embedder_elmo._elmo.", mixes=()):
    """Return the tensors of an AllenNLP tagger with a biLM."""
    inside = f"{prefix}_elmo_lstm._token_embedder"
    embedder = {
        "conv": inside + ".char_conv_{}",
        "highway": inside + "._highways._layers.{}",
        "projection": inside + "._projection",
    }
    tensors = torch_tensors(arrays, embedder, f"{prefix}_elmo_lstm._elmo_lstm.")
    characters = arrays["char_embed"]
    padded = np.concatenate([np.zeros_like(characters[:1]), characters])
    tensors[f"{inside}._char_embedding_weights"] = padded
    for k, (scalars, gamma) in enumerate(mixes):
        tensors[f"{prefix}scalar_mix_{k}.gamma"] = np.array([gamma], "float32")
        for j, scalar in enumerate(scalars):
            name = f"{prefix}scalar_mix_{k}.scalar_parameters.{j}"
            tensors[name] = np.array([scalar], "float32")
    return tensors | {"tag_projection_layer.bias": np.zeros(3, "float32")}


def save_torch(path, tensors, is_zip=True):
    """Write tensors in PyTorch's format, or in its format before 1.6."""
    import torch

    state = {name: torch.tensor(np.ascontiguousarray(x)) for name, x in tensors.items()}
    torch.save(state, path, _use_new_zipfile_serialization=is_zip)


def write_allennlp(directory, tensors, is_zip=True, config=None):
    """Write the folder of a training with AllenNLP."""
    directory.mkdir(parents=True, exist_ok=True)
    save_torch(directory / "weights.th", tensors, is_zip)
    embedders = {"elmo": {"type": "elmo_token_embedder", "options_file": "gone/options.json"}}
    config = config or {"model": {"type": "simple_tagger", "token_embedders": embedders}}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def write_many_langs(directory, config, arrays, characters, words=(), word_dim=0, is_zip=True):
    """Write a model of ELMoForManyLangs. Return the projected word vectors by word.

    ``arrays`` are those of a biLM whose ``char_embed`` has a row for every character, and then
    for every one of ``SPECIAL``; ``words`` come behind ``<oov> <bos> <eos>``.
    """
    directory.mkdir(parents=True, exist_ok=True)
    embedder = {
        "conv": "convolutions.{}",
        "highway": "highways._layers.{}",
        "projection": "projection",
    }
    rng, vectors, kernel = np.random.default_rng(9), {}, None
    words = ["<oov>", "<bos>", "<eos>", *words] if word_dim else []
    if word_dim:
        kernel = rng.normal(size=(word_dim, config.projection_dim)).astype("float32")
        embeddings = rng.normal(size=(len(words), word_dim)).astype("float32")
        vectors = dict(zip(words, embeddings @ kernel, strict=True))
    tensors = torch_tensors(arrays, embedder, "", kernel)
    encoder = {name: x for name, x in tensors.items() if "_layer_" in name}
    rest = {name: x for name, x in tensors.items() if "_layer_" not in name}
    rest["char_emb_layer.embedding.weight"] = arrays["char_embed"]
    if word_dim:
        rest["word_emb_layer.embedding.weight"] = embeddings
    save_torch(directory / "encoder.pkl", encoder, is_zip)
    save_torch(directory / "token_embedder.pkl", rest, is_zip)
    for name, tokens in (("char.dic", [*characters, *SPECIAL]), ("word.dic", words)):
        lines = [f"{token}\t{i}\n" for i, token in enumerate(tokens)]
        (directory / name).write_text("".join(lines), "utf-8")
    (directory / "config.json").write_text(json.dumps({"config_path": "/gone/cnn.json"}))
    architecture = {
        "token_embedder": {
            "name": "cnn",
            "activation": config.activation,
            "max_characters_per_token": config.max_characters_per_token,
        },
        "encoder": {
            "name": "elmo",
            "cell_clip": config.cell_clip,
            "proj_clip": config.projection_clip,
        },
    }
    (directory / "cnn.json").write_text(json.dumps(architecture))
    return vectors


def many_langs_row(token, characters, room):
    """Return the character ids of a token, from 1, in the order of ``char.dic``."""
    known = {c: i for i, c in enumerate([*characters, *SPECIAL], 1)}
    inside = [token] if token in ("<bos>", "<eos>") else list(token[:room])
    row = ["<eow>", *inside, "<bow>"]
    row += ["<pad>"] * (room + 2 - len(row))
    return [known.get(c, known["<oov>"]) for c in row]
