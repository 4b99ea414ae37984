"""LMDeploy's `Scheduler` with its `BlockTrie` and sessions of several turns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from lmdeploy.pytorch.messages import UpdateTokenMode

from pagedkv.engines.lmdeploy_trie import LmdeployTrie
from pagedkv.protocol import Request


class LmdeployTurns(LmdeployTrie):
    """`LmdeployTrie` with sessions that go on; sizes > 0, else ValueError.

    An append is a further turn: what the sequence computed last is finished, and it is admitted
    again with so many tokens more.
    """

    declares = replace(LmdeployTrie.declares, abilities=frozenset({"append", "prefix"}))
    state_key = LmdeployTrie.state_key  # nothing is added to the state

    def allocate_for_append(self, req: Request, count: int) -> bool:
        sequence = self.live[req]
        # As `ARSequenceStrategy.update_running` does for a request of no new tokens, and
        # `Engine._add_message` for the session's next message.
        sequence.update_token_ids(np.empty(0, dtype=np.int64), mode=UpdateTokenMode.PREFILL)
        sequence.finish()
        sequence.update_token_ids(np.array(req.tokens[-count:]), mode=UpdateTokenMode.INPUTS)
        sequence.activate()
        return self._admitted(sequence) and self.granted(req, count)
