"""benchmarks/robustness.py: which commands it gives, and that its report is what the evaluations left."""

import json

import benchmark_file
import imageio.v3 as iio
import pytest

from embodied.schema import conditions_of
from embodied.schema.compose.compose import compose


@pytest.fixture(scope="module")
def robustness():
    return benchmark_file.load("robustness")


class Recorded:
    """Steps that run nothing, and leave a checkpoint where a run would."""

    def __init__(self, out):
        self.out, self.commands = out, {}

    def run(self, name, module, *arguments):
        self.commands[name] = (module, arguments)
        (self.out / "runs" / name / "checkpoints" / "000044").mkdir(parents=True)


def test_its_commands_compose_and_differ_in_the_perturbation_alone(robustness, tmp_path):
    steps = Recorded(tmp_path)
    checkpoint = robustness.prepare(steps, None)
    for name, more in robustness.RUNS.items():
        trained = robustness.learn(steps, name, checkpoint, 44, more)
        robustness.evaluate(steps, f"{name}-perturbed", trained, 100, ["medium"])
    composed = {}
    for name in ("plain", "randomised", "plain-perturbed"):
        module, arguments = steps.commands[name]
        composed[name] = compose(arguments, module).resolved
    plain, randomised = composed["plain"], composed["randomised"]
    assert randomised["env"]["train"].pop("perturb")["strengths"] == ["mild", "medium"]
    assert plain["env"]["train"].pop("perturb") is None
    for section in ("algorithm", "env", "actor", "rollout"):
        expected = json.loads(json.dumps(plain[section]).replace("videos/plain/", "videos/randomised/"))
        assert randomised[section] == expected
    views = plain["env"]["train"]["init_params"]["camera_views"]["base_camera"]
    assert views["eye"] == [0.55, 0.0, 0.45], "the camera of the demonstrations"
    evaluation = compose(steps.commands["plain-perturbed"][1], "eval").config.env.eval
    assert len(conditions_of(evaluation.perturb, "env.eval.perturb")) == 12
    assert evaluation.seed == 10_000


def test_the_report_has_the_numbers_of_each_evaluation(robustness, tmp_path, monkeypatch):
    saved = {}
    monkeypatch.setattr(robustness, "save", lambda name, result: saved.update({name: result}))
    kept = ("kind", "strength", "success_rate", "low", "high")
    for number, name in enumerate(("cloned", *robustness.RUNS)):
        folder = tmp_path / "runs" / f"{name}-perturbed" / "eval"
        folder.mkdir(parents=True)
        rates = {"blur": 0.5 + number / 10, "noise": 0.25}
        rows = [
            dict(zip(kept, (kind, "mild", rate, 0.1, 0.9), strict=True))
            | {"outcomes": [{"success": index < number} for index in range(4)]}
            for kind, rate in rates.items()
        ]
        own = [{"success": index < 3} for index in range(4)]
        (folder / "robustness.json").write_text(json.dumps({"unperturbed": own, "conditions": rows}), encoding="utf-8")
        (tmp_path / f"{name}.json").write_text(json.dumps({"wall_s": 90.0}), encoding="utf-8")
    page = tmp_path / "robustness.md"
    robustness.report(tmp_path, page)
    lines = page.read_text(encoding="utf-8").splitlines()
    assert "| perturbation | strength | cloned | plain | randomised |" in lines
    assert "| none | | 3/4 = 75% | 3/4 = 75% | 3/4 = 75% |" in lines
    assert "| blur | mild | 50% (10% to 90%) | 60% (10% to 90%) | 70% (10% to 90%) |" in lines
    assert "| mean of all perturbations | | 38% | 42% | 48% |" in lines
    assert "- plain − cloned: +25.0% (+0.0% to +75.0%)" in lines
    assert "- randomised − plain: +25.0% (+0.0% to +75.0%)" in lines
    assert "Wall clock of the trainings: plain 1.5 min, randomised 1.5 min." in lines
    assert iio.imread(tmp_path / "robustness.png").ndim == 3
    assert list(saved["robustness"]["policies"]) == ["cloned", "plain", "randomised"]
    before = page.read_text(encoding="utf-8")
    robustness.report(tmp_path, page)
    assert page.read_text(encoding="utf-8") == before
