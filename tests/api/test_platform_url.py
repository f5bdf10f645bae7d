from __future__ import annotations

import pytest

from osmosis_ai.api.platform_url import is_loopback, is_secure, normalize_platform_url
from osmosis_ai.errors import OsmosisError


@pytest.mark.parametrize(
    "written, normal",
    [
        ("https://platform.osmosis.ai", "https://platform.osmosis.ai"),
        ("  HTTPS://Platform.Osmosis.AI:443//  ", "https://platform.osmosis.ai"),
        ("http://a.example:80/x/", "http://a.example/x"),
        ("https://a.example:8443/Base/?q=1#f", "https://a.example:8443/Base"),
        ("a.example", "https://a.example"),
        ("a.example:8443/x", "https://a.example:8443/x"),
        ("localhost", "http://localhost"),
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("[::1]:8000", "http://[::1]:8000"),
        ("https://[2001:DB8::1]:443/", "https://[2001:db8::1]"),
        ("notaurl", "https://notaurl"),
        ("my_platform:8080", "https://my_platform:8080"),
        ("b\u00fccher.example", "https://b\u00fccher.example"),
    ],
)
def test_two_spellings_of_a_platform_have_one_normal_form(written: str, normal: str) -> None:
    assert normalize_platform_url(written) == normal
    assert normalize_platform_url(normal) == normal


@pytest.mark.parametrize(
    "written",
    [
        *("", "https://", "https://a:port", "ftp://a.example", "https://a b", "https://[::1"),
        *("a..example", "-a.example", "https://a_b-.example", "https://a,b", "https://a;b"),
        *("https://300.1.1.1", "https://1.2.3", "https://a:0", "a.example:99999", f"https://{'a' * 64}"),
    ],
)
def test_what_is_no_web_address_is_refused(written: str) -> None:
    with pytest.raises(OsmosisError, match="Invalid platform URL"):
        normalize_platform_url(written)


@pytest.mark.parametrize("written", ["https://me:hunter2@a.example", "me:hunter2@a.example:port"])
def test_a_password_in_the_url_is_refused_and_not_repeated(written: str) -> None:
    with pytest.raises(OsmosisError) as caught:
        normalize_platform_url(written)
    assert "hunter2" not in caught.value.message


def test_loopback_is_this_machine_alone() -> None:
    assert all(map(is_loopback, ("localhost", "a.localhost", "127.0.0.1", "127.9.9.9", "::1", "LOCALHOST")))
    assert not any(map(is_loopback, (None, "", "localhost.example", "10.0.0.1", "128.0.0.1", "0.0.0.0")))


def test_credentials_travel_over_https_or_within_this_machine() -> None:
    assert is_secure("https://a.example")
    assert is_secure("http://localhost:8000")
    assert not is_secure("http://a.example")
