"""Requests and replies over Flower (flower.ai), with the extra `fedpriv[flower]`."""
