from __future__ import annotations

import itertools
import time

from hypothesis import given
from hypothesis import strategies as st

from osmosis_ai.llm.sse import EventParser

STREAM = (
    b": ping\n\n"
    b'data: {"a": "\xc3\xa9"}\r\n\r\n'
    b"event: error\nid: 7\ndata:no space\n\n"
    b"data: two\ndata: lines\n\n\n"
    b"data: [DONE]\n"
)
EVENTS = [("", b'{"a": "\xc3\xa9"}'), ("error", b"no space"), ("", b"two\nlines"), ("", b"[DONE]")]


def parse(pieces: list[bytes]) -> list[tuple[str, bytes]]:
    parser = EventParser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    return [*events, *parser.end()]


def test_events_comments_and_both_line_ends_are_understood() -> None:
    assert parse([STREAM]) == EVENTS


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_it_does_not_matter_where_the_network_cuts(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[start:end] for start, end in itertools.pairwise(places)]
    assert parse(pieces) == EVENTS


def test_one_byte_order_mark_before_the_stream_is_skipped() -> None:
    assert parse([b"\xef", b"\xbb\xbfdata: a\n\ndata: b\n\n"]) == [("", b"a"), ("", b"b")]
    assert parse([b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n"]) == []


def test_a_line_may_be_long() -> None:
    assert parse([b"data: ", b"x" * 1_000_000, b"\n\n"]) == [("", b"x" * 1_000_000)]


def test_the_time_for_a_line_grows_with_its_length_and_not_with_the_square() -> None:
    started = time.process_time()
    assert len(parse([b"data: ", *[b"x" * 512] * 8_192, b"\n\n"])[0][1]) == 4 << 20
    assert time.process_time() - started < 1
