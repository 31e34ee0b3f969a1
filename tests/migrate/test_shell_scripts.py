"""Scripts of other systems: what the shell would hand over, what it alone can know, and what is an error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from embodied.errors import ConfigError
from embodied.migrate import Migration, migrate
from embodied.migrate.shell.keys import read_script
from embodied.schema.others.translation import Unresolved
from embodied.tools import migrate as tool

pytest.importorskip("tree_sitter_bash", reason="pip install 'embodied-rl[migrate]'")

VERL = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=train.parquet "
    "data.val_files=test.parquet actor_rollout_ref.model.path=models/tiny"
)
WHY = "the reference cannot be resolved here: write its value"


def keys(text: str) -> dict[str, Any]:
    return dict(_flat("", read_script(text, "run.sh").keys))


def _flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flat(f"{path}.{name}".lstrip("."), inner)
    else:
        yield path, value


def of_verl(before: str, words: str, behind: str = "") -> Migration:
    return migrate(read_script(f"{before}\n{VERL} {words}\n{behind}", "run.sh").keys, "verl")


def refused(found: Migration) -> dict[str, str]:
    return {note.key: str(note.value) for note in found.notes if note.why == WHY}


def test_what_a_command_says_is_left_out_and_the_rest_is_a_whole_experiment():
    found = of_verl(
        "EXPERIMENT_NAME=${EXPERIMENT_NAME:-demo_$(date +%m%d)}\nHOST=`hostname -s`",
        "data.train_batch_size=64 actor_rollout_ref.rollout.n=4 trainer.experiment_name=${EXPERIMENT_NAME} "
        "trainer.project_name=on-$HOST",
    )
    assert refused(found) == {
        "trainer.experiment_name": "demo_$(date +%m%d)", "trainer.project_name": "on-`hostname -s`",
    }  # fmt: skip
    assert found.remaining == ""
    assert (found.settings["data.rollout_batch_size"], found.settings["algorithm.group_size"]) == (64, 4)
    assert "$" not in found.as_yaml()


def test_an_empty_name_has_its_default_too():
    found = of_verl(
        "TRAIN_BATCH_SIZE=${TRAIN_BATCH_SIZE:-}\nNGPUS=\nROLLOUT_N=${ROLLOUT_N:=6}\n"
        "train_batch_size=${TRAIN_BATCH_SIZE:-512}",
        "data.train_batch_size=${train_batch_size} actor_rollout_ref.rollout.n=${ROLLOUT_N} "
        "actor_rollout_ref.actor.ppo_mini_batch_size=128 trainer.n_gpus_per_node=${NGPUS:-8}",
    )
    assert found.settings["data.rollout_batch_size"] == 512
    assert found.settings["algorithm.group_size"] == 6
    assert found.settings["actor.global_batch_size"] == 128 * 6
    (gpus,) = [note for note in found.notes if note.key == "trainer.n_gpus_per_node"]
    assert gpus.value == 8


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        ("cat <<EOF\ndon't forget to log in\nEOF", ""),
        ("cat <<'EOF' | tee notes\nit's \"open\nEOF", ""),
        ("# don't", ""),
        ("ARGS=(\n  # don't\n  x\n)", ""),
        ("", "echo done \\"),
        ("", "python3 - <<PY\nprint('it''s')\nPY\n"),
    ],
)
def test_an_apostrophe_that_quotes_nothing_and_a_last_backslash_are_read(before, behind):
    found = of_verl(before, "data.train_batch_size=64 actor_rollout_ref.rollout.n=4", behind)
    assert found.settings["data.rollout_batch_size"] == 64
    assert found.remaining == ""


@pytest.mark.parametrize(
    ("before", "value"),
    [
        ("", "$N"),
        ("N=$(nproc)", "$(nproc)"),
        ("N=$((M * 2))", "$((M * 2))"),
        ("N=$1", "$1"),
        ("GPUS=($(list))\nN=${#GPUS[@]}", "${#GPUS[@]}"),
        ("N=4\nif [ -f big ]; then N=8; fi", "8 or 4"),
        ('if [ "$MODE" = big ]; then N=8; else N=4; fi', "8 or 4"),
        ("case $(uname) in\n a) N=8 ;;\n *) N=4 ;;\nesac", "8 or 4"),
        ("if nvidia-smi; then N=8; elif npu-smi; then N=6; else N=4; fi", "8 or 6 or 4"),
        ("N=4\nwhile read line; do N=9; done < f", "4 or 9"),
        ("N=4\nsome-test && N=8", "8 or 4"),
        ("N=4\n[[ -d x ]] || N=8", "4 or 8"),
        ("read N", "$N"),
        ("N=$RANDOM", "$RANDOM"),
    ],
)
def test_nothing_is_computed_from_a_number_that_nobody_knows(before, value):
    found = of_verl(before, "actor_rollout_ref.rollout.n=$N actor_rollout_ref.actor.ppo_mini_batch_size=128")
    assert refused(found) == {"actor_rollout_ref.rollout.n": value}
    assert not {"algorithm.group_size", "actor.global_batch_size"} & set(found.settings)
    (batch,) = [note for note in found.notes if note.key == "actor_rollout_ref.actor.ppo_mini_batch_size"]
    assert (batch.how, batch.why) == (
        "refused", "it needs actor_rollout_ref.rollout.n, which cannot be resolved here",
    )  # fmt: skip


@pytest.mark.parametrize("given", ["${oc.env:N}", ["${n}"], {"a": "$N"}])
def test_a_reference_of_a_yaml_file_is_no_number_either(given):
    theirs = {
        "data": {"train_files": "x.parquet"},
        "actor_rollout_ref": {"rollout": {"n": given}, "actor": {"ppo_mini_batch_size": 128}},
    }
    assert "actor.global_batch_size" not in migrate(theirs, "verl").settings


@pytest.mark.parametrize(
    ("script", "value"),
    [
        ("M=big\nif [ $M = big ]; then N=8; else N=4; fi\nmain a.b=$N", 8),
        ("M=big\ncase $M in b*) N=8;; *) N=4;; esac\nmain a.b=$N", 8),
        ("if probe; then N=8; X=1; else N=8; X=2; fi\nmain a.b=$N", 8),
        ("case $(uname) in a) L=(x); N=8;; *) N=8;; esac\nmain a.b=$N", 8),
        ("if probe; then main a.b=8; else main a.b=8; fi", 8),
        ("if [ -z \"$N\" ]; then N=8; fi\nmain a.b=$N", 8),
        ("[ -n \"$N\" ] || N=8\nmain a.b=$N", 8),
        ("if [ -z \"$1\" ]; then N=8; else N=$1; fi\nmain a.b=$N", 8),
        ("if [ $# -lt 1 ]; then echo usage; fi\nN=${1:-8}\nmain a.b=$N", 8),
        ("if [ ! -d data ]; then echo no data; exit 1; fi\nmain a.b=8", 8),
        ("N=8\nwhile [[ $# -gt 0 ]]; do case $1 in --n) N=$2; shift 2;; *) shift;; esac; done\nmain a.b=$N", 8),
        ("D=$(probe)\ncase $D in gpu) N=8;; npu) N=4;; *) exit 1;; esac\n[ $D = npu ] && N=8\nmain a.b=$N", 8),
        ("f() { local N=$1; main a.b=$N; }\nN=2\nf 8", 8),
        ("run() { python -m x.y \"$@\"; }\nrun a.b=8", 8),
        ("CMD=\"python -m x a.b=8\"\necho $CMD\n$CMD 2>&1 | tee log", 8),
        ("CMD='python -m x a.b=8'\neval \"$CMD\"", 8),
        ("bash -c 'python -m x a.b=8'", 8),
        ("bash <<EOF\npython -m x a.b=8\nEOF", 8),
        ("ray job submit --address x -- python3 -m x a.b=8", 8),
        ("A=1 B=2 \\\n  nohup python -m x a.b=8 > log 2>&1 &", 8),
        ("N=8 M=3\npython -m x a.b=$N", 8),
        ("main a.b=[$X] a.b=8", 8),
        ("cd x && main a.b=8 || exit 1", 8),
        ("(cd x; main a.b=8)", 8),
        ("main +a.b=8", 8),
        ("main ++a.b=8", 8),
        ("main a.b=null", None),
        ("main 'a.b=[\"x\",\"y\"]'", ["x", "y"]),
        ("A=x B=y\nmain a.b=\"[$A, $B]\"", ["x", "y"]),
        ("main a.b=\"['x','y']\"", ["x", "y"]),
        ("main a.b='\"8\"'", "8"),
        ("main a.b=on", "on"),
        ("main a.b=1:30", "1:30"),
        ("main a.b='it is'", "it is"),
        ("main a.b=x,y", "x,y"),
        ("main 'a.b={c:1,d:[2]}' e.f=1", {"c": 1, "d": [2]}),
    ],
)  # fmt: skip
def test_a_value_that_the_script_says_is_taken(script, value):
    found = read_script(script, "run.sh").keys
    assert found["a"]["b"] == value
    assert not isinstance(found["a"]["b"], Unresolved)


@pytest.mark.parametrize(
    ("script", "value"),
    [
        ("for lr in 1 2; do main a.b=$lr; done", "1 or 2"),
        ("for f in $(ls); do main a.b=$f; done", "$f"),
        ("f() { main a.b=$1; }\nf 1\nf 2", "1 or 2"),
        ("if probe; then main a.b=1; else main a.b=2; fi", "1 or 2"),
        ("E=()\nif probe; then E+=(a.b=1); fi\nmain c.d=1 \"${E[@]}\"", "1 or nothing"),
        ("E=\nprobe && E=a.b=1\nmain c.d=1 $E", "1 or nothing"),
        ("main a.b=x-$UNSET/y", "x-$UNSET/y"),
        ("main a.b=${UNSET%.*}", "${UNSET%.*}"),
        ("main a.b=${UNSET:?needed}", "${UNSET:?needed}"),
        ("main a.b=$((1/0))", "$((1/0))"),
        ("main a.b=$((08))", "$((08))"),
        ("i=0\nwhile true; do main a.b=$i; i=$((i+1)); done", "0 or 1 or 2 or 3 or …"),
        ("main a.b=\"$(cat <<EOF\nit's\nEOF\n)\" c.d=1", "$(cat <<EOF it's EOF )"),
        ("main 'a.b=${c.d}'", "${c.d}"),
    ],
)  # fmt: skip
def test_a_value_that_only_a_run_can_know_is_said_as_it_is_written(script, value):
    found = read_script(script, "run.sh").keys
    assert str(found["a"]["b"]) == value
    assert [note.why for note in migrate(found, "verl").notes if note.key == "a.b"] == [WHY]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("python prep.py a.b=1\npython -m verl.trainer.main_ppo a.b=2 c.d=3", "the one with the most counts: line 2"),
        ("main a.b=2 $@", "what these words add is not known here, give it as overrides: $@"),
        ("source env.sh\nmain a.b=2", "what these files set is not known here: env.sh"),
        ("python x.py --config-name grpo a.b=2", "reads a configuration too, migrate it as well: --config-name grpo"),
        ("main a.b=2 ~c.d", "~c.d: the script takes this key out"),
        ("main a.b=2 \\\n  # a remark\n  c.d=3", "line 2: a comment in the middle of a command"),
        ("main a=1 a.b=2 x.py", ""),
    ],
)
def test_what_a_reader_should_know_is_said(script, said):
    found = read_script(script, "run.sh")
    assert found.keys["a"]["b"] == 2
    assert said in "\n".join(found.remarks)
    assert bool(said) == bool(found.remarks)


def test_keys_behind_a_comment_are_read():
    assert keys("main a.b=1 \\\n  # c.d=2 \\\n\n  # don't\n  e.f=3 \\\n  g.h=4") == {"a.b": 1, "e.f": 3, "g.h": 4}


def test_a_key_that_is_taken_out_is_none():
    assert keys("main a.b=1 c.d=2 ~c.d ~e=1") == {"a.b": 1}


def test_keys_without_a_dot_stand_behind_the_program():
    assert keys("env X=1 python -m x.train seed=3 a.b=1") == {"seed": 3, "a.b": 1}


def test_a_key_and_one_within_it_are_no_traceback():
    assert keys("main a.b=1 a.b.c=2") == {"a.b.c": 2}
    assert keys("main a.b.c=2 a.b=1") == {"a.b": 1}


@pytest.mark.parametrize("words", ["engine=fsdp engine.tp=2", "engine.tp=2 engine=fsdp"])
def test_a_group_of_hydra_beside_its_keys_keeps_them_and_is_said(words):
    found = read_script(f"python -m x.y {words}", "run.sh")
    assert found.keys == {"engine": {"tp": 2}}
    assert "engine=fsdp chooses a file of theirs" in "\n".join(found.remarks)


@pytest.mark.parametrize(
    ("script", "said", "fix"),
    [
        ("", "no KEY=VALUE words", "give the script that starts the training"),
        ("echo hello\nA=1\nexport b=2", "no KEY=VALUE words", "give the script that starts the training"),
        ("python x.py --config-path conf --config-name grpo", "--config-name grpo", "give that file"),
        ('main a.b=1 c.d="x', "line 1", "bash -n"),
        ("echo\nif true; then main a.b=1", "line 1", "bash -n"),
        ("main a.b='x\necho done\n", "line 1", "bash -n"),
        ("A=(1 2\nmain a.b=1\n", "line 1", "bash -n"),
        ("main a.b=$(date", "line 1", "bash -n"),
    ],
)
def test_a_script_without_keys_or_that_is_none_is_an_error_with_a_fix(tmp_path, capsys, script, said, fix):
    (tmp_path / "run.sh").write_text(script, encoding="utf-8")
    assert tool.main([str(tmp_path / "run.sh"), "--from", "verl"]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert said in error
    assert fix in error


@pytest.mark.parametrize("name", ["run.sh", "run.yaml", "run.toml", "run.txt"])
def test_a_file_of_another_encoding_is_an_error_with_a_fix(tmp_path, capsys, name):
    (tmp_path / name).write_bytes("a.b=ä".encode("latin-1"))
    assert tool.main([str(tmp_path / name), "--from", "verl"]) == 2
    assert "save it as UTF-8" in capsys.readouterr().err


def test_without_the_parser_the_error_names_the_extra(monkeypatch):
    from embodied.migrate.shell import syntax

    monkeypatch.setitem(__import__("sys").modules, "tree_sitter_bash", None)
    syntax._parser.cache_clear()
    with pytest.raises(ConfigError, match=r"embodied-rl\[migrate\]"):
        read_script("main a.b=1", "run.sh")


def test_many_branches_are_still_read():
    branches = "\n".join(f"if probe{n}; then A{n}=1; else A{n}=2; fi" for n in range(12))
    assert keys(f"{branches}\nmain a.b=$A3 c.d=4") == {"a.b": "$A3", "c.d": 4}


def test_the_command_says_what_it_did_not_read(tmp_path, capsys):
    (tmp_path / "run.sh").write_text(f"{VERL} data.train_batch_size=64 $@", encoding="utf-8")
    assert tool.main([str(tmp_path / "run.sh"), "--from", "verl"]) == 0
    assert "note: what these words add is not known here, give it as overrides: $@" in capsys.readouterr().err
