"""Flower's client app of a site: each message starts a process that passes its bytes to the site's worker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedpriv.sites.socket_server import ask

app = ClientApp()


@app.query("card")
def card(message: Message, context: Context) -> Message:
    """Replies with the site's card, which is public."""
    return _reply(message, context, lambda folder: (folder / "card.json").read_bytes())


@app.query("round")
def answer(message: Message, context: Context) -> Message:
    """Replies to a request with the site's reply, or with no bytes if its worker is not running."""

    def ask_worker(folder: Path) -> bytes:
        question = message.content["fedpriv"]["bytes"]
        # the server may send another type; only bytes are a request
        if isinstance(question, bytes):
            return ask(folder, question)
        return b""

    return _reply(message, context, ask_worker)


def _reply(message: Message, context: Context, read_content: Callable[[Path], bytes]) -> Message:
    """Replies with `read_content(folder)`, where `folder` is the site's; with no bytes if that fails."""
    try:
        content = read_content(Path(str(context.node_config["site"])))
    except Exception:  # for any exception, Flower would send its text to the server
        content = b""
    return Message(RecordDict({"fedpriv": ConfigRecord({"bytes": content})}), reply_to=message)
