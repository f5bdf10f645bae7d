"""What is tidied up now and then."""

from __future__ import annotations

import logging
import threading

import pytest

from osmosis_ai.platform.blobs.store import BlobStoreBusy
from osmosis_ai.platform.maintenance import Maintenance


def test_a_chore_that_fails_keeps_no_other_from_its_turn(caplog: pytest.LogCaptureFixture) -> None:
    done = threading.Event()

    def full() -> None:
        raise OSError(28, "No space left on device")

    def broken() -> None:
        raise ValueError("a bug")

    def away() -> None:
        raise BlobStoreBusy("the bucket 'models' answered 503; it is asked again later.")

    maintenance = Maintenance({"blobs": full, "runs": away, "datasets": broken, "uploads": done.set})
    with caplog.at_level(logging.ERROR, "osmosis_ai.platform.maintenance"):
        maintenance.start()
        assert done.wait(60)
        maintenance.close()
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "blobs could not be tidied up now",
        "runs could not be tidied up now",
        "datasets could not be tidied up now",
    ]
    # What passes is a line; only a bug has a traceback.
    assert [bool(record.exc_info) for record in caplog.records] == [False, False, True]


def test_what_keeps_a_chore_from_being_done_is_said_once_until_it_is_done(
    caplog: pytest.LogCaptureFixture,
) -> None:
    enough = threading.Event()
    # A round each; None is one in which it is done.
    rounds = iter(["503", "503", "507", None, "507"])

    def keeping() -> None:
        try:
            what = next(rounds)
        except StopIteration:
            enough.set()
            return
        if what is not None:
            raise BlobStoreBusy(f"the bucket answered {what}.")

    maintenance = Maintenance({"runs": keeping}, every_s=0.001)
    with caplog.at_level(logging.ERROR, "osmosis_ai.platform.maintenance"):
        maintenance.start()
        assert enough.wait(60)
        maintenance.close()
    said = [record.getMessage().partition("answered ")[2] for record in caplog.records]
    assert said == ["503.", "507.", "507."]
