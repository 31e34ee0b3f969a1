"""Reward functions of users, in the signatures of verl, TRL and Cosmos-RL."""

import pytest
from embodied.envs.text.verdict import Problem, Verdict
from embodied.envs.text.verifiers import make_verifier

from embodied.errors import ConfigError, UnknownNameError

MESSAGES = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"})


@pytest.fixture
def custom(tmp_path):
    """Writes a file and makes a verifier of it; all are closed after the test."""
    made = []

    def make(code, function="f", **options):
        file = tmp_path / f"rewards{len(made)}.py"
        file.write_text(code, encoding="utf-8")
        verifier = make_verifier([{"name": "custom", "path": str(file), "function": function, **options}])
        made.append(verifier)
        return verifier

    yield make
    for verifier in made:
        verifier.close()


def problem(prompt="2+2?", answer="4", **fields):
    return Problem(prompt, answer, fields, 11)


VERL = """
def f(data_source, solution_str, ground_truth, extra_info=None, bonus=0.0):
    assert data_source == "sums" and extra_info == {"split": "train"}
    return float(solution_str == ground_truth) + bonus
"""


def test_verl(custom):
    row = problem(data_source="sums", extra_info={"split": "train"})
    verifier = custom(VERL)
    assert verifier(row, "4") == Verdict(1.0, True)
    assert verifier(row, "5") == Verdict(0.0, False)
    assert custom(VERL, kwargs={"bonus": 0.25})(row, "5") == Verdict(0.25, False)


def test_the_default_name_is_verls(tmp_path):
    (tmp_path / "mine.py").write_text("def compute_score(solution_str, ground_truth): return 1", encoding="utf-8")
    verifier = make_verifier([{"name": "custom", "path": str(tmp_path / "mine.py")}])
    assert verifier(problem(), "") == Verdict(1.0, True)
    verifier.close()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ('{"score": -1.0, "acc": False, "pred": "5"}', Verdict(-1.0, False)),
        ('{"score": 0.5, "acc": True}', Verdict(0.5, True)),
        ('{"score": 1}', Verdict(1.0, True)),
        ("True", Verdict(1.0, True)),
        ('__import__("numpy").float32(0.5)', Verdict(0.5, False)),
    ],
)
def test_what_a_function_of_verl_may_give(custom, given, expected):
    assert custom(f"def f(solution_str, ground_truth, **kwargs): return {given}")(problem(), "5") == expected


TRL = """
def f(prompts, completions, answer, level, **kwargs):
    assert prompts == ["2+2?"] and level == [3] and kwargs == {"topic": ["sums"]}
    return [1.0 if completion == right else None for completion, right in zip(completions, answer)]
"""


@pytest.mark.parametrize(("given", "said"), [("'0.50'", "1/2"), ("0", "0"), ("None", ""), ("''", "")])
def test_a_function_of_verl_may_say_the_answer(custom, given, said):
    verifier = custom(f"def f(solution_str, ground_truth): return {{'score': 1, 'pred': {given}}}")
    assert verifier(problem(), "4").answer == said
    assert custom("def f(solution_str, ground_truth): return 1")(problem(), "4").answer is None


def test_trl(custom):
    row = problem(level=3, topic="sums")
    verifier = custom(TRL, on_error="raise")
    assert verifier(row, "4") == Verdict(1.0, True)
    assert verifier(row, "5") == Verdict(0.0, False)  # None: the function does not judge this one


def test_trl_with_messages(custom):
    verifier = custom(
        "def f(prompts, completions, solution, **kwargs):\n"
        "    assert prompts[0][1] == {'role': 'user', 'content': '2+2?'}, prompts\n"
        "    assert completions[0][0]['role'] == 'assistant'\n"
        "    return [float(completions[0][0]['content'] == solution[0])]",
        answer_key="solution",
        on_error="raise",
    )
    assert verifier(problem(MESSAGES), "4") == Verdict(1.0, True)
    assert verifier(problem(MESSAGES), "5") == Verdict(0.0, False)


def test_trl_without_other_columns(custom):
    assert custom("def f(completions): return [len(completions[0]) / 4]")(problem(x=1), "ab") == Verdict(0.5, False)


def test_a_column_that_the_data_does_not_have_ends_the_run(custom):
    verifier = custom("def f(completions, solution, **kwargs): return [1.0]")
    with pytest.raises(ConfigError, match=r"missing a required argument: 'solution'; the columns are: level") as caught:
        verifier(problem(level=3), "4")
    assert "answer_key" in caught.value.remedy


def test_cosmos(custom):
    code = "def f(to_be_evaluated, reference=None, *args, **kwargs): return float(to_be_evaluated == reference)"
    assert custom(code)(problem(), "4") == Verdict(1.0, True)
    code = "def f(to_be_evaluated, reference, prompt): return float(prompt == '2+2?') / 2, {'detail': 1}"
    assert custom(code)(problem(), "5") == Verdict(0.5, False)


@pytest.mark.parametrize(
    ("code", "signature"),
    [
        ("def f(response, truth): return float(response == truth)", "cosmos"),
        ("def f(**kwargs): return float(kwargs['solution_str'] == kwargs['ground_truth'])", "verl"),
        ("def f(**kwargs): return [float(kwargs['completions'] == kwargs['answer'])]", "trl"),
    ],
)
def test_a_signature_that_is_said_needs_no_known_names(custom, code, signature):
    assert custom(code, signature=signature)(problem(), "4") == Verdict(1.0, True)
    with pytest.raises(ConfigError, match="parameters of no known library"):
        custom(code)


def test_what_succeeds_is_set_by_an_option(custom):
    code = "def f(to_be_evaluated, reference): return 0.5"
    assert custom(code, success_at=0.5)(problem(), "") == Verdict(0.5, True)


def test_variables_of_the_file_are_kept_between_calls(custom):
    verifier = custom("seen = []\ndef f(to_be_evaluated, reference):\n    seen.append(0)\n    return len(seen)")
    assert [verifier(problem(), "").reward for _ in range(3)] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("code", "options", "message"),
    [
        ("def g(): pass", {}, r"rewards0.py has no function 'f'"),
        ("f = 3", {}, "has no function 'f'"),
        ("def f(a, b): return 1", {}, r"f\(a, b\) has the parameters of no known library"),
        ("def f(completions, to_be_evaluated): return 1", {}, "parameters of trl and of cosmos"),
        ("def f(to_be_evaluated): return 1", {}, "cannot be called as cosmos does: too many positional"),
        ("def f(solution_str, ground_truth, config): return 1", {}, "missing a required argument: 'config'"),
        ("def f(solution_str, ground_truth): return 1", {"kwargs": {"bonus": 1}}, "has no parameter bonus"),
        ("async def f(solution_str, ground_truth): return 1", {}, "async"),
        ("def f(:", {}, "rewards0.py cannot be imported: SyntaxError"),
        ("import nothing_of_this_name", {}, r"ModuleNotFoundError.*\(rewards0.py, line 1\)"),
        ("import sys\nsys.exit(3)", {}, r"SystemExit: 3 \(rewards0.py, line 2\)"),
        ("f = min", {}, "wrap it|no signature"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_before_the_run(custom, code, options, message):
    with pytest.raises(ConfigError, match=message):
        custom(code, **options)


def test_an_unknown_signature_and_a_missing_file_are_refused(custom, tmp_path):
    with pytest.raises(UnknownNameError, match=r"unknown signature 'tlr'. Did you mean 'trl'"):
        custom("def f(completions): return [1]", signature="tlr")
    with pytest.raises(ConfigError, match="there is no file"):
        make_verifier([{"name": "custom", "path": str(tmp_path / "none.py")}])


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("raise KeyError('gone')", r"f raised KeyError: 'gone' \(rewards0.py, line 2\)"),
        ("return None", "f: it gave NoneType 'None', expected a finite number"),
        ("return float('nan')", "it gave float 'nan'"),
        ("return '1.0'", "it gave str '1.0'"),
        ("return [1.0]", r"it gave list '\[1.0\]'"),
        ("return {'reward': 1}", r"a mapping with \['reward'\], expected 'score'"),
        ("return {'score': None}", "it gave dict"),
    ],
)
def test_a_bad_verdict_names_file_function_problem_and_response(custom, body, why):
    verifier = custom(f"def f(solution_str, ground_truth):\n    {body}", on_error="raise")
    with pytest.raises(ConfigError, match=why) as caught:
        verifier(problem(), "the response")
    assert "rewards0.py: f" in caught.value.message
    assert "problem 11" in caught.value.message
    assert "begins 'the response'" in caught.value.message


@pytest.mark.parametrize("given", ["1.0", "[1.0, 2.0]", "'4'", "{}", "['1']", "[float('inf')]"])
def test_a_function_of_trl_has_to_give_a_list_of_one_number(custom, given):
    verifier = custom(f"def f(completions): return {given}", on_error="raise")
    with pytest.raises(ConfigError, match="it gave"):
        verifier(problem(), "")


def test_one_bad_response_costs_one_reward(custom, capfd):
    verifier = custom("def f(solution_str, ground_truth): return 1 / len(solution_str)", failure_reward=-1)
    assert [verifier(problem(), text).reward for text in ("4", "", "4")] == [1.0, -1.0, 1.0]
    assert verifier.counts["errors"] == 1
    assert "division by zero" in capfd.readouterr().err


def test_a_function_that_never_returns_is_one_counted_timeout(custom):
    code = "def f(solution_str, ground_truth):\n    while solution_str == 'hang': pass\n    return 1"
    verifier = custom(code, verify_timeout_s=0.2, on_error="raise")
    assert [verifier(problem(), text).reward for text in ("4", "hang", "4")] == [1.0, 0.0, 1.0]
    assert verifier.counts["timeouts"] == 1
