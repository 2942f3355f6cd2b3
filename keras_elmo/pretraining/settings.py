"""The settings of a run, from all the places where they can stand."""

import dataclasses

from keras_elmo.config import BiLMConfig
from keras_elmo.presets import Preset
from keras_elmo.pretraining.recipe import Recipe
from keras_elmo.pretraining.run_folder import RunFolder
from keras_elmo.utils.files import read_options

_ORIGINAL = BiLMConfig()
_FILTERS = _ORIGINAL.filters
# What --size names; the last one is the released model.
SIZES = {
    "mini": BiLMConfig(lstm_dim=512, projection_dim=128, n_highway=1, filters=_FILTERS[:5]),
    "small": BiLMConfig(
        lstm_dim=1024, projection_dim=256, n_highway=1, filters=(*_FILTERS[:5], (6, 256))
    ),
    "medium": BiLMConfig(lstm_dim=2048, projection_dim=256, n_highway=1, filters=_FILTERS[:6]),
    "original": _ORIGINAL,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What a run is made with.

    Attributes:
        config: The ``BiLMConfig``; None for that of ``init_from``.
        recipe: The ``Recipe``.
        init_from: Preset to start from, or None.
        own_vocabulary: Whether to predict the tokens of the corpus and not of ``init_from``.
        devices: That share each batch; None for all of several processes, or for one.
    """

    config: BiLMConfig | None
    recipe: Recipe
    init_from: str | None = None
    own_vocabulary: bool = False
    devices: int | None = None


def merge_settings(
    folder,
    *,
    sizes=None,
    recipe=None,
    size=None,
    file=None,
    resume=False,
    init_from=None,
    own_vocabulary=False,
    devices=None,
) -> RunSettings:
    """Put the settings of a run together.

    What is given here wins over ``file``, and that over the settings of the run in the
    folder, if it is resumed, or else over the defaults; ``sizes`` win over ``size``.

    Args:
        folder: The run's folder.
        sizes: Dict of fields of ``BiLMConfig``.
        recipe: Dict of fields of ``Recipe``.
        size: ``"mini"``, ``"small"``, ``"medium"`` or ``"original"``.
        file: Path of a JSON file, ``{"options": {...}, "recipe": {...}}``.
        resume: Whether to go on with the run in the folder, if there is one, be it that it was
            killed before its first checkpoint.
        init_from: Preset to start from. With sizes too its biLM grows to them.
        own_vocabulary: See ``RunSettings``.
        devices: See ``RunSettings``; None for those of the run, if it is resumed.

    Returns:
        The ``RunSettings``.

    Raises:
        ValueError: If a setting is unknown or contradicts another.

    Example:

    >>> merge_settings("run", size="mini", recipe={"steps": 100}).config.lstm_dim
    512
    """
    sizes, recipe = dict(sizes or {}), dict(recipe or {})
    if size is not None and size not in SIZES:
        raise ValueError(f"Expected a size of {', '.join(SIZES)}. Received: size={size!r}")
    of_file = _read(file) if file else {}
    run = RunFolder(folder)
    base, config = {}, None
    if resume and run.has_settings:
        stored = run.read_settings()
        base, config = dataclasses.asdict(run.read_recipe()), run.read_config()
        origin = stored["origin"]
        init_from = init_from or origin["init_from"]
        own_vocabulary = own_vocabulary or origin["own_vocabulary"]
        devices = origin["devices"] if devices is None else devices
    if "options" in of_file:
        config = BiLMConfig.from_options(of_file["options"], str(file))
    if size is not None:
        config = SIZES[size]
    if sizes:
        config = dataclasses.replace(config or _base_config(init_from), **sizes)
    if config is None and init_from is None:
        config = _ORIGINAL
    if own_vocabulary and not init_from:
        raise ValueError("A vocabulary of one's own belongs to init_from. Received: no preset")
    of_file = of_file.get("recipe", {})
    names = [field.name for field in dataclasses.fields(Recipe)]
    if odd := sorted((of_file.keys() | recipe.keys()) - set(names)):
        raise ValueError(f"A recipe has {', '.join(names)}. Received: {', '.join(odd)}")
    return RunSettings(
        config=config,
        recipe=Recipe(**_over(recipe, _over(of_file, base))),
        init_from=init_from,
        own_vocabulary=own_vocabulary,
        devices=devices,
    )


def _over(given, base):
    """Return the settings of ``base`` with those given; steps take the place of epochs."""
    lengths = ("steps", "epochs")
    if any(given.get(name) is not None for name in lengths):
        base = {name: value for name, value in base.items() if name not in lengths}
    return base | given


def _base_config(init_from):
    return _ORIGINAL if init_from is None else Preset(init_from).read_config()


def _read(file) -> dict:
    content = read_options(file, str(file))
    parts = ("options", "recipe")
    fits = isinstance(content, dict) and content.keys() <= set(parts)
    if not fits or not all(isinstance(content.get(part, {}), dict) for part in parts):
        found = ", ".join(content) if isinstance(content, dict) else type(content).__name__
        raise ValueError(
            'Expected settings as {"options": {...}, "recipe": {...}}, or one of the two. '
            f"Received: {found} in {file}"
        )
    return content
