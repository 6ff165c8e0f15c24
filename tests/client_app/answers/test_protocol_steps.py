"""A site's steps of a protocol, with its state folder: each answered once, also after a restart."""

import itertools
import multiprocessing

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from client_app.answers.protocol_steps import ProtocolSteps
from client_app.site_state import FolderKeeper
from common import messages
from common.errors import TrustError

fork = multiprocessing.get_context("fork")


def message(text="asked"):
    return Message(RecordDict({"record": ConfigRecord({"text": text})}), 7, messages.TRAIN)


@pytest.fixture
def site(tmp_path, task_identity):
    """A site's steps: ``site.restart()`` ends its process, which keeps only the folder."""

    class Site:
        def __init__(self):
            self.draws = itertools.count()
            self.restart()

        def restart(self, run=1):
            self.steps = ProtocolSteps(
                Context(run, 7, {}, RecordDict(), {}), FolderKeeper.open(tmp_path), "cosines"
            )

        def answer(self, step, text="asked"):
            def work():
                return RecordDict({"record": ConfigRecord({"draw": next(self.draws)})})

            return self.steps.answer(step, message(text), work).content["record"]["draw"]

    return Site()


def test_a_step_asked_again_gets_the_stored_answer(site):
    assert [site.answer(1), site.answer(2), site.answer(1), site.answer(2)] == [0, 1, 0, 1]
    with pytest.raises(TrustError, match="was answered already"):
        site.answer(1, "something else")


@pytest.mark.parametrize("done", [1, 2, 3])
def test_after_a_restart_no_step_of_the_run_is_answered_again(site, done):
    for step in range(1, done + 1):
        site.answer(step)
    site.restart()
    with pytest.raises(TrustError, match="step 1 of cosines was begun before"):
        site.answer(1)
    for step in (2, 3, 4):
        with pytest.raises(TrustError, match="this site was restarted in between"):
            site.answer(step)
    site.restart(run=2)
    assert site.answer(1) == done


def test_a_run_in_between_changes_nothing_for_another(site):
    assert site.answer(1) == 0
    site.restart(run=2)
    assert site.answer(1) == 1
    site.restart(run=1)
    with pytest.raises(TrustError, match="step 1 of cosines was begun before"):
        site.answer(1)


def test_a_step_that_failed_is_not_worked_on_again(site):
    def fails():
        raise TrustError("no such key")

    with pytest.raises(TrustError, match="no such key"):
        site.steps.answer(1, message(), fails)
    with pytest.raises(TrustError, match="was begun before"):
        site.answer(1)


def test_of_processes_that_get_the_same_message_at_once_one_answers(site):
    def process(start, answered):
        start.wait(60)
        try:
            site.answer(1)
            answered.put(True)
        except TrustError:
            answered.put(False)

    start, answered = fork.Barrier(4), fork.Queue()
    processes = [fork.Process(target=process, args=(start, answered)) for _ in range(4)]
    for one in processes:
        one.start()
    assert sorted(answered.get(timeout=60) for _ in processes) == [False, False, False, True]
    for one in processes:
        one.join()
