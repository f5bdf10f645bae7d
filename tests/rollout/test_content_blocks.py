"""Small helpers under the paths that users import them from."""

from __future__ import annotations

import copy

import pytest

from osmosis_ai.rollout import LocalBackend
from osmosis_ai.rollout.utils.imports import resolve_object
from osmosis_ai.rollout.utils.messages import map_initial_messages_to_content_blocks


def test_plain_contents_become_blocks_and_the_rest_stays() -> None:
    given = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [{"text": "6 * 7?"}, {"image": {"format": "png"}}], "name": "x"},
        {"role": "user", "content": [{"type": "text", "text": "8 * 9?"}]},
        {"role": "assistant", "content": None},
        {"role": "assistant"},
    ]
    before = copy.deepcopy(given)

    assert map_initial_messages_to_content_blocks(given) == [
        {"role": "system", "content": [{"text": "Be short."}]},
        {"role": "user", "content": [{"text": "6 * 7?"}, {"image": {"format": "png"}}], "name": "x"},
        {"role": "user", "content": [{"text": "8 * 9?"}]},
        {"role": "assistant", "content": []},
        {"role": "assistant", "content": []},
    ]
    assert given == before
    assert map_initial_messages_to_content_blocks([]) == []


def test_a_name_is_resolved_and_a_bad_one_is_quoted() -> None:
    assert resolve_object("osmosis_ai.rollout:LocalBackend") is LocalBackend
    assert resolve_object(LocalBackend) is LocalBackend
    with pytest.raises(ValueError, match="`module:attribute`, not 'LocalBackend'"):
        resolve_object("LocalBackend")
    with pytest.raises(ValueError, match="no `Nothing`"):
        resolve_object("osmosis_ai.rollout:Nothing")
