"""The values of the records: the same for all peers, and on all machines.

Two kinds. Hexadecimal digits by lot hardly compress; they are for works without a codec. Objects
in JSON, of words of which some are frequent and most are rare, are for works with one: they
compress as what people send does. No outside text is needed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

HEX, TEXT = "hex", "text"
_WORDS = 2_000
_CONSONANTS, _VOWELS = "bcdfghklmnprstvw", "aeiou"
# Many enough that no codec here sees the same value again: zstd looks back over 2 MB. Of
# hexadecimal digits it does not matter, and few values stay in the processor's cache.
_BYTES = {HEX: 100_000, TEXT: 4_000_000}
_FEWEST, _MOST_BYTES = 1_000, 16_000_000


ABOUT_VALUES = (
    "random hexadecimal digits, without keys; with a codec JSON of words, some frequent and most"
    " rare (lz4 makes half of it, gzip a third)"
)


def write_values(path: Path, kind: str, size: int) -> None:
    """Write values of this size into a file, one after the other."""
    count = min(max(_FEWEST, _BYTES[kind] // size), max(1, _MOST_BYTES // size))
    one = _KINDS[kind](random.Random(size))
    path.write_text("".join(one(size) for _ in range(count)), encoding="ascii")


def _hexadecimal(rng: random.Random) -> Callable[[int], str]:
    return lambda size: rng.randbytes(-(-size // 2)).hex()[:size]


def _objects(rng: random.Random) -> Callable[[int], str]:
    words = [_word(rng) for _ in range(_WORDS)]
    # As often as its place in the list is low: Zipf's law.
    weights = list(accumulate(1 / (place + 1) for place in range(_WORDS)))

    def one(size: int) -> str:
        start = (
            f'{{"id":{rng.randrange(10**8)},"user":"{rng.choice(words)}",'
            f'"amount":{rng.randrange(10**5) / 100},"note":"'
        )
        # A word has three letters at least, and a space.
        note = " ".join(rng.choices(words, cum_weights=weights, k=size // 4 + 1))
        room = size - len(start) - len('"}')
        return f'{start}{note[:room]}"}}' if room >= 0 else note[:size].ljust(size)

    return one


def _word(rng: random.Random) -> str:
    syllables = (rng.choice(_CONSONANTS) + rng.choice(_VOWELS) for _ in range(rng.randint(1, 4)))
    return "".join(syllables) + rng.choice(_CONSONANTS)


_KINDS = {HEX: _hexadecimal, TEXT: _objects}
