"""Workers that end while their memory is needed, and start again."""

from __future__ import annotations

import os
from pathlib import Path

from rig import BOTH_STARTS
from test_pool import alive, descendants, reset

from embodied.runtime.channel import Kind


def resident(pids):
    """Bytes that processes hold in memory."""
    pages = (int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1]) for pid in pids if alive(pid))
    return sum(pages) * os.sysconf("SC_PAGE_SIZE")


@BOTH_STARTS
def test_workers_rest_and_give_back_what_they_hold(make_rig):
    """The fork server stays; a worker that was woken is like the first."""
    before = descendants()
    rig = make_rig(slots=2, workers=2, target="broken_envs.Heavy")
    server = descendants() - before - {*rig.pool.pids}
    seen = []
    for _ in range(2):
        for slot in (0, 1):
            reset(rig, slot, slot)
        assert [done.kind for done in rig.pool.recv(2)] == [Kind.RESET] * 2
        seen.append(rig.slab.arrays["images"][:2].tobytes())
        pids = rig.pool.pids
        assert resident(pids) > 2 * 100_000_000
        rig.pool.rest()
        assert resident(pids) == 0
        assert descendants() - before <= server
        assert (rig.pool.pids, rig.pool.up, rig.pool.recv(1)) == ([], [], [])
        rig.slab.arrays["images"][:2] = 0
        rig.pool.wake()
        assert rig.pool.up == [0, 1]
        assert not {*rig.pool.pids} & {*pids}
    assert seen[0] == seen[1]
    assert rig.pool.restarts == 0
    rig.pool.rest()  # and it can be closed while it rests
