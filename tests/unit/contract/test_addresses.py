"""Hosts, ports and URLs as text."""

from ipaddress import ip_address
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from toolkit.contract import addresses
from toolkit.contract.addresses import (
    check_host,
    host_port,
    http_url,
    is_ipv6,
    loopback_like,
    origin_of,
    place_of,
    reachable,
    read_worker_url,
)

ROOT = Path(__file__).parents[3]
hosts = st.one_of(
    st.ip_addresses().map(str),
    st.from_regex(r"[a-z][a-z0-9-]{0,20}[a-z0-9](\.[a-z][a-z0-9]{0,9}){0,2}", fullmatch=True),
)
ports = st.integers(1, 65535)
pieces = st.from_regex(r"[A-Za-z0-9_~-]{1,12}", fullmatch=True)
prefixes = st.lists(pieces, max_size=3).map(lambda some: "".join(f"/{each}" for each in some))


@given(hosts, ports, prefixes, st.sampled_from(["", "/"]))
def test_a_worker_s_url_is_read_as_it_was_written(
    host: str, port: int, prefix: str, end: str
) -> None:
    url = http_url(host, port) + prefix
    place, read = read_worker_url(url + end)
    assert (place.port, read) == (port, prefix)
    assert is_ipv6(place.host) == is_ipv6(host)
    assert place.host == host or ip_address(place.host) == ip_address(host)
    assert place_of(url) == place
    assert origin_of(url) == http_url(*place)


bad = st.one_of(
    st.tuples(pieces, pieces).map(lambda pair: f"http://{pair[0]}:{pair[1]}@h:1"),
    pieces.map(lambda name: f"http://{name}@h:1/x"),
    pieces.map(lambda query: f"http://h:1/x?{query}"),
    pieces.map(lambda fragment: f"http://h:1#{fragment}"),
    st.sampled_from(["http://h:1?", "http://h:1#", "http://h:1/a//b", "http://h:1/../x"]),
    st.sampled_from(["http://h:1/./x", "http://h:1/%41", "http://h", "http://h/x", "http://:80"]),
    st.integers(65536, 10**9).map(lambda port: f"http://h:{port}"),
    st.sampled_from(["http://h:0", "http://h:-1", "http://h:x", "http://h:", "http://::1:80"]),
    st.sampled_from(["https://h:1", "ftp://h:1", "h:1", "//h:1", "http:/h:1", "http://h:1\r\nX"]),
    st.sampled_from(["http://h:1/ a", "http://[::1:80", "http://[h]:80", "http://h\\@x:1", ""]),
)


@given(bad)
def test_what_cannot_be_honoured_is_refused_with_a_way_to_mend_it(url: str) -> None:
    with pytest.raises(ValueError, match=r"write http://HOST:PORT|remove it"):
        read_worker_url(url)


@given(st.text(max_size=40) | st.text(max_size=30).map("http://".__add__))
@example("http://u:secret@h:99999")
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        place, prefix = read_worker_url(text)
    except ValueError as error:
        assert "secret" not in str(error)
        return
    assert 1 <= place.port <= 65535 and check_host(place.host) == place.host
    assert read_worker_url(http_url(*place) + prefix) == (place, prefix)


@given(hosts, ports)
def test_a_host_alone_is_one_with_or_without_brackets(host: str, port: int) -> None:
    assert check_host(host) == host
    if is_ipv6(host):
        assert check_host(f"[{host}]") == host
        assert host_port(host, port) == host_port(f"[{host}]", port) == f"[{host}]:{port}"
    for wrong in (f"http://{host}", f"{host}/", host_port(host, port), f" {host}", ""):
        with pytest.raises(ValueError, match="alone"):
            check_host(wrong)


@pytest.mark.parametrize(
    ("host", "own", "found"),
    [
        ("127.0.0.1", "10.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "10.0.0.1", "10.0.0.1"),
        ("0.0.0.0", "fd00::1", "127.0.0.1"),
        ("::", "10.0.0.1", "::1"),
        ("::", "fd00::1", "fd00::1"),
        ("::1", "10.0.0.1", "::1"),
    ],
)
def test_who_listens_on_all_addresses_is_reached_by_its_own_family(
    host: str, own: str, found: str
) -> None:
    assert reachable(host, own) == found


def test_loopback_of_the_same_family() -> None:
    found = [loopback_like(host) for host in ("::", "fd00::1", "10.0.0.1", "localhost")]
    assert found == ["::1", "::1", "127.0.0.1", "127.0.0.1"]


@given(hosts, ports)
def test_what_was_put_together_is_taken_apart(host: str, port: int) -> None:
    there = addresses.place_in(host_port(host, port))
    assert (check_host(there.host), there.port) == (check_host(host), port)
    assert addresses.host_in(host_port(host, port)) == addresses.host_in(
        f"[{host}]" if is_ipv6(host) else host
    ) == host  # fmt: skip
