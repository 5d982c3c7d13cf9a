"""`python -m fedpriv`: the command line."""

from fedpriv.cli import app

app()
