"""What follows from several keys of theirs together, once each is translated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import ceil
from typing import Any

import yaml

from embodied.migrate import texts
from embodied.migrate.flow import fit_flow
from embodied.migrate.processes import count_processes
from embodied.migrate.result import Migration
from embodied.migrate.trl.fit import fit_trl
from embodied.schema.compose.compose import compose
from embodied.schema.keys.sections.actor import ActorConfig
from embodied.schema.others.translation import number_of

BATCH, PASS, VALUES = "actor.global_batch_size", "actor.micro_batch_size", "actor.model.value_head"
ENGINE, LEVEL = "rollout.backend", "algorithm.reward_type"
STEPS = "runner.max_steps"
LIMIT, ACTIONS = "env.train.max_episode_steps", "actor.model.num_action_chunks"
LENGTHS = {LIMIT, ACTIONS}
LONGEST, ROOM = "algorithm.sampling_params.max_new_tokens", "actor.model.max_new_tokens"
ADVANTAGE, WHITEN = "algorithm.adv_type", "algorithm.normalize_advantages"
OF_TOKENS = ("gae", "reinforce_plus_plus", "reinforce_plus_plus_baseline")
"""Estimators that the others compute, or whiten, over the tokens of texts."""


def fit(migration: Migration, system: str, kind: str, flat: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Adds what follows from several keys, and takes out what they leave no room for.

    Args:
        kind: text, robot or supervised.
    """
    if kind == "robot" and system in ("verl", "cosmos-rl"):
        _count_chunks(migration)
    if system == "trl":
        fit_trl(migration, flat)
    _fit_passes(migration)
    _give_room(migration)
    _fit_data(migration, system, flat, overrides)
    _count_iterations(migration)
    _give_values(migration, system)
    fit_flow(migration, flat)
    count_processes(migration, system, flat)
    _whiten_over_tokens(migration)


def _count_chunks(migration: Migration) -> None:
    """Makes records of episodes: SimpleVLA-RL and Cosmos-RL count a robot's batch in episodes, and here each has as
    many records as it has chunks at most."""
    for number, note in enumerate(migration.notes):
        episodes = note.settings.get(BATCH)
        if not isinstance(episodes, int):
            continue
        if (chunks := _chunks(migration)) is None:
            kept = {name: one for name, one in note.settings.items() if name != BATCH}
            why = f"{episodes} episodes, whose chunks cannot be counted here: set {BATCH} to {episodes} · chunks of one"
            migration.notes[number] = replace(note, how="extra", settings=kept, why=why)
            del migration.settings[BATCH]
            migration.open.setdefault(BATCH, f"{note.key} = {note.value}: {why}")
            continue
        migration.settings[BATCH] = records = episodes * chunks
        why = f"{episodes} episodes · {chunks} chunks of the longest"
        migration.notes[number] = replace(note, how="derived", settings={**note.settings, BATCH: records}, why=why)


def _chunks(migration: Migration) -> int | None:
    """Chunks of an episode that nothing ends before the step limit; None if nobody knows them."""
    if not {"env", "model"} <= set(migration.groups) or LENGTHS & migration.withheld():
        return None
    steps, actions = _usual_lengths(migration.groups["env"], migration.groups["model"])
    steps = number_of(migration.settings.get(LIMIT)) or steps
    actions = number_of(migration.settings.get(ACTIONS)) or actions
    return ceil(steps / actions)


@cache
def _usual_lengths(env: str, model: str) -> tuple[float, float]:
    """Control steps of an episode, and actions of a chunk, as the groups have them."""
    config = compose([f"env={env}", f"model={model}", "actor.model.model_path=null"], "train").config
    actions = number_of((config.actor.model.model_extra or {}).get("num_action_chunks"))
    return float(config.env.train.max_episode_steps or 1), actions or 1.0


def _fit_passes(migration: Migration) -> None:
    """Makes a pass no larger than the optimizer batch, which others allow: there a batch may be one pass."""
    batch, usual = migration.settings.get(BATCH), ActorConfig.model_fields["micro_batch_size"].default
    records = migration.settings.get(PASS, usual)
    if not isinstance(batch, int) or not isinstance(records, int) or records <= batch:
        return
    migration.settings[PASS] = batch
    for number, note in enumerate(migration.notes):
        if BATCH in note.settings:
            why = f"{note.why}; " if note.why else ""
            note = replace(note, settings={**note.settings, PASS: batch}, why=f"{why}a pass has no more records")
        migration.notes[number] = note


def _give_room(migration: Migration) -> None:
    """Gives the policy room for their longest answer: it is cut at ``actor.model.max_new_tokens``, 256 by default."""
    longest = migration.settings.get(LONGEST)
    if migration.groups.get("model") != "causal_lm" or not isinstance(longest, int):
        return
    if {ROOM, "runner.seq_length"} & {*migration.settings, *migration.withheld()}:
        return
    migration.settings[ROOM] = longest
    for number, note in enumerate(migration.notes):
        if LONGEST in note.settings:
            migration.notes[number] = replace(note, how="derived", settings={**note.settings, ROOM: longest})


def _fit_data(migration: Migration, system: str, flat: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Adds what follows from the problems themselves: those of ``overrides`` if it names some."""
    if not isinstance(migration.settings.get(texts.TRAIN), list) and texts.TRAIN not in migration.withheld():
        return
    mine = dict(one.split("=", 1) for one in overrides if one.startswith((f"{texts.TRAIN}=", f"{texts.VALIDATION}=")))
    known = {**migration.settings, **{key: yaml.safe_load(value) for key, value in mine.items()}}
    for number, note in enumerate(migration.notes):
        if note.key.partition(" ")[0] in texts.PASSES and texts.ITERATIONS in note.settings:
            del migration.settings[texts.ITERATIONS]
            said, how, why = texts.iterations(note.settings[texts.ITERATIONS], known)
            migration.settings |= said
            migration.notes[number] = replace(note, how=how, settings=said, why=why)
    if system == "verl" and not any(key in flat for key in texts.SUPERVISED):
        for note in texts.of_data(known):
            migration.settings |= note.settings
            migration.notes.append(note)


def _count_iterations(migration: Migration) -> None:
    """Makes a run as long as its cap where nothing else says how long it is: there the cap is the length."""
    steps = migration.settings.get(STEPS)
    if isinstance(steps, int) and steps > 0 and texts.ITERATIONS not in migration.settings:
        migration.settings[texts.ITERATIONS] = steps
        for number, note in enumerate(migration.notes):
            if STEPS in note.settings:
                settings = {**note.settings, texts.ITERATIONS: steps}
                migration.notes[number] = replace(note, how="derived", settings=settings, why="so many iterations")


def _give_values(migration: Migration, system: str) -> None:
    """Gives the policy a value head where advantages need one: others have a critic beside the policy. An engine gives
    no values. verl always normalises what follows from them, and so does ROLL's critic learn from squares."""
    if migration.settings.get(ADVANTAGE) != "gae":
        return
    more: dict[str, Any] = {} if "model" in migration.open else {VALUES: True}
    if texts.TRAIN in migration.settings:
        more |= {WHITEN: True} if system == "verl" else {}
        more |= {"algorithm.value_loss": "mse"} if system in ("verl", "roll") else {}
    migration.settings |= more
    for number, note in enumerate(migration.notes):
        if note.settings.get(ADVANTAGE) == "gae":
            why = "the policy gives the values, in the place of a critic"
            migration.notes[number] = replace(note, how="derived", settings={**note.settings, **more}, why=why)
        if note.settings.get(ENGINE) == "vllm":
            migration.settings[ENGINE] = "native"
            why = "vLLM gives no values, and algorithm.adv_type gae needs them"
            migration.notes[number] = replace(note, how="derived", settings={ENGINE: "native"}, why=why)


def _whiten_over_tokens(migration: Migration) -> None:
    """Sets token-level rewards where the others whiten advantages of texts over tokens, in which a long answer counts
    more; here the level of the rewards says over what they are whitened."""
    advantage = migration.settings.get(ADVANTAGE)
    if texts.TRAIN not in migration.settings or LEVEL in migration.settings:
        return
    if advantage not in OF_TOKENS and migration.settings.get(WHITEN) is not True:
        return
    migration.settings[LEVEL] = "token_level"
    says = WHITEN if advantage not in OF_TOKENS else ADVANTAGE
    for number, note in enumerate(migration.notes):
        if says in note.settings:
            why = "; ".join(filter(None, [note.why, "advantages are whitened over tokens"]))
            settings = {**note.settings, LEVEL: "token_level"}
            migration.notes[number] = replace(note, how="derived", settings=settings, why=why)
