"""The command line: a thin face over the package."""

import argparse
import dataclasses
import importlib.util
import json
import sys

from keras_elmo.tokenizers.words import SENTENCES, TOKENIZERS


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of ``keras-elmo``."""
    parser = argparse.ArgumentParser(
        prog="keras-elmo", description="Deep contextualized word representations for Keras 3."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    info = commands.add_parser(
        "info",
        help="show what a preset holds",
        description="Show the sizes of the biLM in a preset, and check its files, also against the "
        "checksums of its model card.",
    )
    info.add_argument(
        "preset",
        metavar="PRESET",
        help="a bundled name, or a directory, .zip, .tar.gz or checkpoint that holds a biLM",
    )
    _add_options(info)
    info.add_argument("--json", action="store_true", help="print one JSON object")
    info.set_defaults(run=_info)

    embed = commands.add_parser(
        "embed",
        help="embed a file of tokenised sentences",
        description="Embed tokenised sentences, one a line, into an hdf5 file, a dataset each; "
        "with --ray, text or Parquet into a folder of Parquet files.",
    )
    embed.add_argument("preset", metavar="PRESET", help="as for info")
    _add_options(embed)
    embed.add_argument("input", metavar="INPUT", help="a UTF-8 text file, or - for stdin")
    embed.add_argument("output", metavar="OUTPUT", help="the hdf5 file, or folder, to write")
    embed.add_argument(
        "--layers", type=_layers, default="all", help="all, top, average or a number, from 0"
    )
    embed.add_argument("--float16", action="store_true", help="store half precision")
    embed.add_argument("--compression", choices=("gzip", "lzf"))
    embed.add_argument("--engine", choices=("keras", "onnxruntime"), default="keras")
    embed.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "int8"),
        default="float32",
        help="bfloat16 of keras, int8 of onnxruntime",
    )
    embed.add_argument("--batch-tokens", type=int, default=2048, help="tokens in a batch")
    embed.add_argument("--resume", action="store_true", help="go on with an interrupted run")
    _add_progress(embed)
    cluster = embed.add_argument_group("Ray", "all paths must be there on every node")
    cluster.add_argument(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="embed on this Ray cluster; without ADDRESS on the one that runs, or on this machine",
    )
    cluster.add_argument("--column", help="of the sentences in Parquet (default: tokens)")
    cluster.add_argument("--ray-cpus", type=float, help="CPUs of each actor (default: 1)")
    cluster.add_argument("--ray-gpus", type=float, help="GPUs of each actor (default: 0)")
    embed.set_defaults(run=_embed)
    _add_convert(commands)
    _add_tokenize(commands)
    _add_prepare(commands)
    _add_pretrain(commands)
    _add_perplexity(commands)
    _add_export(commands)
    _add_export_onnx(commands)
    return parser


def main(argv=None) -> int:
    """Run ``keras-elmo``; returns the exit status."""
    arguments = make_parser().parse_args(argv)
    try:
        return arguments.run(arguments)
    except (OSError, ValueError, ImportError) as error:
        print(f"keras-elmo {arguments.command}: {error}", file=sys.stderr)
        return 1


def _add_options(parser):
    parser.add_argument(
        "--options", metavar="FILE", help="options for what the source does not tell of its biLM"
    )


def _add_convert(commands):
    parser = commands.add_parser(
        "convert",
        help="make a preset of another program's biLM",
        description="Write a checkpoint of bilm-tf, a TF-Hub module, an AllenNLP archive, a model "
        "of ELMoForManyLangs, or files of bilm-tf's layout, as a preset.",
    )
    parser.add_argument("source", metavar="SOURCE", help="as PRESET of info")
    parser.add_argument("directory", metavar="DIRECTORY", help="the preset to make")
    _add_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_convert)


def _add_progress(parser, what="counts"):
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument("--json", action="store_true", help=f"print the {what} as one JSON object")


def _add_tokenize(commands):
    parser = commands.add_parser(
        "tokenize",
        help="cut a text into tokens, as a biLM wants them",
        description="Write the tokens of a text between spaces, for embed, or for prepare with "
        "--sentences lines --tokenizer whitespace.",
    )
    parser.add_argument(
        "input", metavar="INPUT", help="a UTF-8 text, plain, .gz, .bz2 or .xz, or - for stdin"
    )
    parser.add_argument("output", metavar="OUTPUT", help="the text to write, or - for stdout")
    parser.add_argument(
        "--tokenizer",
        choices=TOKENIZERS,
        default="penn",
        help="of the biLM; kiwi is for Korean",
    )
    parser.add_argument(
        "--sentences",
        choices=SENTENCES,
        default="lines",
        help="lines keeps the lines of the input; the others write a sentence a line",
    )
    _add_progress(parser)
    parser.set_defaults(run=_tokenize)


def _add_prepare(commands):
    parser = commands.add_parser(
        "prepare",
        help="turn raw text into a corpus to train on",
        description="Split text into sentences and tokens, hold a part out, count a vocabulary.",
    )
    parser.add_argument("inputs", metavar="INPUT", nargs="+", help="text files or glob patterns")
    parser.add_argument("output", metavar="OUTPUT", help="the folder to make")
    parser.add_argument("--vocabulary-size", type=int, default=40_000)
    parser.add_argument(
        "--vocabulary", metavar="FILE", help="take this vocab.txt, the most frequent token first"
    )
    parser.add_argument(
        "--heldout-share", type=float, default=0.01, help="share of each input to hold out"
    )
    parser.add_argument(
        "--heldout", nargs="*", action="extend", default=[], metavar="FILE", help="texts held out"
    )
    parser.add_argument(
        "--weight",
        action="append",
        default=[],
        metavar="NAME=TIMES",
        help="how often an epoch reads an input, by its file name without endings",
    )
    parser.add_argument("--shards", type=int, default=32, help="training files")
    parser.add_argument(
        "--sentences",
        choices=SENTENCES,
        default="punkt",
        help="punkt for scripts with capitals, stops for those without; or a line each",
    )
    parser.add_argument("--tokenizer", choices=TOKENIZERS, default="penn", help="as for tokenize")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="processes")
    _add_progress(parser)
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
    parser.add_argument(
        "--init-from",
        metavar="PRESET",
        help="fine-tune this biLM; with larger sizes, layers the same, it grows",
    )
    parser.add_argument(
        "--own-vocabulary", action="store_true", help="fine-tune with the corpus's vocabulary"
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on from the last checkpoint with the run's settings; steps, rate, decay and clip "
        "may be given anew",
    )
    parser.add_argument("--save-every", type=int, default=500, help="steps between checkpoints")
    parser.add_argument(
        "--devices",
        type=int,
        help="devices that share each batch; if not given, all those of several processes, or 1",
    )
    parser.add_argument("--tensorboard", metavar="DIR", help="log for TensorBoard too")
    _add_progress(parser, "end")
    sizes = parser.add_argument_group("biLM", "the released original sizes if not given")
    sizes.add_argument("--size", choices=("mini", "small", "medium", "original"))
    sizes.add_argument("--filters", help="width:count of each, as 1:32,2:32,3:64")
    for name in ("character-embedding-dim", "n-highway", "n-layers", "lstm-dim", "projection-dim"):
        sizes.add_argument(f"--{name}", type=int)
    recipe = parser.add_argument_group("recipe")
    recipe.add_argument("--steps", type=int, help="updates of the weights")
    recipe.add_argument("--epochs", type=float, help="passes over the corpus instead")
    recipe.add_argument("--batch-tokens", type=int, help="rows times longest sentence, per device")
    recipe.add_argument(
        "--first-batch-tokens", type=int, help="at most so many at the start of a batch ramp"
    )
    recipe.add_argument("--ramp-steps", type=int, help="steps of the ramp")
    recipe.add_argument("--max-tokens", type=int, help="longer sentences are read in pieces")
    recipe.add_argument("--optimizer", choices=("adam", "muon"))
    recipe.add_argument("--learning-rate", type=float, help="the highest")
    recipe.add_argument("--warmup", type=int, help="steps until it is reached")
    recipe.add_argument("--decay", type=float, help="share of the steps over which it falls to 0")
    recipe.add_argument("--decay-shape", choices=("linear", "1-sqrt"))
    recipe.add_argument("--clip-norm", type=float, help="bound on the gradient's global norm")
    recipe.add_argument("--dropout", type=float)
    recipe.add_argument("--negatives", type=int, help="of the sampled softmax; 0: full softmax")
    recipe.add_argument("--precision", choices=("float32", "bfloat16"), help="of matrix products")
    recipe.add_argument("--seed", type=int)
    recipe.add_argument(
        "--frozen-bilm", action="store_true", default=None, help="update the softmax alone"
    )
    parser.set_defaults(run=_pretrain)


def _add_perplexity(commands):
    parser = commands.add_parser(
        "perplexity",
        help="measure a biLM on a text",
        description="Perplexity of tokenised sentences, one a line, under the full softmax. Tokens "
        "outside the vocabulary are read by their characters and count as <UNK>.",
    )
    parser.add_argument(
        "preset",
        metavar="PRESET_OR_RUN",
        help="a preset with vocab.txt and softmax.hdf5, a checkpoint of bilm-tf with vocab.txt, or "
        "a folder of keras-elmo pretrain",
    )
    parser.add_argument("file", metavar="FILE", help="a UTF-8 text, plain, .gz, .bz2 or .xz")
    _add_options(parser)
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
    parser.add_argument(
        "--heldout", nargs="*", action="extend", default=[], metavar="FILE", help="texts to measure"
    )
    parser.add_argument("--data", metavar="FILE", help="Markdown on sources, licence and credit")
    parser.add_argument(
        "--bits",
        type=int,
        nargs=2,
        metavar=("BILM", "SOFTMAX"),
        help="significant bits to keep of the weights; default 16 12",
    )
    parser.add_argument(
        "--average",
        metavar="PRESET=SHARE",
        help="average the weights with those of a preset, as a rule what the run began with",
    )
    parser.set_defaults(run=_export)


def _add_export_onnx(commands):
    parser = commands.add_parser(
        "export-onnx",
        help="write a biLM as ONNX",
        description="Write the biLM of a preset as one ONNX file: character ids in, layer "
        "representations and mask out. Strings stay outside.",
    )
    parser.add_argument("preset", metavar="PRESET", help="as for info")
    parser.add_argument("file", metavar="FILE", help="the file to write")
    parser.add_argument(
        "--int8", action="store_true", help="products of eight bits: faster, off by 2 to 3%%"
    )
    parser.add_argument("--stateful", action="store_true", help="the state in and out")
    _add_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_export_onnx)


def _info(arguments) -> int:
    from keras_elmo.presets import Preset
    from keras_elmo.utils.cpu import advise_bfloat16, cpu_flags

    preset = Preset(arguments.preset, arguments.options)
    checksums = preset.check_sums()
    if checksums.startswith("mismatch"):
        _print({"preset": arguments.preset, "checksums": checksums}, arguments.json)
        raise ValueError(
            f"Preset {preset.path} does not hold what its model card states. "
            f"Received: {checksums}. Fetch it again"
        )
    bilm = preset.read()
    config, options = bilm.config, bilm.config.to_options()
    if config.code_points is not None:
        options["code_points"] = str(config.code_points)
    facts = {
        "preset": arguments.preset,
        "format": preset.format.name,
        "checksums": checksums,
        "parameters": bilm.n_parameters,
        "layers": config.n_layers + 1,
        "width": 2 * config.projection_dim,
        "max_characters": config.max_characters_per_token,
        "fingerprint": bilm.fingerprint(),
        "bfloat16": advise_bfloat16(cpu_flags()),
        "options": options,
    }
    if not arguments.json:
        facts |= facts.pop("options")
    _print(facts, arguments.json)
    return 0


def _embed(arguments) -> int:
    of_embedder = {
        name: getattr(arguments, name) for name in ("dtype", "batch_tokens", "options", "engine")
    }
    of_output = {name: getattr(arguments, name) for name in ("layers", "float16", "resume")}
    of_output["progress"] = not arguments.quiet
    embed = _embed_here if arguments.ray is None else _embed_on_ray
    _print(embed(arguments, of_embedder, of_output), arguments.json)
    return 0


def _embed_here(arguments, of_embedder, of_output):
    from keras_elmo.embed.embedder import Embedder

    if _of_cluster(arguments):
        raise ValueError("--column, --ray-cpus and --ray-gpus are of Ray. Received: no --ray")
    embedder = Embedder(arguments.preset, **of_embedder)
    text = sys.stdin.buffer if arguments.input == "-" else arguments.input
    return embedder.embed_file(
        text, arguments.output, compression=arguments.compression, **of_output
    )


def _embed_on_ray(arguments, of_embedder, of_output):
    from keras_elmo.ray import embed_files

    if arguments.compression:
        raise ValueError("--compression is of hdf5. Received: --ray, which writes Parquet")
    return embed_files(
        arguments.preset,
        arguments.input,
        arguments.output,
        address=arguments.ray or None,
        **_of_cluster(arguments),
        **of_output,
        **of_embedder,
    )


def _of_cluster(arguments):
    """Return the flags for Ray that were given, as ``embed_files`` takes them."""
    flags = {"column": "column", "cpus": "ray_cpus", "gpus": "ray_gpus"}
    values = {name: getattr(arguments, flag) for name, flag in flags.items()}
    return {name: value for name, value in values.items() if value is not None}


def _layers(text):
    """Return --layers as Embedder takes it, which checks it."""
    try:
        return int(text)
    except ValueError:
        return text


def _convert(arguments) -> int:
    from keras_elmo.presets import convert

    facts = convert(arguments.source, arguments.directory, arguments.options)
    if not arguments.json:
        facts |= {name: ", ".join(facts[name]) for name in ("files", "used", "left")}
    _print(facts, arguments.json)
    return 0


def _tokenize(arguments) -> int:
    from keras_elmo.pretraining.sentences import tokenize_file

    counts = tokenize_file(
        arguments.input,
        arguments.output,
        sentences=arguments.sentences,
        tokenizer=arguments.tokenizer,
        progress=not arguments.quiet,
    )
    if arguments.output != "-":
        _print(counts, arguments.json)
    return 0


def _prepare(arguments) -> int:
    from keras_elmo.pretraining.prepare import prepare

    counts = prepare(
        arguments.inputs,
        arguments.output,
        vocabulary_size=arguments.vocabulary_size,
        vocabulary=arguments.vocabulary,
        heldout_share=arguments.heldout_share,
        heldout=arguments.heldout,
        weights=dict(_pair(text, _WEIGHT) for text in arguments.weight),
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
    from keras_elmo.pretraining.run_folder import RunFolder
    from keras_elmo.pretraining.settings import merge_settings
    from keras_elmo.pretraining.train import Pretraining

    sizes, recipe = _given(arguments, BiLMConfig), _given(arguments, Recipe)
    if "filters" in sizes:
        sizes["filters"] = _filters(sizes["filters"])
    if recipe.get("negatives") == 0:
        recipe["negatives"] = None
    if arguments.tensorboard and not importlib.util.find_spec("tensorboard"):
        raise ImportError("--tensorboard needs TensorBoard: pip install 'keras-elmo[pretrain]'")
    settings = merge_settings(
        arguments.folder,
        sizes=sizes,
        recipe=recipe,
        size=arguments.size,
        file=arguments.config,
        resume=arguments.resume,
        init_from=arguments.init_from,
        own_vocabulary=arguments.own_vocabulary,
        devices=arguments.devices,
    )
    is_resumed = arguments.resume and RunFolder(arguments.folder).has_settings
    with sharing(settings.devices, resume=is_resumed) as devices:
        run = Pretraining(
            arguments.folder,
            arguments.corpus,
            settings.config,
            settings.recipe,
            save_every=arguments.save_every,
            devices=devices,
            resume=arguments.resume,
            init_from=settings.init_from,
            own_vocabulary=settings.own_vocabulary,
        )
        callbacks = []
        if arguments.tensorboard and run.share.is_first:
            callbacks.append(keras.callbacks.TensorBoard(arguments.tensorboard))
        run.run(callbacks, progress=not arguments.quiet)
        names = ("step", "tokens", "seconds")
        facts = {name: run.facts[name] for name in names}
        facts["perplexity"] = run.heldout_perplexity()
    if run.share.is_first:
        _print(facts, arguments.json)
    return 0


_WEIGHT = "--weight expects NAME=TIMES, as in news=2"
_AVERAGE = "--average expects PRESET=SHARE, as in elmo_small_en=0.3"


def _filters(text) -> tuple:
    try:
        return tuple((int(w), int(n)) for w, n in (pair.split(":") for pair in text.split(",")))
    except ValueError:
        raise ValueError(
            f"--filters expects width:count, as in 1:32,2:32,3:64. Received: {text}"
        ) from None


def _pair(text, expected) -> tuple:
    name, _, number = text.rpartition("=")
    try:
        return name, float(number)
    except ValueError:
        raise ValueError(f"{expected}. Received: {text}") from None


def _given(arguments, settings) -> dict:
    """Return the flags that were given, of those that are fields of a dataclass."""
    names = [field.name for field in dataclasses.fields(settings)]
    values = {name: getattr(arguments, name, None) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _perplexity(arguments) -> int:
    from keras_elmo.pretraining.language_model_files import read_language_model
    from keras_elmo.pretraining.run_folder import RunFolder
    from keras_elmo.pretraining.scores import Scorer
    from keras_elmo.pretraining.text_files import read_sentences
    from keras_elmo.pretraining.train import read_run

    if RunFolder(arguments.preset).has_checkpoint:
        if arguments.options:
            raise ValueError(
                f"--options are for a preset. Received: {arguments.preset}, a run, with its own"
            )
        model, vocabulary = read_run(arguments.preset)[:2]
    else:
        model, vocabulary = read_language_model(arguments.preset, options=arguments.options)
    scorer = Scorer(model, vocabulary)
    _print(scorer.perplexity(read_sentences(arguments.file)), arguments.json)
    return 0


def _export(arguments) -> int:
    from keras_elmo.pretraining.export import export_run
    from keras_elmo.pretraining.language_model_files import BITS
    from keras_elmo.pretraining.text_files import open_text

    data = ""
    if arguments.data:
        with open_text(arguments.data) as (_, text):
            data = text.read()
    average = arguments.average and _pair(arguments.average, _AVERAGE)
    bits = arguments.bits or BITS
    export_run(arguments.folder, arguments.output, arguments.heldout, data, bits, average)
    return 0


def _export_onnx(arguments) -> int:
    from keras_elmo.onnx.export import export_onnx

    facts = export_onnx(
        arguments.preset, arguments.file, arguments.int8, arguments.stateful, arguments.options
    )
    _print(facts, arguments.json)
    return 0


def _print(facts, as_json):
    if as_json:
        print(json.dumps(facts))
    else:
        for name, value in facts.items():
            print(f"{name:15} {value}")


if __name__ == "__main__":
    sys.exit(main())
