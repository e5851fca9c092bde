"""Other threads' requests reach the supervisor's thread, and none is lost when it has ended."""

from __future__ import annotations

import select
import threading

from spark_estimator.launch.worker.requests import SupervisorRequest, SupervisorRequests


def is_ready(requests: SupervisorRequests) -> bool:
    return bool(select.select([requests], [], [], 0)[0])


def test_the_first_reason_to_stop_is_kept_and_repeated() -> None:
    requests = SupervisorRequests()
    assert not is_ready(requests)
    requests.stop("because of A", at_once=False)
    assert is_ready(requests)
    assert requests.take() == SupervisorRequest(None, "because of A", at_once=False)
    assert not is_ready(requests)
    requests.stop("because of B", at_once=True)
    assert requests.take() == SupervisorRequest(None, "because of A", at_once=True)
    requests.close()
    requests.close()
    requests.stop("too late", at_once=True)


def test_a_new_rank_is_waited_for_until_it_is_confirmed() -> None:
    requests = SupervisorRequests()
    confirmed: list[bool] = []
    thread = threading.Thread(target=lambda: confirmed.append(requests.rename(5)))
    thread.start()
    select.select([requests], [], [], 10)
    assert requests.take().rank == 5
    requests.confirm_rank()
    thread.join()
    assert confirmed == [True]
    assert not requests.rename(6), "nobody takes it"
    requests.close()
    assert not requests.rename(7)
