"""The address of a tower: what is accepted, and which port it gets."""

from __future__ import annotations

import pytest

from watchtower.access.tokens import find_client_token
from watchtower.access.tower_address import (
    AddressError,
    check_token_is_safe,
    check_tower_url,
    check_tower_urls,
)


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("http://tower", "http://tower:19660"),
        ("http://tower/", "http://tower:19660"),
        ("http://tower:", "http://tower:19660"),
        ("https://tower.example/watchtower/", "https://tower.example:19660/watchtower"),
        ("https://tower.example:443", "https://tower.example:443"),
        ("http://[::1]", "http://[::1]:19660"),
        ("http://[::1]:80", "http://[::1]:80"),
    ],
)
def test_a_url_without_a_port_gets_the_port_of_a_tower(given: str, used: str) -> None:
    assert check_tower_url(given) == used


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("foo", "invalid tower URL 'foo': must start with http:// or https://"),
        ("tower:19660", "invalid tower URL 'tower:19660': must start with http:// or https://"),
        ("", "invalid tower URL '': must start with http:// or https://"),
        ("http://", "must be http://HOST[:PORT] or https://HOST[:PORT]"),
        ("http://h:99999", "must be http://HOST[:PORT]"),
        ("http://h:0", "must be http://HOST[:PORT]"),
        ("http://[::1", "must be http://HOST[:PORT]"),
        ("http://a b", "must be http://HOST[:PORT]"),
        ("http://h\x1b[2J", "must be http://HOST[:PORT]"),
        ("http://u:p@h", "must not have a user, a query or a fragment"),
        ("http://h?x=1", "must not have a user"),
    ],
)
def test_a_wrong_url_is_quoted_with_what_is_allowed(given: str, text: str) -> None:
    with pytest.raises(AddressError) as caught:
        check_tower_url(given)
    assert text in str(caught.value)


def test_a_long_url_is_quoted_in_part() -> None:
    with pytest.raises(AddressError) as caught:
        check_tower_url("x" * 10_000)
    assert len(str(caught.value)) < 300


def test_several_addresses_are_checked_one_by_one_and_named_once():
    assert check_tower_urls("http://a, https://b:1/,http://a") == "http://a:19660,https://b:1"
    for wrong in ("", ",", "http://a,b", ",".join(f"http://t{n}" for n in range(9))):
        with pytest.raises(AddressError):
            check_tower_urls(wrong)


def test_a_token_goes_unencrypted_to_no_address_of_a_list():
    token = find_client_token("", {"WATCHTOWER_TOKEN": "s3cret-s3cret-s3cret"})
    with pytest.raises(AddressError):
        check_token_is_safe("https://a:1,http://b:1", token, insecure=False)
