"""Starts Flower's own programs: the SuperNode of a site, and a run at the SuperLink."""

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


def make_environment() -> dict[str, str]:
    """Returns the environment for Flower's programs, which disables telemetry and installations."""
    quiet = {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }
    scripts = str(Path(sys.executable).parent)  # where Flower's programs are installed
    return {**os.environ, **quiet, "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}"}


def find_program(name: str) -> str:
    """Returns the path of one of Flower's programs; its bare name if it is not next to this Python.

    Raises:
        FedprivError: If Flower is not installed.
    """
    if importlib.util.find_spec("flwr") is None:
        raise FedprivError("Flower is not installed: pip install 'fedpriv[flower]'")
    path = Path(sys.executable).with_name(name)
    if path.exists():
        return str(path)
    return name


def check_address(address: str, certificates: Path | None) -> None:
    """Raises an error for connections over a network without TLS.

    Raises:
        ConfigError: If there are no certificates and the address belongs to another machine.
    """
    host = address.rpartition(":")[0].strip("[]")
    try:
        is_local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = False
    if certificates is None and not is_local:
        fix = "is on another machine: add --root-certificates, to authenticate the server and encrypt the connection"
        raise ConfigError("--superlink", address, fix)


def start_supernode(
    folder: Path, superlink: str, certificates: Path | None, log: Path, port: int
) -> subprocess.Popen[bytes]:
    """Starts the SuperNode of a site.

    Args:
        folder: The site's folder.
        superlink: Address of the SuperLink, host:port.
        certificates: Root certificates that verify the server's; None if the SuperLink runs on this machine.
        log: File for the SuperNode's output.
        port: Port on this machine, for its own programs.

    Raises:
        ConfigError: If the address belongs to another machine and there are no certificates.
        FedprivError: If Flower is not installed.
    """
    check_address(superlink, certificates)
    key = folder / NODE_KEY
    secure = ["--insecure"]
    if certificates is not None:
        secure = ["--root-certificates", str(certificates), "--auth-supernode-private-key", str(key)]
    words = [find_program("flower-supernode"), *secure, "--superlink", superlink, "--host", "127.0.0.1"]
    words += ["--port", str(port), "--node-config", f"site={json.dumps(str(folder.absolute()))}"]
    log.touch(mode=0o600)
    with log.open("ab") as output:
        return subprocess.Popen(words, stdout=output, stderr=output, env=make_environment())


def start_run(folder: Path, superlink: str, certificates: Path | None, wait: float) -> str:
    """Starts a federation's server at the SuperLink; returns the number of the run.

    Args:
        folder: The federation's folder.
        superlink: Address of the SuperLink, host:port.
        certificates: See `start_supernode`.
        wait: Seconds to wait for a round's replies.

    Raises:
        FedprivError: If the SuperLink does not start it.
    """
    check_address(superlink, certificates)
    run_config = {"folder": str(folder.absolute()), "wait": wait}
    options = " ".join(f"{name}={json.dumps(value)}" for name, value in run_config.items())
    with tempfile.TemporaryDirectory() as temporary:
        app = Path(temporary) / "fedpriv_federation"
        app.mkdir()
        (app / "pyproject.toml").write_text(_APP)
        (app / "README.md").write_text("Components that are installed with fedpriv.\n")
        (app / "LICENSE").write_text("Apache-2.0\n")
        words = ["run", str(app), "fedpriv", "--run-config", options, "--format", "json"]
        reply = _call_flwr(Path(temporary), words, superlink, certificates)
    if "run-id" not in reply:
        raise FedprivError(f"the SuperLink at {superlink} did not start the run; its reply: {reply}")
    return str(reply["run-id"])


def run_status(run: str, superlink: str, certificates: Path | None) -> str:
    """Returns the SuperLink's status of a run, such as `running` or `finished:completed`; `unknown` without one."""
    with tempfile.TemporaryDirectory() as temporary:
        reply = _call_flwr(Path(temporary), ["ls", "fedpriv", "--format", "json"], superlink, certificates)
    matches = [listed for listed in reply.get("runs", []) if str(listed.get("run-id")) == run]
    if matches:
        return str(matches[0].get("status"))
    return "unknown"


def _call_flwr(
    home: Path, words: list[str], superlink: str, certificates: Path | None
) -> Mapping[str, list[dict[str, str]]]:
    """Runs Flower's command `flwr`, with a configuration in the folder `home`; returns the JSON that it prints."""
    if certificates is None:
        secure = "insecure = true"
    else:
        secure = f"root-certificates = {json.dumps(str(certificates.absolute()))}"
    settings = f'[superlink]\ndefault = "fedpriv"\n[superlink.fedpriv]\naddress = "{superlink}"\n{secure}\n'
    (home / "config.toml").write_text(settings)
    env = {**make_environment(), "FLWR_HOME": str(home)}
    words = [find_program("flwr"), *words]
    process = subprocess.run(words, capture_output=True, text=True, env=env, timeout=120, check=False)
    try:
        return json.loads(process.stdout)
    except ValueError:
        raise FedprivError(f"flwr {words[1]} failed: {(process.stderr or process.stdout).strip()[-500:]}") from None
