"""Which entries are pictures, and of which form and size."""

from __future__ import annotations

from collections.abc import Sequence

from embodied.errors import ConfigError, did_you_mean

from ..facts import GymFacts
from ..pictures import BYTES, LAYOUTS, RGB, Form, declared_form, form_of
from ..settings import KEY
from ..sources import RENDER, TEXT, Source
from .wanted import MappingSettings, check_list, in_each, known, range_of


def images_of(settings: MappingSettings, facts: GymFacts) -> tuple[tuple[Source, Form], ...]:
    """Determines the pictures that are read from an env's values, with their forms. Raises :class:`ConfigError` for
    what is none, or has several meanings."""
    key = f"{KEY}.images"
    if settings.image_layout not in (None, *LAYOUTS):
        raise ConfigError(
            f"{KEY}.image_layout is {settings.image_layout!r}.{did_you_mean(str(settings.image_layout), LAYOUTS)}",
            f"set it to one of {', '.join(LAYOUTS)}, or to null: found out",
        )
    numbers = range_of(f"{KEY}.image_range", settings.image_range, "[0,1]: the numbers of black and of white")
    if settings.images is None:
        found = [name for name in facts.entries if name.split(".")[0] == "obs" and form_at(name, facts) is not None]
        if settings.image_layout is None and numbers is None:
            _check_clear(settings, facts, [])
            found = [name for name in found if isinstance(form_at(name, facts), Form)]
        return tuple((Source(name), _told(Source(name), facts, settings.image_layout, numbers)) for name in found)
    check_list(key, settings.images, "[render]")
    sources = [Source.of(text, key) for text in settings.images]
    _check_clear(settings, facts, [source.name for source in sources])
    return tuple((source, _told(source, facts, settings.image_layout, numbers)) for source in sources)


def _told(source: Source, facts: GymFacts, layout: str | None, numbers: tuple[float, float] | None) -> Form:
    """How an entry that is named as a picture is read."""
    key = f"{KEY}.images"
    if source.name == RENDER:
        if facts.frame is None:
            raise ConfigError(
                f"{key} names render, and the env renders no picture: {facts.no_frame}",
                "install what the env renders with (e.g. pip install 'gymnasium[classic-control]' for pygame), or "
                "name pictures of the observation",
            )
        return Form(RGB, 2, BYTES)
    shape, dtype = known(in_each(source, key, facts), key, facts)
    form = (
        "no picture" if dtype == TEXT else declared_form(shape, dtype, facts.bounds.get(source.name), layout, numbers)
    )
    clear = form_at(source.name, facts) if source.name in facts.entries else None
    for found in (form, clear):  # what is said is about those that are not clear
        if isinstance(found, Form):
            return found
    raise ConfigError(
        f"{key} names {source.name}, which is {dtype} {shape}, expected uint8 (H, W, 3): it is {form}",
        f"name some of: {_pictures(facts)}; or say what it is by {KEY}.image_layout ({', '.join(LAYOUTS)}) and "
        f"{KEY}.image_range, its numbers of black and white; a wrapper can bring others into this form",
    )


def _check_clear(wanted: MappingSettings, facts: GymFacts, named: Sequence[str]) -> None:
    """Refuses to make numbers of the state of what may be a picture, unless the user has said what it is."""
    if wanted.state is not None:
        return
    for name, (shape, dtype) in facts.entries.items():
        why = form_at(name, facts) if name.split(".")[0] == "obs" and name not in named else None
        if isinstance(why, str):
            raise ConfigError(
                f"{name} is {dtype} {shape}, {why}",
                _ways(name, facts),
            )


def _ways(name: str, facts: GymFacts) -> str:
    """What to set for an entry that is not clear. The other entries stay: both keys leave out what they do not name."""
    forms = {one: form_at(one, facts) for one, (_, dtype) in facts.entries.items()
             if one.split(".")[0] == "obs" and dtype != TEXT}  # fmt: skip
    images = [one for one, form in forms.items() if isinstance(form, Form)]
    state = [one for one, form in forms.items() if form is None]
    listed, plain = f"{KEY}.images=[{','.join(images)}]", f"{KEY}.state=[{','.join(state)}]"
    return (
        f"as a picture: {KEY}.images=[{','.join([*images, name])}] {plain} with {KEY}.image_layout (one of "
        f"{', '.join(LAYOUTS)}) and, where its numbers are neither 0 to 255 nor 0 to 1, {KEY}.image_range; as numbers: "
        f"{listed} {KEY}.state=[{','.join([*state, name])}]; without it: {listed} {plain}"
    )


def form_at(name: str, facts: GymFacts) -> Form | str | None:
    """Infers how an entry is read as a picture, as :func:`.pictures.form_of` does."""
    shape, dtype = facts.entries[name]
    return None if dtype == TEXT else form_of(shape, dtype, facts.bounds.get(name))


def _pictures(facts: GymFacts) -> str:
    names = [name for name in facts.entries if name.split(".")[0] == "obs" and isinstance(form_at(name, facts), Form)]
    return ", ".join([*names, *([RENDER] if facts.frame else [])]) or "no picture is there"


def _shape_of(source: Source, facts: GymFacts) -> tuple[int, ...]:
    shape = facts.frame if source.name == RENDER else facts.all_entries[source.name][0]
    assert shape is not None
    return shape


def size_of(settings: MappingSettings, facts: GymFacts, images: Sequence[tuple[Source, Form]]) -> tuple[int, int]:
    """Determines H and W of all pictures. Raises :class:`ConfigError` if they differ and none is asked for."""
    shapes = [form.size(_shape_of(source, facts)) for source, form in images]
    if settings.image_size is not None:
        given = settings.image_size
        sizes = [given, given] if isinstance(given, int) else list(given)
        if len(sizes) != 2 or not all(isinstance(side, int) and 4 <= side <= 4096 for side in sizes):
            raise ConfigError(
                f"{KEY}.image_size is {given!r}, expected pixels from 4 to 4096", f"set {KEY}.image_size=64 or [H,W]"
            )
        return sizes[0], sizes[1]
    if len(set(shapes)) > 1:
        raise ConfigError(
            f"the pictures of {KEY}.images have different sizes: {', '.join(map(str, shapes))}",
            f"set {KEY}.image_size and env.eval.image_size to the one that all are brought to",
        )
    return (shapes[0][0], shapes[0][1]) if shapes else (0, 0)
