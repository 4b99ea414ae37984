"""Adapters: real engines' allocators behind the protocol, driven as their docstrings allow.

Each engine has a module of its own, which is imported only when its target is made. An adapter
translates and observes; it checks nothing itself, and it hides nothing. What they have in common is
in `pagedkv.adapter`.
"""
