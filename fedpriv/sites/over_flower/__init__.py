"""Questions and replies over Flower (flower.ai), the extra `fedpriv[flower]`."""
