"""The command ``keras-elmo``: a subcommand for each task of the package."""

import argparse
import contextlib
import dataclasses
import functools
import importlib.util
import inspect
import json
import os
import re
import signal
import sys
import threading
import types
import typing
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import keras

import keras_elmo
from keras_elmo.config import BiLMConfig
from keras_elmo.embed.embedder import Embedder
from keras_elmo.embed.engine_choice import ALL_DTYPES, DTYPES, choose_engine
from keras_elmo.formats.hdf5 import open_hdf5
from keras_elmo.onnx.export import export_onnx
from keras_elmo.presets import Preset, bundled_facts, convert
from keras_elmo.pretraining.devices import sharing
from keras_elmo.pretraining.export import export_run
from keras_elmo.pretraining.language_model_files import BITS, read_language_model
from keras_elmo.pretraining.prepare import prepare
from keras_elmo.pretraining.recipe import CHOICES, Recipe
from keras_elmo.pretraining.run_folder import RunFolder
from keras_elmo.pretraining.scores import Scorer
from keras_elmo.pretraining.sentences import tokenize_file
from keras_elmo.pretraining.settings import SIZES, merge_settings
from keras_elmo.pretraining.text_files import open_text, read_sentences, standard_input
from keras_elmo.pretraining.train import Pretraining, read_run
from keras_elmo.released_models import download, released_models
from keras_elmo.tokenizers.text import split_tokens
from keras_elmo.tokenizers.words import SENTENCES, TOKENIZERS, make_tokenizer
from keras_elmo.utils.cpu import advise_bfloat16, cpu_flags
from keras_elmo.utils.files import local_path, read_vocabulary_lines

_TEXT = "UTF-8 text, plain, .gz, .bz2 or .xz"
# Arguments of several commands.
_SHARED: dict[str, dict[str, Any]] = {
    "preset": {
        "metavar": "PRESET",
        "help": "Bundled name, name of a released model, hf://user/model, or path of a directory, "
        "archive or checkpoint with a biLM.",
    },
    "preset_or_run": {
        "metavar": "PRESET_OR_RUN",
        "help": "Preset with vocab.txt and softmax.hdf5, checkpoint of bilm-tf with vocab.txt, or "
        "folder of keras-elmo pretrain.",
    },
    "--options": {
        "metavar": "FILE",
        "help": "JSON options of the biLM, for formats that do not record all of them.",
    },
    "--heldout": {
        **{"nargs": "*", "action": "extend", "default": [], "metavar": "FILE"},
        "help": "Texts that the biLM is not trained on.",
    },
    "--quiet": {"action": "store_true", "help": "Show no progress bar."},
    "--json": {"action": "store_true", "help": "Print the result as JSON."},
}
# The fields of BiLMConfig that have flags.
_SIZES = "filters character_embedding_dim n_highway n_layers lstm_dim projection_dim".split()
_RECIPE = [field.name for field in dataclasses.fields(Recipe)]
# The parameters of prepare that have flags.
_PREPARE = "vocabulary_size vocabulary heldout_share shards sentences tokenizer".split()
_PREPARE += ["seed", "workers"]
_CHOICES = CHOICES | {"sentences": SENTENCES, "tokenizer": TOKENIZERS}
# The kind at the start of the text of a parameter, such as "int or None. ".
_KIND = re.compile(r"^(?:int|float|str|bool|tuple)\b[^.]*\. ")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of ``keras-elmo``."""
    parser = argparse.ArgumentParser(
        prog="keras-elmo", description="Deep contextualized word representations for Keras 3."
    )
    version = f"keras-elmo {keras_elmo.__version__}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (add, run, description) in _COMMANDS.items():
        command = commands.add_parser(
            name,
            help=description.partition(". ")[0].rstrip("."),
            description=description,
            formatter_class=_HelpFormatter,
        )
        add(command)
        command.set_defaults(run=run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``keras-elmo`` and return its exit status."""
    arguments = make_parser().parse_args(argv)
    message, status = "", 1
    try:
        with _interrupted_by_signals(), warnings.catch_warnings():
            warnings.showwarning = functools.partial(_show_warning, arguments.command)
            arguments.run(arguments)
            print(end="", flush=True)
        return 0
    except BrokenPipeError:  # as in keras-elmo tokenize ... | head
        status = 141
    except (OSError, ValueError, ImportError) as error:
        message = str(error)
    except KeyboardInterrupt as error:
        number = error.args[0] if error.args else signal.SIGINT
        message, status = f"ended by {signal.Signals(number).name}", 128 + number
    try:
        print(end="", flush=True)
    except OSError:  # Python would try it again when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if message:
        print(f"keras-elmo {arguments.command}: {message}", file=sys.stderr)
    return status


def _show_warning(command: str, message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"keras-elmo {command}: warning: {message}", file=sys.stderr)


@contextlib.contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """Handle the signals that end a process as Ctrl-C, so that nothing is left behind."""

    def interrupt(number: int, _: object) -> None:
        raise KeyboardInterrupt(number)

    changed = []
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number and signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, interrupt)
                changed.append(number)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)


class _HelpFormatter(argparse.HelpFormatter):
    """Show the default of each flag."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        has_none = action.default in (None, False, [], argparse.SUPPRESS)
        return text if has_none else f"{text} Default: %(default)s."


def _add_flags(adder: Any, source: Callable, names: Collection[str]) -> None:
    """Add a flag for each of the parameters of a function or dataclass.

    The docstring describes them. The value of a flag that is not given is None: a file or a
    resumed run may set it.
    """
    constructor: Any = source
    kinds = typing.get_type_hints(constructor.__init__ if isinstance(source, type) else source)
    defaults, texts = inspect.signature(source).parameters, _read_texts(source)
    for name in names:
        kind, default, text = kinds[name], defaults[name].default, texts[name]
        if isinstance(kind, types.UnionType):  # for example int | None
            kind = typing.get_args(kind)[0]
        options: dict[str, Any] = {}
        if kind in (int, float):
            options = {"type": kind, "metavar": kind.__name__.upper()}
        if kind is bool:
            options = {"action": "store_true", "default": None}
        if name in _CHOICES:
            options["choices"] = _CHOICES[name]
        if name == "filters":
            text, default = f"{text} Given as 1:32,2:32,3:64.", None
        elif name == "negatives":
            text = text.replace("None", "0")
        if default is not None and kind is not bool:
            text += f" Default: {default}."
        adder.add_argument(f"--{name.replace('_', '-')}", help=text.replace("%", "%%"), **options)


def _read_texts(source: Callable) -> dict[str, str]:
    """Return the text of each parameter from the docstring."""
    lines = inspect.cleandoc(source.__doc__ or "")
    section = re.split(r"^(?:Args|Attributes):\n", lines, flags=re.MULTILINE)[1]
    texts = {}
    for entry in re.split(r"^    (?=\w)", section.split("\n\n")[0], flags=re.MULTILINE)[1:]:
        name, _, text = entry.partition(": ")
        texts[name] = _KIND.sub("", " ".join(text.replace("``", "").split()))
    return texts


def _add_shared(parser: argparse.ArgumentParser, *names: str) -> None:
    for name in names:
        parser.add_argument(name, **_SHARED[name])


def _add_info(parser: argparse.ArgumentParser) -> None:
    _add_shared(parser, "preset", "--options", "--json")


def _info(arguments: argparse.Namespace) -> None:
    preset = Preset(arguments.preset, arguments.options)
    checksums = preset.check_sums()
    if checksums.startswith("mismatch"):
        _print({"preset": arguments.preset, "checksums": checksums}, arguments.json)
        raise ValueError(
            f"Expected the files of {preset.path} to have the checksums of its model card. "
            f"Received: {checksums}. Fetch the preset again"
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
        "engine": ": ".join(choose_engine(config)),
        "bfloat16": advise_bfloat16(cpu_flags()),
        "options": options,
    }
    if not arguments.json:
        facts |= facts.pop("options")
    _print(facts, arguments.json)


def _add_presets(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--language", help="List the models of this language only: en, ko, ...")
    _add_shared(parser, "--json")


def _presets(arguments: argparse.Namespace) -> None:
    found = [
        {"name": name, "language": name.rpartition("_")[2], "state": "bundled", **facts}
        for name, facts in bundled_facts().items()
    ]
    for model in released_models().values():
        state = "downloaded" if model.is_downloaded else "known" if model.files else "by hand"
        found.append(
            {
                "name": model.name,
                "language": model.language,
                "state": state,
                "bytes": model.n_bytes,
                "description": model.text,
                "format": model.format,
                "licence": model.licence,
                "page": model.page,
            }
        )
    found = [f for f in found if arguments.language in (None, f["language"])]
    if arguments.json:
        print(json.dumps(found))
        return
    for facts in found:
        size = f"{facts['bytes'] / 1e6:.0f} MB" if facts.get("bytes") else ""
        print(f"{facts['name']:26} {facts['state']:11} {size:>8}  {facts['description'][:70]}")


def _add_download(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", help="A name that keras-elmo presets lists, or hf://user/model."
    )
    _add_shared(parser, "--json")


def _download(arguments: argparse.Namespace) -> None:
    name, path = arguments.name, str(download(arguments.name))
    facts = {"preset": name, "path": path, "read with": f"ElmoLayer.from_preset({name!r})"}
    _print(facts, arguments.json)


def _add_embed(parser: argparse.ArgumentParser) -> None:
    _add_shared(parser, "preset", "--options")
    add = parser.add_argument
    text = "UTF-8 text, one sentence per line, or - for stdin; with --column a table."
    add("input", metavar="INPUT", help=text)
    add("output", metavar="OUTPUT", help="HDF5 file to write; with --ray, a folder of Parquet.")
    text = "The input is raw text: split it with the tokenizer of the preset first."
    add("--raw", action="store_true", help=text)
    text = "Column of a CSV, TSV, JSON lines or Parquet file with the sentences."
    add("--column", metavar="NAME", help=f"{text} With --ray only Parquet. Default there: tokens.")
    text = "all, top, average, or the number of a layer, from 0."
    add("--layers", type=_layers, default="all", help=text)
    add("--float16", action="store_true", help="Store half precision.")
    add("--compression", choices=("gzip", "lzf"), help="Compression of the HDF5 file.")
    text = "Engine to run; auto is the faster one, as keras-elmo info says."
    add("--engine", choices=("auto", *DTYPES), default="auto", help=text)
    text = "bfloat16 needs the engine keras, int8 the engine onnxruntime."
    add("--dtype", choices=ALL_DTYPES, default="float32", help=text)
    add("--batch-tokens", type=int, default=2048, help="Tokens of a batch.")
    add("--resume", action="store_true", help="Continue an interrupted run.")
    add("--force", action="store_true", help="Replace an output that exists.")
    _add_shared(parser, "--quiet", "--json")
    add = parser.add_argument_group("Ray", "All paths must exist on every node.").add_argument
    text = "Embed on the Ray cluster at ADDRESS; without ADDRESS, on a running or local cluster."
    add("--ray", nargs="?", const="", metavar="ADDRESS", help=text)
    add("--ray-cpus", type=float, help="CPUs of each actor. Default: 1.")
    add("--ray-gpus", type=float, help="GPUs of each actor. Default: 0.")


def _layers(text: str) -> int | str:
    """Return the value of --layers; ``Embedder`` checks it."""
    try:
        return int(text)
    except ValueError:
        return text


def _embed(arguments: argparse.Namespace) -> None:
    embedder = _take(arguments, "dtype", "batch_tokens", "options", "engine")
    output = _take(arguments, "layers", "float16", "resume") | {"progress": not arguments.quiet}
    flags = {"column": "column", "cpus": "ray_cpus", "gpus": "ray_gpus"}
    given = {name: getattr(arguments, flag) for name, flag in flags.items()}
    cluster = {name: value for name, value in given.items() if value is not None}
    facts: dict[str, Any] = {}
    if arguments.ray is None:
        if cluster.keys() - {"column"}:
            raise ValueError("--ray-cpus and --ray-gpus need --ray. Received: no --ray")
        text = standard_input() if arguments.input == "-" else arguments.input
        output |= _take(arguments, "compression", "raw", "column")
        facts |= Embedder(arguments.preset, **embedder).embed_file(
            text, arguments.output, overwrite=arguments.force, **output
        )
        facts |= _how_to_read(arguments.output)
    else:
        from keras_elmo.ray import embed_files

        if arguments.compression or arguments.raw or arguments.force:
            raise ValueError(
                "--compression, --raw and --force are for HDF5. Received: --ray, which writes "
                "Parquet from tokenised sentences"
            )
        paths = arguments.preset, arguments.input, arguments.output
        address = arguments.ray or None
        settings = cluster | output | embedder
        facts |= embed_files(*paths, address=address, **settings)
        facts |= {"output": arguments.output, "read with": "keras_elmo.LayerDataset"}
    _print(facts, arguments.json)


def _how_to_read(output: str) -> dict[str, str]:
    """Return what ``embed`` wrote, and the line of Python that reads it."""
    with open_hdf5(local_path(output), kind="Layer file", remedy="Embed again") as file:
        shape = file.declared("0").shape if "0" in file.names() else None
    axes = "layers, tokens, width" if shape and len(shape) == 3 else "tokens, width"
    facts: dict[str, str] = {"output": output}
    if shape:
        facts["dataset 0"] = f"{shape}: {axes} of the first sentence"
    return facts | {"read with": f"h5py.File({output!r})['0'][:]"}


def _add_word_vectors(parser: argparse.ArgumentParser) -> None:
    _add_shared(parser, "preset", "--options")
    parser.add_argument("vocabulary", metavar="VOCABULARY", help="Text with one token per line.")
    parser.add_argument("output", metavar="OUTPUT", help="Text file to write.")
    _add_shared(parser, "--json")


def _word_vectors(arguments: argparse.Namespace) -> None:
    tokens = read_vocabulary_lines(arguments.vocabulary)
    embedder = Embedder(arguments.preset, options=arguments.options)
    embedder.write_word_vectors(tokens, arguments.output)
    facts: dict[str, Any] = {
        "tokens": len(tokens),
        "width": embedder.config.projection_dim,
        "output": arguments.output,
        "read with": f"gensim.models.KeyedVectors.load_word2vec_format({arguments.output!r})",
    }
    _print(facts, arguments.json)


def _add_convert(parser: argparse.ArgumentParser) -> None:
    text = "A checkpoint of bilm-tf, a TF-Hub module, an AllenNLP archive, a model of "
    text += "ELMoForManyLangs, or options and weights in the format of bilm-tf."
    parser.add_argument("source", metavar="SOURCE", help=text)
    parser.add_argument("directory", metavar="DIRECTORY", help="Directory of the new preset.")
    _add_shared(parser, "--options", "--json")


def _convert(arguments: argparse.Namespace) -> None:
    facts = convert(arguments.source, arguments.directory, arguments.options)
    if not arguments.json:
        facts |= {name: ", ".join(facts[name]) for name in ("files", "used", "left")}
    _print(facts, arguments.json)


def _add_tokenize(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", metavar="INPUT", help=f"{_TEXT}, or - for stdin.")
    text = "Text to write, with spaces between tokens, or - for stdout."
    parser.add_argument("output", metavar="OUTPUT", help=text)
    _add_flags(parser, tokenize_file, ("sentences", "tokenizer"))
    _add_shared(parser, "--quiet", "--json")


def _tokenize(arguments: argparse.Namespace) -> None:
    settings = _take_given(arguments, ("sentences", "tokenizer"))
    progress = not arguments.quiet
    counts = tokenize_file(arguments.input, arguments.output, **settings, progress=progress)
    if arguments.output != "-":
        _print(counts, arguments.json)


def _add_prepare(parser: argparse.ArgumentParser) -> None:
    text = f"Files or glob patterns: {_TEXT}."
    parser.add_argument("inputs", metavar="INPUT", nargs="+", help=text)
    parser.add_argument("output", metavar="OUTPUT", help="Folder to make.")
    _add_flags(parser, prepare, _PREPARE)
    _add_shared(parser, "--heldout")
    text = "Read the input NAME, its file name without endings, TIMES in each epoch."
    parser.add_argument("--weight", action="append", default=[], metavar="NAME=TIMES", help=text)
    _add_shared(parser, "--quiet", "--json")


def _prepare(arguments: argparse.Namespace) -> None:
    expected = "--weight expects NAME=TIMES, as in news=2"
    counts = prepare(
        arguments.inputs,
        arguments.output,
        heldout=arguments.heldout,
        weights=dict(_parse_pair(text, expected) for text in arguments.weight),
        progress=not arguments.quiet,
        **_take_given(arguments, _PREPARE),
    )
    _print(counts, arguments.json)


def _add_pretrain(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("corpus", metavar="CORPUS", help="Folder that keras-elmo prepare made.")
    add("folder", metavar="RUN", help="Folder of the run, with checkpoint and log.")
    text = 'JSON file, {"options": {...}, "recipe": {...}}, as a run stores them. Flags win.'
    add("--config", metavar="FILE", help=text)
    text = "Fine-tune the biLM of this preset; it grows if larger sizes are given."
    add("--init-from", metavar="PRESET", help=text)
    text = "With --init-from, predict the tokens of the corpus, not of the preset."
    add("--own-vocabulary", action="store_true", help=text)
    text = "Continue from the last checkpoint with the settings of the run; steps, epochs, "
    text += "learning rate, decay and clip norm may change."
    add("--resume", action="store_true", help=text)
    add("--save-every", type=int, default=500, help="Steps between checkpoints.")
    text = "Devices that share each batch. Default: all devices of several processes, or 1."
    add("--devices", type=int, help=text)
    add("--tensorboard", metavar="DIR", help="Also write a log for TensorBoard.")
    _add_shared(parser, "--quiet", "--json")
    sizes = parser.add_argument_group("biLM")
    sizes.add_argument("--size", choices=tuple(SIZES), help="Named sizes. Default: original.")
    _add_flags(sizes, BiLMConfig, _SIZES)
    _add_flags(parser.add_argument_group("recipe"), Recipe, _RECIPE)


def _pretrain(arguments: argparse.Namespace) -> None:
    sizes, recipe = _take_given(arguments, _SIZES), _take_given(arguments, _RECIPE)
    if "filters" in sizes:
        sizes["filters"] = _parse_filters(sizes["filters"])
    if recipe.get("negatives") == 0:
        recipe["negatives"] = None
    if arguments.tensorboard and not importlib.util.find_spec("tensorboard"):
        raise ImportError("--tensorboard needs TensorBoard: pip install 'keras-elmo[pretrain]'")
    settings = merge_settings(
        arguments.folder,
        sizes=sizes,
        recipe=recipe,
        file=arguments.config,
        **_take(arguments, "size", "resume", "init_from", "own_vocabulary", "devices"),
    )
    is_resumed = arguments.resume and RunFolder(arguments.folder).has_settings
    with sharing(settings.devices, resume=is_resumed) as devices:
        run = Pretraining(
            arguments.folder,
            arguments.corpus,
            settings.config,
            settings.recipe,
            devices=devices,
            init_from=settings.init_from,
            own_vocabulary=settings.own_vocabulary,
            **_take(arguments, "save_every", "resume"),
        )
        callbacks = []
        if arguments.tensorboard and run.share.is_first:
            callbacks.append(keras.callbacks.TensorBoard(arguments.tensorboard))
        run.run(callbacks, progress=not arguments.quiet)
        facts = {name: run.facts[name] for name in ("step", "tokens", "seconds")}
        facts["perplexity"] = run.heldout_perplexity()
    if run.share.is_first:
        _print(facts, arguments.json)


def _add_perplexity(parser: argparse.ArgumentParser) -> None:
    _add_shared(parser, "preset_or_run")
    parser.add_argument("file", metavar="FILE", help=f"{_TEXT}.")
    _add_shared(parser, "--options", "--json")


def _perplexity(arguments: argparse.Namespace) -> None:
    _print(_scorer(arguments).perplexity(read_sentences(arguments.file)), arguments.json)


def _scorer(arguments: argparse.Namespace) -> Scorer:
    path = arguments.preset_or_run
    if RunFolder(path).has_checkpoint:
        if arguments.options:
            raise ValueError(
                f"--options are for a preset. Received: {path}, a run, which has options"
            )
        model, vocabulary = read_run(path)[:2]
    else:
        model, vocabulary = read_language_model(path, options=arguments.options)
    return Scorer(model, vocabulary)


def _add_substitutes(parser: argparse.ArgumentParser) -> None:
    _add_shared(parser, "preset_or_run")
    text = "Text with one word in brackets: 'Out of [order].' Without a known tokenizer of the "
    text += "preset, write spaces between tokens."
    parser.add_argument("sentence", metavar="SENTENCE", help=text)
    parser.add_argument("--top", type=int, default=10, help="Number of tokens to print.")
    _add_shared(parser, "--options", "--json")


def _substitutes(arguments: argparse.Namespace) -> None:
    marked = re.fullmatch(r"([^\[\]]*)\[([^\[\]\s]+)\]([^\[\]]*)", arguments.sentence)
    if marked is None:
        raise ValueError(
            "Expected one word in brackets, as in 'Out of [order].'. "
            f"Received: {arguments.sentence!r}"
        )
    try:
        tokenize = make_tokenizer(Preset(arguments.preset_or_run).read_tokenizer())
    except ValueError:  # a run, or a preset that does not record its tokenizer
        tokenize = split_tokens
    before, word, after = marked.groups()
    left, right = tokenize(before), tokenize(after)
    found = _scorer(arguments).substitutes([*left, word, *right], len(left), arguments.top)
    if arguments.json:
        print(json.dumps(found))
        return
    print("   ".join(f"{name:22}" for name in found).rstrip())
    for row in zip(*found.values(), strict=True):
        print("   ".join(f"{token:15} {p:6.4f}" for token, p in row))


def _add_export(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", metavar="RUN", help="Folder of keras-elmo pretrain.")
    add("output", metavar="OUTPUT", help="Directory of the new preset.")
    _add_shared(parser, "--heldout")
    add("--data", metavar="FILE", help="Markdown on data sources, licence and credit.")
    text = "Significant bits of the weights of the biLM and of the softmax."
    add("--bits", type=int, nargs=2, metavar=("BILM", "SOFTMAX"), default=BITS, help=text)
    text = "Average the weights with the weights of a preset, usually the preset that the run "
    add("--average", metavar="PRESET=SHARE", help=f"{text}started from.")


def _export(arguments: argparse.Namespace) -> None:
    data = ""
    if arguments.data:
        with open_text(arguments.data) as (_, text):
            data = text.read()
    expected = "--average expects PRESET=SHARE, as in elmo_small_en=0.3"
    average = _parse_pair(arguments.average, expected) if arguments.average else None
    folder, output = arguments.folder, arguments.output
    export_run(folder, output, arguments.heldout, data, tuple(arguments.bits), average)


def _add_export_onnx(parser: argparse.ArgumentParser) -> None:
    _add_shared(parser, "preset", "--options")
    parser.add_argument("file", metavar="FILE", help="ONNX file to write.")
    text = "Multiply matrices of 8-bit integers: faster, with an error of 2 to 3%%."
    parser.add_argument("--int8", action="store_true", help=text)
    text = "Add the LSTM states as inputs and outputs."
    parser.add_argument("--stateful", action="store_true", help=text)
    _add_shared(parser, "--json")


def _export_onnx(arguments: argparse.Namespace) -> None:
    settings = arguments.int8, arguments.stateful, arguments.options
    _print(export_onnx(arguments.preset, arguments.file, *settings), arguments.json)


def _parse_filters(text: str) -> tuple[tuple[int, int], ...]:
    try:
        return tuple((int(w), int(n)) for w, n in (pair.split(":") for pair in text.split(",")))
    except ValueError:
        raise ValueError(
            f"--filters expects width:count, as in 1:32,2:32,3:64. Received: {text}"
        ) from None


def _parse_pair(text: str, expected: str) -> tuple[str, float]:
    name, _, number = text.rpartition("=")
    try:
        return name, float(number)
    except ValueError:
        raise ValueError(f"{expected}. Received: {text}") from None


def _take(arguments: argparse.Namespace, *names: str) -> dict[str, Any]:
    return {name: getattr(arguments, name) for name in names}


def _take_given(arguments: argparse.Namespace, names: Collection[str]) -> dict[str, Any]:
    """Return the flags that were given."""
    return {name: x for name, x in _take(arguments, *names).items() if x is not None}


def _print(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(facts))
    else:
        for name, value in facts.items():
            print(f"{name:15} {f'{value:.6g}' if isinstance(value, float) else value}")


_COMMANDS = {
    "info": (_add_info, _info, "Show the sizes of a biLM and check the files of its preset."),
    "presets": (_add_presets, _presets, "List bundled and released models."),
    "download": (_add_download, _download, "Download a released model into the cache."),
    "embed": (_add_embed, _embed, "Write the layer representations of sentences to a file."),
    "convert": (_add_convert, _convert, "Write a biLM of another program as a preset."),
    "tokenize": (_add_tokenize, _tokenize, "Split a text into tokens, as a biLM needs them."),
    "prepare": (_add_prepare, _prepare, "Make a corpus for pretraining from raw text."),
    "pretrain": (_add_pretrain, _pretrain, "Train a biLM on a corpus, or fine-tune one."),
    "perplexity": (
        _add_perplexity,
        _perplexity,
        "Measure the perplexity of tokenised sentences, one per line, with the full softmax. "
        "A token outside the vocabulary is read by its characters and predicted as <UNK>.",
    ),
    "substitutes": (
        _add_substitutes,
        _substitutes,
        "Show the words that a biLM expects in the place of a word, with probabilities.",
    ),
    "word-vectors": (
        _add_word_vectors,
        _word_vectors,
        "Write layer 0 of a vocabulary as word2vec text.",
    ),
    "export": (_add_export, _export, "Write the last checkpoint of a run as a preset."),
    "export-onnx": (_add_export_onnx, _export_onnx, "Write a biLM as one ONNX file."),
}


if __name__ == "__main__":
    sys.exit(main())
