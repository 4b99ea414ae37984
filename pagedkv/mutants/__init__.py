"""Allocators with one planted fault each; none yet."""
