"""The site's end of Flower: each message starts a process that hands its bytes to the site's worker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedpriv.sites.socket_server import ask

app = ClientApp()


@app.query("card")
def card(message: Message, context: Context) -> Message:
    """The site's card, which is public."""
    return _reply(message, context, lambda folder: (folder / "card.json").read_bytes())


@app.query("round")
def answer(message: Message, context: Context) -> Message:
    """What the site says to a question; nothing, where its worker is not there."""

    def said(folder: Path) -> bytes:
        question = message.content["fedpriv"]["bytes"]
        # of a number bytes() makes so many zeros
        if isinstance(question, bytes):
            return ask(folder, question)
        return b""

    return _reply(message, context, said)


def _reply(message: Message, context: Context, of: Callable[[Path], bytes]) -> Message:
    try:
        said = of(Path(str(context.node_config["site"])))
    except Exception:  # whatever it is, Flower would send its text to the server
        said = b""
    return Message(RecordDict({"fedpriv": ConfigRecord({"bytes": said})}), reply_to=message)
