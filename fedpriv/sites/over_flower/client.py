"""The site's end of Flower: each message starts a process that hands its bytes to the site's worker."""

from __future__ import annotations

from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedpriv.sites.worker import ask

app = ClientApp()


@app.query("card")
def card(message: Message, context: Context) -> Message:
    """The site's card, which is public."""
    return _reply(message, _folder(context) / "card.json")


@app.query("round")
def answer(message: Message, context: Context) -> Message:
    """What the site says to a question; nothing, where its worker is not there. No error is told."""
    try:
        said = ask(_folder(context), bytes(message.content["fedpriv"]["bytes"]))
    except Exception:  # whatever it is, Flower would send its text to the server
        said = b""
    return Message(RecordDict({"fedpriv": ConfigRecord({"bytes": said})}), reply_to=message)


def _reply(message: Message, path: Path) -> Message:
    said = path.read_bytes() if path.exists() else b""
    return Message(RecordDict({"fedpriv": ConfigRecord({"bytes": said})}), reply_to=message)


def _folder(context: Context) -> Path:
    return Path(str(context.node_config["site"]))
