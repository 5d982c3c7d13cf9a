"""Requests and replies over Eclipse Zenoh (zenoh.io), with the extra `fedpriv[zenoh]`."""
