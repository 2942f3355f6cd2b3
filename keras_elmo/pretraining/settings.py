"""The settings of a run, merged from flags, a file and the run that is resumed."""

import dataclasses
from typing import Any

from keras_elmo.config import BiLMConfig
from keras_elmo.presets import Preset
from keras_elmo.pretraining.recipe import Recipe
from keras_elmo.pretraining.run_folder import RunFolder
from keras_elmo.utils.checks import invalid
from keras_elmo.utils.files import PathLike, read_object

_ORIGINAL = BiLMConfig()
_FILTERS = _ORIGINAL.filters
# The sizes of --size; the last one is the released "original" model.
SIZES = {
    "mini": BiLMConfig(lstm_dim=512, projection_dim=128, n_highway=1, filters=_FILTERS[:5]),
    "small": BiLMConfig(
        lstm_dim=1024, projection_dim=256, n_highway=1, filters=(*_FILTERS[:5], (6, 256))
    ),
    "medium": BiLMConfig(lstm_dim=2048, projection_dim=256, n_highway=1, filters=_FILTERS[:6]),
    "original": _ORIGINAL,
}


def merge_settings(
    folder: PathLike,
    *,
    sizes: dict | None = None,
    recipe: dict | None = None,
    size: str | None = None,
    file: PathLike | None = None,
    resume: bool = False,
    init_from: str | None = None,
    own_vocabulary: bool = False,
) -> dict[str, Any]:
    """Return the arguments of ``Pretraining`` for a run, new or resumed.

    Arguments win over ``file``. ``file`` wins over the settings of the resumed run, or over the
    defaults of a new run. ``sizes`` win over ``size``.

    Args:
        folder: str or path. Folder of the run.
        sizes: dict. Fields of ``BiLMConfig``.
        recipe: dict. Fields of ``Recipe``.
        size: str. Named sizes of a biLM; the default is ``"original"``.
        file: str or path. JSON file, ``{"options": {...}, "recipe": {...}}``.
        resume: bool. Whether to continue the run in the folder, if there is one. A run that was
            killed before its first checkpoint keeps its settings too.
        init_from: str. Preset to start from.
        own_vocabulary: bool. Whether to predict the tokens of the corpus.

    Raises:
        ValueError: If a setting is unknown or contradicts another.

    Examples:
        >>> merge_settings("run", size="mini", recipe={"steps": 100})["config"].lstm_dim
        512
    """
    if size is not None and size not in SIZES:
        raise invalid(f"Expected a size of {', '.join(SIZES)}", f"size={size!r}")
    from_file = _read(file) if file else {}
    run = RunFolder(folder)
    base: dict = {}
    config = None
    if resume and run.has_settings:
        config, stored_recipe, origin = run.read_settings()
        base = dataclasses.asdict(stored_recipe)
        init_from = init_from or origin["init_from"]
        own_vocabulary = own_vocabulary or origin["own_vocabulary"]
    if "options" in from_file:
        config = BiLMConfig.from_options(from_file["options"], str(file))
    if size is not None:
        config = SIZES[size]
    if config is None and (sizes or init_from is None):
        config = _ORIGINAL if init_from is None else Preset(init_from).read_config()
    if config is not None:
        config = dataclasses.replace(config, **(sizes or {}))
    if own_vocabulary and not init_from:
        raise invalid("own_vocabulary requires init_from", "init_from=None")
    known = [field.name for field in dataclasses.fields(Recipe)]
    for given in (from_file.get("recipe", {}), recipe or {}):
        if unknown := sorted(given.keys() - set(known)):
            raise invalid(f"A recipe has the settings {', '.join(known)}", ", ".join(unknown))
        if given.get("steps") is not None or given.get("epochs") is not None:
            # Steps and epochs replace each other.
            base = {name: value for name, value in base.items() if name not in ("steps", "epochs")}
        base |= given
    return {
        "config": config,
        "recipe": Recipe(**base),
        "init_from": init_from,
        "own_vocabulary": own_vocabulary,
    }


def _read(file: PathLike) -> dict:
    content = read_object(file, "Settings")
    sections = ("options", "recipe", "origin")  # a run stores its origin too
    is_dict = all(isinstance(content.get(name, {}), dict) for name in sections)
    if not (content.keys() <= set(sections) and is_dict):
        raise invalid(
            'Expected settings as {"options": {...}, "recipe": {...}}, or one of the two',
            f"{', '.join(content)} in {file}",
        )
    return content
