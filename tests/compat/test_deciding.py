"""Repairs that decide at their first use: once, after a trial of what is stock, with a line in the log."""

import functools
import logging
import threading
import types

import pytest

pytest.importorskip("fairseq")

from fairseq_structattn.compat.deciding import AtFirstUse, put_in_place  # noqa: E402


def put(owner, is_defective):
    decision = AtFirstUse("answers", is_defective)

    def make(stock):
        @functools.wraps(stock)
        def answer():
            return "repaired" if decision.is_needed() else stock()

        return answer

    put_in_place(owner, "answer", make)


@pytest.mark.parametrize("stock", ["healthy", "defective"])
def test_the_first_use_decides(stock, caplog):
    caplog.set_level(logging.INFO)
    owner, trials = types.SimpleNamespace(answer=lambda: stock), []

    def is_defective():
        trials.append(owner.answer())  # comes by the function in question itself
        return trials[-1] == "defective"

    put(owner, is_defective)
    once = owner.answer
    put(owner, is_defective)
    assert owner.answer is once and not trials and not caplog.records
    expected = "healthy" if stock == "healthy" else "repaired"
    assert [owner.answer(), owner.answer()] == [expected] * 2
    assert trials == [stock]
    assert [record.getMessage() for record in caplog.records] == (
        [] if stock == "healthy" else ["repaired in fairseq: answers (STRUCTATTN_COMPAT=0 leaves it as it is)"]
    )


def test_other_threads_wait_for_the_decision():
    owner, answers, reached = types.SimpleNamespace(answer=lambda: "defective"), [], threading.Event()
    other = threading.Thread(target=lambda: answers.append(owner.answer()))

    def is_defective():
        other.start()
        reached.wait(0.1)
        return True

    put(owner, is_defective)
    assert owner.answer() == "repaired"
    other.join()
    assert answers == ["repaired"]


def test_a_trial_that_fails_is_made_again():
    outcomes = iter([KeyError, True])

    def is_defective():
        outcome = next(outcomes)
        if outcome is KeyError:
            raise KeyError
        return outcome

    decision = AtFirstUse("", is_defective)
    with pytest.raises(KeyError):
        decision.is_needed()
    assert decision.is_needed()
