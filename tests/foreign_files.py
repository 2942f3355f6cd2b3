"""Write small models in the formats of other programs.

The functions start from the tensors of a bilm-tf file, and share no code with the readers.
"""

import json
import re

import numpy as np

LEAVES = {"W_0": "kernel", "B": "bias", "W_P_0": "projection/kernel"}
SPECIAL = ["<bos>", "<eos>", "<oov>", "<pad>", "<bow>", "<eow>"]


def write_variables(prefix, variables):
    """Write variables with TensorFlow."""
    import tensorflow as tf

    prefix.parent.mkdir(parents=True, exist_ok=True)
    names = sorted(variables)
    tensors = [tf.constant(variables[name]) for name in names]
    tf.raw_ops.SaveV2(
        prefix=str(prefix), tensor_names=names, shape_and_slices=[""] * len(names), tensors=tensors
    )


def bilm_variables(arrays, prefix, cell):
    """Return the variables of a biLM. ``cell`` is the start of the names of an LSTM."""
    variables = {}
    for name, array in arrays.items():
        if found := re.fullmatch(r"RNN_(\d)/RNN/MultiRNNCell/Cell(\d)/LSTMCell/(\w+)", name):
            name = f"{cell.format(found[1], found[2])}/{LEAVES[found[3]]}"
        variables[prefix + name] = array
    return variables


def write_training(folder, config, arrays, prefix="lm/", step=7):
    """Write what a training with bilm-tf leaves: a checkpoint, options, vocabulary, softmax."""
    folder.mkdir(parents=True, exist_ok=True)
    options = config.to_options()
    options["char_cnn"]["n_characters"] = 261
    (folder / "options.json").write_text(json.dumps(options))
    (folder / "vocab.txt").write_text("<S>\n</S>\n<UNK>\nthe\nfox\n")
    variables = bilm_variables(arrays, prefix, "RNN_{}/rnn/multi_rnn_cell/cell_{}/lstm_cell")
    slots = {f"{name}/Adagrad": np.ones_like(x) for name, x in variables.items()}
    rng = np.random.default_rng(5)
    softmax = {"softmax/W": (5, config.projection_dim), "softmax/b": (5,)}
    for name, shape in softmax.items():
        variables[prefix + name] = rng.normal(size=shape).astype("float32")
    variables |= slots | {"global_step": np.array(step, "int64"), "note": np.array(b"text")}
    write_variables(folder / f"model.ckpt-{step}", variables)
    (folder / "checkpoint").write_text(f'model_checkpoint_path: "/gone/model.ckpt-{step}"\n')
    return folder


def write_hub(folder, arrays, prefix="", mix=None):
    """Write a TF-Hub module. ``mix`` are the names and values of the scalars and of gamma."""
    cell = "RNN_{}/RNN/MultiRNNCell/Cell{}/rnn/lstm_cell"
    variables = bilm_variables(arrays, f"{prefix}bilm/", cell)
    characters = arrays["char_embed"]
    padded = np.concatenate([np.zeros_like(characters[:1]), characters])
    variables[f"{prefix}bilm/char_embed"] = padded
    for name, value in (mix or {}).items():
        variables[f"{prefix}aggregation/{name}"] = np.array(value, "float32")
    write_variables(folder / "variables" / "variables", variables)
    (folder / "saved_model.pb").write_bytes(b"")
    return folder


def _reordered(x):
    """Move the gates i, j, f, o on the last axis to i, f, j, o on the first axis."""
    i, j, f, o = np.split(x, 4, axis=-1)
    return np.concatenate([i, f, j, o], axis=-1).T


def torch_tensors(arrays, convolution, highway, projection, lstms, words=None):
    """Return the tensors of the layers of AllenNLP or ELMoForManyLangs, by name."""
    tensors = {}
    for name, array in arrays.items():
        if found := re.fullmatch(r"CNN/(W|b)_cnn_(\d+)", name):
            array = array[0].transpose(2, 1, 0) if found[1] == "W" else array
            leaf = "weight" if found[1] == "W" else "bias"
            tensors[f"{convolution}{found[2]}.{leaf}"] = array
        elif found := re.fullmatch(r"CNN_high_(\d+)/(W|b)_transform", name):
            carry = arrays[f"CNN_high_{found[1]}/{found[2]}_carry"]
            leaf = "weight" if found[2] == "W" else "bias"
            tensors[f"{highway}{found[1]}.{leaf}"] = np.concatenate([array.T, -carry.T])
        elif name == "CNN_proj/W_proj":
            columns = array if words is None else np.concatenate([words, array])
            tensors[f"{projection}.weight"] = columns.T
        elif name == "CNN_proj/b_proj":
            tensors[f"{projection}.bias"] = array
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
    inside = f"{prefix}_elmo_lstm._token_embedder."
    names = (f"{inside}char_conv_", f"{inside}_highways._layers.", f"{inside}_projection")
    tensors = torch_tensors(arrays, *names, f"{prefix}_elmo_lstm._elmo_lstm.")
    characters = arrays["char_embed"]
    padded = np.concatenate([np.zeros_like(characters[:1]), characters])
    tensors[f"{inside}_char_embedding_weights"] = padded
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


def write_allennlp(folder, tensors, is_zip=True, model=None):
    """Write the folder of a training with AllenNLP."""
    folder.mkdir(parents=True, exist_ok=True)
    save_torch(folder / "weights.th", tensors, is_zip)
    embedder = {"type": "elmo_token_embedder", "options_file": "gone/options.json"}
    model = model or {"type": "simple_tagger", "token_embedders": {"elmo": embedder}}
    (folder / "config.json").write_text(json.dumps({"model": model}))
    return folder


def write_many_langs(folder, config, arrays, characters, words=(), word_dim=0, is_zip=True):
    """Write a model of ELMoForManyLangs. Return the projected word vectors by word.

    ``arrays`` are those of a biLM. The first rows of their ``char_embed`` are the ``characters``
    and then ``SPECIAL``; ``words`` come behind ``<oov> <bos> <eos>``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng, vectors, kernel = np.random.default_rng(9), {}, None
    words = ["<oov>", "<bos>", "<eos>", *words] if word_dim else []
    if word_dim:
        kernel = rng.normal(size=(word_dim, config.projection_dim)).astype("float32")
        embeddings = rng.normal(size=(len(words), word_dim)).astype("float32")
        vectors = dict(zip(words, embeddings @ kernel, strict=True))
    names = "convolutions.", "highways._layers.", "projection", ""
    tensors = torch_tensors(arrays, *names, kernel)
    encoder = {name: x for name, x in tensors.items() if "_layer_" in name}
    rest = {name: x for name, x in tensors.items() if "_layer_" not in name}
    characters = [*characters, *SPECIAL]
    rest["char_emb_layer.embedding.weight"] = arrays["char_embed"][: len(characters)]
    if word_dim:
        rest["word_emb_layer.embedding.weight"] = embeddings
    save_torch(folder / "encoder.pkl", encoder, is_zip)
    save_torch(folder / "token_embedder.pkl", rest, is_zip)
    for name, tokens in (("char.dic", characters), ("word.dic", words)):
        lines = [f"{token}\t{i}\n" for i, token in enumerate(tokens)]
        (folder / name).write_text("".join(lines), "utf-8")
    (folder / "config.json").write_text(json.dumps({"config_path": "C:\\gone\\cnn.json"}))
    architecture = {
        "token_embedder": {
            "name": "cnn",
            "activation": config.activation,
            "filters": config.filters,
            "n_highway": config.n_highway,
            "word_dim": word_dim,
            "char_dim": config.character_embedding_dim,
            "max_characters_per_token": config.max_characters_per_token,
        },
        "encoder": {
            "name": "elmo",
            "projection_dim": config.projection_dim,
            "cell_clip": config.cell_clip,
            "proj_clip": config.projection_clip,
            "dim": config.lstm_dim,
            "n_layers": config.n_layers,
        },
    }
    (folder / "cnn.json").write_text(json.dumps(architecture))
    return vectors


def many_langs_row(token, characters, room):
    """Return the character ids of a token, from 1, in the order of ``char.dic``."""
    known = {c: i for i, c in enumerate([*characters, *SPECIAL], 1)}
    inside = [token] if token in ("<bos>", "<eos>") else list(token[:room])
    row = ["<eow>", *inside, "<bow>"]
    row += ["<pad>"] * (room + 2 - len(row))
    return [known.get(c, known["<oov>"]) for c in row]
