"""What several checks find of one cause."""

from embodied.doctor.findings import Finding, once


def test_a_cause_that_several_checks_meet_is_said_once():
    """By the renderer's finding, with the worst status; another reason, another fix, and the rest stay as they are."""
    hidden = [
        Finding("Sim", "warn", "no device to render on: gpu: none", "install it"),
        Finding("renderer X", "warn", "X cannot draw: gpu: none", "install it"),
        Finding("configuration", "fail", "no device to render on: gpu: none", "install it"),
        Finding("configuration", "fail", "too few: gpu: two", "install it"),
        Finding("disk", "warn", "it is full: gpu: none", "delete"), Finding("memory", "ok", "X cannot draw: gpu: none"),
    ]  # fmt: skip
    said = once(hidden)
    assert [finding.status for finding in said] == ["skipped", "fail", "skipped", "fail", "warn", "ok"]
    assert said[2].found == "refused for the reason that renderer X gives"
    assert (said[1].found, said[3:]) == (hidden[1].found, hidden[3:])
    assert once(hidden[3:]) == hidden[3:]
    without = [Finding(name, "fail", "cannot write: no room", "free space") for name in ("disk", "cache")]
    assert once(without) == without, "which of them is the cause nobody knows"
