"""The commands that a worker has been given and not answered, and what follows from them."""

from __future__ import annotations

from collections.abc import Collection

from embodied.runtime.channel import Command, Completion, Kind


class Books:
    """Commands of a worker's slots. Who inherits this has the fields; they begin empty, and 0."""

    batch: bool  # its slots are stepped together, in rounds (:mod:`embodied.runtime.worker.batch`)
    pending: dict[int, Command]  # unanswered commands by slot, oldest first
    resets: int  # number of RESETs in pending
    in_episode: set[int]  # slots that were reset and whose episode has not ended

    @property
    def waits(self) -> bool:
        """True if its batch cannot step: some slot in the middle of its episode has no command."""
        return self.batch and not self.resets and len(self.pending) < len(self.in_episode)

    @property
    def moving(self) -> Collection[int]:
        """Slots whose command it will answer, whatever else it is told. While a batch resets some of its slots, the
        launcher does not know whether the steps of the others are executed with them."""
        if self.batch and self.resets:
            return [slot for slot, command in self.pending.items() if command.kind == Kind.RESET]
        return () if self.waits else self.pending.keys()

    def note(self, command: Command) -> None:
        """Notes a command that was given."""
        self.pending[command.slot] = command
        self.resets += command.kind == Kind.RESET

    def cross_off(self, done: Completion) -> None:
        """Notes the answer to a command."""
        del self.pending[done.slot]
        if done.kind == Kind.RESET:
            self.resets -= 1
            self.in_episode.add(done.slot)
        elif done.ended:
            self.in_episode.discard(done.slot)
