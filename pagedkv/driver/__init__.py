"""Allocators in processes of their own, behind a line protocol: see docs/driver-protocol.md."""
