"""The command line: a thin face over the package."""

import argparse
import dataclasses
import importlib.util
import json
import pathlib
import sys


def main(argv=None) -> int:
    """Run ``keras-elmo``; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="keras-elmo", description="Deep contextualized word representations for Keras 3."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    info = commands.add_parser(
        "info",
        help="show what a preset holds",
        description="Show the sizes of the biLM in a preset, and check its files.",
    )
    info.add_argument(
        "preset",
        metavar="PRESET",
        help="a bundled name, or a directory or .zip with options.json and weights.hdf5",
    )
    info.add_argument("--json", action="store_true", help="print one JSON object")
    info.set_defaults(run=_info)

    embed = commands.add_parser(
        "embed",
        help="embed a file of tokenised sentences",
        description="Embed tokenised sentences, one a line, into an hdf5 file, a dataset each.",
    )
    embed.add_argument("preset", metavar="PRESET", help="as for info")
    embed.add_argument("input", metavar="INPUT", help="a UTF-8 text file, or - for stdin")
    embed.add_argument("output", metavar="OUTPUT", help="the hdf5 file to write")
    embed.add_argument(
        "--layers", type=_layers, default="all", help="all, top, average or a number, from 0"
    )
    embed.add_argument("--float16", action="store_true", help="store half precision")
    embed.add_argument("--compression", choices=("gzip", "lzf"))
    embed.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    embed.add_argument("--batch-tokens", type=int, default=2048, help="tokens in a batch")
    embed.add_argument("--resume", action="store_true", help="go on with an interrupted run")
    embed.add_argument("--quiet", action="store_true", help="no progress bar")
    embed.add_argument("--json", action="store_true", help="print the counts as one JSON object")
    embed.set_defaults(run=_embed)
    _add_prepare(commands)
    _add_pretrain(commands)
    _add_perplexity(commands)
    _add_export(commands)
    arguments = parser.parse_args(argv)
    try:
        return arguments.run(arguments)
    except (OSError, ValueError, ImportError) as error:
        print(f"keras-elmo {arguments.command}: {error}", file=sys.stderr)
        return 1


def _add_prepare(commands):
    parser = commands.add_parser(
        "prepare",
        help="turn raw text into a corpus to train on",
        description="Split text into sentences and tokens, hold a part out, count a vocabulary.",
    )
    parser.add_argument("inputs", metavar="INPUT", nargs="+", help="text files or glob patterns")
    parser.add_argument("output", metavar="OUTPUT", help="the folder to make")
    parser.add_argument("--vocabulary-size", type=int, default=40_000)
    parser.add_argument("--heldout", type=float, default=0.01, help="share of the text")
    parser.add_argument("--shards", type=int, default=32, help="training files")
    parser.add_argument("--sentences", choices=("punkt", "lines"), default="punkt")
    parser.add_argument("--tokenizer", choices=("penn", "toktok", "whitespace"), default="penn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument("--json", action="store_true", help="print the counts as one JSON object")
    parser.set_defaults(run=_prepare)


def _add_pretrain(commands):
    parser = commands.add_parser(
        "pretrain",
        help="train a biLM, or fine-tune one",
        description="Train a biLM on a prepared corpus. Flags win over --config.",
    )
    parser.add_argument("corpus", metavar="CORPUS", help="a folder of keras-elmo prepare")
    parser.add_argument("folder", metavar="RUN", help="the run's folder: checkpoint and log")
    parser.add_argument(
        "--config", help='JSON: {"options": {...}, "recipe": {...}}, each as a run keeps it'
    )
    parser.add_argument("--init-from", metavar="PRESET", help="fine-tune this biLM")
    parser.add_argument(
        "--own-vocabulary", action="store_true", help="fine-tune with the corpus's vocabulary"
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on from the last checkpoint, settings and all"
    )
    parser.add_argument("--interval", type=int, default=500, help="steps between checkpoints")
    parser.add_argument("--devices", type=int, help="devices that share each batch; 1 if not given")
    parser.add_argument("--tensorboard", metavar="DIR", help="log for TensorBoard too")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument("--json", action="store_true", help="print the end as one JSON object")
    sizes = parser.add_argument_group("biLM", "the released original sizes if not given")
    sizes.add_argument("--filters", help="width:count of each, as 1:32,2:32,3:64")
    sizes.add_argument("--character-embedding-dim", type=int)
    sizes.add_argument("--n-highway", type=int)
    sizes.add_argument("--n-layers", type=int)
    sizes.add_argument("--lstm-dim", type=int)
    sizes.add_argument("--projection-dim", type=int)
    recipe = parser.add_argument_group("recipe")
    recipe.add_argument("--steps", type=int, help="updates of the weights")
    recipe.add_argument("--batch-tokens", type=int, help="rows times longest sentence, per device")
    recipe.add_argument("--max-tokens", type=int, help="longer sentences are cut")
    recipe.add_argument("--learning-rate", type=float, help="the highest, of Adam")
    recipe.add_argument("--warmup", type=int, help="steps until it is reached")
    recipe.add_argument("--decay", type=float, help="share of the steps over which it falls to 0")
    recipe.add_argument("--clip", type=float, help="bound on the global norm of the gradient")
    recipe.add_argument("--dropout", type=float)
    recipe.add_argument("--negatives", type=int, help="of the sampled softmax; 0: full softmax")
    recipe.add_argument("--products", choices=("float32", "bfloat16"), help="matrix products")
    recipe.add_argument("--seed", type=int)
    parser.set_defaults(run=_pretrain)


def _add_perplexity(commands):
    parser = commands.add_parser(
        "perplexity",
        help="measure a biLM on a text",
        description="Perplexity of tokenised sentences, one a line, under the full softmax. Tokens "
        "outside the vocabulary are read by their characters and count as <UNK>.",
    )
    parser.add_argument("preset", metavar="PRESET", help="a preset with vocab.txt and softmax.hdf5")
    parser.add_argument("file", metavar="FILE", help="a UTF-8 text, plain, .gz or .xz")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_perplexity)


def _add_export(commands):
    parser = commands.add_parser(
        "export",
        help="make a preset of a pretraining run",
        description="Write a run's last checkpoint as a preset with a model card.",
    )
    parser.add_argument("folder", metavar="RUN", help="a folder of keras-elmo pretrain")
    parser.add_argument("output", metavar="OUTPUT", help="the preset's directory")
    parser.add_argument("--heldout", nargs="*", default=[], metavar="FILE", help="texts to measure")
    parser.add_argument("--data", metavar="FILE", help="Markdown on sources, licence and credit")
    parser.set_defaults(run=_export)


def _info(arguments) -> int:
    from keras_elmo.layers.elmo_layer import ElmoLayer

    layer = ElmoLayer.from_preset(arguments.preset)
    config = layer.config
    facts = {
        "preset": arguments.preset,
        "parameters": layer.count_params(),
        "layers": config.n_layers + 1,
        "width": 2 * config.projection_dim,
        "max_characters": config.max_characters_per_token,
        "fingerprint": layer.fingerprint(),
        "options": config.to_options(),
    }
    if not arguments.json:
        facts |= facts.pop("options")
    _print(facts, arguments.json)
    return 0


def _embed(arguments) -> int:
    from keras_elmo.embedding.embedder import Embedder

    embedder = Embedder(
        arguments.preset, dtype=arguments.dtype, batch_tokens=arguments.batch_tokens
    )
    if arguments.input == "-":
        arguments.input = sys.stdin.buffer
    counts = embedder.embed_file(
        arguments.input,
        arguments.output,
        layers=arguments.layers,
        float16=arguments.float16,
        compression=arguments.compression,
        resume=arguments.resume,
        progress=not arguments.quiet,
    )
    _print(counts, arguments.json)
    return 0


def _layers(text):
    """Return --layers as Embedder takes it, which checks it."""
    try:
        return int(text)
    except ValueError:
        return text


def _prepare(arguments) -> int:
    from keras_elmo.pretraining.prepare import prepare

    counts = prepare(
        arguments.inputs,
        arguments.output,
        vocabulary_size=arguments.vocabulary_size,
        heldout=arguments.heldout,
        shards=arguments.shards,
        sentences=arguments.sentences,
        tokenizer=arguments.tokenizer,
        seed=arguments.seed,
        workers=arguments.workers,
        progress=not arguments.quiet,
    )
    _print(counts, arguments.json)
    return 0


def _pretrain(arguments) -> int:
    import keras

    from keras_elmo.config import BiLMConfig
    from keras_elmo.pretraining.devices import sharing
    from keras_elmo.pretraining.recipe import Recipe
    from keras_elmo.pretraining.train import Pretraining, read_settings

    given = {"options": BiLMConfig().to_options(), "recipe": {}}
    is_begun = arguments.resume and (pathlib.Path(arguments.folder) / "origin.json").exists()
    if is_begun:
        given = read_settings(arguments.folder)
        origin = given.pop("origin")
        arguments.init_from = arguments.init_from or origin["init_from"]
        arguments.own_vocabulary |= origin["own_vocabulary"]
        if arguments.devices is None:
            arguments.devices = origin["devices"]
    file_options = _read_config(arguments.config)
    given |= file_options
    sizes = _given(arguments, BiLMConfig())
    config = None
    if not arguments.init_from:
        if "filters" in sizes:
            sizes["filters"] = _filters(sizes["filters"])
        config = dataclasses.replace(BiLMConfig.from_options(given["options"]), **sizes)
    elif sizes or "options" in file_options:
        raise ValueError(
            "--init-from brings the sizes of the biLM. "
            f"Received: {', '.join(sizes) or 'options in ' + arguments.config} too"
        )
    if arguments.own_vocabulary and not arguments.init_from:
        raise ValueError("--own-vocabulary belongs to --init-from PRESET. Received: none")
    recipe = given["recipe"] | _given(arguments, Recipe())
    names = [field.name for field in dataclasses.fields(Recipe)]
    if odd := sorted(recipe.keys() - set(names)):
        raise ValueError(f"A recipe has {', '.join(names)}. Received: {', '.join(odd)}")
    if recipe.get("negatives") == 0:
        recipe["negatives"] = None
    if arguments.tensorboard and not importlib.util.find_spec("tensorboard"):
        raise ImportError("--tensorboard needs TensorBoard: pip install 'keras-elmo[pretrain]'")
    devices = 1 if arguments.devices is None else arguments.devices
    with sharing(devices):
        run = Pretraining(
            arguments.folder,
            arguments.corpus,
            config,
            Recipe(**recipe),
            interval=arguments.interval,
            devices=devices,
            resume=arguments.resume,
            init_from=arguments.init_from,
            own_vocabulary=arguments.own_vocabulary,
        )
        callbacks = []
        if arguments.tensorboard:
            callbacks.append(keras.callbacks.TensorBoard(arguments.tensorboard))
        run.run(callbacks, progress=not arguments.quiet)
        facts = {**run.facts, "perplexity": run.heldout_perplexity()}
    del facts["position"]
    _print(facts, arguments.json)
    return 0


def _read_config(file) -> dict:
    from keras_elmo.checkpoints.files import read_options

    if not file:
        return {}
    content = read_options(file, file)
    parts = ("options", "recipe")
    fits = isinstance(content, dict) and content.keys() <= set(parts)
    if not fits or not all(isinstance(content.get(part, {}), dict) for part in parts):
        found = ", ".join(content) if isinstance(content, dict) else type(content).__name__
        raise ValueError(
            '--config expects {"options": {...}, "recipe": {...}}, or one of the two. '
            f"Received: {found} in {file}"
        )
    return content


def _filters(text) -> tuple:
    try:
        return tuple((int(w), int(n)) for w, n in (pair.split(":") for pair in text.split(",")))
    except ValueError:
        raise ValueError(
            f"--filters expects width:count, as in 1:32,2:32,3:64. Received: {text}"
        ) from None


def _given(arguments, defaults) -> dict:
    """Return the flags that were given, of those that are fields of a dataclass."""
    names = [field.name for field in dataclasses.fields(defaults)]
    values = {name: getattr(arguments, name, None) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _perplexity(arguments) -> int:
    from keras_elmo.pretraining.preset import read_language_model
    from keras_elmo.pretraining.scores import Scorer
    from keras_elmo.pretraining.text import read_sentences

    scorer = Scorer(*read_language_model(arguments.preset))
    _print(scorer.perplexity(read_sentences(arguments.file)), arguments.json)
    return 0


def _export(arguments) -> int:
    from keras_elmo.checkpoints.files import replacing
    from keras_elmo.pretraining.card import draw_curve, model_card
    from keras_elmo.pretraining.preset import round_weights, write_language_model
    from keras_elmo.pretraining.scores import Scorer
    from keras_elmo.pretraining.text import read_sentences
    from keras_elmo.pretraining.train import read_run, read_settings

    folder, output = pathlib.Path(arguments.folder), pathlib.Path(arguments.output)
    model, vocabulary, facts = read_run(folder)
    recipe = read_settings(folder)["recipe"]
    data = pathlib.Path(arguments.data).read_text("utf-8") if arguments.data else ""
    texts = {}
    for file in map(pathlib.Path, arguments.heldout):
        sentences = [sentence for sentence in read_sentences(file) if sentence]
        if not sentences:
            raise ValueError(f"--heldout expects tokenised sentences. Received: none in {file}")
        texts[str(file) if file.name in texts else file.name] = sentences
    scorer = Scorer(model, vocabulary)
    few = next(iter(texts.values()), [])[:500]
    before = scorer.perplexity(few)["perplexity"] if few else None
    round_weights(model)
    facts["rounding"] = few and (len(few), before, scorer.perplexity(few)["perplexity"])
    scores = {name: scorer.perplexity(sentences) for name, sentences in texts.items()}
    card = model_card(output.name, model.config, vocabulary, recipe, facts, scores, data)
    output.mkdir(parents=True, exist_ok=True)
    with replacing(output / "curve.png") as (picture,):
        draw_curve(folder / "log.csv", picture)
    write_language_model(output, model, vocabulary, card)
    return 0


def _print(facts, as_json):
    if as_json:
        print(json.dumps(facts))
    else:
        for name, value in facts.items():
            print(f"{name:15} {value}")


if __name__ == "__main__":
    sys.exit(main())
