"""Start Flower's own programs: the SuperNode of a site, and a run at the SuperLink."""

from __future__ import annotations

import importlib.util
import ipaddress
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from fedpriv.errors import ConfigError, FedprivError
from fedpriv.sites.site_folder import NODE_KEY

_APP = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedpriv-federation"
version = "1.0.0"
description = "Components that are installed with fedpriv"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedpriv"

[tool.flwr.app.components]
serverapp = "fedpriv.sites.over_flower.server:app"
clientapp = "fedpriv.sites.over_flower.client:app"

[tool.flwr.app.config]
folder = ""
wait = 120.0
"""


def environment() -> dict[str, str]:
    """The environment of Flower's programs, in which they tell nobody that they run and install nothing."""
    quiet = {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }
    beside = str(Path(sys.executable).parent)
    return {**os.environ, **quiet, "PATH": f"{beside}{os.pathsep}{os.environ.get('PATH', '')}"}


def program(name: str) -> str:
    """Where one of Flower's programs is.

    Raises:
        FedprivError: Flower is not installed.
    """
    if importlib.util.find_spec("flwr") is None:
        raise FedprivError("Flower is not installed: pip install 'fedpriv[flower]'")
    beside = Path(sys.executable).with_name(name)
    if beside.exists():
        return str(beside)
    return name


def check_address(address: str, certificates: Path | None) -> None:
    """Refuse to send anything over a network without TLS.

    Raises:
        ConfigError: there are no certificates, and the address is not this machine's own.
    """
    host = address.rpartition(":")[0].strip("[]")
    try:
        own = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        own = False
    if certificates is None and not own:
        fix = "is another machine: give --root-certificates, so that it is known to be the server and nobody listens"
        raise ConfigError("--superlink", address, fix)


def supernode(folder: Path, superlink: str, certificates: Path | None, log: Path, port: int) -> subprocess.Popen[bytes]:
    """Start the SuperNode of a site.

    Args:
        folder: The site's.
        superlink: Address of the SuperLink, host:port.
        certificates: Those that the server's certificate is checked with; None for this machine only.
        log: What it says.
        port: On this machine, of its own programs.

    Raises:
        ConfigError: without certificates, another machine is named.
        FedprivError: Flower is not installed.
    """
    check_address(superlink, certificates)
    key = folder / NODE_KEY
    secure = ["--insecure"]
    if certificates is not None:
        secure = ["--root-certificates", str(certificates), "--auth-supernode-private-key", str(key)]
    words = [program("flower-supernode"), *secure, "--superlink", superlink, "--host", "127.0.0.1"]
    words += ["--port", str(port), "--node-config", f"site={json.dumps(str(folder.absolute()))}"]
    log.touch(mode=0o600)
    with log.open("ab") as said:
        return subprocess.Popen(words, stdout=said, stderr=said, env=environment())


def start_run(folder: Path, superlink: str, certificates: Path | None, wait: float) -> str:
    """Have the SuperLink start a federation's server; returns the number of the run.

    Args:
        folder: The federation's.
        superlink: Address of the SuperLink, host:port.
        certificates: See `supernode`.
        wait: Seconds for a round's replies.

    Raises:
        FedprivError: the SuperLink does not start it.
    """
    check_address(superlink, certificates)
    given = {"folder": str(folder.absolute()), "wait": wait}
    options = " ".join(f"{name}={json.dumps(value)}" for name, value in given.items())
    with tempfile.TemporaryDirectory() as made:
        app = Path(made) / "fedpriv_federation"
        app.mkdir()
        (app / "pyproject.toml").write_text(_APP)
        (app / "README.md").write_text("Components that are installed with fedpriv.\n")
        (app / "LICENSE").write_text("Apache-2.0\n")
        words = ["run", str(app), "fedpriv", "--run-config", options, "--format", "json"]
        told = _flwr(Path(made), words, superlink, certificates)
    if "run-id" not in told:
        raise FedprivError(f"the SuperLink at {superlink} started no run: {told}")
    return str(told["run-id"])


def status_of(run: str, superlink: str, certificates: Path | None) -> str:
    """What the SuperLink says of a run, such as `running` or `finished:completed`."""
    with tempfile.TemporaryDirectory() as made:
        told = _flwr(Path(made), ["ls", "fedpriv", "--format", "json"], superlink, certificates)
    found = [one for one in told.get("runs", []) if str(one.get("run-id")) == run]
    if found:
        return str(found[0].get("status"))
    return "unknown"


def _flwr(
    home: Path, words: list[str], superlink: str, certificates: Path | None
) -> Mapping[str, list[dict[str, str]]]:
    if certificates is None:
        secure = "insecure = true"
    else:
        secure = f"root-certificates = {json.dumps(str(certificates.absolute()))}"
    settings = f'[superlink]\ndefault = "fedpriv"\n[superlink.fedpriv]\naddress = "{superlink}"\n{secure}\n'
    (home / "config.toml").write_text(settings)
    env = {**environment(), "FLWR_HOME": str(home)}
    found = subprocess.run([program("flwr"), *words], capture_output=True, text=True, env=env, timeout=120, check=False)
    try:
        return json.loads(found.stdout)
    except ValueError:
        raise FedprivError(f"flwr {words[0]}: {(found.stderr or found.stdout).strip()[-500:]}") from None
