"""Pronounceable, memorable run names: ``amber-otter-42``.

Names are random, so concurrent submits need no shared counter; the database enforces uniqueness within a
workspace. A name never looks like an id or a route.
"""

from __future__ import annotations

import random

# Words of one or two syllables that are hard to mishear; none of them judges a run.
ADJECTIVES = tuple(
    """
    amber ample autumn azure basil bold brave brisk bronze calm cedar cobalt copper coral crisp dapper
    dawn deep dusky eager early fern fleet floral fond frosty gentle gilded glad golden grand green
    hazel humble indigo ivory jade jolly keen kind lemon light lilac lively lucid lunar maple mellow
    merry misty modest mossy neat noble north oaken ochre olive opal pale pearl plain plum polar proud
    quick quiet rapid ready rosy ruby russet rustic sable sage sandy scarlet serene silver sleek smooth
    snowy solar spry steady still stony sunny swift tawny teal tidal topaz tranquil umber upbeat velvet
    vivid warm wavy wild winter wise witty
    """.split()  # noqa: SIM905 - a table of words is to be read
)
NOUNS = tuple(
    """
    acorn alder anchor arbor aspen badger bay beacon beaver birch bison bloom brook canyon cedar cliff
    cloud clover comet condor coral cove crane creek cricket daisy delta dolphin dove dune eagle egret
    ember falcon fern finch fjord forest fox gecko glacier grove gull harbor hare hawk hazel heron hill
    ibis inlet iris island ivy jaguar jay juniper kestrel kite koala lagoon lake lantern lark laurel
    lily lotus lynx magpie maple marten meadow meteor moose moth oak ocean orchid oriole osprey otter
    owl panda pebble pelican pine planet plover poppy puffin quail quartz raven reef ridge river robin
    rowan seal shore sparrow spruce star stoat stone stork stream swan thistle thrush tiger toucan trail
    trout tulip turtle valley vole walrus willow wombat wren zebra
    """.split()  # noqa: SIM905 - a table of words is to be read
)

_DRAWS_PER_RANGE = 8


def draw_name(draws: random.Random, *, tries: int = 0) -> str:
    """Return a name that may be taken already."""
    highest = 99 * 10 ** (2 * (tries // _DRAWS_PER_RANGE))
    return f"{draws.choice(ADJECTIVES)}-{draws.choice(NOUNS)}-{draws.randint(2, highest)}"
