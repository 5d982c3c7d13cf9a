"""A site in its own process, reached through a socket in its folder."""

from __future__ import annotations

import threading
import time
from multiprocessing.connection import Client
from pathlib import Path

import pytest

from fedpriv.errors import ConfigError, FedprivError
from fedpriv.sites.over_flower.starting import check_address
from fedpriv.sites.socket_server import SOCKET, ask, serve, wake_after


class Served:
    """A worker that answers with what it was asked, backwards."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.on = folder, True
        self.thread = threading.Thread(target=serve, args=(folder, lambda data: data[::-1], lambda: self.on))

    def __enter__(self) -> Served:
        self.thread.start()
        while True:  # there is a name before anybody listens
            try:
                ask(self.folder, b"")
                return self
            except OSError:
                time.sleep(0.01)

    def __exit__(self, *_: object) -> None:
        self.on = False
        ask(self.folder, b"")
        self.thread.join(5)
        assert not self.thread.is_alive()


def test_worker_socket_round_trip(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        assert ask(tmp_path, b"abc") == b"cba"
        assert ask(tmp_path, bytes(3_000_000)) == bytes(3_000_000)
        assert (tmp_path / SOCKET).stat().st_mode & 0o077 == 0
        Client(str(tmp_path / SOCKET), "AF_UNIX").close()  # says nothing and goes
        with Client(str(tmp_path / SOCKET), "AF_UNIX") as rude:
            rude._send(b"\x7f\xff\xff\xff")  # two gigabytes are to follow
        assert ask(tmp_path, b"still there") == b"ereht llits"
        assert served.thread.is_alive()


def test_worker_restarts_on_same_socket(tmp_path: Path) -> None:
    (tmp_path / SOCKET).write_bytes(b"")
    (tmp_path / SOCKET).unlink()
    for _ in range(2):
        with Served(tmp_path):
            assert ask(tmp_path, b"12") == b"21"


def test_worker_ends_with_supernode(tmp_path: Path) -> None:
    ended, served = threading.Event(), Served(tmp_path)
    wake_after(tmp_path, ended.wait)
    served.thread.start()
    served.on = False
    assert served.thread.is_alive()  # nobody asks it anything
    ended.set()
    served.thread.join(10)
    assert not served.thread.is_alive()


def test_ask_without_worker_raises(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        ask(tmp_path, b"abc")


def test_too_long_socket_path_raises(tmp_path: Path) -> None:
    with pytest.raises(FedprivError, match="to a shorter path"):
        serve(tmp_path / ("x" * 100), lambda data: data, lambda: False)


@pytest.mark.parametrize("address", ["example.org:8000", "10.0.0.1:8000", "0.0.0.0:8000", "[::]:8000", "x"])
def test_remote_address_without_tls_raises(address: str) -> None:
    with pytest.raises(ConfigError, match="root-certificates"):
        check_address(address, None)
    check_address(address, Path("ca.pem"))


@pytest.mark.parametrize("address", ["127.0.0.1:8000", "localhost:8000", "[::1]:8000"])
def test_loopback_without_tls_allowed(address: str) -> None:
    check_address(address, None)
