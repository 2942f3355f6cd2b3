"""The command ``keras-elmo``: a subcommand for each task of the package.

The arguments are parsed before Keras is imported, so each subcommand imports what it calls. The
arguments come from ``_SHARED``, from the docstring of the subcommand, and from the signatures and
docstrings of functions and dataclasses of the package whose modules need no Keras. In a docstring
here, a flag with ``INT`` or ``FLOAT`` takes a number, a flag without a name in capitals no value.
"""

import argparse
import dataclasses
import importlib
import inspect
import io
import json
import os
import re
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import keras_elmo

# A subcommand returns and prints these.
Facts: TypeAlias = dict[str, Any]

_SHARED = """
    preset: Bundled name, name of a released model, hf://user/model, or path of a directory,
        archive or checkpoint with a biLM.
    preset_or_run: Preset with vocab.txt and softmax.hdf5, checkpoint of bilm-tf with vocab.txt,
        or folder of keras-elmo pretrain.
    --options FILE: JSON options of the biLM, for formats that do not record all of them.
    --tokenizer NAME: penn for English, toktok for many languages, kiwi for Korean, letters for
        proteins, whitespace for tokenised text. Default: penn.
    --heldout FILE: Texts that the biLM is not trained on.
    --force: Replace an output that exists.
    --quiet: Show no progress bar.
    --json: Print the result as JSON.
"""
# Arguments of functions and dataclasses that have no flag of their name.
_WITHOUT_FLAG = (
    "max_characters_per_token activation cell_clip projection_clip use_skip_connections "
    "code_points cache"
).split()
_FLAGS = {"overwrite": "--force", "progress": "--quiet", "weights": "--weight"}
_METAVARS = {"bool": "", "int": "INT", "float": "FLOAT"}


def _parse_filters(text: str) -> tuple[tuple[int, int], ...]:
    try:
        pairs = (pair.split(":") for pair in text.split(","))
        return tuple((int(width), int(count)) for width, count in pairs)
    except ValueError:
        expected = "expected widths and numbers of filters, as in 1:32,2:64"
        raise argparse.ArgumentTypeError(f"{expected}. Received: {text}") from None


def _parse_weight(text: str) -> tuple[str, float]:
    name, _, times = text.rpartition("=")
    try:
        return name, float(times)
    except ValueError:
        expected = "expected the name of an input and a number, as in news=2"
        raise argparse.ArgumentTypeError(f"{expected}. Received: {text}") from None


def _parse_layers(text: str) -> Any:
    """Return a name, the number of a layer, or weights."""
    try:
        return [float(x) for x in text.split(",")] if "," in text else int(text)
    except ValueError:
        return text


# Options of ``add_argument`` that do not follow from the text.
_SPECIAL: dict[str, dict[str, Any]] = {
    "--force": {"dest": "overwrite"},
    "--quiet": {"dest": "progress", "action": "store_false"},
    "--json": {"dest": "as_json"},
    "--heldout": {"nargs": "*", "action": "extend"},
    "--filters": {"type": _parse_filters, "metavar": "WIDTH:COUNT,..."},
    "--layers": {"type": _parse_layers},
    "--weight": {
        "dest": "weights",
        "type": _parse_weight,
        "action": "append",
        "metavar": "NAME=TIMES",
    },
    "inputs": {"nargs": "+", "metavar": "INPUT"},
    "folder": {"metavar": "RUN"},
    "--size": {"choices": ["mini", "small", "medium", "original"]},
}


def _show(facts: Facts) -> None:
    """Print a fact on each line."""
    for name, value in facts.items():
        if isinstance(value, dict):
            _show(value)
            continue
        if isinstance(value, float):
            value = f"{value:.6g}"
        print(f"{name:15} {', '.join(map(str, value)) if isinstance(value, list) else value}")


def _show_presets(presets: list[Facts]) -> None:
    for facts in presets:
        size = f"{facts['bytes'] / 1e6:.0f} MB" if facts.get("bytes") else ""
        text = textwrap.shorten(facts["description"], 70, placeholder=" ...")
        print(f"{facts['name']:26} {facts['language']:8} {facts['state']:11} {size:>8}  {text}")


def _show_substitutes(found: dict[str, list[tuple[str, float]]]) -> None:
    print("   ".join(f"{name:22}" for name in found).rstrip())
    for row in zip(*found.values(), strict=True):
        print("   ".join(f"{token:15} {p:6.4f}" for token, p in row))


# The function of each subcommand, the names of its shared arguments, what prints its result, and
# what else in the package describes its arguments.
_COMMANDS: dict[str, tuple[Callable, list[str], Callable, list[str]]] = {}


def _command(
    shared: str, show: Callable = _show, described_by: str = ""
) -> Callable[[Callable], Callable]:
    """Make a function a subcommand, with its name.

    ``shared`` names arguments in ``_SHARED``. ``show`` prints what the function returns, unless
    that is None. ``described_by`` names functions and dataclasses whose arguments it takes.
    """

    def register(run: Callable) -> Callable:
        name = run.__name__.removeprefix("_").replace("_", "-")
        _COMMANDS[name] = run, shared.split(), show, described_by.split()
        return run

    return register


def _load(path: str) -> Any:
    """Import a function or a class."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _forward(name: str, path: str, text: str) -> None:
    """Make a function of the package a subcommand that takes its arguments and prints its result.

    Its module must need no Keras, because the docstring of the function gives the help.
    """

    def run(**given: Any) -> Any:
        return _load(path)(**given)

    run.__doc__ = text
    _COMMANDS[name] = run, ["--json"], _show, [path]


_forward("prepare", "keras_elmo.prepare.prepare", "Make a corpus for pretraining from raw text.")
_forward("convert", "keras_elmo.presets.convert", "Write a biLM of another program as a preset.")
_forward("export-onnx", "keras_elmo.onnx.export.export_onnx", "Write a biLM as one ONNX file.")


def _pop(given: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Take the values of these arguments out of those that were given."""
    return {name: given.pop(name) for name in names if name in given}


@_command("preset --options --json")
def _info(preset: str, options: str | None = None) -> Facts:
    """Show the sizes of a biLM, whose files are read and checked."""
    from keras_elmo.embed.engine_choice import choose_engine
    from keras_elmo.presets import open_preset
    from keras_elmo.utils.cpu import advise, cpu_flags

    files = open_preset(preset, options)
    bilm = files.read()
    config, stored = bilm.config, bilm.config.to_options()
    if config.code_points is not None:
        stored["code_points"] = str(config.code_points)
    return {
        "preset": preset,
        "format": files.name,
        "parameters": bilm.n_parameters,
        "layers": config.n_layers + 1,
        "width": 2 * config.projection_dim,
        "max_characters": config.max_characters_per_token,
        "fingerprint": bilm.fingerprint(),
        "engine": ": ".join(choose_engine(config)),
        **advise(cpu_flags()),
        "options": stored,
    }


@_command("--json", _show_presets)
def _presets(language: str | None = None) -> list[Facts]:
    """List bundled and released models.

    Command line:
        --language CODE: List the models of this language only: en, ko, ...
    """
    from keras_elmo.presets import bundled_facts
    from keras_elmo.released_models import is_downloaded, released_models

    found = [
        {"name": name, "language": name.rpartition("_")[2], "state": "bundled", **facts}
        for name, facts in bundled_facts().items()
    ]
    for model in released_models().values():
        facts = {name: model[name] for name in ("name", "language", "format", "licence", "page")}
        state = "downloaded" if is_downloaded(model) else "known" if model["files"] else "by hand"
        sizes = [file.get("bytes") for file in model["files"]]
        size = sum(sizes) if sizes and all(sizes) else None
        found.append({**facts, "state": state, "bytes": size, "description": model["text"]})
    return [facts for facts in found if language in (None, facts["language"])]


@_command("--json")
def _download(name: str) -> Facts:
    """Download a released model into the cache.

    Command line:
        name: A name that keras-elmo presets lists, or hf://user/model.
    """
    from keras_elmo.released_models import download

    path = str(download(name))
    return {"preset": name, "path": path, "read with": f"ElmoLayer.from_preset({name!r})"}


@_command("--json", described_by="keras_elmo.hub.upload")
def _upload(address: str, **given: Any) -> Facts:
    """Upload the directory of a preset to the Hugging Face Hub."""
    from keras_elmo.hub import upload

    commit = upload(address=address, **given)
    return {"commit": commit, "read with": f"ElmoLayer.from_preset({address!r})"}


@_command(
    "--json",
    described_by="keras_elmo.embed.embedder.Embedder keras_elmo.embed.embed_file.embed_file",
)
def _embed(preset: str, input_file: str, output_file: str, **given: Any) -> Facts:
    """Write the layer representations of sentences to a file.

    Command line:
        input_file: UTF-8 text, plain, .gz, .bz2 or .xz, one sentence per line; or - for stdin; or
            a table: CSV, .tsv (a line is a row, a quote is text), JSON lines or Parquet.
        --layers LAYERS: all, top, average, the number of a layer, from 0, or the weight of each
            layer, as 0.2,0.5,0.3. Default: all.
    """
    from keras_elmo.embed.embedder import Embedder

    source = sys.stdin.buffer if input_file == "-" else input_file
    embedder = Embedder(preset, **_pop(given, ("dtype", "batch_tokens", "options", "engine")))
    facts = embedder.embed_file(source, output_file, **given)
    read = f"h5py.File({output_file!r})['0'][:]  # the first sentence"
    return {**facts, "output": output_file, "read with": read}


@_command("--json", described_by="keras_elmo.text_input.tokenize_file")
def _tokenize(output_file: str, **given: Any) -> Facts | None:
    """Split a text into tokens, as a biLM needs them."""
    from keras_elmo.text_input import tokenize_file

    counts = tokenize_file(output_file=output_file, **given)
    return None if output_file == "-" else counts


@_command("--quiet --json", described_by="keras_elmo.config.BiLMConfig keras_elmo.recipe.Recipe")
def _pretrain(folder: str, size: str = "", progress: bool = True, **given: Any) -> Facts:
    """Train a biLM on a corpus, or fine-tune one.

    Command line:
        corpus: Folder that keras-elmo prepare made.
        folder: Folder of the run, with checkpoint and log.
        --init-from PRESET: Preset to start from, for fine-tuning, with its sizes.
        --own-vocabulary: Predict the tokens of the corpus, with a new softmax, instead of the
            preset's.
        --resume: Continue the run in the folder with its settings, if there is one.
        --save-every INT: Steps between checkpoints. Default: 500.
        --size NAME: Size of the biLM: mini has 512 LSTM cells, projected to 128 features, in each
            layer and direction; small 1024 and 256; medium 2048 and 256; original, the size of
            the paper, 4096 and 512. The flags of single sizes change it. Default: original.
    """
    from keras_elmo.config import BiLMConfig
    from keras_elmo.pretraining.run_folder import RunFolder
    from keras_elmo.pretraining.train import Pretraining
    from keras_elmo.recipe import SIZES, Recipe

    sizes, changes = (
        _pop(given, [field.name for field in dataclasses.fields(cls)])
        for cls in (BiLMConfig, Recipe)
    )
    config, recipe, run_folder = None, Recipe(), RunFolder(folder)
    if given.get("resume") and run_folder.settings.is_file():
        config, recipe, _ = run_folder.read_settings()
    if size:
        config = SIZES[size]
    if sizes:
        config = dataclasses.replace(config or SIZES["original"], **sizes)
    if changes.keys() & {"steps", "epochs"}:  # they replace each other
        changes = {"steps": None, "epochs": None, **changes}
    recipe = dataclasses.replace(recipe, **changes)
    run = Pretraining(folder, config=config, recipe=recipe, **given)
    run.run(progress=progress)
    return {name: run.facts[name] for name in ("step", "tokens", "seconds", "perplexity")}


def _scorer(path: str, options: str | None) -> Any:
    """Return the ``Scorer`` of a preset or a run."""
    from keras_elmo.pretraining.language_model_files import read_language_model
    from keras_elmo.pretraining.run_folder import RunFolder
    from keras_elmo.pretraining.scores import Scorer
    from keras_elmo.pretraining.train import read_run

    if RunFolder(path).settings.is_file():
        if options:
            raise ValueError(f"--options are for a preset. Received: {path}, a run with options")
        return Scorer(*read_run(path)[:2])
    return Scorer(*read_language_model(path, options=options))


@_command("preset_or_run --options --json")
def _perplexity(preset_or_run: str, file: str, options: str | None = None) -> Facts:
    """Measure the perplexity of tokenised sentences, one per line, with the full softmax.

    A token outside the vocabulary is read by its characters and predicted as <UNK>.

    Command line:
        file: UTF-8 text, plain, .gz, .bz2 or .xz.
    """
    from keras_elmo.text_input import read_sentences

    return _scorer(preset_or_run, options).perplexity(read_sentences(file))


@_command("preset_or_run --options --json", _show_substitutes)
def _substitutes(preset_or_run: str, sentence: str, top: int = 10, options: Any = None) -> Facts:
    """Show the words that a biLM expects in the place of a word, with probabilities.

    Command line:
        sentence: Text with one word in brackets: 'Out of [order].' Without a known tokenizer of
            the preset, write spaces between tokens.
        --top INT: Number of words. Default: 10.
    """
    from keras_elmo.presets import open_preset
    from keras_elmo.tokenizers.text_tokens import make_tokenizer
    from keras_elmo.utils.checks import invalid

    marked = re.fullmatch(r"([^\[\]]*)\[([^\[\]\s]+)\]([^\[\]]*)", sentence)
    if marked is None:
        raise invalid("Expected one word in brackets, as in 'Out of [order].'", repr(sentence))
    before, word, after = marked.groups()
    tokenize = make_tokenizer(open_preset(preset_or_run).tokenizer or "whitespace", True)
    # With a word after it, the period of "Mr." stays in the token.
    left, right = tokenize(f"{before} x")[:-1], tokenize(after)
    return _scorer(preset_or_run, options).substitutes([*left, word, *right], len(left), top)


@_command("--heldout --force")
def _export(**given: Any) -> None:
    """Write the last checkpoint of a run as a preset.

    Command line:
        folder: Folder of keras-elmo pretrain.
        output: Directory of the new preset.
        --data FILE: Markdown on data sources, licence and credit.
        --license NAME: Licence of the weights, as the Hugging Face Hub writes it.
        --language CODE: Language of the text, an ISO 639 code: en.
        --bits INT: Significant bits of the weights of the biLM. Default: 16.
    """
    from keras_elmo.pretraining.export import export_run
    from keras_elmo.text_input import read_lines

    if "data" in given:
        given["data"] = "\n".join(read_lines(given["data"]))
    export_run(**given)


def _read_arguments(text: str) -> dict[str, dict[str, Any]]:
    """Return what ``add_argument`` needs for each argument in a text like ``_SHARED``."""
    entry = r"^    ([\w-]+)(?: (\S+))?: (.*(?:\n        .*)*)"
    arguments = {}
    for name, metavar, words in re.findall(entry, text, re.MULTILINE):
        options: dict[str, Any] = {"help": " ".join(words.split()).replace("%", "%%")}
        if not name.startswith("--"):
            options["metavar"] = name.removesuffix("_file").upper()
        elif metavar:
            kind = {"INT": int, "FLOAT": float}.get(metavar, str)
            options |= {"metavar": metavar, "type": kind}
        else:
            options["action"] = "store_true"
        arguments[name] = options | _SPECIAL.get(name, {})
    return arguments


def _describe(described: Callable) -> str:
    """Return a text like ``_SHARED`` on the arguments of a function or dataclass."""
    parameters = inspect.signature(described).parameters
    # The text of an argument begins with its kind: "int or None. Updates of the weights."
    entry = r"^    (\w+): (\w+)([^.]*)\. (.*(?:\n        .*)*)"
    lines: dict[str, str] = {}
    for name, kind, more, text in re.findall(entry, inspect.getdoc(described) or "", re.MULTILINE):
        if name not in parameters or name in _WITHOUT_FLAG:
            continue
        default, argument = parameters[name].default, name
        if default is not inspect.Parameter.empty:
            metavar = "FILE" if "path" in more else _METAVARS.get(kind, "NAME")
            argument = f"{_FLAGS.get(name) or '--' + name.replace('_', '-')} {metavar}".rstrip()
            if kind in ("int", "float", "str") and default is not None:
                text += f" Default: {default}."
        text = text.replace("`", "").removeprefix("Whether to ")
        lines.setdefault(name, f"    {argument}: {text[:1].upper()}{text[1:]}")
    return "\n".join(lines.values())


def make_parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of ``keras-elmo``, with the arguments of one command.

    A flag that is not given is absent from the result.
    """
    parser = argparse.ArgumentParser(
        prog="keras-elmo", description="Deep contextualized word representations for Keras 3."
    )
    version = f"keras-elmo {keras_elmo.__version__}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(dest="command", required=True)
    shared_arguments = _read_arguments(_SHARED)
    for name, (run, shared, show, described_by) in _COMMANDS.items():
        description, _, own = (inspect.getdoc(run) or "").partition("\n\nCommand line:\n")
        subparser = commands.add_parser(
            name,
            help=description.partition(".")[0],
            description=description,
            argument_default=argparse.SUPPRESS,
        )
        subparser.set_defaults(run=run, show=show)
        texts = [*(_describe(_load(path)) for path in described_by if name == command), own]
        arguments = {name: shared_arguments[name] for name in shared}
        for argument, options in _read_arguments("\n".join(texts)).items():
            arguments[argument] = shared_arguments.get(argument, options)
        for argument, options in arguments.items():
            subparser.add_argument(argument, **options)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``keras-elmo`` and return its exit status."""
    argv = sys.argv[1:] if argv is None else argv
    given = vars(make_parser(argv[0] if argv else "").parse_args(argv))
    command, run, show = given.pop("command"), given.pop("run"), given.pop("show")
    as_json = given.pop("as_json", False)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # hides later lines of TensorFlow
    if isinstance(sys.stdout, io.TextIOWrapper):
        # The locale may be unable to encode a token, and UTF-8 a file name.
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda warning, *_, **__: print(
                f"keras-elmo {command}: warning: {warning}", file=sys.stderr
            )
            if (facts := run(**given)) is not None:
                print(json.dumps(facts)) if as_json else show(facts)
            sys.stdout.flush()
        return 0
    except BrokenPipeError:  # as in keras-elmo presets | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes at its end
        return 141
    except (OSError, ValueError, ImportError) as error:
        print(f"keras-elmo {command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"keras-elmo {command}: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
