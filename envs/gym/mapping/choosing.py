"""Settles what the configuration leaves open, and checks the rest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embodied.errors import ConfigError, did_you_mean

from ..facts import Entries, GymFacts
from ..late import SUCCESS
from ..settings import KEY
from ..sources import OF_A_STEP, RENDER, TEXT, Rule, Source, listed
from .images import form_at, images_of, size_of
from .mapped import ResolvedMapping
from .wanted import MappingSettings, check_list, in_each, known, range_of


def mapping_of(settings: MappingSettings, facts: GymFacts) -> ResolvedMapping:
    """Determines how an env's values are read: takes what the configuration says, infers what it leaves open, and
    checks both.

    Raises:
        ConfigError: an entry is not there or is of another kind; the message lists those that are.
    """
    images = images_of(settings, facts)
    size = size_of(settings, facts, images)
    state = _state(settings, facts, [source for source, _ in images])
    dims = [_dims(source, facts.entries) for source in state]
    instruction = None
    if settings.instruction_from is not None:
        instruction = _entry(settings.instruction_from, f"{KEY}.instruction_from", facts, (TEXT,))
    low, high = range_of(
        f"{KEY}.progress_range",
        settings.progress_range,
        "[0,10]: what stands for no progress, and what for a solved task",
    ) or (0.0, 0.0)
    success = _success(settings, facts)
    progress = _number(Source.of(settings.progress, f"{KEY}.progress"), f"{KEY}.progress", facts)
    named = (f"{KEY}.success", success.source), (f"{KEY}.progress", progress)
    awaited = tuple((key, source) for key, source in named if not source.may_miss and _is_unseen(source, facts))
    features = _named(f"{KEY}.progress_features", settings.progress_features or (), facts)
    return ResolvedMapping(
        images, size, settings.rotate_images, state, sum(dims), instruction, settings.instruction_bytes, success,
        progress, low, high, awaited, features, sum(_dims(source, facts.entries) for source in features),
    )  # fmt: skip


def reads(mapped: ResolvedMapping, facts: GymFacts) -> dict[str, str]:
    """Describes what success is, and which entries are read as pictures of which form."""
    rule = mapped.success
    name = rule.source.name
    late = ", which is there when an episode ends" if name in facts.late or _is_unseen(rule.source, facts) else ""
    late = ", judged at the end of an episode: each begins with 0" if rule.at_end else late
    compared = f" {rule.compare} {rule.bound:g}" if rule.compare else ""
    forms = []
    for source, form in mapped.images:
        shape, dtype = facts.all_entries.get(source.name, ((), "uint8"))
        if not form.plain or dtype != "uint8":
            forms.append(f"{source.name} {dtype} {shape} as {form}")
    return {"success": f"{name}{compared}{late}", **({"pictures": "; ".join(forms)} if forms else {})}


def _state(wanted: MappingSettings, facts: GymFacts, images: Sequence[Source]) -> tuple[Source, ...]:
    key = f"{KEY}.state"
    if wanted.state is not None:
        return _named(key, wanted.state, facts)
    taken = {source.name for source in images}
    return tuple(
        Source(name)
        for name, kind in facts.entries.items()
        if name.split(".")[0] == "obs" and name not in taken and kind[1] != TEXT and form_at(name, facts) is None
    )


def _named(key: str, texts: Sequence[str], facts: GymFacts) -> tuple[Source, ...]:
    """Checks the sources of numbers that a key names, and returns them."""
    check_list(key, texts, "[obs]")
    sources = tuple(_entry(text, key, facts, ()) for text in texts)
    for text, source in zip(texts, sources, strict=True):
        if source.part is not None and _dims(source, facts.entries) == 0:
            size = _dims(Source(source.name), facts.entries)
            raise ConfigError(
                f"{key} names {text}, which has no numbers: {source.name} has {size}",
                f"name some of them, e.g. {source.name}[0:{max(size, 1)}], or leave {text} out",
            )
    return sources


def _dims(source: Source, entries: Entries) -> int:
    size = int(np.prod(entries[source.name][0], dtype=np.int64))
    return size if source.part is None else len(range(size)[source.part])


def _success(wanted: MappingSettings, facts: GymFacts) -> Rule:
    key = f"{KEY}.success"
    if wanted.success is not None:
        rule = Rule.of(wanted.success, key)
        _number(rule.source, key, facts)
        return rule
    for name in SUCCESS:
        if name in facts.all_entries and name not in facts.silent and _is_one_number(facts.all_entries[name]):
            return Rule(Source(name))
    if facts.threshold is not None:
        return Rule(Source("return"), ">=", facts.threshold)
    silent = f" ({', '.join(facts.silent)} is neither true nor false)" if facts.silent else ""
    ends = "" if facts.whole else "; the trial saw no episode end, so what is only there at the end is not known"
    raise ConfigError(
        f"the env does not say when it is solved: it has neither info.is_success nor info.success{silent} nor a "
        f"registered reward threshold. It has {listed(facts.all_entries)}{ends}",
        f"set {key} to an entry (info.KEY, also one that is only there when an episode ends), to terminated, or to a "
        "rule such as 'return>=200' or 'reward>=0.9'; an evaluation follows it, unless env.eval.success is given too",
    )


def _is_one_number(kind: tuple[tuple[int, ...], str]) -> bool:
    return kind[1] != TEXT and int(np.prod(kind[0], dtype=np.int64)) == 1


def _number(source: Source, key: str, facts: GymFacts) -> Source:
    """Checks that a source is one number. What the trial has not seen of ``info`` is taken on the user's word."""
    if source.name in OF_A_STEP:
        return source
    if source.name != RENDER and _is_unseen(source, facts):
        near = did_you_mean(source.name, facts.all_entries)
        if not source.may_miss and (near or facts.whole):
            raise ConfigError(
                f"{key} names {source.name}, which the env does not have.{near}",
                f"there are: {listed(facts.all_entries)}; or write {source.name}? if only some episodes have it at "
                "their end",
            )
        return source
    if source.name == RENDER or known(source, key, facts)[1] == TEXT:
        raise ConfigError(f"{key} names {source.name}, which is no number", f"there are: {listed(facts.all_entries)}")
    if (count := _dims(source, facts.all_entries)) != 1:
        raise ConfigError(
            f"{key} names {source.name}, which has {count} numbers here, expected one",
            f"name one of them, e.g. {source.name}[0:1]",
        )
    return source


def _is_unseen(source: Source, facts: GymFacts) -> bool:
    return source.name.startswith("info.") and source.name not in facts.all_entries


def _entry(text: str, key: str, facts: GymFacts, dtypes: tuple[str, ...]) -> Source:
    source = in_each(Source.of(text, key), key, facts)
    kind = known(source, key, facts)
    if (kind[1] == TEXT) != (TEXT in dtypes):
        wanted = "text" if dtypes else "numbers"
        raise ConfigError(
            f"{key} names {text}, which is {kind[1]} {kind[0]}, expected {wanted}",
            f"there are: {listed(facts.entries)}",
        )
    return source
