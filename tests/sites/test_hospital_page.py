"""Runs the commands of docs/howto/hospital.md literally, for two hospitals and a server."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import numpy as np
import pytest
from forked_commands import ForkedCommand
from parties import PATIENCE, free_port, until

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "hospital.md"
HOSPITALS = ("north", "south")


class Machine:
    """Runs the page's commands for one role after another. Those that begin with sudo are the operator's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.metrics = {name: free_port() for name in HOSPITALS}
        self.running: dict[str, ForkedCommand] = {}
        text = PAGE.read_text()
        self.chapters = dict(re.findall(r"^## (\d)\. .*?\n(.*?)(?=^## )", text, flags=re.MULTILINE | re.DOTALL))
        for name in (*HOSPITALS, "server"):
            (folder / name).mkdir()

    def commands(self, chapter: int) -> list[str]:
        blocks = re.findall(r"^```console\n(.*?)^```$", self.chapters[str(chapter)], flags=re.MULTILINE | re.DOTALL)
        lines = [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]
        return [line for line in lines if not line.startswith(("sudo ", "echo "))]

    def yaml(self, chapter: int, name: str) -> str:
        (text,) = re.findall(r"^```yaml\n(.*?)^```$", self.chapters[str(chapter)], flags=re.MULTILINE | re.DOTALL)
        return self.local(text, name)

    def local(self, text: str, name: str) -> str:
        """The page's words for a hospital of this name on this machine."""
        if name != "server":
            text = text.replace("north", name).replace("9464", str(self.metrics[name]))
        return (
            text.replace("server.example.org:7447", f"localhost:{self.port}")
            .replace("server.example.org", "localhost")
            .replace("0.0.0.0:7447", f"127.0.0.1:{self.port}")
        )

    def run(self, name: str, command: str) -> str:
        output, errors = (self.folder / f"{name}.{stream}" for stream in ("output", "errors"))
        for file in (output, errors):
            file.unlink(missing_ok=True)
        code = ForkedCommand(self.words(command, name), self.folder / name, output, errors).wait(PATIENCE)
        assert code == 0, f"{name}: {command}\n{output.read_text()}{errors.read_text()}"
        return output.read_text()

    def start(self, name: str, command: str) -> None:
        log = self.folder / name / "output.log"
        self.running[name] = ForkedCommand(self.words(command, name), self.folder / name, log, log)
        until(
            lambda: self.log_contains(name, "server") or self.running[name].poll() is not None,
            f"{name} does not answer",
        )
        assert self.running[name].poll() is None, log.read_text()

    def log_contains(self, name: str, word: str) -> bool:
        log = self.folder / name / "output.log"
        return log.exists() and word in log.read_text()

    def stop(self, name: str) -> None:
        process = self.running.pop(name)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=PATIENCE)
        (self.folder / name / "output.log").unlink()

    def words(self, command: str, name: str) -> list[str]:
        program, *words = [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', self.local(command, name))]
        assert program == "fedpriv"
        return words


def write_people(path: Path, count: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = ["age,pressure,ill"]
    for _ in range(count):
        age, pressure = random.integers(20, 90), random.integers(90, 190)
        rows.append(f"{age},{pressure},{int(age + pressure + random.normal(0, 20) > 195)}")
    path.write_text("\n".join(rows) + "\n")


def send(source: Path, target: Path) -> None:
    target.write_bytes(source.read_bytes())


def test_hospital_page_commands_run(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    server = tmp_path / "server"
    try:
        for number, name in enumerate(HOSPITALS):
            home = tmp_path / name
            write_people(home / f"{name}.csv", 400, number)
            write_people(home / "public.csv", 100, 9)
            (home / "site.yaml").write_text(machine.yaml(1, name))
            for command in machine.commands(1):
                machine.run(name, command)
            send(home / name / "card.json", server / f"{name}.card.json")
            send(home / name / "tls" / "request.pem", server / f"{name}.request.pem")
        write_people(server / "public.csv", 100, 9)
        (server / "run.yaml").write_text(machine.yaml(2, "server"))
        for command in machine.commands(2):
            machine.run("server", command)
        for name in HOSPITALS:
            for file in (f"{name}.pem", "authority.pem"):
                send(server / "authority" / file, tmp_path / name / file)
            install, start = machine.commands(3)
            machine.run(name, install)
            machine.start(name, start)

        propose, status, approve = machine.commands(4)
        words = dict(line.split(None, 1) for line in machine.run("server", propose).splitlines())
        fingerprint = words["fingerprint"].strip()
        assert {name: words[name].strip() for name in HOSPITALS} == dict.fromkeys(HOSPITALS, "pending")
        for name in HOSPITALS:
            assert f"{fingerprint}  pending" in machine.run(name, status)
            machine.run(name, re.sub('"[^"]*"', f'"{fingerprint}"', approve))
        for name in HOSPITALS:
            log = tmp_path / name / name / "log.jsonl"
            until(lambda log=log: "answered from now on" in log.read_text(), f"{name} does not answer the plan")

        (train,) = machine.commands(5)
        result = machine.run("server", train)
        assert re.search(r"ended +rounds", result)
        assert (server / "fed" / "model.pt").exists()
        for name in HOSPITALS:
            status, statement = machine.commands(6)
            shown = machine.run(name, status)
            assert "5 of 5 answered" in shown
            assert "coordinator" in shown
            assert "epsilon=1 " in machine.run(name, statement)
    finally:
        for name in [*machine.running]:
            machine.stop(name)


@pytest.mark.parametrize("command", ["status", "approve", "refuse", "absent", "join", "run", "keys", "init"])
def test_hospital_page_names_each_site_command(command: str) -> None:
    assert f"fedpriv site {command} north" in PAGE.read_text()
