"""Questions and replies over Eclipse Zenoh (zenoh.io), the extra `fedpriv[zenoh]`."""
