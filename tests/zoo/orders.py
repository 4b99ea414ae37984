"""In which order free blocks are handed out, and in what they are kept."""

from __future__ import annotations

import random
from bisect import insort
from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush

from zoo.animal import Animal
from zoo.keeper import Keeper, short


class Stack(Keeper):
    def stock(self, num_blocks: int) -> None:
        self.stack = list(range(num_blocks))

    def take(self, count: int, table: list[int]) -> list[int]:
        if count > len(self.stack):
            raise short(count, len(self.stack))
        return [self.stack.pop() for _ in range(count)]

    def give(self, blocks: list[int]) -> None:
        self.stack += blocks

    def free(self) -> Iterable[int]:
        return reversed(self.stack)


class Queue(Keeper):
    def stock(self, num_blocks: int) -> None:
        self.queue = deque(range(num_blocks))

    def take(self, count: int, table: list[int]) -> list[int]:
        if count > len(self.queue):
            raise short(count, len(self.queue))
        return [self.queue.popleft() for _ in range(count)]

    def give(self, blocks: list[int]) -> None:
        self.queue.extend(blocks)

    def free(self) -> Iterable[int]:
        return self.queue


class TailFirst(Queue):
    """As prefix caches do: what is shared least is handed out again first."""

    def give(self, blocks: list[int]) -> None:
        self.queue.extend(reversed(blocks))


class LowestFirst(Keeper):
    def stock(self, num_blocks: int) -> None:
        self.heap = list(range(num_blocks))

    def take(self, count: int, table: list[int]) -> list[int]:
        if count > len(self.heap):
            raise short(count, len(self.heap))
        return [heappop(self.heap) for _ in range(count)]

    def give(self, blocks: list[int]) -> None:
        for block in blocks:
            heappush(self.heap, block)

    def free(self) -> Iterable[int]:
        return sorted(self.heap)


class HighestFirst(Keeper):
    def stock(self, num_blocks: int) -> None:
        self.ascending = list(range(num_blocks))

    def take(self, count: int, table: list[int]) -> list[int]:
        if count > len(self.ascending):
            raise short(count, len(self.ascending))
        return [self.ascending.pop() for _ in range(count)]

    def give(self, blocks: list[int]) -> None:
        for block in blocks:
            insort(self.ascending, block)

    def free(self) -> Iterable[int]:
        return reversed(self.ascending)


class AnyOrder(Keeper):
    """Its generator moves with each block: no state comes again."""

    def stock(self, num_blocks: int) -> None:
        self.unused = set(range(num_blocks))
        self.generator = random.Random(7)

    def take(self, count: int, table: list[int]) -> list[int]:
        if count > len(self.unused):
            raise short(count, len(self.unused))
        taken = self.generator.sample(sorted(self.unused), count)
        self.unused.difference_update(taken)
        return taken

    def give(self, blocks: list[int]) -> None:
        self.unused.update(blocks)

    def free(self) -> Iterable[int]:
        return sorted(self.unused)


class Dice(Keeper):
    """A small generator that every call moves, a refused one too."""

    def stock(self, num_blocks: int) -> None:
        self.unused = list(range(num_blocks))
        self.dice = 1

    def take(self, count: int, table: list[int]) -> list[int]:
        self.dice = (5 * self.dice + 3) % 8
        if count > len(self.unused):
            raise short(count, len(self.unused))
        return [self.unused.pop(self.dice % len(self.unused)) for _ in range(count)]

    def give(self, blocks: list[int]) -> None:
        self.unused = sorted(self.unused + blocks)

    def free(self) -> Iterable[int]:
        return list(self.unused)


class Bitmap(Keeper):
    """One bit a block, the lowest set bit first."""

    def stock(self, num_blocks: int) -> None:
        self.bits = (1 << num_blocks) - 1

    def take(self, count: int, table: list[int]) -> list[int]:
        if count > self.bits.bit_count():
            raise short(count, self.bits.bit_count())
        taken = []
        for _ in range(count):
            lowest = self.bits & -self.bits
            taken.append(lowest.bit_length() - 1)
            self.bits ^= lowest
        return taken

    def give(self, blocks: list[int]) -> None:
        for block in blocks:
            self.bits |= 1 << block

    def free(self) -> Iterable[int]:
        return [b for b in range(self.bits.bit_length()) if self.bits >> b & 1]


class LinkedList(Keeper):
    """The free blocks are a chain through one array, as in a slab allocator; -1 ends it."""

    def stock(self, num_blocks: int) -> None:
        self.next = [*range(1, num_blocks), -1]
        self.head = 0

    def take(self, count: int, table: list[int]) -> list[int]:
        taken = list(self.free())[:count]
        if count > len(taken):
            raise short(count, len(taken))
        for _ in range(count):
            self.head = self.next[self.head]
        return taken

    def give(self, blocks: list[int]) -> None:
        for block in blocks:
            self.next[block], self.head = self.head, block

    def free(self) -> Iterable[int]:
        at, chain = self.head, list[int]()
        while at != -1:
            chain.append(at)
            at = self.next[at]
        return chain


class NextFit(Keeper):
    """A hand that goes round and stops after the block that it gave."""

    def stock(self, num_blocks: int) -> None:
        self.used = bytearray(num_blocks)
        self.hand = 0

    def take(self, count: int, table: list[int]) -> list[int]:
        taken = list(self.free())[:count]
        if count > len(taken):
            raise short(count, len(taken))
        for block in taken:
            self.used[block] = 1
            self.hand = (block + 1) % len(self.used)
        return taken

    def give(self, blocks: list[int]) -> None:
        for block in blocks:
            self.used[block] = 0

    def free(self) -> Iterable[int]:
        round_trip = (*range(self.hand, len(self.used)), *range(self.hand))
        return [block for block in round_trip if not self.used[block]]


class SortsOnRelease(Stack):
    """Each release puts the whole free list into another order: even blocks first, then odd."""

    def give(self, blocks: list[int]) -> None:
        self.stack = sorted([*self.stack, *blocks], key=lambda b: (-(b % 2), -b))


class BothEnds(Queue):
    """A first block comes from the front, later ones from the back: prompts keep apart."""

    def take(self, count: int, table: list[int]) -> list[int]:
        if not table:
            return super().take(count, table)
        if count > len(self.queue):
            raise short(count, len(self.queue))
        return [self.queue.pop() for _ in range(count)]


class Sharded(Keeper):
    """Two devices, odd and even blocks; the next comes from the one that has more."""

    def stock(self, num_blocks: int) -> None:
        self.shards = [list(range(0, num_blocks, 2)), list(range(1, num_blocks, 2))]

    def take(self, count: int, table: list[int]) -> list[int]:
        taken = list(self.free())[:count]
        if count > len(taken):
            raise short(count, len(taken))
        for block in taken:
            self.shards[block % 2].remove(block)
        return taken

    def give(self, blocks: list[int]) -> None:
        for block in blocks:
            self.shards[block % 2].append(block)

    def free(self) -> Iterable[int]:
        left, order = [list(shard) for shard in self.shards], list[int]()
        while any(left):
            order.append(max(left, key=len).pop(0))
        return order


class Sweep(Keeper):
    """What comes back lies on a second list, and is swept over only when the first is too short.

    All of it can be handed out by the next call, so all of it is free.
    """

    def stock(self, num_blocks: int) -> None:
        self.fresh, self.returned = list(range(num_blocks)), list[int]()

    def take(self, count: int, table: list[int]) -> list[int]:
        if count > len(self.fresh):
            self.fresh, self.returned = self.fresh + sorted(self.returned), []
        if count > len(self.fresh):
            raise short(count, len(self.fresh))
        taken, self.fresh = self.fresh[:count], self.fresh[count:]
        return taken

    def give(self, blocks: list[int]) -> None:
        self.returned += blocks

    def free(self) -> Iterable[int]:
        return [*self.fresh, *sorted(self.returned)]


ANIMALS = (
    Animal("stack", "Last in, first out.", Stack),
    Animal("queue", "First in, first out.", Queue),
    Animal("tail first", "First in, first out; a table's last block goes back first.", TailFirst),
    Animal("lowest first", "The lowest free block first, from a heap.", LowestFirst),
    Animal("highest first", "The highest free block first.", HighestFirst),
    Animal("any order", "Any free block, by a seeded generator in hidden state.", AnyOrder),
    Animal("dice", "Any free block, by a die that refused calls throw as well.", Dice),
    Animal("bitmap", "Free blocks are the bits of one integer.", Bitmap),
    Animal("linked list", "Free blocks are a chain through an array.", LinkedList),
    Animal("next fit", "A hand goes round the pool and takes the next free block.", NextFit),
    Animal("sorts on release", "A release puts the whole free list in order.", SortsOnRelease),
    Animal("both ends", "Prompts take from the front, decodes from the back.", BothEnds),
    Animal("sharded", "Two devices, the one with more free blocks first.", Sharded),
    Animal("sweep", "Blocks given back are merged in only when the rest is too short.", Sweep),
)
