"""The command ``keras-elmo``: a subcommand for each task of the package."""

import argparse
import contextlib
import dataclasses
import importlib.util
import inspect
import io
import json
import math
import os
import re
import signal
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras

import keras_elmo
from keras_elmo.config import BiLMConfig
from keras_elmo.embed.embedder import Embedder
from keras_elmo.embed.engine_choice import ALL_DTYPES, DTYPES, choose_engine
from keras_elmo.formats.hdf5 import Hdf5Reader
from keras_elmo.hub import upload
from keras_elmo.onnx.export import export_onnx
from keras_elmo.presets import Preset, bundled, bundled_facts, convert
from keras_elmo.pretraining.export import export_run
from keras_elmo.pretraining.language_model_files import BITS, read_language_model
from keras_elmo.pretraining.prepare import prepare
from keras_elmo.pretraining.recipe import CHOICES, Recipe
from keras_elmo.pretraining.run_folder import RunFolder
from keras_elmo.pretraining.scores import Scorer
from keras_elmo.pretraining.settings import SIZES, merge_settings
from keras_elmo.pretraining.train import Pretraining, read_run
from keras_elmo.released_models import download, is_released, released_models
from keras_elmo.text_input import SENTENCES, read_lines, read_sentences, tokenize_file
from keras_elmo.tokenizers.token_lists import split_tokens
from keras_elmo.tokenizers.words import TOKENIZERS, WordTokenizer
from keras_elmo.utils.cpu import advise_bfloat16, cpu_flags
from keras_elmo.utils.files import local_path, read_vocabulary_lines, same_file

_TEXT = "UTF-8 text, plain, .gz, .bz2 or .xz"
# Arguments of several commands: each is its help, or the options of ``add_argument``.
_SHARED: dict[str, Any] = {
    "preset": "Bundled name, name of a released model, hf://user/model, or path of a directory, "
    "archive or checkpoint with a biLM.",
    "preset_or_run": "Preset with vocab.txt and softmax.hdf5, checkpoint of bilm-tf with "
    "vocab.txt, or folder of keras-elmo pretrain.",
    "--options": dict(
        metavar="FILE", help="JSON options of the biLM, for formats that do not record all of them."
    ),
    "--heldout": dict(
        nargs="*", action="extend", metavar="FILE", help="Texts that the biLM is not trained on."
    ),
    "--force": dict(dest="overwrite", action="store_true", help="Replace an output that exists."),
    "--quiet": dict(dest="progress", action="store_false", help="Show no progress bar."),
    "--json": dict(dest="as_json", action="store_true", help="Print the result as JSON."),
}
# The fields of BiLMConfig and Recipe that have flags.
_SIZES = "filters character_embedding_dim n_highway n_layers lstm_dim projection_dim"
_RECIPE = " ".join(field.name for field in dataclasses.fields(Recipe))
_CHOICES = CHOICES | {
    **{"sentences": SENTENCES, "tokenizer": TOKENIZERS, "compression": ("gzip", "lzf")},
    **{"engine": ("auto", *DTYPES), "dtype": ALL_DTYPES, "size": tuple(SIZES)},
}
# The kind at the start of the text of a parameter, such as "int or None. ".
_KIND = re.compile(r"^(?:int|float|str|bool|tuple)\b[^.]*\. ")
# The function of each command, and its arguments as in ``_SHARED``.
_COMMANDS: dict[str, tuple[Callable, dict[str, Any]]] = {}


def _command(shared: str, own: dict[str, Any] | None = None) -> Callable[[Callable], Callable]:
    """Make a function a command, with its name, and its docstring as the description.

    ``shared`` names the arguments in ``_SHARED``; ``own`` has the other arguments.
    """

    def register(run: Callable) -> Callable:
        name = run.__name__.removeprefix("_").replace("_", "-")
        _COMMANDS[name] = run, {n: _SHARED[n] for n in shared.split()} | (own or {})
        return run

    return register


def _flags(source: Callable, names: str, group: str = "") -> dict[str, Any]:
    """Return a flag for each of the parameters of a function or dataclass.

    The docstring describes them.
    """
    parameters, texts = inspect.signature(source).parameters, _read_texts(source)
    flags = {}
    for name in names.split():
        kind, default, text = parameters[name].annotation, parameters[name].default, texts[name]
        if isinstance(kind, types.UnionType):  # for example int | None
            kind = kind.__args__[0]
        options: dict[str, Any] = {"group": group}
        if kind in (int, float):
            options |= {"type": kind, "metavar": kind.__name__.upper()}
        if kind is bool:
            options["action"], default = "store_true", None
            text = text.removeprefix("Whether to ")
            text = text[:1].upper() + text[1:]
        if name in _CHOICES:
            options["choices"] = _CHOICES[name]
        if name == "filters":
            text, default = f"{text} Given as 1:32,2:32,3:64.", None
        elif name == "negatives":
            text = text.replace("None", "0")
        if default is not None:
            text += f" Default: {default}."
        flags[f"--{name.replace('_', '-')}"] = options | {"help": text.replace("%", "%%")}
    return flags


def _read_texts(source: Callable) -> dict[str, str]:
    """Return the text of each parameter from the docstring."""
    lines = inspect.getdoc(source) or ""
    section = re.split(r"^(?:Args|Attributes):\n", lines, flags=re.MULTILINE)[1]
    texts = {}
    for entry in re.split(r"^    (?=\w)", section.split("\n\n")[0], flags=re.MULTILINE)[1:]:
        name, _, text = entry.partition(": ")
        texts[name] = _KIND.sub("", " ".join(text.replace("``", "").split()))
    return texts


def _print(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        # A biLM that diverged has an infinite perplexity, but JSON has no infinity.
        infinite = [k for k, v in facts.items() if isinstance(v, float) and not math.isfinite(v)]
        print(json.dumps(facts | dict.fromkeys(infinite)))
        return
    for name, value in facts.items():
        if isinstance(value, float):
            value = f"{value:.6g}"
        print(f"{name:15} {', '.join(value) if isinstance(value, list) else value}")


def _pop(given: dict[str, Any], names: str) -> dict[str, Any]:
    """Take the arguments with these names out of those that were given."""
    return {name: given.pop(name) for name in names.split() if name in given}


@_command("preset --options --json")
def _info(preset: str, options: str | None = None, as_json: bool = False) -> None:
    """Show the sizes of a biLM, whose files are read and checked."""
    files = Preset(preset, options)
    bilm = files.read()
    config, stored = bilm.config, bilm.config.to_options()
    if config.code_points is not None:
        stored["code_points"] = str(config.code_points)
    facts = {
        "preset": preset,
        "format": files.format.name,
        "parameters": bilm.n_parameters,
        "layers": config.n_layers + 1,
        "width": 2 * config.projection_dim,
        "max_characters": config.max_characters_per_token,
        "fingerprint": bilm.fingerprint(),
        "engine": ": ".join(choose_engine(config)),
        "bfloat16": advise_bfloat16(cpu_flags()),
    }
    _print(facts | ({"options": stored} if as_json else stored), as_json)


@_command("--json", {"--language": "List the models of this language only: en, ko, ..."})
def _presets(language: str | None = None, as_json: bool = False) -> None:
    """List bundled and released models."""
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
    found = [facts for facts in found if language in (None, facts["language"])]
    if as_json:
        print(json.dumps(found))
        return
    for facts in found:
        size = f"{facts['bytes'] / 1e6:.0f} MB" if facts.get("bytes") else ""
        print(f"{facts['name']:26} {facts['state']:11} {size:>8}  {facts['description'][:70]}")


@_command("--json", {"name": "A name that keras-elmo presets lists, or hf://user/model."})
def _download(name: str, as_json: bool = False) -> None:
    """Download a released model into the cache."""
    path = str(download(name))
    read = f"ElmoLayer.from_preset({name!r})"
    _print({"preset": name, "path": path, "read with": read}, as_json)


@_command(
    "--json",
    {
        "directory": "Directory of the preset, with its model card README.md.",
        "address": "Address on the Hugging Face Hub, hf://user/model.",
        "--private": dict(action="store_true", help="Make a new repository private."),
    },
)
def _upload(directory: str, address: str, private: bool = False, as_json: bool = False) -> None:
    """Upload the directory of a preset to the Hugging Face Hub."""
    facts = {"commit": upload(directory, address, private)}
    _print(facts | {"read with": f"ElmoLayer.from_preset({address!r})"}, as_json)


def _parse_layers(text: str) -> Any:
    """Return a name, the number of a layer, or weights."""
    try:
        return [float(x) for x in text.split(",")] if "," in text else int(text)
    except ValueError:
        return text


def _how_to_read(output: str) -> dict[str, str]:
    """Return what ``embed`` wrote, and the line of Python that reads it."""
    facts = {"output": output}
    with Hdf5Reader(local_path(output), kind="Layer file", remedy="Embed again") as file:
        if "0" in file.names():
            shape = file.declared("0").shape
            axes = "layers, tokens, width" if len(shape) == 3 else "tokens, width"
            facts["dataset 0"] = f"{shape}: {axes} of the first sentence"
    return facts | {"read with": f"h5py.File({str(local_path(output))!r})['0'][:]"}


@_command(
    "preset --options --force --quiet --json",
    {
        "input_file": f"{_TEXT}, one sentence per line; or - for stdin; or a table.",
        "output_file": "HDF5 file to write.",
        "--layers": dict(
            type=_parse_layers,
            help="all, top, average, the number of a layer, from 0, or weights as 0.2,0.5,0.3. "
            "Default: all.",
        ),
        "--raw": dict(
            action="store_true",
            help="The input is raw text: split it with the tokenizer of the preset first.",
        ),
        "--column": dict(
            metavar="NAME",
            help="Column of a CSV, TSV, JSON lines or Parquet file with the sentences.",
        ),
        **_flags(Embedder.embed_file, "float16 compression resume"),
        **_flags(Embedder, "engine dtype batch_tokens"),
    },
)
def _embed(
    preset: str, input_file: str, output_file: str, as_json: bool = False, **given: Any
) -> None:
    """Write the layer representations of sentences to a file."""
    _refuse_stdout("embed", output_file)
    source = sys.stdin.buffer if input_file == "-" else input_file
    embedder = Embedder(preset, **_pop(given, "dtype batch_tokens options engine"))
    facts = embedder.embed_file(source, output_file, **given) | _how_to_read(output_file)
    _print(facts, as_json)


@_command(
    "--options --json",
    {
        "source": "A checkpoint of bilm-tf, a TF-Hub module, an AllenNLP archive, a model of "
        "ELMoForManyLangs, or options and weights in the format of bilm-tf.",
        "directory": "Directory of the new preset.",
    },
)
def _convert(as_json: bool = False, **given: Any) -> None:
    """Write a biLM of another program as a preset."""
    _print(convert(**given), as_json)


@_command(
    "--force --quiet --json",
    {
        "input_file": f"{_TEXT}, or - for stdin.",
        "output_file": "Text to write, with spaces between tokens, or - for stdout.",
        **_flags(tokenize_file, "sentences tokenizer"),
    },
)
def _tokenize(input_file: str, output_file: str, as_json: bool = False, **given: Any) -> None:
    """Split a text into tokens, as a biLM needs them."""
    counts = tokenize_file(input_file, output_file, **given)
    if output_file != "-":
        _print(counts, as_json)


def _refuse_stdout(command: str, output: str) -> None:
    if output == "-":
        raise ValueError(
            f"{command} expects the path of a file to write. Received: -, the standard output. "
            "Choose a path"
        )


def _parse_pair(text: str, expected: str) -> tuple[str, float]:
    name, _, number = text.rpartition("=")
    try:
        return name, float(number)
    except ValueError:
        raise ValueError(f"{expected}. Received: {text}") from None


@_command(
    "--heldout --quiet --json",
    {
        "inputs": dict(nargs="+", metavar="INPUT", help=f"Files or glob patterns: {_TEXT}."),
        "output": "Folder to make.",
        **_flags(
            prepare,
            "vocabulary_size vocabulary heldout_share shards sentences tokenizer seed workers",
        ),
        "--weight": dict(
            action="append",
            metavar="NAME=TIMES",
            help="Read the input NAME, its file name without endings, TIMES in each epoch.",
        ),
    },
)
def _prepare(weight: Iterable[str] = (), as_json: bool = False, **given: Any) -> None:
    """Make a corpus for pretraining from raw text."""
    expected = "--weight expects NAME=TIMES, as in news=2"
    weights = dict(_parse_pair(text, expected) for text in weight)
    _print(prepare(**given, weights=weights), as_json)


def _parse_filters(text: str) -> tuple[tuple[int, int], ...]:
    try:
        return tuple((int(w), int(n)) for w, n in (pair.split(":") for pair in text.split(",")))
    except ValueError:
        raise ValueError(
            f"--filters expects width:count, as in 1:32,2:32,3:64. Received: {text}"
        ) from None


@_command(
    "--quiet --json",
    {
        "corpus": "Folder that keras-elmo prepare made.",
        "folder": dict(metavar="RUN", help="Folder of the run, with checkpoint and log."),
        "--config": dict(
            dest="file",
            metavar="FILE",
            help='JSON file, {"options": {...}, "recipe": {...}}, as a run stores them. Flags win.',
        ),
        **_flags(Pretraining, "init_from own_vocabulary resume save_every"),
        "--tensorboard": dict(metavar="DIR", help="Also write a log for TensorBoard."),
        **_flags(merge_settings, "size", group="biLM"),
        **_flags(BiLMConfig, _SIZES, group="biLM"),
        **_flags(Recipe, _RECIPE, group="recipe"),
    },
)
def _pretrain(
    corpus: str,
    folder: str,
    tensorboard: str | None = None,
    progress: bool = True,
    save_every: int = 500,
    as_json: bool = False,
    **given: Any,
) -> None:
    """Train a biLM on a corpus, or fine-tune one."""
    sizes, recipe = _pop(given, _SIZES), _pop(given, _RECIPE)
    if "filters" in sizes:
        sizes["filters"] = _parse_filters(sizes["filters"])
    if recipe.get("negatives") == 0:
        recipe["negatives"] = None
    if tensorboard and not importlib.util.find_spec("tensorboard"):
        raise ImportError("--tensorboard needs TensorBoard: pip install 'keras-elmo[pretrain]'")
    settings = merge_settings(folder, sizes=sizes, recipe=recipe, **given)
    resume = given.get("resume", False)
    run = Pretraining(folder, corpus, **settings, save_every=save_every, resume=resume)
    run.run([keras.callbacks.TensorBoard(local_path(tensorboard))] if tensorboard else [], progress)
    names = ("step", "tokens", "seconds", "perplexity")
    _print({name: run.facts[name] for name in names}, as_json)


def _is_run(path: str) -> bool:
    return not (path in bundled() or is_released(path)) and RunFolder(path).has_checkpoint


def _tokenizer_of(path: str, options: str | None) -> Callable[[str], list[str]]:
    """Return the tokenizer that a preset or a run records, or one that splits at spaces."""
    name: Any = None
    if _is_run(path):
        name = (RunFolder(path).read_tokenizer() or {}).get("name")
    else:
        preset = Preset(path, options)
        with contextlib.suppress(ValueError):  # the tokenizer is not known
            name = preset.read_tokenizer()
    return split_tokens if name is None else WordTokenizer(name)


def _scorer(path: str, options: str | None) -> Scorer:
    if not _is_run(path):
        return Scorer(*read_language_model(path, options=options))
    if options:
        raise ValueError(f"--options are for a preset. Received: {path}, a run, which has options")
    return Scorer(*read_run(path)[:2])


@_command("preset_or_run --options --json", {"file": f"{_TEXT}."})
def _perplexity(
    preset_or_run: str, file: str, options: str | None = None, as_json: bool = False
) -> None:
    """Measure the perplexity of tokenised sentences, one per line, with the full softmax.

    A token outside the vocabulary is read by its characters and predicted as <UNK>.
    """
    _print(_scorer(preset_or_run, options).perplexity(read_sentences(file)), as_json)


@_command(
    "preset_or_run --options --json",
    {
        "sentence": "Text with one word in brackets: 'Out of [order].' Without a known "
        "tokenizer of the preset, write spaces between tokens.",
        **_flags(Scorer.substitutes, "top"),
    },
)
def _substitutes(
    preset_or_run: str,
    sentence: str,
    top: int = 10,
    options: str | None = None,
    as_json: bool = False,
) -> None:
    """Show the words that a biLM expects in the place of a word, with probabilities."""
    marked = re.fullmatch(r"([^\[\]]*)\[([^\[\]\s]+)\]([^\[\]]*)", sentence)
    if marked is None:
        raise ValueError(
            f"Expected one word in brackets, as in 'Out of [order].'. Received: {sentence!r}"
        )
    before, word, after = marked.groups()
    tokenize = _tokenizer_of(preset_or_run, options)
    # With a word after it, the period of "Mr." stays in the token.
    left, right = tokenize(f"{before} x")[:-1], tokenize(after)
    found = _scorer(preset_or_run, options).substitutes([*left, word, *right], len(left), top)
    if as_json:
        print(json.dumps(found))
        return
    print("   ".join(f"{name:22}" for name in found).rstrip())
    for row in zip(*found.values(), strict=True):
        print("   ".join(f"{token:15} {p:6.4f}" for token, p in row))


@_command(
    "preset --options --force --json",
    {"vocabulary": "Text with one token per line.", "output": "Text file to write."},
)
def _word_vectors(
    preset: str,
    vocabulary: str,
    output: str,
    options: str | None = None,
    overwrite: bool = False,
    as_json: bool = False,
) -> None:
    """Write layer 0 of a vocabulary as word2vec text."""
    _refuse_stdout("word-vectors", output)
    if same_file(vocabulary, output):
        raise ValueError(
            f"word-vectors expects the path of another file to write. Received: {output}, the "
            "vocabulary. Choose another name"
        )
    tokens = read_vocabulary_lines(vocabulary)
    embedder = Embedder(preset, options=options)
    embedder.write_word_vectors(tokens, output, overwrite)
    facts = {
        "tokens": len(tokens),
        "width": embedder.config.projection_dim,
        "output": output,
        "read with": "gensim.models.KeyedVectors.load_word2vec_format"
        f"({str(local_path(output))!r})",
    }
    _print(facts, as_json)


@_command(
    "--heldout --force",
    {
        "folder": dict(metavar="RUN", help="Folder of keras-elmo pretrain."),
        "output": "Directory of the new preset.",
        "--data": dict(metavar="FILE", help="Markdown on data sources, licence and credit."),
        "--bits": dict(
            type=int,
            nargs=2,
            metavar=("BILM", "SOFTMAX"),
            help="Significant bits of the weights of the biLM and of the softmax. A softmax of 8 "
            "bits gets a scale for each token. "
            f"Default: {BITS[0]} {BITS[1]}.",
        ),
        **_flags(export_run, "license language"),
    },
)
def _export(**given: Any) -> None:
    """Write the last checkpoint of a run as a preset."""
    if "data" in given:
        given["data"] = "\n".join(read_lines(given["data"]))
    export_run(**given)


@_command(
    "preset --options --json",
    {"file": "ONNX file to write.", **_flags(export_onnx, "int8 stateful")},
)
def _export_onnx(as_json: bool = False, **given: Any) -> None:
    """Write a biLM as one ONNX file."""
    _print(export_onnx(**given), as_json)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of ``keras-elmo``. A flag that is not given is absent from its result."""
    parser = argparse.ArgumentParser(
        prog="keras-elmo", description="Deep contextualized word representations for Keras 3."
    )
    version = f"keras-elmo {keras_elmo.__version__}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (run, arguments) in _COMMANDS.items():
        description = inspect.getdoc(run) or ""
        command = commands.add_parser(
            name,
            help=description.partition(".")[0],
            description=description,
            argument_default=argparse.SUPPRESS,
        )
        groups: dict[str, Any] = {"": command}
        for argument, options in arguments.items():
            options = {"help": options} if isinstance(options, str) else dict(options)
            group = options.pop("group", "")
            if group not in groups:
                groups[group] = command.add_argument_group(group)
            if not argument.startswith("-"):
                options.setdefault("metavar", argument.removesuffix("_file").upper())
            groups[group].add_argument(argument, **options)
        command.set_defaults(run=run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``keras-elmo`` and return its exit status."""
    given = vars(make_parser().parse_args(argv))
    command, run = given.pop("command"), given.pop("run")
    if sys.stderr is None:  # started without it: progress bars and messages need one
        sys.stderr = open(os.devnull, "w")
    if isinstance(sys.stdout, io.TextIOWrapper):  # it may be unable to encode a name or a token
        sys.stdout.reconfigure(errors="backslashreplace")
    message, status = "", 1
    try:
        with _interrupted_by_signals(), warnings.catch_warnings():
            warnings.showwarning = lambda warning, *_, **__: print(
                f"keras-elmo {command}: warning: {warning}", file=sys.stderr
            )
            run(**given)
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
        print(f"keras-elmo {command}: {message}", file=sys.stderr)
    return status


@contextlib.contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """Handle the signals that end a process as Ctrl-C, so that nothing is left behind."""

    def interrupt(number: int, _: object) -> None:
        raise KeyboardInterrupt(number)

    with contextlib.ExitStack() as stack:
        if threading.current_thread() is threading.main_thread():
            for name in ("SIGTERM", "SIGHUP"):
                number = getattr(signal, name, None)
                if number and signal.getsignal(number) is signal.SIG_DFL:
                    signal.signal(number, interrupt)
                    stack.callback(signal.signal, number, signal.SIG_DFL)
        yield


if __name__ == "__main__":
    sys.exit(main())
