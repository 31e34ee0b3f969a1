"""On which node a simulator host is placed."""

from __future__ import annotations

from collections import Counter

from embodied.cluster.sim_host import Place, choose, cpus_of

RANK = Place("0", "gpu", "198.18.0.1", 16, ranks=True)
ONE, TWO = Place("1", "cpu-1", "198.18.0.2", 8), Place("2", "cpu-2", "198.18.0.3", 8)


def chosen(*places: Place, avoid: frozenset[str] = frozenset(), wanted: str = "", **hosts: int) -> str | None:
    on = Counter({name.replace("_", "-"): count for name, count in hosts.items()})
    found = choose([*places], avoid, on, wanted)
    return None if found is None else found.name


def test_hosts_spread_over_nodes_without_ranks():
    assert chosen(RANK, TWO, ONE) == "cpu-1"
    assert chosen(RANK, TWO, ONE, cpu_1=1) == "cpu-2"
    assert chosen(RANK, TWO._replace(free=9), ONE) == "cpu-2"


def test_a_lost_node_is_taken_only_if_there_is_no_other():
    assert chosen(RANK, ONE, TWO, avoid=frozenset({"cpu-1"})) == "cpu-2"
    assert chosen(RANK, ONE, avoid=frozenset({"cpu-1"})) == "gpu", "rather beside the ranks"
    assert chosen(ONE, avoid=frozenset({"cpu-1"})) == "cpu-1"


def test_a_node_without_a_free_cpu_gets_none():
    assert chosen(ONE._replace(free=0.5)) is None
    assert chosen(ONE._replace(free=0), RANK) == "gpu"


def test_the_node_that_the_placement_gives_is_taken_unless_it_was_lost():
    assert chosen(RANK, ONE, TWO, wanted="cpu-2", cpu_2=3) == "cpu-2"
    assert chosen(RANK, ONE, TWO._replace(free=0), wanted="cpu-2") == "cpu-2", "other hosts of the run have its CPUs"
    assert chosen(RANK, ONE, TWO, wanted="cpu-2", avoid=frozenset({"cpu-2"})) == "cpu-1"
    assert chosen(RANK, ONE, wanted="cpu-2") == "cpu-1", "it is not there"


def test_hosts_of_several_ranks_do_not_wait_for_cpus_of_each_other_on_their_node():
    assert cpus_of(ONE, 4, "cpu-1") == 0
    assert (cpus_of(ONE, 4, "cpu-2"), cpus_of(ONE, 16, "")) == (4, 8)
