from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait

import pytest

from penstock.destinations.base import WriteStatus
from penstock.errors import PenstockError
from penstock.pipeline.deliveries import Deliveries, require_answer
from penstock.schema import Lsn
from penstock.testing.postgres import wait_for
from penstock.testing.sample_tables import NOTES

DURABLE, ACCEPTED = WriteStatus.DURABLE, WriteStatus.ACCEPTED


@pytest.fixture
def deliveries() -> Deliveries:
    return Deliveries(lambda: None)


def test_durable_is_settled_at_once(deliveries: Deliveries) -> None:
    deliveries.add(Lsn(1), DURABLE)
    assert deliveries.settle() == Lsn(1)
    assert deliveries.settle() is None


def test_accepted_waits_for_a_later_durable(deliveries: Deliveries) -> None:
    deliveries.add(Lsn(1), ACCEPTED)
    assert deliveries.settle() is None
    assert deliveries.waits_for_flush
    deliveries.add(Lsn(2), DURABLE)
    assert deliveries.settle() == Lsn(2)
    assert len(deliveries) == 0


def test_a_flush_settles_everything(deliveries: Deliveries) -> None:
    deliveries.add(Lsn(1), ACCEPTED)
    deliveries.add(Lsn(2), ACCEPTED)
    assert deliveries.flushed() == Lsn(2)
    assert len(deliveries) == 0


def test_a_future_settles_what_is_before_it_when_it_completes(deliveries: Deliveries) -> None:
    future: Future[None] = Future()
    deliveries.add(Lsn(1), ACCEPTED)
    deliveries.add(Lsn(2), future)
    deliveries.add(Lsn(3), ACCEPTED)
    assert deliveries.settle() is None
    future.set_result(None)
    assert deliveries.settleable
    assert deliveries.settle() == Lsn(2)
    assert len(deliveries) == 1


def test_a_future_does_not_overtake_an_earlier_one(deliveries: Deliveries) -> None:
    first: Future[None] = Future()
    second: Future[None] = Future()
    deliveries.add(Lsn(1), first)
    deliveries.add(Lsn(2), second)
    second.set_result(None)
    assert deliveries.settle() is None
    first.set_result(None)
    assert deliveries.settle() == Lsn(2)


def test_a_failed_future_raises_its_error(deliveries: Deliveries) -> None:
    future: Future[None] = Future()
    deliveries.add(Lsn(1), future)
    future.set_exception(RuntimeError("disk on fire"))
    with pytest.raises(RuntimeError, match="disk on fire"):
        deliveries.settle()


def test_a_completed_future_wakes() -> None:
    woken: list[bool] = []
    deliveries = Deliveries(lambda: woken.append(True))
    future: Future[None] = Future()
    deliveries.add(Lsn(1), future)
    future.set_result(None)
    assert woken == [True]


def test_a_write_that_is_under_way_is_waited_for(deliveries: Deliveries) -> None:
    writing: Future[None] = Future()  # made by hand, so it cannot tell that it has begun
    deliveries.add(Lsn(1), writing)
    with ThreadPoolExecutor(1) as pool:
        abandoned = pool.submit(deliveries.abandon)
        wait_for(lambda: abandoned.running())
        assert not wait([abandoned], 0.05).done
        writing.set_result(None)
        abandoned.result(60)
    assert len(deliveries) == 0


@pytest.mark.parametrize("answer", [None, True, "durable"])
def test_an_answer_that_is_none_of_these_is_refused(answer: object) -> None:
    with pytest.raises(PenstockError, match="the destination answered") as refused:
        require_answer(answer, NOTES)
    assert refused.value.hint
