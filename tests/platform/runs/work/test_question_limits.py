"""How long a worker waits for the answer to a question that only keeps its lease, by the clock of a network that loses it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import pytest

from osmosis_ai._version import __version__
from osmosis_ai.api.retrying import Waits
from osmosis_ai.api.wire.workers import Assignment, SyncReply, WorkerOffer
from osmosis_ai.platform.runs.work import http_link
from osmosis_ai.platform.runs.work.http_link import HttpLink
from osmosis_ai.platform.runs.work.platform_link import PlatformUnreachableError
from osmosis_ai.platform.runs.work.run_channel import RunChannel
from tests.platform.runs.work.test_http_link import ASSIGNMENT


class Network:
    """Loses so many questions, each until whoever asked gives it up; time passes by nothing else."""

    def __init__(self, term_s: float) -> None:
        self.term_s = term_s
        self.now = 0.0
        self.loses = 0
        self.limits_s: list[float] = []

    def carry(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("claim"):
            lease = {**ASSIGNMENT["lease"], "term_s": self.term_s}
            return httpx.Response(200, json={**ASSIGNMENT, "lease": lease})
        self.limits_s.append(request.extensions["timeout"]["read"])
        if self.loses:
            self.loses -= 1
            self.now += self.limits_s[-1]
            raise httpx.ReadTimeout("timed out", request=request)
        return httpx.Response(200, json=SyncReply(stop=False, term_s=self.term_s, next_s=1).to_wire())


OFFER = WorkerOffer(claim_id="a" * 32, sdk_version=__version__)
Working = Callable[[float], tuple[Network, RunChannel]]


@pytest.fixture
def working(monkeypatch: pytest.MonkeyPatch) -> Iterator[Working]:
    monkeypatch.setattr(http_link, "_WAITS", Waits((0.0, 0.0, 0.0)))
    links: list[HttpLink] = []

    def begin(term_s: float) -> tuple[Network, RunChannel]:
        network, link = Network(term_s), HttpLink("https://platform.example", "ticket")
        links.append(link)
        link._http.close()
        link._http = httpx.Client(transport=httpx.MockTransport(network.carry))
        claimed = link.claim(OFFER)
        assert isinstance(claimed, Assignment)
        return network, RunChannel(link, claimed, clock=lambda: network.now)

    yield begin
    for link in links:
        link.close()


@pytest.mark.parametrize("term_s", [5.0, 10.0, 30.0, 60.0, 600.0])
def test_a_question_that_is_lost_is_asked_again_before_the_lease_has_run_out(
    working: Working, term_s: float
) -> None:
    network, channel = working(term_s)
    network.now, network.loses = term_s / 2, 1  # after which no answer is waited for that is held
    channel.sync()
    assert network.now < term_s and not channel.has_run_out() and channel.answers == 1


@pytest.mark.parametrize(
    ("term_s", "limits_s"),
    [
        (0.5, [1.5, 3.0, 6.0, 12.0]),
        (3.0, [1.5, 3.0, 6.0, 12.0]),
        (9.0, [3.0, 6.0, 12.0, 20.0]),
        (30.0, [10.0, 20.0, 20.0, 20.0]),
        (600.0, [20.0, 20.0, 20.0, 20.0]),
    ],
)
def test_a_platform_that_is_slow_for_everybody_is_given_more_time_each_time(
    working: Working, term_s: float, limits_s: list[float]
) -> None:
    network, channel = working(term_s)
    network.loses = 4
    with pytest.raises(PlatformUnreachableError, match="timed out"):
        channel.sync()
    assert network.limits_s == limits_s


def test_what_brings_news_or_is_held_has_the_time_that_it_had(working: Working) -> None:
    network, channel = working(3.0)
    channel.sync(facts={"environment": "uv"})
    channel.sync(find_agent=True)
    channel.sync(may_wait=True)
    assert network.limits_s == [20.0, 20.0, 2.0]
