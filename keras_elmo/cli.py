"""The command ``keras-elmo``: a subcommand for each task of the package.

The signature and the docstring of the function of a subcommand give its arguments and their help.
Only the subcommands of pretraining need Keras. They import it when they run, so that the help and
errors in arguments appear at once.
"""

import argparse
import dataclasses
import inspect
import io
import json
import os
import re
import sys
import textwrap
import typing
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import keras_elmo
from keras_elmo.config import BiLMConfig
from keras_elmo.embed.embed_file import embed_file
from keras_elmo.embed.embedder import Embedder
from keras_elmo.embed.engine_choice import choose_engine
from keras_elmo.hub import upload
from keras_elmo.onnx.export import export_onnx
from keras_elmo.prepare import prepare
from keras_elmo.presets import bundled_facts, convert, open_preset
from keras_elmo.recipe import SIZES, Recipe
from keras_elmo.released_models import download, is_downloaded, released_models
from keras_elmo.text_input import read_lines, read_sentences, tokenize_file
from keras_elmo.tokenizers.text_tokens import make_tokenizer
from keras_elmo.utils.checks import invalid
from keras_elmo.utils.cpu import advise, cpu_flags

# The result of a subcommand, which it prints.
Facts: TypeAlias = dict[str, Any]


# argparse puts the names of these three functions into its errors.
def filters(text: str) -> tuple[tuple[int, int], ...]:
    """Read pairs of a width and a number of filters, such as ``1:32,2:64``."""
    pairs = (pair.split(":") for pair in text.split(","))
    return tuple((int(width), int(count)) for width, count in pairs)


def weight(text: str) -> tuple[str, float]:
    """Read the name of an input and a number, such as ``news=2``."""
    name, _, times = text.rpartition("=")
    return name, float(times)


def layers(text: str) -> str | int | list[float]:
    """Read a name, the number of a layer, or the weight of each layer."""
    try:
        return [float(x) for x in text.split(",")] if "," in text else int(text)
    except ValueError:
        return text


# Parameters that no command has.
_HIDDEN = (
    "given embedder cache max_characters_per_token activation cell_clip projection_clip "
    "use_skip_connections code_points"
).split()
# The flags of parameters with other names.
_FLAGS = {"overwrite": "--force", "progress": "--quiet", "weights": "--weight"}
# The help of parameters whose docstrings are written for Python programs.
_HELP = {
    "heldout": "Texts that the biLM is not trained on.",
    "layers": "all, top, average, the number of a layer, from 0, or all weights, as 0.2,0.5,0.3.",
    "options": "JSON options of the biLM, for formats that do not record all of them.",
    "overwrite": "Replace an output that exists.",
    "preset": "Bundled or released model, hf://user/model, or path of a directory, archive or "
    "checkpoint with a biLM.",
    "preset_or_run": "Preset with vocab.txt and softmax.hdf5, checkpoint of bilm-tf with "
    "vocab.txt, or folder of keras-elmo pretrain.",
    "progress": "Show no progress bar.",
    "tokenizer": "penn for English, toktok for many languages, kiwi for Korean, letters for "
    "proteins, whitespace for tokenised text.",
}
# Options of ``add_argument`` that do not follow from the annotation of a parameter.
_OPTIONS: dict[str, dict[str, Any]] = {
    "data": {"metavar": "FILE"},
    "filters": {"type": filters, "metavar": "WIDTH:COUNT,..."},
    "heldout": {"nargs": "*", "action": "extend", "metavar": "FILE"},
    "inputs": {"nargs": "+", "metavar": "INPUT"},
    "layers": {"type": layers, "metavar": "LAYERS"},
    "options": {"metavar": "FILE"},
    "size": {"choices": list(SIZES)},
    "vocabulary": {"metavar": "FILE"},
    "weights": {"type": weight, "action": "append", "metavar": "NAME=TIMES"},
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


def _pop(given: dict[str, Any], described: Callable) -> dict[str, Any]:
    """Remove the arguments of a function or a dataclass from ``given``, and return them."""
    names = inspect.signature(described).parameters.keys() & given.keys()
    return {name: given.pop(name) for name in names}


def _info(preset: str, options: str | None = None) -> Facts:
    """Show the sizes of a biLM, whose files are read and checked."""
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


def _presets(language: str | None = None) -> list[Facts]:
    """List bundled and released models.

    Args:
        language: str or None. List the models of this language only: en, ko, ...
    """
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


def _download(name: str) -> Facts:
    """Download a released model into the cache.

    Args:
        name: str. A name that keras-elmo presets lists, or hf://user/model.
    """
    path = str(download(name))
    return {"preset": name, "path": path, "read with": f"ElmoLayer.from_preset({name!r})"}


def _upload(address: str, **given: Any) -> Facts:
    """Upload the directory of a preset to the Hugging Face Hub."""
    commit = upload(address=address, **given)
    return {"commit": commit, "read with": f"ElmoLayer.from_preset({address!r})"}


def _embed(preset: str, input_file: str, output_file: str, **given: Any) -> Facts:
    """Write the layer representations of sentences to a file.

    Args:
        input_file: str. UTF-8 text, plain, .gz, .bz2 or .xz, one sentence per line; or - for
            stdin; or a table: CSV, .tsv (a line is a row, a quote is text), JSON lines or Parquet.
    """
    source = sys.stdin.buffer if input_file == "-" else input_file
    facts = Embedder(preset, **_pop(given, Embedder)).embed_file(source, output_file, **given)
    read = f"h5py.File({output_file!r})['0'][:]  # the first sentence"
    return {**facts, "output": output_file, "read with": read}


def _tokenize(output_file: str, **given: Any) -> Facts | None:
    """Split a text into tokens, as a biLM needs them."""
    counts = tokenize_file(output_file=output_file, **given)
    return None if output_file == "-" else counts


def _pretrain(
    corpus: str,
    folder: str,
    size: str | None = None,
    init_from: str | None = None,
    own_vocabulary: bool = False,
    resume: bool = False,
    save_every: int = 500,
    progress: bool = True,
    **given: Any,
) -> Facts:
    """Train a biLM on a corpus, or fine-tune one.

    Args:
        corpus: str. Folder that keras-elmo prepare made.
        folder: str. Folder of the run, with checkpoint and log.
        size: str or None. Size of the biLM: mini has 512 LSTM cells, projected to 128 features, in
            each layer and direction; small 1024 and 256; medium 2048 and 256; original, the size
            of the paper, 4096 and 512. The flags of single sizes change it. Default: original.
        init_from: str or None. Preset to start from, for fine-tuning, with its sizes.
        own_vocabulary: bool. Predict the tokens of the corpus, with a new softmax, instead of the
            preset's.
        resume: bool. Continue the run in the folder with its settings, if there is one.
        save_every: int. Steps between checkpoints.
    """
    from keras_elmo.pretraining import Pretraining
    from keras_elmo.pretraining.run_folder import RunFolder

    sizes, changes = _pop(given, BiLMConfig), _pop(given, Recipe)
    config, recipe, run_folder = None, Recipe(), RunFolder(folder)
    if resume and run_folder.settings.is_file():
        config, recipe, _ = run_folder.read_settings()
    if size:
        config = SIZES[size]
    if sizes:
        config = dataclasses.replace(config or SIZES["original"], **sizes)
    if changes.keys() & {"steps", "epochs"}:  # they replace each other
        changes = {"steps": None, "epochs": None, **changes}
    run = Pretraining(
        folder,
        corpus,
        config,
        dataclasses.replace(recipe, **changes),
        save_every=save_every,
        resume=resume,
        init_from=init_from,
        own_vocabulary=own_vocabulary,
    )
    run.run(progress=progress)
    return {name: run.facts[name] for name in ("step", "tokens", "seconds", "perplexity")}


def _scorer(path: str, options: str | None) -> Any:
    """Return the ``Scorer`` of a preset or a run."""
    from keras_elmo.pretraining import Scorer, read_language_model, read_run
    from keras_elmo.pretraining.run_folder import RunFolder

    if RunFolder(path).settings.is_file():
        if options:
            raise ValueError(f"--options are for a preset. Received: {path}, a run with options")
        return Scorer(*read_run(path)[:2])
    return Scorer(*read_language_model(path, options=options))


def _perplexity(preset_or_run: str, file: str, options: str | None = None) -> Facts:
    """Measure the perplexity of tokenised sentences with the full softmax.

    Args:
        file: str. UTF-8 text, plain, .gz, .bz2 or .xz, one sentence per line. A token outside the
            vocabulary is read by its characters and predicted as <UNK>.
    """
    return _scorer(preset_or_run, options).perplexity(read_sentences(file))


def _substitutes(
    preset_or_run: str, sentence: str, top: int = 10, options: str | None = None
) -> Facts:
    """Show the words that a biLM expects in the place of a word, with probabilities.

    Args:
        sentence: str. Text with one word in brackets: 'Out of [order].' Without a known tokenizer
            of the preset, write spaces between tokens.
        top: int. Number of words.
    """
    marked = re.fullmatch(r"([^\[\]]*)\[([^\[\]\s]+)\]([^\[\]]*)", sentence)
    if marked is None:
        raise invalid("Expected one word in brackets, as in 'Out of [order].'", repr(sentence))
    before, word, after = marked.groups()
    tokenize = make_tokenizer(open_preset(preset_or_run).tokenizer or "whitespace", True)
    # With a word after it, the period of "Mr." stays in the token.
    left, right = tokenize(f"{before} x")[:-1], tokenize(after)
    return _scorer(preset_or_run, options).substitutes([*left, word, *right], len(left), top)


def _export(
    folder: str,
    output: str,
    heldout: Sequence[str] = (),
    data: str = "",
    license: str | None = None,
    language: str | None = None,
    bits: int = 16,
    overwrite: bool = False,
) -> Facts:
    """Write the last checkpoint of a run as a preset.

    Args:
        folder: str. Folder of keras-elmo pretrain.
        output: str. Directory of the new preset.
        data: str. Markdown file on data sources, licence and credit.
        license: str or None. Licence of the weights, as the Hugging Face Hub writes it.
        language: str or None. Language of the text, an ISO 639 code: en.
        bits: int. Significant bits of the weights of the biLM.
    """
    from keras_elmo.pretraining import export_run

    data = "\n".join(read_lines(data)) if data else ""
    export_run(folder, output, heldout, data, license, language, bits, overwrite)
    return {"preset": output, "read with": f"ElmoLayer.from_preset({output!r})"}


def _add_arguments(command: argparse.ArgumentParser, described: Iterable[Callable]) -> None:
    """Add the arguments of functions and dataclasses. Those with a default become flags.

    The docstring gives the help. An entry, as in ``top: int. Number of words.``, has the name, the
    kind without a full stop, and the help.
    """
    parameters: dict[str, inspect.Parameter] = {}
    texts = dict(_HELP)
    entry = re.compile(r"^    (\w+): [^.]*\. (.*(?:\n        .*)*)", re.MULTILINE)
    for function in described:  # the first entry of a name counts
        for name, parameter in inspect.signature(function).parameters.items():
            if name not in _HIDDEN:
                parameters.setdefault(name, parameter)
        for name, text in entry.findall(inspect.getdoc(function) or ""):
            text = " ".join(text.replace("`", "").replace("%", "%%").split())
            text = text.removeprefix("Whether to ")
            texts.setdefault(name, text[:1].upper() + text[1:])
    for name, parameter in parameters.items():
        text, options, default = texts.get(name, ""), _OPTIONS.get(name, {}), parameter.default
        if default is inspect.Parameter.empty:
            options = {"metavar": name.removesuffix("_file").upper(), **options}
            command.add_argument(name, help=text, **options)
            continue
        if isinstance(default, bool):
            options = {"action": "store_false" if default else "store_true"}
        else:
            kinds = typing.get_args(parameter.annotation) or (parameter.annotation,)
            kind = int if int in kinds else float if float in kinds else str
            metavar = {int: "INT", float: "FLOAT", str: "NAME"}[kind]
            options = {"type": kind, "metavar": metavar, **options}
            if isinstance(default, int | float | str) and default != "":
                text += f" Default: {default}."
        flag = _FLAGS.get(name, f"--{name.replace('_', '-')}")
        command.add_argument(flag, dest=name, help=text, **options)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of ``keras-elmo``. A flag that is not given is absent from the result."""
    parser = argparse.ArgumentParser(
        prog="keras-elmo", description="Deep contextualized word representations for Keras 3."
    )
    version = f"keras-elmo {keras_elmo.__version__}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(dest="command", required=True)

    def add(run: Callable, *described: Callable, show: Callable = _show) -> None:
        """Add a subcommand that calls ``run``, with the arguments of ``described`` or ``run``."""
        name = run.__name__.removeprefix("_").replace("_", "-")
        text = (inspect.getdoc(run) or "").partition("\n\n")[0]
        command = commands.add_parser(
            name, help=text, description=text, argument_default=argparse.SUPPRESS
        )
        command.set_defaults(run=run, show=show)
        _add_arguments(command, described or (run,))
        command.add_argument("--json", action="store_true", help="Print the result as JSON.")

    add(_info)
    add(_presets, show=_show_presets)
    add(_download)
    add(_upload, upload)
    add(convert)
    add(export_onnx)
    add(_tokenize, tokenize_file)
    add(_embed, _embed, Embedder, embed_file)
    add(prepare)
    add(_pretrain, _pretrain, BiLMConfig, Recipe)
    add(_export)
    add(_perplexity)
    add(_substitutes, show=_show_substitutes)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``keras-elmo`` and return its exit status."""
    given = vars(make_parser().parse_args(argv))
    command, run, show = given.pop("command"), given.pop("run"), given.pop("show")
    as_json = given.pop("json", False)
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it at exit
        return 141
    except (OSError, ValueError, ImportError) as error:
        print(f"keras-elmo {command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"keras-elmo {command}: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
