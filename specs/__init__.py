"""What must hold of a paged KV-cache allocator: commands, the logical model and the properties.

Nothing here knows a concrete manager, and nothing here makes histories.
"""
